/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * XDP programs for the ends of the lab's links. A veth takes what XDP_TX sends
 * only if its own end has an XDP program, too; so bridge ports get one that
 * passes. The other one, for a host, turns UDP packets around: with it a lab can
 * be proved.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Written by user space before the program is loaded, in network byte order. */
volatile const __u16 turn_port;

/* Packets that the turning program saw: all of them, and those turned around. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&seen, &what);

	if (n)
		(*n)++;
}

SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("xdp")
int turn(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct udphdr *udp;
	__u8 mac[ETH_ALEN];
	__u16 port;

	count(0);
	if ((void *)(eth + 1) > end)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		if ((void *)(ip + 1) > end || ip->protocol != IPPROTO_UDP || ip->ihl != 5)
			return XDP_PASS;
		udp = (void *)(ip + 1);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		if ((void *)(ip6 + 1) > end || ip6->nexthdr != IPPROTO_UDP)
			return XDP_PASS;
		udp = (void *)(ip6 + 1);
	} else {
		return XDP_PASS;
	}
	if ((void *)(udp + 1) > end || udp->dest != turn_port)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		__u32 address = ip->saddr;

		ip->saddr = ip->daddr;
		ip->daddr = address;
	} else {
		struct in6_addr address = ip6->saddr;

		ip6->saddr = ip6->daddr;
		ip6->daddr = address;
	}
	__builtin_memcpy(mac, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, mac, ETH_ALEN);
	port = udp->source;
	udp->source = udp->dest;
	udp->dest = port;
	udp->check = 0; /* a sum that the sender left to its card is not in the packet */
	count(1);
	return XDP_TX;
}

char _license[] SEC("license") = "Dual BSD/GPL";
