// SPDX-License-Identifier: Apache-2.0

// Command testkernels runs the tests of packages under other kernels, in
// emulated machines; see package vmtest:
//
//	go run ./internal/cmd/testkernels [--run REGEXP] [--skip REGEXP] [--expected FILE] --kernel DIR ... PACKAGE ...
//
// DIR is a kernel package unpacked. The tests are compiled without cgo and run
// with -test.short unless the environment variable QUERN_LONG is set. It prints what failed, what was skipped and why, and how many
// instructions the verifier went through for each program on each kernel.
// Logs stay under --logs.
package main
