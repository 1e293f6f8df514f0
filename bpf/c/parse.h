/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Where things are in a packet: Ethernet, IPv4 without options or IPv6 without
 * extension headers, UDP, then a frame. Packets of both versions take one way
 * through the verifier: the offset of the frame is computed, not branched on.
 */
#ifndef QUERN_PARSE_H
#define QUERN_PARSE_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "quern.h"

#define ETH_TYPE_IPV4 bpf_htons(0x0800)
#define ETH_TYPE_IPV6 bpf_htons(0x86dd)
#define IP_UDP 17

#define ETH_BYTES 14
#define IPV4_BYTES 20
#define IPV6_BYTES 40
#define UDP_BYTES 8
#define FRAME_AT_V4 (ETH_BYTES + IPV4_BYTES + UDP_BYTES)
#define FRAME_AT_V6 (ETH_BYTES + IPV6_BYTES + UDP_BYTES)

/* Headers are read by offset: packed structs would be read byte by byte. */
#define AT8(p, off) (*(__u8 *)((void *)(p) + (off)))
#define AT16(p, off) (*(__u16 *)((void *)(p) + (off)))
#define AT32(p, off) (*(__u32 *)((void *)(p) + (off)))
#define AT64(p, off) (*(__u64 *)((void *)(p) + (off)))

/* The compiler may not look behind what it knows of v. */
#define HIDE(v) asm volatile("" : "+r"(v))

/* The verifier no longer knows that v is a copy of something: else two states differ by what is whose copy. */
#define FORGET(v) asm volatile("%0 |= 0" : "+r"(v))

#define PACKET(ctx) ((void *)(long)(ctx)->data)
#define PACKET_END(ctx) ((void *)(long)(ctx)->data_end)

/* Offset of the frame from the version of IP, which must be 4 or 6. Bit 5 tells 0x6. from 0x45. */
static __always_inline __u64 frame_offset(const void *data)
{
	__u64 v6 = (AT8(data, ETH_BYTES) >> 5) & 1;

	HIDE(v6);
	return FRAME_AT_V4 + (v6 & 1) * (IPV6_BYTES - IPV4_BYTES);
}

/*
 * The head of a frame that the dispatcher has let through, for links of the
 * chain; 0 if the packet is too short, which it is not.
 */
static __always_inline struct quern_head *frame_head(void *data, void *end)
{
	void *head;

	if (data + FRAME_AT_V4 > end)
		return 0;
	head = data + frame_offset(data);
	if (head + QUERN_HEAD > end)
		return 0;
	return head;
}

/*
 * The same for links that look at nothing before the frame, which the verifier
 * allows only while it knows the offset. Here it does not: clang cannot branch on
 * the version, and what follows is verified once for both.
 */
static __always_inline struct quern_head *frame_head_only(void *data, void *end)
{
	__u64 more;
	void *head;

	if (data + FRAME_AT_V4 > end)
		return 0;
	more = (AT8(data, ETH_BYTES) >> 5) & 1;
	HIDE(more);
	more *= IPV6_BYTES - IPV4_BYTES;
	HIDE(more);
	head = data + FRAME_AT_V4 + (more & 31);
	if (head + QUERN_HEAD > end)
		return 0;
	return head;
}

/* A packet whose bytes we changed leaves without a UDP checksum; our tag covers it. */
static __always_inline void clear_udp_sum(struct quern_head *head)
{
	AT16(head, -2) = 0;
}

/*
 * Says whether the packet is UDP that may hold a frame: all headers and
 * QUERN_HEAD bytes are there. *at is set to the frame's offset.
 */
static __always_inline int parse_udp(void *data, void *end, __u64 *at)
{
	if (data + FRAME_AT_V4 > end)
		return 0;
	switch (AT16(data, 12)) {
	case ETH_TYPE_IPV4:
		/* No options; no fragment; UDP. */
		if (AT8(data, 14) != 0x45 || (AT16(data, 20) & bpf_htons(0x3fff)) || AT8(data, 23) != IP_UDP)
			return 0;
		break;
	case ETH_TYPE_IPV6:
		if ((AT8(data, 14) & 0xf0) != 0x60 || AT8(data, 20) != IP_UDP)
			return 0;
		break;
	default:
		return 0;
	}
	*at = frame_offset(data);
	return data + *at + QUERN_HEAD <= end;
}

/*
 * Returns the bytes behind the UDP header, if packet, IP and UDP say the same of
 * them, else 0: no trailer, nothing cut off. at is from parse_udp.
 */
static __always_inline __u64 payload_size(void *data, void *end, __u64 at)
{
	__u64 total;
	void *stop;

	/* Two ways, since the two versions count differently; the checks of at are the verifier's. */
	if (at == FRAME_AT_V4)
		total = ETH_BYTES + bpf_ntohs(AT16(data, 16));
	else
		total = ETH_BYTES + IPV6_BYTES + bpf_ntohs(AT16(data, 18));
	HIDE(total);
	total &= 0x1ffff;
	stop = data + total;
	if (stop > end)
		return 0;
	HIDE(stop);
	if (stop < end)
		return 0;
	if (bpf_ntohs(AT16(data + at, -4)) + at - UDP_BYTES != total)
		return 0;
	return total - at;
}

#endif
