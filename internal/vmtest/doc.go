// SPDX-License-Identifier: Apache-2.0

// Package vmtest runs test binaries of Go packages under other kernels than the
// machine's own: it makes an initramfs of a small init, the binaries and a few
// kernel modules, boots it under qemu-system-x86_64 (emulated, no rights
// needed), and reads from the second serial port what the tests said.
//
// Tests see QUERN_VM=1 in their environment and run with -test.short
// unless they are to be long. A line
//
//	NAME COUNT verified
//
// in a test's log (t.Logf) tells how many instructions the verifier went through for the program
// NAME; they are gathered per kernel. Nothing in the machine outlives the run.
package vmtest
