/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Sends packets that user space has laid out in mapped memory. It is run by test
 * runs with live frames alone (Linux 5.18): one run makes many packets, which go
 * out at a driver's XDP transmit function. No buffer of the network stack is made
 * for them, at neither end of a virtual link.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "quern.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Packets of one run, and room for each: Ethernet, IPv4 and UDP headers and a frame. */
#define SEND_PACKETS 256
#define SEND_ROOM (14 + 20 + 8 + QUERN_HEAD + QUERN_BODY)
#define SEND_STEP 2048
#define SEND_LEAST 14 /* an Ethernet header */

struct send_packet {
	__u32 length; /* SEND_LEAST to SEND_ROOM */
	__u32 zero;
	__u8 bytes[SEND_STEP - 8];
};

/* User space writes all of it while no run is under way; one run at a time. */
struct send_box {
	__u32 next;  /* packet to be sent, counted up by the program */
	__u32 count; /* of packets */
	__u32 interface;
	__u32 failed; /* packets that could not be made, counted by the program */
	__u64 spare[6];
	struct send_packet packet[SEND_PACKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct send_box);
} box SEC(".maps");

SEC("xdp")
int quern_send(struct xdp_md *ctx)
{
	__u32 key = 0, at, length;
	struct send_box *b = bpf_map_lookup_elem(&box, &key);
	struct send_packet *p;

	if (!b)
		return XDP_DROP;
	at = b->next;
	if (at >= b->count || at >= SEND_PACKETS)
		return XDP_DROP; /* a run that was interrupted is repeated from the start */
	b->next = at + 1;
	p = &b->packet[at];
	length = p->length;
	/* Two comparisons that 6.1 understands: it learns nothing from != 0. */
	if (length < SEND_LEAST)
		goto failed;
	asm volatile("" : "+r"(length));
	if (length > SEND_ROOM)
		goto failed;
	/*
	 * A run begins every packet with one byte more than any has: a packet's page
	 * may come back from a far end that has cut it, and the kernel looks
	 * at how long it is by now only if this changes that.
	 */
	if (bpf_xdp_adjust_tail(ctx, (int)length - (SEND_ROOM + 1)))
		goto failed;
	if (bpf_xdp_store_bytes(ctx, 0, p->bytes, length))
		goto failed;
	return bpf_redirect(b->interface, 0);
failed:
	b->failed += 1;
	return XDP_DROP;
}
