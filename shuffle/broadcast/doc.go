// SPDX-License-Identifier: Apache-2.0

// Package broadcast gives what one host has to many: a [Node] is a host's end, as a
// source and as a member. It sends, stores and relays chunks itself, or has a
// kernel's programs do that; the frames are the same, and groups may be mixed.
//
// # Who may touch what
//
// A region is found by its token in a map that is replaced as a whole, and a chunk is claimed by its mark, so whoever calls
// Handle takes no lock. A region's goroutine alone checks messages, calls the sink and takes the region apart: no frame
// finds it any more, programs forget its token, whoever is in it leaves, the sink hears of the end, and once
// no program runs that saw it, slot, keys and memory are free. What is retained keeps its memory, and its part of the budget.
//
// A group belongs to who holds its lock. Who sends does all by itself: it sends the first window, sleeps at the
// group's socket, and at each wake-up looks at the marks, since counts only say when to look. Members are asked by
// goroutines of their own, which do nothing but wake it with the answer.
//
// # Who is woken
//
// As few as can be: to wake a process takes longer than a chunk. Programs tell a source nothing but the answer that it sleeps for,
// and a member nothing at all unless its region is eager: it looks when it is asked to confirm a message, and now and then.
//
// # Who ends a message
//
// The members: a chunk of a chain is done when its answer came, or when all of the chain's members have said that they have it.
// Nothing that comes by packet does more than that, and only a member that has confirmed has a message.
package broadcast
