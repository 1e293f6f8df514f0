// SPDX-License-Identifier: Apache-2.0

package shuffle

import (
	"context"
	"net/netip"

	"github.com/quernmr/quern/shuffle/wire"
)

// Reduces is a kernel's help with all-reduces at one host: programs add up the parts that come for
// blocks that this host reduces, send the result on its way when a block is complete, and store and send on
// the results of others. Package bpf implements it.
type Reduces interface {
	Broadcasts // contents, tokens and ways are the same
	// Groups returns the members' ends, mapped. They are unmapped by Close.
	Groups() []wire.Group
	// OnRound has f called, by one goroutine, for every result that brought a group's Stored to its Wake.
	// It is called once, before the first group is opened. Event.Slot is the group's.
	OnRound(f func(wire.Event)) error
}

// GroupSpec opens a member's end of a group.
type GroupSpec struct {
	Job    JobID
	Secret [16]byte // for wire.NewTags
	Mode   Mode     // UserOnly has programs do nothing of it
	Token  uint64   // random, of who forms the group; never 0. The same for all members
	Name   string   // for people
	Rank   int      // of this member
	// Members are where the frames of each member go, by rank: at most wire.MaxMembers.
	Members []GroupMember
	Bits    int // log2 of the blocks of a reducer that there is room for, 2 to 12: twice the window
	// Streams says which calls go over streams, if all members take them. The same for all members: they go by it in the same calls.
	Streams StreamUse
}

// GroupMember is a member as the others know it.
type GroupMember struct {
	Name    string // for errors
	Address netip.AddrPort
	Stream  int // TCP port at the same host that takes streams; 0: none
}

// StreamUse says which calls of a group go over streams (TCP) instead of frames.
type StreamUse uint8

// The uses of streams.
const (
	StreamsBySize StreamUse = iota // those of vectors so large that streams are faster
	StreamsNever
	StreamsAlways
)

func (u StreamUse) String() string {
	switch u {
	case StreamsNever:
		return "never"
	case StreamsAlways:
		return "always"
	}
	return "by size"
}

// GroupGrant is the answer to a GroupSpec.
type GroupGrant struct {
	Kernel bool // programs serve it here
}

// GroupStatus is how a member's end of a group stands.
type GroupStatus struct {
	Calls   uint64 // that were begun here
	Waiting bool   // one is under way
	Broken  string // "": it is not
	Results uint32 // that have come here, in all calls, as frames or pieces of streams; wraps
}

// ReduceControl is what is asked of a member of a group beside the frames. A member implements it; a
// cluster carries it over its control plane. Errors of a token that is not open here (any more) wrap
// ErrUnknown, those for want of room ErrBusy, those that will never do ErrRefused.
type ReduceControl interface {
	// ReduceEndpoint says where frames go.
	ReduceEndpoint(ctx context.Context) (Endpoint, error)
	// OpenGroup makes room. Opening what is open by the same spec is fine.
	OpenGroup(ctx context.Context, spec GroupSpec) (GroupGrant, error)
	// GroupStatus says how it stands.
	GroupStatus(ctx context.Context, token uint64) (GroupStatus, error)
	// BreakGroup has all calls at this member fail, now and later, for that reason.
	BreakGroup(ctx context.Context, token uint64, reason string) error
	// CloseGroup forgets it.
	CloseGroup(ctx context.Context, token uint64) error
}
