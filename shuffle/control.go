// SPDX-License-Identifier: Apache-2.0

package shuffle

import (
	"context"
	"errors"
	"fmt"

	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/wire"
)

// Port is the UDP port that frames go to where nothing else is said.
const Port = 7117

// JobID names a job in all of a cluster.
type JobID [16]byte

func (j JobID) String() string { return fmt.Sprintf("%x", j[:]) }

// JobSpec is what both ends of a job's streams agree on. It does not change
// while the job lives: frames of a map output must be the same whoever cuts them.
type JobSpec struct {
	ID     JobID
	Secret [16]byte   // for wire.NewTags; travels over the control plane alone
	Seed   pairs.Seed // of the hash that orders pairs and finds their slots
	Ops    []fold.Op  // one per lane
	// Bound says per lane that the sum of all absolute values is known to be below
	// 2^63, so that no carry can come. nil: of no lane.
	Bound []bool
	// Mode UserOnly has programs fold nothing of this job.
	Mode Mode
}

// WireOps returns the operations as streams name them, for jobs of at most
// wire.MaxLanes lanes.
func (j *JobSpec) WireOps() (ops uint16) {
	for i, op := range j.Ops {
		o := uint16(op)
		if op == fold.Sum && i < len(j.Bound) && j.Bound[i] {
			o = wire.OpSumBound
		}
		ops |= o << (4 * i)
	}
	return ops
}

// TargetID names what is folded together: a partition of a job. A generation
// that is begun anew (since a map output changed) counts one up.
type TargetID struct {
	Job        JobID
	Partition  uint32
	Generation uint32
}

func (t TargetID) String() string {
	return fmt.Sprintf("job %s, partition %d, generation %d", t.Job, t.Partition, t.Generation)
}

// TargetSpec opens a target.
type TargetSpec struct {
	ID TargetID
	// Keys estimates the distinct keys per class, the last one keys that are
	// longer than wire.MaxKey. First sizes of tables come from it. 0: not known.
	Keys [wire.Classes + 1]uint64
	// Dense, if not 0, makes the target a vector of that many values.
	Dense uint64
}

// StreamID names a stream: a segment of one map task's output for a partition.
type StreamID struct {
	Target  TargetID
	Map     uint32 // number of the map task
	Segment uint32
}

func (s StreamID) String() string {
	return fmt.Sprintf("%s, map task %d, segment %d", s.Target, s.Map, s.Segment)
}

// StreamSpec opens a stream.
type StreamSpec struct {
	ID     StreamID
	Frames int      // at most wire.Segment
	Pairs  uint64   // in all of its frames
	Check  []uint64 // per sum lane the sum of value x hash(key), mod 2^64; see commit.Manifest
	Digest uint64   // of all its frames' bodies
}

// Grant is the answer to a StreamSpec.
type Grant struct {
	Slot  uint32
	Token uint64
	Share int // frames in flight that the receiver suggests to begin with
	// Claimed has a bit per frame that needs not be sent; nil if there is none.
	Claimed []uint32
	// Done says that the stream was completed before: nothing is to be sent.
	Done bool
}

// StreamStatus says how far a stream is.
type StreamStatus struct {
	Complete bool     // all frames are folded, and will not be asked for again in this generation
	Claimed  []uint32 // a bit per frame
}

// Endpoint says where a receiver takes frames.
type Endpoint struct {
	Port   int  // UDP
	Kernel bool // programs fold and answer there
	// Generic says that programs see packets as the socket would, segmentation
	// offload included: frames must come one by one.
	Generic bool
	Frame   int // bytes of the largest frame that gets through, head included
	Window  int // frames in flight that the path holds; 0: not known
	// Stream is the TCP port that takes streams of all-reduces; 0: none.
	Stream int
}

// ErrReset is returned for streams of a target that has begun anew, in another
// generation or in a receiver that was restarted: its streams are to be opened again.
var ErrReset = errors.New("the target was reset; open its streams again")

// ErrUnknown is returned for jobs, targets and streams that are not open here.
var ErrUnknown = errors.New("not open here")

// ErrRefused is returned for what the receiver will never take: asking again, for the
// same in the same generation, is in vain.
var ErrRefused = errors.New("refused for good")

// ErrBusy is returned where there is no room now and may be later, when others have
// ended.
var ErrBusy = errors.New("no room now; try again later")

// Control is what a sender asks of a receiver beside the frames. A receiver
// implements it; a cluster carries it over its control plane.
type Control interface {
	// Endpoint says where frames go.
	Endpoint(ctx context.Context) (Endpoint, error)
	// OpenJob makes a job known. Opening it again is fine.
	OpenJob(ctx context.Context, job JobSpec) error
	// OpenTarget makes a target known. Opening it again is fine; a higher
	// generation resets it.
	OpenTarget(ctx context.Context, target TargetSpec) error
	// Open opens streams, in one wait for all. A stream that is open gets its
	// present grant. It may wait until others have closed.
	Open(ctx context.Context, streams []StreamSpec) ([]Grant, error)
	// Status tells how far streams are; only its answer ends one.
	Status(ctx context.Context, streams []StreamID) ([]StreamStatus, error)
	// Deliver takes frames of a stream over this connection instead of UDP: those
	// too large for a packet, and all if no packet gets through.
	Deliver(ctx context.Context, stream StreamID, frames [][]byte) error
	// Confirm frees the slots of streams that the sender knows to be complete.
	Confirm(ctx context.Context, streams []StreamID) error
}

// Mode chooses who folds.
type Mode uint8

// The modes.
const (
	Auto       Mode = iota // the kernel where it can, else user space
	KernelOnly             // the kernel, or an error that says what is missing
	UserOnly               // user space
)

func (m Mode) String() string {
	switch m {
	case KernelOnly:
		return "kernel"
	case UserOnly:
		return "user"
	}
	return "auto"
}

// ParseMode reads a mode's name: auto, kernel or user.
func ParseMode(s string) (Mode, error) {
	for m := Auto; m <= UserOnly; m++ {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("%q is no shuffle mode (auto, kernel, user)", s)
}
