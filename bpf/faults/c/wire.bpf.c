/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The lab's bad wire: tc programs at both hooks of each bridge port that lose,
 * double, damage and hold packets.
 *
 * What happens to a packet is a function of the plan's seed and of the packet's
 * number on that port and direction, which is counted atomically. So it depends
 * on neither CPUs nor time; only which packet gets which number does.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "faults.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set when loaded */
	__type(key, __u32);
	__type(value, struct faults_plan);
} plans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set when loaded */
	__type(key, __u32);
	__type(value, struct faults_tally);
} tallies SEC(".maps");

/* Packets that user space is to hold. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} holds SEC(".maps");

struct record {
	struct faults_held head;
	__u8 frame[FAULTS_FRAME];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct record);
} scratch SEC(".maps");

/* What is drawn for a packet, by the number of the draw. */
enum draw {
	DRAW_LOSS = 0,
	DRAW_DUPLICATE,
	DRAW_CORRUPT,
	DRAW_REORDER,
	DRAW_HOLD,
	DRAW_JITTER,
	DRAW_COPY_REORDER,
	DRAW_COPY_HOLD,
	DRAW_COPY_JITTER,
	DRAW_FLIPS,
	DRAW_FLIP, /* and the two behind it */
	DRAWS = 16,
};

/* The output function of splitmix64, which turns a counter into noise. */
static __always_inline __u32 draw(__u64 seed, __u64 number, __u32 which)
{
	__u64 z = seed + (number * DRAWS + which + 1) * 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (z ^ (z >> 31)) >> 32;
}

/* A number below n, at random. */
static __always_inline __u32 below(__u32 random, __u32 n)
{
	return ((__u64)random * n) >> 32;
}

struct packet {
	__u32 headers; /* where what UDP carries begins; 0: not known */
	__u8 udp;
};

/*
 * Says whether a packet is one that faults may strike. Neighbour discovery, ARP
 * and group management are not: they would make the numbers of packets depend
 * on timers.
 */
static __always_inline int strikable(struct __sk_buff *skb, struct packet *p)
{
	__u8 first, proto, type;

	p->headers = 0;
	p->udp = 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &first, 1) || bpf_skb_load_bytes(skb, ETH_HLEN + 9, &proto, 1))
			return 0;
		if (proto == IPPROTO_IGMP)
			return 0;
		p->headers = ETH_HLEN + (first & 15) * 4 + 8;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN + 6, &proto, 1))
			return 0;
		if (proto == IPPROTO_HOPOPTS)
			return 0;
		if (proto == IPPROTO_ICMPV6) {
			if (bpf_skb_load_bytes(skb, ETH_HLEN + 40, &type, 1))
				return 0;
			if (type >= 130)
				return 0;
		}
		p->headers = ETH_HLEN + 40 + 8;
	} else {
		return 0;
	}
	p->udp = proto == IPPROTO_UDP;
	return 1;
}

static __always_inline void flip(struct __sk_buff *skb, __u32 at, __u32 bit)
{
	__u8 byte;

	if (bpf_skb_load_bytes(skb, at, &byte, 1))
		return;
	byte ^= 1 << (bit & 7);
	bpf_skb_store_bytes(skb, at, &byte, 1, 0);
}

/*
 * Flips one to three bits: three times in four of what UDP carries, else of the
 * IP and UDP headers. Never the same bit twice. No loop: verifiers up to 6.12
 * do not see that it ends.
 */
static __always_inline void corrupt(struct __sk_buff *skb, const struct packet *p, const struct faults_plan *plan,
				    __u64 number)
{
	__u32 random = draw(plan->seed, number, DRAW_FLIPS);
	__u32 flips = 1 + below(random << 8, 3), bit = random >> 24, from = p->headers, to = skb->len;

	if (from >= to || (random & 3) == 0) {
		to = from < to ? from : to;
		from = ETH_HLEN;
	}
	flip(skb, from + below(draw(plan->seed, number, DRAW_FLIP), to - from), bit);
	if (flips > 1)
		flip(skb, from + below(draw(plan->seed, number, DRAW_FLIP + 1), to - from), bit + 1);
	if (flips > 2)
		flip(skb, from + below(draw(plan->seed, number, DRAW_FLIP + 2), to - from), bit + 2);
}

/* Microseconds for which a packet is held. */
static __always_inline __u32 holding(const struct faults_plan *plan, __u64 number, __u32 which, int *reordered)
{
	__u32 us = plan->delay_us;

	*reordered = draw(plan->seed, number, which) < plan->reorder;
	if (*reordered)
		us += 1 + below(draw(plan->seed, number, which + 1), plan->hold_us);
	if (plan->jitter_us)
		us += below(draw(plan->seed, number, which + 2), plan->jitter_us);
	return us;
}

/* Hands a packet to user space, which sends it when it is due. */
static __always_inline int hold(struct __sk_buff *skb, __u32 us)
{
	__u32 zero = 0, length = skb->len;
	struct record *r = bpf_map_lookup_elem(&scratch, &zero);

	if (!r || length < ETH_HLEN || length > FAULTS_FRAME)
		return -1;
	asm volatile("" : "+r"(length)); /* else the mask, which tells the verifier the bounds, is optimised away */
	length = ((length - 1) & (FAULTS_FRAME - 1)) + 1;
	r->head.due = bpf_ktime_get_ns() + us * 1000ull;
	r->head.port = skb->ifindex;
	r->head.length = length;
	if (bpf_skb_load_bytes(skb, 0, r->frame, length))
		return -1;
	return bpf_ringbuf_output(&holds, r, sizeof(r->head) + length, 0);
}

#define COUNT(field) __sync_fetch_and_add(&tally->field, 1)

static __always_inline int wire(struct __sk_buff *skb, const __u32 direction)
{
	const __u32 passed = direction == FAULTS_TO ? FAULTS_MARK_TO : FAULTS_MARK_FROM;
	__u32 index = skb->ifindex * 2 + direction, mark = skb->mark, base, us;
	struct faults_plan *plan = bpf_map_lookup_elem(&plans, &index);
	struct faults_tally *tally = bpf_map_lookup_elem(&tallies, &index);
	struct packet p;
	__u64 number;
	int late;

	if (!plan || !tally)
		return TC_ACT_OK;
	if (plan->flags & FAULTS_CUT) {
		COUNT(cut);
		return TC_ACT_SHOT;
	}
	if (mark & passed)
		return TC_ACT_OK;
	base = direction == FAULTS_TO && (mark & FAULTS_MARK_FROM) ? mark & FAULTS_MARK_HOLD : 0;
	us = base;
	if (!(plan->flags & FAULTS_ACTIVE) || !strikable(skb, &p) || ((plan->flags & FAULTS_UDP_ONLY) && !p.udp))
		goto send;
	number = COUNT(drawn) - plan->base;
	if (draw(plan->seed, number, DRAW_LOSS) < plan->loss) {
		COUNT(lost);
		return TC_ACT_SHOT;
	}
	if (draw(plan->seed, number, DRAW_DUPLICATE) < plan->duplicate) {
		/* The copy is undamaged and has a delay of its own. */
		COUNT(duplicated);
		us = base + holding(plan, number, DRAW_COPY_REORDER, &late);
		if (direction == FAULTS_FROM) {
			skb->mark = FAULTS_MARK_FROM | (us & FAULTS_MARK_HOLD);
			bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
		} else if (!us || hold(skb, us)) {
			skb->mark = FAULTS_MARK_FROM | FAULTS_MARK_TO;
			bpf_clone_redirect(skb, skb->ifindex, 0);
		}
		skb->mark = mark;
	}
	if (draw(plan->seed, number, DRAW_CORRUPT) < plan->corrupt) {
		if (!p.udp) {
			/* Offloaded checksums are not in the packet, so the receiver would not find the damage. */
			COUNT(rejected);
			return TC_ACT_SHOT;
		}
		COUNT(corrupted);
		corrupt(skb, &p, plan, number);
	}
	us = base + holding(plan, number, DRAW_REORDER, &late);
	if (late)
		COUNT(reordered);
send:
	if (direction == FAULTS_FROM) {
		if (us)
			skb->mark = FAULTS_MARK_FROM | (us & FAULTS_MARK_HOLD);
		return TC_ACT_OK;
	}
	if (us) {
		if (hold(skb, us) == 0) {
			COUNT(held);
			return TC_ACT_SHOT;
		}
		COUNT(unheld);
	}
	return TC_ACT_OK;
}

SEC("tc")
int from_host(struct __sk_buff *skb)
{
	return wire(skb, FAULTS_FROM);
}

SEC("tc")
int to_host(struct __sk_buff *skb)
{
	return wire(skb, FAULTS_TO);
}

char _license[] SEC("license") = "Dual BSD/GPL";
