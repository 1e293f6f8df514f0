// SPDX-License-Identifier: Apache-2.0

package wire

// Magic starts every frame: "QRN1".
const Magic = 0x314e5251

// Version is that of the format.
const Version = 1

// Sizes and limits, in bytes where nothing else is said.
const (
	HeadSize    = 64
	TaggedHead  = 32   // the first bytes of a head are under the tag
	BodySize    = 1376 // the largest body
	BodyStep    = 32   // bodies are padded with zeros to a multiple of it
	MinBody     = 64   // the smallest body of a data frame, so that an answer never grows the packet
	FrameSize   = HeadSize + BodySize
	Segment     = 4096 // most frames of a stream
	SeenWords   = Segment / 32
	AckedWords  = Segment / 64
	AckWords    = 8
	AckBefore   = 6 // words of an answer's window before the one with the frame answered
	NHWords     = (TaggedHead + BodySize) / 8
	MaxLanes    = 4  // of keyed frames
	Classes     = 4  // of keys: 8, 16, 32, 64 bytes
	MaxKey      = 64 // longest key of a keyed frame
	HashBits    = 25 // of a key's hash that travel
	Probes      = 8  // slots that are looked at for a key
	MaxBits     = 21 // log2 of the slots of the largest table
	TableHead   = 64
	AckSize     = 64 // body of an acknowledgement
	FlagWantAck = 1  // the receiver shall answer this frame
	FlagFold    = 1  // of a stream: the kernel may fold it
)

// Kind says what a frame is.
type Kind uint8

// The kinds of frames.
const (
	Data         Kind = iota + 1 // pairs
	Ack                          // a window of the bitmap of frames seen
	Probe                        // is the kernel's path open both ways?
	ProbeReply                   // a probe, turned around
	Broadcast                    // a chunk of a broadcast
	BroadcastAck                 // the last chunk of a chain, turned around
	Answer                       // never on the wire: the kernel asks user space to send this acknowledgement
)

// Head is the start of every frame, behind the UDP header. Its first
// [TaggedHead] bytes are under the tag; all is little-endian.
type Head struct {
	Magic   uint32
	Kind    Kind
	Shape   Shape
	Count   uint8 // pairs of a keyed or long frame, else 0
	Version uint8
	Token   uint64 // of the stream; never 0
	Stream  uint32 // slot at the receiver
	Seq     uint32 // number of the frame within the stream
	Back    uint32 // slot at the sender, echoed by acknowledgements
	Length  uint16 // bytes of body, padding included
	Zero    uint16
	Tag     uint64
	Stamp   uint64 // sender's clock in ns, echoed; not under the tag, never trusted
	Flags   uint8  // not under the tag
	Hop     uint8
	Zero2   uint16
	// Scratch of the receiving kernel, not under the tag.
	SCell  uint32
	STable uint32 // top byte: pairs that pass one has done, 0 before and behind it
	SOps   uint16
	SShift uint8
	SSet   uint8
}

// AckBody is the body of an acknowledgement.
type AckBody struct {
	Nonce   uint64 // of this answer; no two of a stream are the same
	Stamp   uint64 // of the frame answered, as it came
	Share   uint32 // frames in flight that the receiver suggests; 0: no opinion
	Base    uint16 // Claimed[0] is about frames 32 x Base and on
	From    uint8  // 1 kernel, 2 user space
	Zero    uint8
	Claimed [AckWords]uint32
	Zero2   [2]uint32
}

// Who answered.
const (
	FromKernel = 1
	FromUser   = 2
)

// Job holds the keys of a job's tags as the programs want them.
type Job struct {
	Sip0, Sip1 uint64
	NH         [NHWords]uint64
}

// Stream is one slot of a receiver's streams. User space writes all but Seen,
// which programs and user space share.
type Stream struct {
	Token      uint64 // 0: closed
	Job        uint32
	Target     uint32
	Frames     uint32
	Ops        uint16 // four bits a lane, lane 0 lowest
	Lanes      uint8  // 0: dense
	Flags      uint8
	Generation uint32
	Share      uint32
	ID         [4]uint64 // who this is, for a restarted process
	Spare      [8]uint64
	// Seen has one word for 32 frames: the low half claimed, the high half
	// claimed by user space.
	Seen [SeenWords]uint64
}

// Target is what is folded here: a partition of a job. User space alone reads
// and writes it, so that a restarted process finds it again.
type Target struct {
	Job        [2]uint64
	Partition  uint32
	Generation uint32
	State      uint32 // 0 free, 1 open
	Dirty      uint32 // 1 before user space first claims a frame or drains a table
	JobSlot    uint32
	Lanes      uint32
	Spare      [3]uint64
}

// Cell says where a CPU folds a target's pairs to; index target x CPUs + CPU.
type Cell struct {
	Table [Classes]uint32 // 0 none, else a [TableID] + 1; a dense table is the first
	Shift [Classes]uint8  // hash bits to drop at the top
	// The rest is written by programs.
	Torn    uint32 // 1 after a frame was claimed and not wholly applied
	Want    uint32 // bit per key class: frames came and there was no table
	Zero    uint32
	Pairs   uint64 // applied here since the target was opened
	Frames  uint64
	Full    uint64 // frames passed up because a key found no place
	Missing uint64 // frames passed up because there was no table
	Spare   [8]uint64
}

// Table is the head of a table. Slots follow it.
type Table struct {
	Used  uint64 // slots taken
	Pairs uint64 // applied to this table
	Spare [6]uint64
}

// Outgoing is one slot of a sender's streams. Token, Job, Frames and Wake are
// user space's; the rest is the absorbing program's.
type Outgoing struct {
	Token   uint64
	Job     uint32
	Frames  uint32
	Wake    uint64 // the answer that brings Count to this or more goes up to the socket
	Count   uint64 // frames acknowledged so far
	Stamp   uint64 // echoed by the answer that came last
	Arrived uint64 // CLOCK_MONOTONIC ns when it came
	Share   uint32
	Answers uint32
	From    uint32 // of the newest answer
	Zero    uint32
	Spare   [8]uint64
	Acked   [AckedWords]uint64
}

// Operations of lanes as streams name them.
const (
	OpSum      = 0 // wraps; carries are counted in the slot
	OpMin      = 1
	OpMax      = 2
	OpAnd      = 3
	OpOr       = 4
	OpXor      = 5
	OpSumBound = 6 // a sum that is known to fit 63 bits
)

// AnswerMode is how acknowledgements leave a receiver.
type AnswerMode uint8

// The ways of answers.
const (
	AnswerTX   AnswerMode = iota // XDP_TX
	AnswerTC                     // passed on to our tc program, which redirects it out
	AnswerUser                   // passed up as [Answer]
)

// Settings are what programs are told: config[0].
type Settings struct {
	Port   [2]byte // network byte order; the receiver's end of every stream
	Answer AnswerMode
	Zero   uint8
	Zero2  uint32
	Spare  [7]uint64
}

// Reason says why a program ended, or what it noted on its way.
type Reason uint32

// The reasons, in the order of enum quern_reason.
const (
	Foreign      Reason = iota // not ours: passed
	Malformed                  // lengths or fields do not fit: dropped
	BadToken                   // no stream with that token: dropped
	BadSeq                     // number beyond the stream: dropped
	BadTag                     // tag does not match: dropped
	Duplicate                  // claimed before: dropped, or answered
	UpShape                    // a shape or stream that the kernel does not fold: up
	UpTable                    // no table on this CPU: up
	UpFull                     // a key found no place: up
	UpChain                    // a tail call failed before the claim: up
	Folded                     // folded
	LostClaim                  // user space claimed it between the passes: dropped, or answered
	Torn                       // claimed and not wholly applied
	Answered                   // acknowledgement made
	AnswerUp                   // acknowledgement left to user space
	AnswerFailed               // packet could not be shrunk: dropped
	Probed                     // probe turned around
	Absorbed                   // acknowledgement taken in
	AbsorbedUp                 // the same, and passed up to wake the sender
	AckStray                   // acknowledgement for no open slot: dropped
	AckTag                     // acknowledgement with a wrong tag: dropped
	Reasons                    // how many there are
)
