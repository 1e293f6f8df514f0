/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/* What the programs of broadcasts have in common: what a chunk may look like, its tag, and how it gets to a host. */
#ifndef QUERN_CHUNK_H
#define QUERN_CHUNK_H

#include "answer.h"
#include "parse.h"
#include "tag.h"

/* Of flags, hop and zero2, read at once: all that must be 0. */
#define CHUNK_ZEROS 0xffff00ffu
#define CHUNK_FLAGS 48

#define CHUNK_STEPS (QUERN_CHUNK / QUERN_BODY_STEP)

enum chunk_fit {
	CHUNK_FITS = 0,
	CHUNK_MALFORMED,
	CHUNK_SEVERAL, /* frames in one packet */
};

/*
 * Looks at what both kinds have alike. The dispatcher has seen to it that the
 * packet ends where IP and UDP say. least and most are of the body.
 */
static __always_inline enum chunk_fit chunk_fits(struct quern_head *head, void *end, __u32 hops, __u32 least, __u32 most)
{
	__u64 length = head->length;
	void *stop;

	if (head->shape || head->count || head->stream || (AT32(head, CHUNK_FLAGS) & CHUNK_ZEROS) || head->hop > hops ||
	    length % QUERN_BODY_STEP || length < least || length > most)
		return CHUNK_MALFORMED;
	HIDE(length);
	length &= 0x7ff;
	stop = (void *)(head + 1) + length;
	if (stop > end)
		return CHUNK_MALFORMED;
	HIDE(stop);
	if (stop < end)
		return CHUNK_SEVERAL;
	return CHUNK_FITS;
}

/* Says whether the numbers are such as a chunk may have. */
static __always_inline int numbers_fit(const struct quern_chunk *chunk)
{
	__u32 first = chunk->first, total = chunk->total;

	/* A place before the first is one far behind it. */
	return total && (__u64)first + total <= 0xffffffffULL && chunk->place - first < total && chunk->zero == 0 &&
	       (chunk->chain < QUERN_CHAINS || chunk->chain >= QUERN_CHAIN_DIRECT);
}

/*
 * Copies steps of 32 bytes of data into the packet, or out of it, whose place for
 * them is packet. Returns 0 if that is not all there.
 */
static __always_inline int copy_data(void *packet, void *end, void *memory, __u32 steps, const int into)
{
	HIDE(steps);
	if (steps > CHUNK_STEPS)
		return 0;
	HIDE(steps);
	for (__u64 i = 0; i < CHUNK_STEPS && i < steps;) {
		if (packet + QUERN_BODY_STEP > end)
			return 0;
#pragma unroll
		for (int at = 0; at < QUERN_BODY_STEP; at += 8) {
			if (into)
				AT64(packet, at) = AT64(memory, at);
			else
				AT64(memory, at) = AT64(packet, at);
		}
		packet += QUERN_BODY_STEP;
		memory += QUERN_BODY_STEP;
		i++;
		HIDE(i);
		HIDE(packet);
		HIDE(memory);
	}
	return 1;
}

/*
 * Has the processor fetch an element of a content that is written once the tag was found
 * right: it is seldom in a cache, and a processor waits for few lines at a time where
 * they are written one after the other. A read changes nothing.
 */
static __always_inline void fetch_element(const void *element)
{
#pragma unroll
	for (int at = 0; at < QUERN_CHUNK; at += 64)
		(void)*(volatile const __u64 *)(element + at);
}

/* What the tag of a chunk, or of its answer, is beside NH. */
static __always_inline __u64 chunk_pad(const struct quern_job *job, struct quern_head *head, struct quern_chunk *chunk)
{
	return siphash24(job->sip0, job->sip1, head->token,
			 (__u64)head->kind << 56 | (__u64)head->hop << 48 | (__u64)chunk->chain << 32 | head->seq,
			 chunk->group);
}

/* Whether the packet is IPv6. */
static __always_inline __u32 is_ipv6(void *data)
{
	return (AT8(data, ETH_BYTES) >> 5) & 1;
}

/* Whether programs can make a packet of this version of IP one that goes there. */
static __always_inline int hop_serves(const struct quern_hop *hop, __u32 v6)
{
	return hop->interface && hop->v6 == v6;
}

/* Addresses a packet to a host. Returns 0 if the headers are not there, which the dispatcher has seen to. */
static __always_inline int set_hop(void *data, void *end, struct quern_head *head, const struct quern_hop *hop)
{
	int v4 = is_ipv4(data);

	if (!v4 && data + FRAME_AT_V6 > end)
		return 0;
	AT32(data, 0) = AT32(hop->mac_to, 0);
	AT16(data, 4) = AT16(hop->mac_to, 4);
	AT32(data, 6) = AT32(hop->mac_from, 0);
	AT16(data, 10) = AT16(hop->mac_from, 4);
	AT16(head, -8) = hop->port_from;
	AT16(head, -6) = hop->port_to;
	if (v4) {
		AT32(data, 26) = hop->from[0];
		AT32(data, 30) = hop->to[0];
		AT8(data, 22) = ANSWER_TTL;
	} else {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			AT32(data, 22 + 4 * i) = hop->from[i];
			AT32(data, 38 + 4 * i) = hop->to[i];
		}
		AT8(data, 21) = ANSWER_TTL;
	}
	return 1;
}

#endif
