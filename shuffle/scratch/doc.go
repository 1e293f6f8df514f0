// SPDX-License-Identifier: Apache-2.0

// Package scratch makes temporary folders that do not outlast the process that
// uses them for long: whoever makes one removes those of processes that are gone.
package scratch
