/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/* Turning a packet around, and marking it for the tc program that sends it out. */
#ifndef QUERN_ANSWER_H
#define QUERN_ANSWER_H

#include "parse.h"

/* What XDP hands to tc beside the packet; nobody on the wire can write it. */
#define ANSWER_MARK QUERN_MAGIC
#define ANSWER_MARK_BYTES 4
#define ANSWER_TTL 64

/*
 * Puts the mark before the packet. All packet pointers are to be read again
 * after it. Returns 0 if this driver has no room for it.
 */
static __always_inline int mark_for_tc(struct xdp_md *ctx)
{
	__u32 *mark;

	if (bpf_xdp_adjust_meta(ctx, -ANSWER_MARK_BYTES))
		return 0;
	mark = (void *)(long)ctx->data_meta;
	if ((void *)(mark + 1) > PACKET(ctx))
		return 0;
	*mark = ANSWER_MARK;
	return 1;
}

#define SWAP32(a, b)                    \
	do {                            \
		__u32 swap = AT32(a, 0); \
		AT32(a, 0) = AT32(b, 0); \
		AT32(b, 0) = swap;       \
	} while (0)

static __always_inline int is_ipv4(void *data)
{
	return (AT8(data, ETH_BYTES) & 0xf0) == 0x40;
}

/*
 * Swaps addresses and ports. Returns 0 if the headers are not there, which the
 * dispatcher has seen to.
 */
static __always_inline int turn_around(void *data, void *end, struct quern_head *head)
{
	__u32 ports = AT32(head, -8), to = AT32(data, 0);
	__u16 to_tail = AT16(data, 4);

	if (!is_ipv4(data) && data + FRAME_AT_V6 > end)
		return 0;
	AT32(data, 0) = AT32(data, 6);
	AT16(data, 4) = AT16(data, 10);
	AT32(data, 6) = to;
	AT16(data, 10) = to_tail;
	AT32(head, -8) = ports << 16 | ports >> 16;
	if (is_ipv4(data)) {
		SWAP32(data + 26, data + 30);
		AT8(data, 22) = ANSWER_TTL;
	} else {
		SWAP32(data + 22, data + 38);
		SWAP32(data + 26, data + 42);
		SWAP32(data + 30, data + 46);
		SWAP32(data + 34, data + 50);
		AT8(data, 21) = ANSWER_TTL;
	}
	return 1;
}

/* Writes what follows from a payload of that many bytes: IP and UDP length, header checksum, no UDP checksum. */
static __always_inline void set_lengths(void *data, struct quern_head *head, __u32 payload)
{
	AT16(head, -4) = bpf_htons(UDP_BYTES + payload);
	clear_udp_sum(head);
	if (is_ipv4(data)) {
		__u32 sum = 0;

		AT16(data, 16) = bpf_htons(IPV4_BYTES + UDP_BYTES + payload);
		AT16(data, 24) = 0;
#pragma unroll
		for (int i = 0; i < IPV4_BYTES; i += 2)
			sum += AT16(data, ETH_BYTES + i);
		sum = (sum & 0xffff) + (sum >> 16);
		sum = (sum & 0xffff) + (sum >> 16);
		AT16(data, 24) = ~sum;
	} else {
		AT16(data, 18) = bpf_htons(UDP_BYTES + payload);
	}
}

#endif
