/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The tag of a frame: NH over the tagged part of the head and the body, plus
 * SipHash-2-4 of token, kind, hop and nonce as a pad. shuffle/wire/tag.go is the
 * same in Go and says how strong it is.
 */
#ifndef QUERN_TAG_H
#define QUERN_TAG_H

#include "parse.h"

#define ROTL(x, n) (((x) << (n)) | ((x) >> (64 - (n))))

#define SIP_ROUND                                                              \
	do {                                                                   \
		v0 += v1; v1 = ROTL(v1, 13); v1 ^= v0; v0 = ROTL(v0, 32);      \
		v2 += v3; v3 = ROTL(v3, 16); v3 ^= v2;                         \
		v0 += v3; v3 = ROTL(v3, 21); v3 ^= v0;                         \
		v2 += v1; v1 = ROTL(v1, 17); v1 ^= v2; v2 = ROTL(v2, 32);      \
	} while (0)

#define SIP_WORD(m)                                                            \
	do {                                                                   \
		v3 ^= (m);                                                     \
		SIP_ROUND; SIP_ROUND;                                          \
		v0 ^= (m);                                                     \
	} while (0)

#define SIP_BEGIN(k0, k1)                                                                     \
	__u64 v0 = (k0) ^ 0x736f6d6570736575ULL, v1 = (k1) ^ 0x646f72616e646f6dULL;           \
	__u64 v2 = (k0) ^ 0x6c7967656e657261ULL, v3 = (k1) ^ 0x7465646279746573ULL

#define SIP_END                                                                \
	do {                                                                   \
		v2 ^= 0xff;                                                    \
		SIP_ROUND; SIP_ROUND; SIP_ROUND; SIP_ROUND;                    \
	} while (0)

/* SipHash-2-4 of 16 bytes. */
static __always_inline __u64 siphash16(__u64 k0, __u64 k1, __u64 a, __u64 b)
{
	SIP_BEGIN(k0, k1);

	SIP_WORD(a);
	SIP_WORD(b);
	SIP_WORD(16ULL << 56);
	SIP_END;
	return v0 ^ v1 ^ v2 ^ v3;
}

/* SipHash-2-4 of 24 bytes. */
static __always_inline __u64 siphash24(__u64 k0, __u64 k1, __u64 a, __u64 b, __u64 c)
{
	SIP_BEGIN(k0, k1);

	SIP_WORD(a);
	SIP_WORD(b);
	SIP_WORD(c);
	SIP_WORD(24ULL << 56);
	SIP_END;
	return v0 ^ v1 ^ v2 ^ v3;
}

/* Eight bytes of NH: message at p, key at k. */
#define NH(p, k)                                                               \
	((__u64)(__u32)(AT32(p, 0) + AT32(k, 0)) *                             \
	 (__u64)(__u32)(AT32(p, 4) + AT32(k, 4)))

/* Thirty-two bytes, one word after the other: clang would take them all at once, and put the sum on the stack. */
#define NH32(sum, p, k)                                 \
	do {                                            \
		_Pragma("unroll")                       \
		for (int at = 0; at < 32; at += 8) {    \
			sum += NH((p) + at, (k) + at);  \
			HIDE(sum);                      \
		}                                       \
	} while (0)

/*
 * Sets *sum to NH of a frame whose body has that many steps of QUERN_BODY_STEP
 * bytes, of which most, a constant, are looked at. Returns 0 if they are not all
 * there.
 */
static __always_inline int frame_sum(const struct quern_job *job, struct quern_head *head, void *end,
				     __u32 steps, const __u32 most, __u64 *all)
{
	void *p = (void *)(head + 1);
	const void *k = (void *)job->nh + QUERN_TAGGED_HEAD;
	__u64 sum = 0;

	HIDE(steps); /* the verifier may have lost what clang knows of it */
	if (steps > most)
		return 0;
	/* Counted up from a number that old verifiers know, to a bound that clang would find needless. */
	HIDE(steps);
	for (__u64 i = 0; i < most && i < steps;) {
		if (p + QUERN_BODY_STEP > end)
			return 0;
		NH32(sum, p, k);
		p += QUERN_BODY_STEP;
		k += QUERN_BODY_STEP;
		i++;
		HIDE(i);
		HIDE(p); /* else clang counts the rounds from end, which may not be calculated with */
	}
	/* Nothing of the rest is to hold registers in the loop. */
	HIDE(head);
	HIDE(job);
	NH32(sum, (void *)head, (void *)job->nh);
	*all = sum;
	return 1;
}

/* Sets *tag to the tag of a frame, see frame_sum. */
static __always_inline int frame_tag(const struct quern_job *job, struct quern_head *head, void *end,
				     __u32 steps, const __u32 most, __u64 nonce, __u64 *tag)
{
	__u64 sum;

	if (!frame_sum(job, head, end, steps, most, &sum))
		return 0;
	HIDE(head);
	HIDE(job);
	*tag = sum + siphash16(job->sip0, job->sip1, head->token,
			       (__u64)head->kind << 56 | (__u64)head->hop << 48 | nonce);
	return 1;
}

#endif
