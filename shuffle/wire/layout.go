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
	BroadcastAck                 // a chunk that the last member of a chain has, without its data, to the source
	Answer                       // never on the wire: the kernel asks user space to send this acknowledgement
	Reduce                       // all-reduce: what one member has of a block, to the member that reduces it
	Reduced                      // all-reduce: a block's result, from member to member
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
	Stream  uint32 // slot at the receiver; 0 in chunks, which are found by their token
	Seq     uint32 // number of the frame within the stream; of a chunk: of its transmission
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

// Chunk is the start of the body of a chunk of a broadcast, and of its answer.
// Data follows, ChunkSize bytes but for the last of a message, then zeros up to
// a multiple of BodyStep.
type Chunk struct {
	Place uint32 // of the chunk in the region, from 0
	First uint32 // place of its message's first chunk
	Total uint32 // chunks of the message
	Bytes uint16 // of data; 0 in an answer
	Chain uint16 // number below MaxChains, ChainDirect or ChainAll
	Group uint64 // a bit for each member of the chain that has it
	Zero  uint64
}

// Hop says how packets get to a host: what is put into their headers, addresses
// and ports in network byte order. User space writes it.
type Hop struct {
	MACTo, MACFrom   [6]byte
	Interface        uint32 // 0: programs can't send there, user space does
	PortTo, PortFrom [2]byte
	V6               uint8
	Tail             uint8 // of a region: this is the source, and gets the answer
	Zero             uint16
	To, From         [16]byte // an IPv4 address is the first four bytes
	Spare            uint64
}

// Region is a member's end of a broadcast. User space writes all but the counts.
type Region struct {
	Token   uint64 // 0: closed
	Job     uint32
	Content uint32 // index of the map that chunks are stored in
	Marks   uint32 // index of its first chunk's mark
	Chunks  uint32 // that it has room for
	Chain   uint16 // that this member is of
	Bit     uint8  // of this member in its chain's group
	Flags   uint8
	Hop     uint32 // which of Hops is in use
	Stored  uint64 // chunks stored here by programs
	Passed  uint64 // chunks sent on by programs, and answers made
	Spare   [2]uint64
	Hops    [2]Hop // the next member, or the source behind the last one
}

// States of a chunk at a member.
const (
	MarkNone    = 0
	MarkWriting = 1 // somebody copies it; set back if that fails
	MarkStored  = 2 // never written again under this token
)

// FlagQuiet of a region has programs not tell user space of messages: a wake-up
// costs more than a chunk does, and it looks at the marks when somebody asks.
const FlagQuiet = 1

// FlagPump of a cast has programs send the next chunk when an answer comes.
const FlagPump = 1

// Cast is a source's end of a broadcast. User space opens it and begins messages;
// programs count answers and send what is next.
type Cast struct {
	Token         uint64 // 0: closed
	Job           uint32
	Content       uint32 // index of the map that holds what is sent; zeros behind the last byte of a message
	Marks         uint32 // index of its first chunk's mark
	Chunks        uint32 // that it has room for
	Chains        uint32
	Flags         uint32
	First         uint32 // the message under way: place of its first chunk
	Total         uint32 // its chunks; 0: none is under way
	Bytes         uint32 // of data in its last chunk
	Transmissions uint32 // counted up atomically for each chunk that leaves, whose number is the count then
	Done          uint32 // (chunk, chain) that all members have, of the message; both sides count
	Wake          uint32 // the answer that brings Done to just this goes up to the socket
	Direct        uint32 // chunks that single members have answered
	DirectWake    uint32 // the same for those
	Answers       uint32 // that came, of all kinds
	Pumped        uint32 // chunks that programs sent
	Arrived       uint64 // CLOCK_MONOTONIC ns when the last one came
	Spare         [6]uint64
	Want          [MaxChains]uint64 // per chain: the bits of its members. User space writes it
	Next          [MaxChains]uint32 // per chain: the chunk that is sent next, First + Total or more: none; both count up
	Heads         [MaxChains]Hop    // per chain: its first member
}

// Event tells a member's user space that a message is stored whole, or that a group has as many results as it waits for.
type Event struct {
	Token uint64
	Slot  uint32
	First uint32 // of a group: its Stored, as it was then
}

// Part is the start of the body of both kinds of frames of an all-reduce; values follow. What
// a group, a block, a slot and a generation are stands in quern.h and docs/protocol.md.
type Part struct {
	What    uint32 // hash of the call's number, operation, width and length: all parts of a block have the same
	Bytes   uint16 // of values, a multiple of their width, not 0
	Op      uint8  // OpSum, which wraps, OpMin or OpMax
	Wide    uint8  // 1: values of 8 bytes, 0: of 4; signed
	Reducer uint8  // number of the member that reduces this block
	Member  uint8  // whose part it is; in a result 0
	Zero    uint16
	Zero2   uint32
	Zero3   [2]uint64
}

// Group is a member's end of a group. User space writes all but the counts.
type Group struct {
	Token       uint64 // 0: closed
	Job         uint32
	Sums        uint32 // content of what is added up here
	SumMarks    uint32 // index of its first mark
	Results     uint32 // content of the results of all reducers
	ResultMarks uint32 // index of its first mark
	Row         uint32 // elements, and marks, per slot of sums: RowCPU + CPUs + 1
	Bits        uint8  // log2 of the blocks of a reducer that there is room for
	Members     uint8
	Rank        uint8 // number of this member
	Flags       uint8
	Hop         uint32 // which of Hops is in use
	Stored      uint32 // results stored here, of all reducers, by both sides; wraps
	Wake        uint32 // programs tell of the result that brings Stored to just this
	Reduced     uint32 // blocks completed here by programs
	Passed      uint32 // results sent by programs
	Spare       [9]uint64
	Hops        [2]Hop // to the member behind this one, the first behind the last
}

// Limits of all-reduce.
const (
	MaxMembers = 32
	PartHead   = 32 // bytes before the values
)

// Marks of a slot of what a reducer adds up; see quern.h.
const (
	RowWhat    = 0 // low half: Part.What of the generation's first part
	RowClaimed = 1 // low half: members whose part was claimed
	RowApplied = 2 // low half: members whose part was added
	RowResult  = 3 // low half: MarkNone, MarkWriting or MarkStored
	RowCPU     = 4 // and on: generation of what a CPU has added up; user space's is the last
)

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
	Foreign       Reason = iota // not ours: passed
	Malformed                   // lengths or fields do not fit: dropped
	BadToken                    // no stream with that token: dropped
	BadSeq                      // number beyond the stream: dropped
	BadTag                      // tag does not match: dropped
	Duplicate                   // claimed before: dropped, or answered
	UpShape                     // a shape or stream that the kernel does not fold: up
	UpTable                     // no table on this CPU: up
	UpFull                      // a key found no place: up
	UpChain                     // a tail call failed before the claim: up
	Folded                      // folded
	LostClaim                   // user space claimed it between the passes: dropped, or answered
	Torn                        // claimed and not wholly applied
	Answered                    // acknowledgement made
	AnswerUp                    // acknowledgement left to user space
	AnswerFailed                // packet could not be shrunk: dropped
	Probed                      // probe turned around
	Absorbed                    // acknowledgement taken in
	AbsorbedUp                  // the same, and passed up to wake the sender
	AckStray                    // acknowledgement for no open slot, answer to no chunk under way: dropped
	AckTag                      // acknowledgement with a wrong tag: dropped
	UpRegion                    // chunk or answer of a broadcast that programs have no end of: up
	ChunkTag                    // chunk with a wrong tag: dropped
	ChunkPlace                  // chunk beyond the region, or of another chain: dropped
	ChunkBusy                   // chunk that another CPU is storing: dropped
	Stored                      // chunk stored; what became of it then is noted too
	StoredBefore                // chunk that was here already; the same
	PassedOn                    // chunk sent to the next member
	ChainAnswered               // chunk turned into an answer to the source
	UpHop                       // chunk that user space is to send on or to answer: up
	Collected                   // answer taken in by the source
	CollectedUp                 // the same, and passed up to wake it
	Pumped                      // answer made into the next chunk
	UpGroup                     // frame of an all-reduce that programs have no end of, or can't serve on this CPU: up
	PartTag                     // of an all-reduce, with a wrong tag: dropped
	PartStray                   // of an all-reduce, of an older generation, of no member, or not for this member: dropped
	PartDiffers                 // part of another call than the block's first one: up
	PartBefore                  // part that was claimed before, of a block that is not complete: dropped
	Added                       // part added; that it made its block whole is noted too
	BlockReduced                // block completed by the part that was added, and its result sent; that it can't be sent is noted too
	ResultAgain                 // part that was claimed before, turned into the block's result
	ResultStored                // result stored; sent on is noted too
	ResultBefore                // result that was here before, or is being stored: dropped
	ResultPassed                // result sent on to the next member
	Reasons                     // how many there are
)
