/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * At tc egress of a source: user space sends a chunk once, and here it becomes one
 * for the first member of every chain. Frames stay as they are, addresses and
 * ports change, and checksums by what changed: most packets have partial ones
 * here, and several frames that are cut apart only later.
 *
 * Every other packet is left alone, and so is a chunk of an unknown token: members
 * look at tags, this does not.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#define NEED_CASTS
#include "maps.h"
#include "chunk.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* In skb->mark while a packet is on its way from here to an interface, which may have this program too. */
#define CLONE_MARK 0x514e434cu

/* What the packet's headers say now, and are to say. An IPv4 address is the first word of four. */
struct way {
	__u32 from[4], to[4];
	__u16 port_from, port_to;
	__u16 sum; /* the UDP checksum of a packet that is cut apart later */
	__u16 zero;
};

/* Whether chain i has a head that can be sent to, without a branch: else the verifier would follow every combination. */
static __always_inline __u64 usable(const struct quern_cast *cast, __u32 i, __u64 v6)
{
	__u64 chains = cast->chains, interface = cast->heads[i].interface, version = cast->heads[i].v6;

	HIDE(chains);
	HIDE(interface);
	HIDE(version);
	return ((i - chains) >> 63) & ((0 - interface) >> 63) & ~(version ^ v6) & 1;
}

/* Addresses the packet to a chain's head. Returns an error of a helper, which leaves the packet between two addresses. */
static __always_inline long readdress(struct __sk_buff *skb, const struct quern_hop *hop, struct way *now, __u64 v6)
{
	__u32 udp = v6 ? ETH_BYTES + IPV6_BYTES : ETH_BYTES + IPV4_BYTES;
	__u64 flags = BPF_F_MARK_MANGLED_0;
	struct way way = {};
	__s64 diff;
	long err;

	way.from[0] = hop->from[0];
	way.to[0] = hop->to[0];
	if (v6) {
#pragma unroll
		for (int i = 1; i < 4; i++) {
			way.from[i] = hop->from[i];
			way.to[i] = hop->to[i];
		}
	}
	way.port_from = hop->port_from;
	way.port_to = hop->port_to;
	way.sum = now->sum;
	diff = bpf_csum_diff(now->from, 32, way.from, 32, 0);
	err = bpf_skb_store_bytes(skb, 0, hop->mac_to, 12, 0);
	if (v6) {
		err |= bpf_skb_store_bytes(skb, 22, way.from, 32, 0);
	} else {
		err |= bpf_skb_store_bytes(skb, 26, way.from, 4, 0);
		err |= bpf_skb_store_bytes(skb, 30, way.to, 4, 0);
		err |= bpf_l3_csum_replace(skb, 24, 0, diff, 0);
	}
	if (skb->gso_size) {
		/*
		 * Of addresses and length alone, whatever the kernel says of it: where an interface
		 * makes no checksums it says that this one is whole, and the helper would believe it.
		 */
		__u64 sum = (__u32)diff;

		sum += way.sum;
		sum = (sum & 0xffff) + (sum >> 16);
		sum = (sum & 0xffff) + (sum >> 16);
		sum = (sum & 0xffff) + (sum >> 16);
		way.sum = sum;
		err |= bpf_skb_store_bytes(skb, udp + 6, &way.sum, 2, 0);
	} else {
		err |= bpf_l4_csum_replace(skb, udp + 6, 0, diff, flags | BPF_F_PSEUDO_HDR);
		err |= bpf_l4_csum_replace(skb, udp + 6, AT32(&now->port_from, 0), AT32(&way.port_from, 0), flags | 4);
	}
	err |= bpf_skb_store_bytes(skb, udp, &way.port_from, 4, 0);
	*now = way;
	return err;
}

SEC("tc")
int quern_clone(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct {
		struct quern_head head;
		struct quern_chunk chunk;
	} frame;
	__u32 key, before = skb->mark, out = 0;
	struct quern_cast *cast;
	struct way now = {};
	__u64 v6, last = 0;

	if (before == CLONE_MARK) {
		skb->mark = 0;
		return TC_ACT_UNSPEC;
	}
	/* What stack and driver put before a frame is in one piece, the frame may not be. */
	if (data + FRAME_AT_V4 > end)
		return TC_ACT_UNSPEC;
	switch (AT16(data, 12)) {
	case ETH_TYPE_IPV4:
		if (AT8(data, 14) != 0x45 || (AT16(data, 20) & bpf_htons(0x3fff)) || AT8(data, 23) != IP_UDP)
			return TC_ACT_UNSPEC;
		v6 = 0;
		now.from[0] = AT32(data, 26);
		now.to[0] = AT32(data, 30);
		now.port_from = AT16(data, 34);
		now.port_to = AT16(data, 36);
		now.sum = AT16(data, 40);
		break;
	case ETH_TYPE_IPV6:
		if ((AT8(data, 14) & 0xf0) != 0x60 || AT8(data, 20) != IP_UDP || data + FRAME_AT_V6 > end)
			return TC_ACT_UNSPEC;
		v6 = 1;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			now.from[i] = AT32(data, 22 + 4 * i);
			now.to[i] = AT32(data, 38 + 4 * i);
		}
		now.port_from = AT16(data, 54);
		now.port_to = AT16(data, 56);
		now.sum = AT16(data, 60);
		break;
	default:
		return TC_ACT_UNSPEC;
	}
	if (bpf_skb_load_bytes(skb, v6 ? FRAME_AT_V6 : FRAME_AT_V4, &frame, sizeof(frame)) ||
	    frame.head.magic != QUERN_MAGIC || frame.head.kind != QUERN_BROADCAST || frame.head.version != QUERN_VERSION ||
	    frame.head.hop != 0 || frame.chunk.chain != QUERN_CHAIN_ALL)
		return TC_ACT_UNSPEC;
	key = frame.head.back;
	cast = bpf_map_lookup_elem(&casts, &key);
	if (!cast || cast->token == 0 || cast->token != frame.head.token)
		return TC_ACT_UNSPEC;

	/* The packet itself goes to the last head. */
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < QUERN_CHAINS; i++)
		last += (i + 1 - last) * usable(cast, i, v6);
	if (last == 0)
		return TC_ACT_UNSPEC;
	skb->mark = CLONE_MARK;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < QUERN_CHAINS; i++) {
		struct quern_hop *hop = &cast->heads[i];
		__u64 stop = last;

		FORGET(stop); /* what is found out of it here is not to make two states of last */
		if (!usable(cast, i, v6))
			continue;
		if (readdress(skb, hop, &now, v6))
			break; /* no memory: what is lost is sent again */
		out = hop->interface;
		if (i + 1 >= stop)
			break;
		bpf_clone_redirect(skb, out, 0);
	}
	if (out && out != skb->ifindex)
		return bpf_redirect(out, 0);
	skb->mark = before;
	return TC_ACT_UNSPEC;
}
