// SPDX-License-Identifier: Apache-2.0

// Package benchdata makes the inputs that benchmarks run on. The same arguments
// make the same bytes, on every system and with every version of Go.
package benchdata
