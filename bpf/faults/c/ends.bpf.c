/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * XDP programs for the ends of the lab's links. A veth takes what XDP_TX sends
 * only if its own end has an XDP program, too; so bridge ports get one that
 * passes, or one that is a switch. The third one, for a host, turns UDP packets
 * around: with it a lab can be proved.
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

/* Written by user space. 0: the switch hands everything to the bridge. */
volatile __u32 switching;

/* The switch's ports: where a host with that address is. */
struct address {
	__u8 mac[ETH_ALEN];
	__u16 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct address);
	__type(value, __u32); /* the port's ifindex */
} addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 256);
	__type(key, __u32); /* ifindex */
	__type(value, __u32); /* the same */
} ports SEC(".maps");

/* A sum as sixteen bits. */
static __always_inline __u32 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/*
 * Says whether the checksum of a packet over IPv6 is left to the sender's card:
 * then the sum of the pseudo header alone is in its place. Zero has two forms.
 */
static __always_inline int unfinished6(const struct ipv6hdr *ip, const struct udphdr *udp)
{
	__u64 sum = bpf_htons(IPPROTO_UDP) + udp->len;
	int i;

#pragma unroll
	for (i = 0; i < 4; i++)
		sum += (__u64)ip->saddr.s6_addr32[i] + ip->daddr.s6_addr32[i];
	return folded(sum) % 0xffff == udp->check % 0xffff;
}

static __always_inline int unfinished4(const struct iphdr *ip, const struct udphdr *udp)
{
	__u64 sum = bpf_htons(IPPROTO_UDP) + udp->len;

	sum += ip->saddr;
	sum += ip->daddr;
	return folded(sum) % 0xffff == udp->check % 0xffff;
}

/*
 * A switch for UDP. It costs a host no packet buffer, as the bridge does, but what
 * the kernel knows of a packet is lost on the way: that its checksum is still to be
 * made. So UDP over IPv4 goes on without one then, and over IPv6, where there must be
 * one, by the bridge. TCP's checksums are never made on such links, so it goes by the
 * bridge as well, and all that is not for one host.
 */
SEC("xdp")
int forward(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct address to = {};
	struct udphdr *udp;
	__u32 *port;

	if (!switching || (void *)(eth + 1) > end)
		return XDP_PASS;
	__builtin_memcpy(to.mac, eth->h_dest, ETH_ALEN);
	port = bpf_map_lookup_elem(&addresses, &to);
	if (!port || *port == ctx->ingress_ifindex)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		udp = (void *)(ip + 1);
		if ((void *)(udp + 1) > end || ip->protocol != IPPROTO_UDP || ip->ihl != 5)
			return XDP_PASS;
		/* Of a packet in pieces the checksum is made before, and only the first has it. */
		if (!(ip->frag_off & bpf_htons(0x3fff)) && unfinished4(ip, udp))
			udp->check = 0;
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		udp = (void *)(ip6 + 1);
		if ((void *)(udp + 1) > end || ip6->nexthdr != IPPROTO_UDP || unfinished6(ip6, udp))
			return XDP_PASS;
	} else {
		return XDP_PASS;
	}
	return bpf_redirect_map(&ports, *port, XDP_PASS);
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
