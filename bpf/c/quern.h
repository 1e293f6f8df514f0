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
	QUERN_BROADCAST_ACK = 6, /* the last chunk of a chain, turned around */
	QUERN_ANSWER = 7,        /* never on the wire: kernel asks user space to send this acknowledgement */
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
	__u32 stream; /* slot at the receiver */
	__u32 seq;    /* number of the frame within the stream */
	__u32 back;   /* slot at the sender, echoed by acknowledgements */
	__u16 length; /* bytes of body, padding included */
	__u16 zero;
	__u64 tag;
	__u64 stamp;  /* sender's clock, ns, echoed; not under the tag, never trusted */
	__u8 flags;   /* not under the tag */
	__u8 hop;     /* broadcast: under the tag by way of the pad */
	__u16 zero2;
	/* Scratch of the receiving kernel, set by the dispatcher whatever was sent. Not under the tag. */
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

/* The program array "chain". Set s has four entries from QUERN_CHAIN_SET(s) on: + 2 if wide, + 1 to apply, else to find. */
#define QUERN_CHAIN 1024
#define QUERN_CHAIN_ACK 0
#define QUERN_CHAIN_ABSORB 1
#define QUERN_CHAIN_SET(s) (4 + 4 * (s))
#define QUERN_CHAIN_WIDE 2
#define QUERN_CHAIN_APPLY 1
#define QUERN_TABLE_MASK 0xffffff
#define QUERN_SETS ((QUERN_CHAIN - 4) / 4)

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
	QUERN_R_ACK_STRAY,      /* acknowledgement for no open slot: dropped */
	QUERN_R_ACK_TAG,        /* acknowledgement with a wrong tag: dropped */
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

#endif
