/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/* What the programs of an all-reduce have in common: what their frames may look like, and how values are put together. */
#ifndef QUERN_PART_H
#define QUERN_PART_H

#include "chunk.h"

#define PART_STEPS (QUERN_CHUNK / QUERN_BODY_STEP)

/* An element of what is added up, or of results. */
struct block {
	__u64 words[QUERN_CHUNK / 8];
};

/* Operation and width in one. */
#define HOW(op, wide) ((op) << 1 | (wide))

static __always_inline __u32 part_how(const struct quern_part *part)
{
	return HOW(part->op, part->wide);
}

static __always_inline __u64 part_nonce(const struct quern_part *part, __u32 seq)
{
	return (__u64)part->reducer << 40 | (__u64)part->member << 32 | seq;
}

/* Steps of QUERN_BODY_STEP bytes of values, of a frame that fits. Read anew: the verifier is to know nothing of it. */
static __always_inline __u32 part_steps(struct quern_head *head)
{
	return *(volatile __u16 *)&head->length / QUERN_BODY_STEP - 1;
}

/* Looks at what both kinds have alike, without knowing the group. */
static __always_inline enum chunk_fit part_fits(struct quern_head *head, void *end)
{
	enum chunk_fit fit = chunk_fits(head, end, 0, QUERN_PART_HEAD + QUERN_BODY_STEP, QUERN_BODY);
	struct quern_part *part = (void *)(head + 1);
	__u32 bytes;

	if (fit != CHUNK_FITS)
		return fit;
	if ((void *)(part + 1) > end || head->back || part->wide > 1 || part->op > QUERN_MAX ||
	    part->reducer >= QUERN_MEMBERS || part->member >= QUERN_MEMBERS || part->zero || part->zero2 ||
	    (part->zero3[0] | part->zero3[1]))
		return CHUNK_MALFORMED;
	bytes = part->bytes;
	if (bytes == 0 || bytes > QUERN_CHUNK || (bytes & (part->wide ? 7 : 3)) ||
	    (bytes + QUERN_PART_HEAD + QUERN_BODY_STEP - 1) / QUERN_BODY_STEP * QUERN_BODY_STEP != head->length)
		return CHUNK_MALFORMED;
	return CHUNK_FITS;
}

/*
 * Returns the frame's head if its tag is right, else 0. Where in the loop the verifier
 * came out is not known behind it: packet and head are read anew. What the caller needs
 * then is to be KEPT, so that the loop has the registers.
 */
static __always_inline struct quern_head *part_genuine(struct xdp_md *ctx, const struct quern_job *job,
						       struct quern_head *head, void *end)
{
	struct quern_part *part;
	__u64 sum;

	if (!frame_sum(job, head, end, head->length / QUERN_BODY_STEP, QUERN_BODY / QUERN_BODY_STEP, &sum))
		return 0;
	HIDE(ctx);
	end = PACKET_END(ctx);
	head = frame_head_only(PACKET(ctx), end);
	part = (void *)(head + 1);
	if (!head || (void *)(part + 1) > end)
		return 0;
	sum += siphash16(job->sip0, job->sip1, head->token,
			 (__u64)head->kind << 56 | (__u64)head->hop << 48 | part_nonce(part, head->seq));
	return sum == head->tag ? head : 0;
}

/* On the stack until it is read again. */
#define KEPT *volatile

/* What a mark says, and one of a generation. */
#define MARK_GENERATION(mark) ((__u32)((mark) >> 32))
#define MARK_OF(generation, low) ((__u64)(generation) << 32 | (__u32)(low))
#define MARK_READ(mark) (*(volatile __u64 *)(mark))

/*
 * Puts 32 bytes of values into those in memory. No branches on values: the verifier
 * walks both ways of each, and a processor guesses half of them wrong.
 */
static __always_inline void put_together(void *into, const void *from, const int op, const int wide)
{
#pragma unroll
	for (int at = 0; at < QUERN_BODY_STEP; at += wide || op == QUERN_SUM ? 8 : 4) {
		if (op == QUERN_SUM && wide) {
			AT64(into, at) += AT64(from, at);
		} else if (op == QUERN_SUM) {
			/* Two at once: what the lower one carries into the upper one is taken back. */
			__u64 a = AT64(into, at), b = AT64(from, at), sum = a + b;

			AT64(into, at) = sum - ((a ^ b ^ sum) & 1ULL << 32);
		} else if (wide) {
			__s64 a = AT64(into, at), b = AT64(from, at), d = (__s64)((__u64)a - (__u64)b);

			/* Less than: -1 if a < b, else 0. */
			d = (d ^ ((a ^ b) & (d ^ a))) >> 63;
			HIDE(d);
			AT64(into, at) = op == QUERN_MIN ? b ^ ((a ^ b) & d) : a ^ ((a ^ b) & d);
		} else {
			__s64 a = (__s32)AT32(into, at), b = (__s32)AT32(from, at), d = a - b;

			HIDE(d); /* else clang makes a branch of it */
			d >>= 63;
			HIDE(d);
			AT32(into, at) = op == QUERN_MIN ? b ^ ((a ^ b) & d) : a ^ ((a ^ b) & d);
		}
	}
}

/* Does so for every way that frames can say. */
#define FOR_EACH_HOW(how, otherwise, DO)              \
	switch (how) {                                \
	case HOW(QUERN_SUM, 0): DO(QUERN_SUM, 0); break; \
	case HOW(QUERN_SUM, 1): DO(QUERN_SUM, 1); break; \
	case HOW(QUERN_MIN, 0): DO(QUERN_MIN, 0); break; \
	case HOW(QUERN_MIN, 1): DO(QUERN_MIN, 1); break; \
	case HOW(QUERN_MAX, 0): DO(QUERN_MAX, 0); break; \
	case HOW(QUERN_MAX, 1): DO(QUERN_MAX, 1); break; \
	default: otherwise;                           \
	}

/* Counts a result that was stored here, and tells of it if somebody waits for just this. */
#define COUNT_STORED(group, its_token, its_slot)                                                             \
	do {                                                                                                 \
		__u32 stored = __sync_fetch_and_add(&(group)->stored, 1) + 1;                                \
		if (stored == *(volatile __u32 *)&(group)->wake) {                                           \
			struct quern_event event = { .token = (its_token), .slot = (its_slot), .first = stored }; \
			bpf_ringbuf_output(&rounds, &event, sizeof(event), 0);                               \
		}                                                                                            \
	} while (0)

#endif
