// SPDX-License-Identifier: Apache-2.0

package shuffle

import (
	"context"
	"errors"
	"net/netip"
	"os"

	"github.com/quernmr/quern/shuffle/wire"
)

// Ends is the state of one host's ends of broadcasts. With a kernel's help it is
// mapped, and programs read and write it too. Without, it is the process's own.
type Ends struct {
	Regions []wire.Region // members' ends
	Casts   []wire.Cast   // sources' ends
}

// Content is memory for what is broadcast, at a source or at a member.
type Content struct {
	ID    uint32 // names it to programs
	Mark  uint32 // index of the first of Marks to programs
	Data  []byte // a multiple of wire.ChunkSize, mapped; zeros at first
	Marks []uint64
	// Open returns a descriptor by which this and other processes can map Data to
	// read it (shared, and no other way), from offset 0 on, as long as they like. What is not all
	// stored yet, or is a source's, is copied as it is. The caller closes it.
	Open func() (*os.File, error)
}

// Broadcasts is a kernel's help with broadcasts at one host. Package bpf implements it.
type Broadcasts interface {
	Kernel
	// Ends returns the shared memory. It is unmapped by Close.
	Ends() *Ends
	// NewContent makes room for that many chunks, some 15 ms and 8 ms per 32 MiB. It returns
	// an error that wraps ErrBusy if all that may be used is in use.
	NewContent(chunks int) (*Content, error)
	// FreeContent frees it. No region and no cast has named it since the last Quiesce.
	// Data and Marks must not be touched any more; what others have mapped lives on.
	FreeContent(c *Content) error
	// SetToken has programs find the region in a slot by a token. ClearToken takes that back.
	SetToken(token uint64, slot int) error
	ClearToken(token uint64) error
	// Hop says how programs send to a host from this one's port. An error that wraps
	// ErrNotNow says that the system has to find the way first, which it does for what a socket
	// sends there; any other, that programs can't. It asks the system every time.
	Hop(to netip.AddrPort) (wire.Hop, error)
	// OnEvent has f called, by one goroutine, for every message that programs have
	// stored whole. It is called once, before the first region is opened.
	OnEvent(f func(wire.Event)) error
	// Clones says whether a chunk for ChainAll that a socket sends out at the
	// interface is cloned to the heads of its cast.
	Clones() bool
	// Pumps says whether programs can send by themselves: answers leave by them.
	Pumps() bool
}

// RegionSpec opens a member's end of a broadcast.
type RegionSpec struct {
	Job    JobID
	Secret [16]byte       // for wire.NewTags
	Mode   Mode           // UserOnly has programs store nothing of it
	Token  uint64         // random, of the source; never 0
	Source netip.AddrPort // where answers go
	Chunks int            // that the source may send under this token, in all its messages
	Chain  uint16
	Bit    uint8
	// Next is who gets what this member has: the next of its chain, or not valid: the
	// source gets the answer.
	Next netip.AddrPort

	// Eager has the member's user space woken as soon as a message is there. Else
	// it looks when it is asked to confirm, and now and then.
	Eager bool

	// What it is, for the member's owner.
	Name   string // such as a digest
	Kind   string // says what is to be done with it
	Offset int64  // of this broadcast's bytes in the whole, which may come in several
	Size   int64  // of the whole; -1: messages without an end
}

// RegionGrant is the answer to a RegionSpec.
type RegionGrant struct {
	Have   bool // nothing was opened: the member has it already, or gets it from elsewhere
	Kernel bool // programs store and send on here
}

// Gap is a run of chunks that a member has not.
type Gap struct{ Place, Count uint32 }

// BroadcastControl is what a source asks of a member beside the chunks. A member implements
// it; a cluster carries it over its control plane. Errors of a token that is not open here (any more) wrap
// ErrUnknown, those for want of room ErrBusy, those that will never do ErrRefused.
type BroadcastControl interface {
	// BroadcastEndpoint says where chunks go.
	BroadcastEndpoint(ctx context.Context) (Endpoint, error)
	// OpenRegion reserves room. Opening what is open by the same spec is fine.
	OpenRegion(ctx context.Context, spec RegionSpec) (RegionGrant, error)
	// Relink changes who gets what this member has; see RegionSpec.Next.
	Relink(ctx context.Context, token uint64, next netip.AddrPort) error
	// Missing lists what is not there of total chunks from first on, at most some thousand gaps,
	// in order of their places and without overlap.
	Missing(ctx context.Context, token uint64, first, total uint32) ([]Gap, error)
	// ConfirmMessage returns once the member's user space has checked the message that
	// begins at first, and its owner has taken it. An error that wraps ErrDigest says that it is
	// not what was sent.
	ConfirmMessage(ctx context.Context, token uint64, first uint32) error
	// CloseRegion ends it. whole says that the source has sent all that it had.
	CloseRegion(ctx context.Context, token uint64, whole bool) error
}

// ErrDigest is returned for a message whose chunks were all genuine and which is wrong nevertheless.
var ErrDigest = errors.New("the digest of what came is not that of what was sent")
