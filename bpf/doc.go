// SPDX-License-Identifier: Apache-2.0

// Package bpf lends a kernel's help to shuffle: it loads the programs of bpf/c,
// attaches them to a network interface, shares their memory, and leaves nothing
// behind. It also says what a machine lacks for that.
//
// [Open] returns a [Host], which implements shuffle.Kernel, and shuffle.Broadcasts and shuffle.Reduces unless
// [Host.Broadcasts] and [Host.Reduces] say why not. A Host with a directory pins its state in a bpffs of
// its own there, so that programs go on folding while the process is restarted, and
// the next process takes the state up; broadcasts and all-reduces begin anew. [Clean] removes what
// a process that is gone has left.
//
// On systems other than Linux everything builds, and says that it can't be done.
package bpf
