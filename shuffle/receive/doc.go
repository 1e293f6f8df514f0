// SPDX-License-Identifier: Apache-2.0

// Package receive is the receiving end of a host's streams: it opens them,
// takes what frames the kernel leaves to user space, looks after the tables
// that programs fold into, and gives each target's keys once, in order, when all
// of its streams are folded. Without a kernel's help it is the whole path. What else
// comes to the port of frames, it hands on; and others may send from there.
//
// # Who may touch what
//
// A reader looks a frame's stream up without a lock, checks it, takes the lock
// of its target, claims the frame, folds it, and lets go. So nobody who holds
// a target's lock ever sees a frame of it that is claimed by user space and not
// folded; to join user space's folders is to take the lock once. To join the
// kernel's is to quiesce.
//
// A slot, a target or a table is used again only after its token was 0 (or no
// cell named it) for a whole [shuffle.Kernel] Quiesce and its target's lock was
// taken once.
package receive
