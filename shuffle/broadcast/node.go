// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/quernmr/quern/shuffle"
)

// Options say what a node works with. Send must be set for a node that is a member.
type Options struct {
	// Kernel is this host's help; nil: none. Jobs hands out the kernel's slots for keys,
	// and is shared with the host's receiver and sender; nil: the node makes its own.
	Kernel shuffle.Broadcasts
	Jobs   *shuffle.JobSlots
	Mode   shuffle.Mode
	// Port is the UDP port that frames for this host go to.
	Port int
	// Send sends a frame from Port. receive.Receiver has it.
	Send func(frame []byte, to netip.AddrPort) error
	// Memory is how many bytes all regions and casts together may take. 0: an eighth of the
	// machine's memory. PerJob is the same for those of one job. 0: half of Memory.
	Memory, PerJob int64
	// Incoming is asked what to do with what a source offers. nil: everything is refused.
	Incoming func(Offer) (Sink, error)
	// Idle is how long a source may say nothing of a region that is not whole. 0: 60 s.
	Idle time.Duration
	// Patience is how long a source waits for a member that makes no progress, or does
	// not answer a question, until it goes on without it. 0: 10 s.
	Patience time.Duration
	Log      *slog.Logger // nil: nothing is logged
}

// Offer is what a source wants to give.
type Offer struct {
	Job    shuffle.JobID
	Name   string
	Kind   string
	Offset int64 // of this region's bytes in the whole
	Size   int64 // of the whole; -1: messages without an end
	Kernel bool  // programs store it
}

// ErrHave is returned by Options.Incoming for what the member has, or gets from elsewhere.
var ErrHave = errors.New("it is here already")

// Sink takes the messages of a region. Its calls come one after the other.
type Sink interface {
	// Message takes a message whose digest was checked. An error ends the region.
	Message(m *Message) error
	// End is the last call: nil if the source has said that this was all.
	End(err error)
}

// Message is a message as it lies in a region. It may be used as long as the
// region is open, or while it is retained.
type Message struct{ message }

// Bytes is the payload. It must not be written.
func (m *Message) Bytes() []byte { return m.bytes() }

// Retain keeps the region's memory beyond the region's life.
func (m *Message) Retain() (*Mapping, error) { return m.retain() }

// Mapping is a message's payload in memory that processes can map.
type Mapping struct {
	File   *os.File // to be mapped from offset 0 on, to be read
	Offset int64    // of the payload
	Size   int64
	mapping
}

// Close gives the memory back to the budget, and closes File.
func (m *Mapping) Close() error { return m.close() }

// Member is a member as a source knows it.
type Member struct {
	Name    string         // for errors
	Address netip.AddrPort // where its frames go: host and BroadcastEndpoint's port; port 0: it is asked
	Control shuffle.BroadcastControl
}

// GroupSpec opens a group.
type GroupSpec struct {
	Job     shuffle.JobID
	Secret  [16]byte
	Mode    shuffle.Mode
	Name    string
	Kind    string
	Members []Member
	Chunks  int   // that all messages together may take; see ChunksOf
	Offset  int64 // see shuffle.RegionSpec
	Size    int64
	// Chains is how many chains members make. 0: it is chosen by their number and by how much is sent: all
	// that Chunks are for, or messages of Usual bytes if Size is -1 (0: small ones).
	Chains int
	Usual  int64
	Window int // chunks in flight per chain; 0: chosen
	// Eager has members' processes woken by each message. That costs every member more time than a
	// small message does, and the next message waits for it. Else they look when a message is to be confirmed, or
	// the group is closed, and by themselves within 5 ms of a message, 100 ms where none has come for a while.
	Eager bool

	hasty bool // who has no room is not asked again
}

// ChunksOf returns how many chunks a message of that many bytes takes.
func ChunksOf(size int64) int { return chunksOf(size) }

// MemberReport says how a member fared.
type MemberReport struct {
	Name   string
	Have   bool  // it had it, or gets it from elsewhere
	Kernel bool  // its programs stored it
	Err    error // nil: it has confirmed; else it was left out, for that
}

// Report says how a message, or a whole, went.
type Report struct {
	Members []MemberReport
	Chunks  int
	Chains  int
	Sent    int64         // bytes of frames that left this host for it, clones and repetitions included
	Pumped  int64         // chunks that programs sent
	Again   int64         // chunks sent again, to single members
	Woken   int           // times that an answer woke this process
	Timers  int           // times that it looked because nothing had come for a while
	Kernel  bool          // this host's programs cloned or sent
	Stored  time.Duration // until all had stored it, as far as answers told
	Elapsed time.Duration // until all had confirmed it

	part sent // that it is of
	from time.Time
}

// SpreadSpec gives a whole of any size to members.
type SpreadSpec struct {
	Job     shuffle.JobID
	Secret  [16]byte
	Mode    shuffle.Mode
	Name    string
	Kind    string
	Members []Member
	Source  io.ReaderAt
	Size    int64
	Window  int64 // most bytes of a region; 0: 256 MiB, or what the budgets allow
	Chains  int
}
