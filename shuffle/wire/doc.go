// SPDX-License-Identifier: Apache-2.0

// Package wire is the format of the frames that pairs travel in, and of the
// memory that programs in the kernel share with user space. docs/protocol.md
// describes it; bpf/c/quern.h says the same to the programs.
package wire
