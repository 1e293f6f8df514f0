/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * What the programs, the wire and user space share: frame layouts, the layouts
 * of all maps that user space maps into its memory, and the reasons a program
 * may end with. Everything is little-endian. shuffle/wire holds the same types
 * in Go; a test compares the two through BTF, so a change here that is not made
 * there fails. docs/protocol.md explains what the fields are for.
 */
#ifndef QUERN_H
#define QUERN_H

#define QUERN_MAGIC 0x314e5251u /* "QRN1" */
#define QUERN_VERSION 1

enum quern_kind {
	QUERN_DATA = 1,          /* pairs, from sender to receiver */
	QUERN_ACK = 2,           /* bitmap window, from receiver to sender */
	QUERN_PROBE = 3,         /* is the kernel's path open both ways? */
	QUERN_PROBE_REPLY = 4,   /* a probe, turned around */
	QUERN_BROADCAST = 5,     /* a chunk of a broadcast */
	QUERN_BROADCAST_ACK = 6, /* a chunk that the last member of a chain has, without its data, to the source */
	QUERN_ANSWER = 7,        /* never on the wire: kernel asks user space to send this acknowledgement */
	QUERN_REDUCE = 8,        /* all-reduce: what one member has of a block, to the member that reduces it */
	QUERN_REDUCED = 9,       /* all-reduce: a block's result, from member to member */
};

enum quern_flag {
	QUERN_WANT_ACK = 1, /* the receiver shall answer this frame */
};

/* Shapes. Keyed: bits 0-1 key class, bits 2-3 lanes - 1, bit 4 values of 8 bytes (else 4). */
#define QUERN_SHAPE_WIDE 0x10
#define QUERN_SHAPE_LONG 0x20  /* keys of any length, user space only */
#define QUERN_SHAPE_DENSE 0x40 /* vector: offset and values; bit 4 as above */
#define QUERN_KEYED_SHAPES 32

#define QUERN_SEGMENT 4096   /* most frames of a stream */
#define QUERN_HEAD 64        /* sizeof(struct quern_head) */
#define QUERN_TAGGED_HEAD 32 /* the first bytes of the head are under the tag */
#define QUERN_BODY 1376      /* largest body of a frame, a multiple of 32 */
#define QUERN_BODY_STEP 32   /* bodies are padded with zeros to a multiple of this */
#define QUERN_MIN_BODY 64    /* smallest body of a data frame, so that an answer never grows the packet */
#define QUERN_NH_WORDS ((QUERN_TAGGED_HEAD + QUERN_BODY) / 8)

/* Operations of a lane; a stream's ops holds four bits a lane, lane 0 lowest. */
enum quern_op {
	QUERN_SUM = 0, /* wraps; the carries are counted in the slot */
	QUERN_MIN = 1,
	QUERN_MAX = 2,
	QUERN_AND = 3,
	QUERN_OR = 4,
	QUERN_XOR = 5,
	QUERN_SUM_BOUND = 6, /* a sum that is known to fit 63 bits: nothing is counted */
};

/*
 * Head of every frame, behind the UDP header. Its first 32 bytes and the body are under the tag.
 * The nonce in the pad of a data frame's tag is back << 16 | seq: a stream that is taken over by
 * another sender has another back, so its frames are other messages.
 */
struct quern_head {
	__u32 magic;
	__u8 kind;
	__u8 shape;
	__u8 count;   /* pairs of a keyed or long frame, else 0 */
	__u8 version;
	__u64 token;  /* of the stream; never 0 */
	__u32 stream; /* slot at the receiver; 0 in chunks, which are found by their token */
	__u32 seq;    /* number of the frame within the stream; of a chunk: of its transmission */
	__u32 back;   /* slot at the sender, echoed by acknowledgements */
	__u16 length; /* bytes of body, padding included */
	__u16 zero;
	__u64 tag;
	__u64 stamp;  /* sender's clock, ns, echoed; not under the tag, never trusted */
	__u8 flags;   /* not under the tag */
	__u8 hop;     /* broadcast: under the tag by way of the pad */
	__u16 zero2;
	/*
	 * Scratch of the receiving kernel, set by the dispatcher whatever was sent; of a part by quern_reduce, if it hands it on: s_table
	 * is the group's slot, s_set 0 if the part has made its block whole, 1 if it came before and the result is there. Not under the tag.
	 */
	__u32 s_cell;  /* index of the cell (target x CPUs + CPU) */
	__u32 s_table; /* index in the set's map of tables; top byte: pairs that pass one has done, 0 before and behind it */
	__u16 s_ops;
	__u8 s_shift;
	__u8 s_set;
};

/*
 * A keyed pair on the wire: meta, then lanes x 4 or 8 bytes, then the key,
 * padded with zeros to its class (8, 16, 32, 64 bytes). No padding between.
 * meta = top 25 bits of the key's hash << 7 | key length + 1. Pass one replaces
 * the hash by the number of the slot; user space makes it anew from the key.
 *
 * A long pair: __u32 length of key, lanes x 8 bytes, key, zeros up to a multiple of 4.
 * A dense body: __u32 offset of the first value, __u32 number of values, values.
 */
#define QUERN_META_LEN_BITS 7
#define QUERN_META_LEN_MASK 0x7f
#define QUERN_HASH_BITS 25
#define QUERN_PROBES 8
#define QUERN_MAX_TABLE_BITS 21

/* Body of an acknowledgement. */
#define QUERN_ACK_WORDS 8
#define QUERN_ACK_BEFORE 6 /* base = seq / 32 - 6, not below 0 nor above 120 */
struct quern_ack {
	__u64 nonce;  /* of this answer: below 2^48: CPU << 36 | count of that CPU; user space is CPU 0xfff */
	__u64 stamp;  /* of the frame answered, as it came */
	__u32 share;  /* frames in flight that the receiver suggests; 0: no opinion */
	__u16 base;   /* claimed[0] is about frames 32 x base and on */
	__u8 from;    /* 1 kernel, 2 user space */
	__u8 zero;
	__u32 claimed[QUERN_ACK_WORDS];
	__u32 zero2[2];
};

/*
 * Start of the body of a chunk, and of its answer, which has no data. Data follows, QUERN_CHUNK bytes but for
 * the last of a message, then zeros. The pad of its tag is SipHash-2-4 of token, kind << 56 | hop << 48 | chain << 32 | seq,
 * and group: what a member changes is in the pad, so no two different messages share one.
 */
#define QUERN_CHUNK_HEAD 32
#define QUERN_CHUNK (QUERN_BODY - QUERN_CHUNK_HEAD)
#define QUERN_CHUNK_ANSWER 64     /* body of an answer: this and zeros */
#define QUERN_CHAINS 64           /* most chains of a broadcast, and most members of a chain */
#define QUERN_CHAIN_DIRECT 0xfffe /* this chunk is for one member, which answers it at once */
#define QUERN_CHAIN_ALL 0xffff    /* from the source to the head of every chain; a head puts its own chain's number here */
struct quern_chunk {
	__u32 place;  /* of the chunk in the region, from 0 */
	__u32 first;  /* place of its message's first chunk */
	__u32 total;  /* chunks of the message */
	__u16 bytes;  /* of data; 0 in an answer */
	__u16 chain;
	__u64 group;  /* a bit for each member of the chain that has it */
	__u64 zero;
};

/* jobs[i], written by user space alone, before any stream names it. */
struct quern_job {
	__u64 sip0, sip1;
	__u64 nh[QUERN_NH_WORDS];
};

#define QUERN_STREAM_FOLD 1 /* the kernel may fold this stream; else its frames go up */

/* streams[slot] at the receiver. User space writes all but seen; seen is shared. */
struct quern_stream {
	__u64 token; /* 0: closed */
	__u32 job;
	__u32 target;
	__u32 frames;
	__u16 ops;
	__u8 lanes;   /* 0: dense */
	__u8 flags;
	__u32 generation;
	__u32 share;
	__u64 id[4];  /* who this is, for a restarted process; not read by programs */
	__u64 spare[8];
	/* One word for 32 frames: low half claimed, high half claimed by user space. */
	__u64 seen[QUERN_SEGMENT / 32];
};

/* targets[i]: what is folded here. Written and read by user space alone; pinned for a restart. */
struct quern_target {
	__u64 job[2];
	__u32 partition;
	__u32 generation;
	__u32 state; /* 0 free, 1 open */
	__u32 dirty; /* 1 before user space first claims a frame or drains a table */
	__u32 job_slot;
	__u32 lanes;
	__u64 spare[3];
};

/* cells[target x CPUs + CPU]: where a CPU folds a target's pairs to. Tables by key class; a dense one is table[0]. */
struct quern_cell {
	__u32 table[4]; /* 0 none, else set << 24 | index in the set's map of tables, + 1. Written by user space. */
	__u8 shift[4];  /* hash bits to drop at the top. Written by user space. */
	__u32 torn;     /* the rest is written by programs: 1 after a frame was claimed and not wholly applied */
	__u32 want;     /* bit per key class: frames came and there was no table */
	__u32 zero;
	__u64 pairs;  /* applied here since the target was opened */
	__u64 frames; /* the same */
	__u64 full;   /* frames passed up because a key found no place */
	__u64 missing; /* frames passed up because there was no table */
	__u64 spare[8];
};

/* A table: this head, then (1 << bits) + QUERN_PROBES slots. One element of an array map. */
struct quern_table {
	__u64 used;  /* slots taken */
	__u64 pairs; /* applied to this table */
	__u64 spare[6];
};
/*
 * A slot: __u32 meta (0: free), __s32 mark (bit 0: a value was applied; bits 1 and on: carries of lane 0),
 * __s64 lanes (xor the operation's identity, so that zeroed memory holds identities),
 * __s32 carries of lanes 1 and on (an even number of them), key. A dense table holds __s64 values alone.
 */

/* outgoing[slot] at the sender. token, job, frames and wake are user space's; the rest the absorber's. */
struct quern_outgoing {
	__u64 token;
	__u32 job;
	__u32 frames;
	__u64 wake;    /* the answer that brings count to this or more goes up to the socket */
	__u64 count;   /* frames acknowledged so far */
	__u64 stamp;   /* echoed by the answer that came last */
	__u64 arrived; /* bpf_ktime_get_ns() when it came */
	__u32 share;
	__u32 answers;
	__u32 from;    /* of the newest answer */
	__u32 zero;
	__u64 spare[8];
	__u64 acked[QUERN_SEGMENT / 64];
};

/* How packets get to a host: what is put into their headers, in network byte order. Written by user space. */
struct quern_hop {
	__u8 mac_to[6], mac_from[6];
	__u32 interface; /* 0: programs can't send there, user space does */
	__u16 port_to, port_from;
	__u8 v6;
	__u8 tail;       /* of a region: this is the source, and gets the answer */
	__u16 zero;
	__u32 to[4], from[4]; /* an IPv4 address is [0] */
	__u64 spare;
};

/* User space is not told of messages: a wake-up costs more than a chunk does, and it looks at the marks when somebody asks. */
#define QUERN_REGION_QUIET 1

/*
 * regions[slot]: a member's end of a broadcast; "tokens" has the slot by the token. User space writes all but the counts,
 * and hops[1 - hop] while programs read the other.
 */
struct quern_region {
	__u64 token;   /* 0: closed */
	__u32 job;
	__u32 content; /* index in "contents" of the map that chunks are stored in */
	__u32 marks;   /* index in "marks" of its first chunk's */
	__u32 chunks;  /* that it has room for */
	__u16 chain;   /* that this member is of */
	__u8 bit;      /* of this member in its chain's group */
	__u8 flags;
	__u32 hop;     /* which of hops is in use */
	__u64 stored;  /* chunks stored here by programs */
	__u64 passed;  /* chunks sent on by programs, and answers made */
	__u64 spare[2];
	struct quern_hop hops[2]; /* the next member, or the source behind the last one */
};

/*
 * A mark is a __u64 of "marks". At a member its low half is the chunk's state, and its high half how many chunks of the
 * message that begins here are stored; both sides change them atomically. At a source it has a bit per chain whose
 * members all have the chunk.
 */
enum quern_mark_state {
	QUERN_MARK_NONE = 0,
	QUERN_MARK_WRITING = 1, /* somebody copies it; set back if that fails */
	QUERN_MARK_STORED = 2,  /* never written again under this token */
};

#define QUERN_CAST_PUMP 1 /* programs send the next chunk when an answer comes */

/* casts[slot]: a source's end of a broadcast. User space opens it and begins messages; programs count answers and send what is next. */
struct quern_cast {
	__u64 token;   /* 0: closed */
	__u32 job;
	__u32 content; /* index in "contents" of what is sent; zeros behind the last byte of a message */
	__u32 marks;   /* index in "marks" of its first chunk's */
	__u32 chunks;  /* that it has room for */
	__u32 chains;
	__u32 flags;
	__u32 first;   /* the message under way: place of its first chunk */
	__u32 total;   /* its chunks; 0: none is under way */
	__u32 bytes;   /* of data in its last chunk */
	__u32 transmissions; /* counted up atomically for each chunk that leaves, whose number is the count then */
	__u32 done;    /* (chunk, chain) that all members have, of the message; both sides count */
	__u32 wake;    /* the answer that brings done to just this goes up to the socket */
	__u32 direct;  /* chunks that single members have answered */
	__u32 direct_wake; /* the same for those */
	__u32 answers; /* that came, of all kinds */
	__u32 pumped;  /* chunks that programs sent */
	__u64 arrived; /* bpf_ktime_get_ns() when the last one came */
	__u64 spare[6];
	__u64 want[QUERN_CHAINS];  /* per chain: the bits of its members. Written by user space */
	__u32 next[QUERN_CHAINS];  /* per chain: the chunk that is sent next, first + total or more: none; both count up */
	struct quern_hop heads[QUERN_CHAINS]; /* per chain: its first member */
};

/* What "events" tells a member's user space: a message is stored whole. Or "rounds": a group has as many results as it waits for. */
struct quern_event {
	__u64 token;
	__u32 slot;
	__u32 first; /* of "rounds": stored, as it was then */
};

/*
 * All-reduce. A group has up to QUERN_MEMBERS members, who call it in the same order with vectors of the same length and get
 * the operation's result over all members' values back. A vector is cut into blocks of QUERN_CHUNK bytes; every block is
 * reduced by one member, its reducer, who numbers its blocks (seq of the head) through all calls of the group. With room for
 * 1 << bits blocks, block q is in slot q mod (1 << bits) and of generation q >> bits, which begins at 1. Nobody sends
 * its part of block q before it has taken the result of block q - (1 << bits) / 2 of the same reducer. So whoever has sent a part of
 * generation g has the results of generation g - 1 but for those of the half that is still under way, and a slot's memory
 * can be used again without an acknowledgement: whoever begins generation g + 1 of a slot has seen a result of the other half
 * of generation g, which all others had to have taken the slot's own result for.
 */
#define QUERN_MEMBERS 32
#define QUERN_PART_HEAD 32

/*
 * Start of the body of both kinds of frames; QUERN_CHUNK bytes of values follow, or less in a call's last block, then zeros. The
 * nonce in the pad of the tag is reducer << 40 | member << 32 | seq. Both are the same bytes however often they are sent.
 */
struct quern_part {
	__u32 what;   /* hash of the call's number, operation, width and length: all parts of a block have the same */
	__u16 bytes;  /* of values, a multiple of their width, not 0 */
	__u8 op;      /* enum quern_op: SUM, which wraps, MIN or MAX */
	__u8 wide;    /* 1: values of 8 bytes, 0: of 4; signed */
	__u8 reducer; /* number of the member that reduces this block */
	__u8 member;  /* whose part it is; in a result 0 */
	__u16 zero;
	__u32 zero2;
	__u64 zero3[2];
};

/*
 * groups[slot]: a member's end of a group; "tokens" has the slot by the token. User space writes all but the counts, and hops[1 - hop]
 * while programs read the other. Of this reducer's blocks, slot s has the elements and the marks sums + s * row and on (QUERN_ROW_...).
 * Results of all reducers: block q of reducer r is element, and mark, (r << bits) + q mod (1 << bits): high half its
 * generation, low half enum quern_mark_state. A result is sent on to the next member by whoever stores it, once, and by
 * nobody whose next member is its reducer; the reducer's own copy is stored by whoever completes the block.
 */
struct quern_group {
	__u64 token;   /* 0: closed */
	__u32 job;
	__u32 sums;    /* index in "contents" of what is added up here */
	__u32 sum_marks; /* index in "marks" of its first */
	__u32 results; /* index in "contents" */
	__u32 result_marks;
	__u32 row;     /* elements, and marks, per slot of sums: QUERN_ROW_CPU + CPUs + 1 */
	__u8 bits;     /* log2 of the blocks of a reducer that there is room for */
	__u8 members;
	__u8 rank;     /* number of this member */
	__u8 flags;
	__u32 hop;     /* which of hops is in use */
	__u32 stored;  /* results stored here, of all reducers, by both sides; wraps */
	__u32 wake;    /* "rounds" tells of the result that brings stored to just this. Written by user space */
	__u32 reduced; /* blocks completed here by programs */
	__u32 passed;  /* results sent by programs: new ones, sent on, and sent again to who asked by a part that came twice */
	__u64 spare[9];
	struct quern_hop hops[2]; /* to the member behind this one, the first behind the last */
};

/*
 * Marks of a slot of sums, generation in their high half. Elements: the result at QUERN_ROW_RESULT; what a CPU has added up at QUERN_ROW_CPU + CPU,
 * user space behind them. Behind a block's last value an element may hold anything; a frame holds zeros there.
 */
#define QUERN_ROW_WHAT 0    /* low half: what of the generation's first part */
#define QUERN_ROW_CLAIMED 1 /* low half: a bit per member whose part was claimed; whoever sets it adds the part */
#define QUERN_ROW_APPLIED 2 /* low half: a bit per member whose part was added; whoever sets the last one completes the block */
#define QUERN_ROW_RESULT 3  /* low half: enum quern_mark_state of the result */
#define QUERN_ROW_CPU 4     /* and on, written by their CPU alone: generation of what is added up there; what is of an older one is overwritten */

/* The program array "chain". Set s has four entries from QUERN_CHAIN_SET(s) on: + 2 if wide, + 1 to apply, else to find. */
#define QUERN_CHAIN 1024
#define QUERN_CHAIN_ACK 0
#define QUERN_CHAIN_ABSORB 1
#define QUERN_CHAIN_CHUNK 2   /* a member's: stores a chunk and sends it on */
#define QUERN_CHAIN_COLLECT 3 /* a source's: takes the answers of chains in */
#define QUERN_CHAIN_PUMP 4    /* a source's: makes the next chunk of an answer */
#define QUERN_CHAIN_REDUCE 5  /* a reducer's: adds a part up */
#define QUERN_CHAIN_COMPLETE 6 /* a reducer's: completes a block, or sends its result again */
#define QUERN_CHAIN_REDUCED 7 /* a member's: stores a result and sends it on */
#define QUERN_CHAIN_SET(s) (8 + 4 * (s))
#define QUERN_CHAIN_WIDE 2
#define QUERN_CHAIN_APPLY 1
#define QUERN_TABLE_MASK 0xffffff
#define QUERN_SETS ((QUERN_CHAIN - 8) / 4)

enum quern_answer_mode {
	QUERN_ANSWER_TX = 0,   /* XDP_TX */
	QUERN_ANSWER_TC = 1,   /* pass the answer on to our tc program, which redirects it out */
	QUERN_ANSWER_USER = 2, /* pass it up as QUERN_ANSWER */
};

/* config[0], written by user space. */
struct quern_config {
	__u16 port;  /* network byte order; the receiver's end of every stream */
	__u8 answer; /* enum quern_answer_mode */
	__u8 zero;
	__u32 zero2;
	__u64 spare[7];
};

/* Why a program ended, or what it noted on its way; index of the per-CPU array "reasons". */
enum quern_reason {
	QUERN_R_FOREIGN = 0,    /* not ours: passed */
	QUERN_R_MALFORMED,      /* our port and magic, but lengths or fields do not fit: dropped */
	QUERN_R_TOKEN,          /* no stream with that token: dropped */
	QUERN_R_SEQ,            /* number beyond the stream: dropped */
	QUERN_R_TAG,            /* tag does not match: dropped */
	QUERN_R_DUPLICATE,      /* claimed before: dropped, or answered */
	QUERN_R_UP_SHAPE,       /* long keys, or a shape or stream that the kernel does not fold: up */
	QUERN_R_UP_TABLE,       /* no table on this CPU: up */
	QUERN_R_UP_FULL,        /* a key found no place: up */
	QUERN_R_UP_CHAIN,       /* a tail call failed before the claim: up */
	QUERN_R_FOLDED,         /* folded */
	QUERN_R_LOST_CLAIM,     /* pass one done, then user space had claimed it: dropped, or answered */
	QUERN_R_TORN,           /* claimed and not wholly applied */
	QUERN_R_ANSWERED,       /* acknowledgement made */
	QUERN_R_ANSWER_UP,      /* acknowledgement left to user space */
	QUERN_R_ANSWER_FAILED,  /* packet could not be shrunk: dropped */
	QUERN_R_PROBED,         /* probe turned around */
	QUERN_R_ABSORBED,       /* acknowledgement taken in */
	QUERN_R_ABSORBED_UP,    /* the same, and passed up to wake the sender */
	QUERN_R_ACK_STRAY,      /* acknowledgement for no open slot, answer to no chunk under way: dropped */
	QUERN_R_ACK_TAG,        /* acknowledgement with a wrong tag: dropped */
	QUERN_R_UP_REGION,      /* chunk or answer of a broadcast that programs have no end of: up */
	QUERN_R_CHUNK_TAG,      /* chunk with a wrong tag: dropped */
	QUERN_R_CHUNK_PLACE,    /* chunk beyond the region, or of another chain: dropped */
	QUERN_R_CHUNK_BUSY,     /* chunk that another CPU is storing: dropped */
	QUERN_R_STORED,         /* chunk stored; what became of it then is noted too */
	QUERN_R_STORED_BEFORE,  /* chunk that was here already; the same */
	QUERN_R_PASSED_ON,      /* chunk sent to the next member */
	QUERN_R_CHAIN_ANSWERED, /* chunk turned into an answer to the source */
	QUERN_R_UP_HOP,         /* chunk that user space is to send on or to answer: up */
	QUERN_R_COLLECTED,      /* answer taken in by the source */
	QUERN_R_COLLECTED_UP,   /* the same, and passed up to wake it */
	QUERN_R_PUMPED,         /* answer made into the next chunk */
	QUERN_R_UP_GROUP,       /* frame of an all-reduce that programs have no end of, or can't serve on this CPU: up */
	QUERN_R_PART_TAG,       /* of an all-reduce, with a wrong tag: dropped */
	QUERN_R_PART_STRAY,     /* of an all-reduce, of an older generation, or of no member, or not for this member: dropped */
	QUERN_R_PART_DIFFERS,   /* part of another call than the block's first one: up */
	QUERN_R_PART_BEFORE,    /* part that was claimed before, of a block that is not complete: dropped */
	QUERN_R_ADDED,          /* part added; that it made its block whole is noted too */
	QUERN_R_REDUCED,        /* block completed by the part that was added, and its result sent; that it can't be sent is noted too */
	QUERN_R_RESULT_AGAIN,   /* part that was claimed before, turned into the block's result */
	QUERN_R_RESULT_STORED,  /* result stored; sent on is noted too */
	QUERN_R_RESULT_BEFORE,  /* result that was here before, or is being stored: dropped */
	QUERN_R_RESULT_PASSED,  /* result sent on to the next member */
	QUERN_R_COUNT
};

_Static_assert(sizeof(struct quern_head) == QUERN_HEAD, "head");
_Static_assert(sizeof(struct quern_ack) == 64, "ack");
_Static_assert(sizeof(struct quern_stream) == 128 + 8 * (QUERN_SEGMENT / 32), "stream");
_Static_assert(sizeof(struct quern_target) == 64, "target");
_Static_assert(sizeof(struct quern_cell) == 128, "cell");
_Static_assert(sizeof(struct quern_table) == 64, "table");
_Static_assert(sizeof(struct quern_outgoing) == 128 + 8 * (QUERN_SEGMENT / 64), "outgoing");
_Static_assert(sizeof(struct quern_config) == 64, "config");
_Static_assert(sizeof(struct quern_chunk) == QUERN_CHUNK_HEAD, "chunk");
_Static_assert(sizeof(struct quern_hop) == 64, "hop");
_Static_assert(sizeof(struct quern_region) == 192, "region");
_Static_assert(sizeof(struct quern_cast) == 128 + QUERN_CHAINS * (8 + 4 + sizeof(struct quern_hop)), "cast");
_Static_assert(sizeof(struct quern_event) == 16, "event");
_Static_assert(sizeof(struct quern_part) == QUERN_PART_HEAD, "part");
_Static_assert(sizeof(struct quern_group) == 256, "group");

#endif
