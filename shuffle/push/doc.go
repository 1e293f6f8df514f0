// SPDX-License-Identifier: Apache-2.0

// Package push sends committed map outputs to the hosts that fold them.
//
// A [Sender] serves one host. [Sender.Push] opens an output's segments as
// streams over the control plane, ahead of the frames; one goroutine per
// destination sends the frames of all pushes to it, under one window, and
// hears of those that arrived from acknowledgements: either a program in the
// kernel has taken them into mapped memory, or this package reads them from its
// sockets into the same memory. Acknowledgements are hints; only the
// receiver's status over the control plane ends a stream.
package push
