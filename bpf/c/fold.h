/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The two passes of the fold. Every function here is inlined with a constant
 * class, number of lanes and width, so that sizes are constants.
 *
 * Pass one finds or makes the slot of every key and notes its number in the
 * packet. A slot that is made is no result until pass two marks it, so a frame
 * that stops half-way has changed nothing. Pass two claims the frame, then
 * applies every value. Both find the table by the index in the packet: what
 * user space writes to the cell between the passes does not part them.
 */
#ifndef QUERN_FOLD_H
#define QUERN_FOLD_H

#define NEED_STREAMS
#define NEED_CELLS
#define NEED_CHAIN
#define NEED_TABLES
#include "maps.h"
#include "parse.h"

/* log2 of the slots (dense: values) of this set's tables. Set by the loader; the verifier knows it. */
const volatile __u32 slot_bits = 10;

#define KEY_BYTES(class) (8 << (class))
#define LEAST_KEY(class) ((class) ? (4 << (class)) + 1 : 0)
#define VALUE_BYTES(wide) ((wide) ? 8 : 4)
#define PAIR_BYTES(class, lanes, wide) (4 + (lanes) * VALUE_BYTES(wide) + KEY_BYTES(class))
#define SLOT_LANES_AT 8
#define SLOT_CARRIES_AT(lanes) (SLOT_LANES_AT + 8 * (lanes))
#define SLOT_KEY_AT(lanes) (SLOT_CARRIES_AT(lanes) + 8 * ((lanes) / 2))
#define SLOT_BYTES(class, lanes) (SLOT_KEY_AT(lanes) + KEY_BYTES(class))
#define SHAPE(class, lanes, wide) ((class) | ((lanes) - 1) << 2 | ((wide) ? QUERN_SHAPE_WIDE : 0))

#define SLOT_APPLIED 1
/* One carry of lane 0, beside the mark. */
#define SLOT_CARRY 2

/* The table that the dispatcher chose. */
static __always_inline void *table_of(const struct quern_head *head)
{
	__u32 key = head->s_table;
	void *set = bpf_map_lookup_elem(&tables, &key);

	if (!set)
		return 0;
	key = 0;
	return bpf_map_lookup_elem(set, &key);
}

static __always_inline struct quern_cell *cell_of(const struct quern_head *head)
{
	__u32 key = head->s_cell;

	return bpf_map_lookup_elem(&cells, &key);
}

/* Passes the frame up because something in it has no place in the table. */
static __always_inline int no_place(const struct quern_head *head)
{
	struct quern_cell *cell = cell_of(head);

	if (cell)
		cell->full += 1;
	return leave(QUERN_R_UP_FULL, XDP_PASS);
}

/*
 * Says whether a slot holds a pair: meta and key. One branch for all of it, since
 * most often it does, and since the verifier walks each way that there is.
 */
static __always_inline int same(__u32 there, __u32 meta, void *slot_key, void *pair_key, const int class)
{
	__u64 differ = there ^ meta;

#pragma unroll
	for (int i = 0; i < KEY_BYTES(class); i += 8) {
		differ |= AT64(slot_key, i) ^ AT64(pair_key, i);
		HIDE(differ);
	}
	return differ == 0;
}

static __always_inline int find(struct xdp_md *ctx, const int class, const int lanes, const int wide)
{
	const __u32 pair = PAIR_BYTES(class, lanes, wide), key_at = pair - KEY_BYTES(class);
	void *end = PACKET_END(ctx), *p, *slots, *slot;
	struct quern_head *head = frame_head(PACKET(ctx), end);
	__u32 left, shift, down, meta, there, number;

	if (!head || head->shape != SHAPE(class, lanes, wide) || !(slots = table_of(head)))
		return leave(QUERN_R_UP_CHAIN, XDP_PASS);
	slots += sizeof(struct quern_table);
	shift = head->s_shift & 31;
	down = 32 - slot_bits;
	left = head->count;
	if (left > QUERN_BODY / pair)
		left = QUERN_BODY / pair;
	/* p is behind the pair. */
	for (p = (void *)(head + 1) + pair; left; left--) {
		if (p > end)
			goto full;
		meta = AT32(p - pair, 0);
		if (meta == 0) /* a free slot would look the same */
			goto full;
		number = (meta & ~QUERN_META_LEN_MASK) << shift >> down;
		slot = slots + (__u64)number * SLOT_BYTES(class, lanes);
#pragma clang loop unroll(disable)
		for (int j = 0;;) {
			there = AT32(slot, 0);
			if (same(there, meta, slot + SLOT_KEY_AT(lanes), p - pair + key_at, class))
				break;
			if (there == 0) {
				/* A length that is not of this class is no key's; user space tells what is wrong. */
				if ((meta & QUERN_META_LEN_MASK) - 1 - LEAST_KEY(class) > KEY_BYTES(class) - LEAST_KEY(class))
					goto full;
				AT32(slot, 0) = meta;
#pragma unroll
				for (int k = 0; k < KEY_BYTES(class); k += 8)
					AT64(slot, SLOT_KEY_AT(lanes) + k) = AT64(p - pair, key_at + k);
				AT64(slots, -(int)sizeof(struct quern_table)) += 1; /* used */
				break;
			}
			if (++j == QUERN_PROBES)
				goto full;
			slot += SLOT_BYTES(class, lanes);
			number += 1;
		}
		AT32(p - pair, 0) = number << QUERN_META_LEN_BITS | (meta & QUERN_META_LEN_MASK);
		p += pair;
		HIDE(p);
	}
	bpf_tail_call(ctx, &chain, QUERN_CHAIN_SET(head->s_set) + (wide ? QUERN_CHAIN_WIDE : 0) + QUERN_CHAIN_APPLY);
	return leave(QUERN_R_UP_CHAIN, XDP_PASS);
full:
	/* Behind a barrier, so that the way out is not copied into the loop. */
	HIDE(head);
	return no_place(head);
}

/* What a lane in memory is xor'ed with: the operation's identity. */
static __always_inline __s64 identity(const int op)
{
	switch (op) {
	case QUERN_MIN:
		return 0x7fffffffffffffffLL;
	case QUERN_MAX:
		return -0x7fffffffffffffffLL - 1;
	case QUERN_AND:
		return -1;
	}
	return 0;
}

/* Applies v to a lane in memory by any operation that counts no carries. */
static __always_inline void apply_value(void *lane, __s64 v, const int op)
{
	__s64 old = AT64(lane, 0) ^ identity(op);

	switch (op) {
	case QUERN_MIN:
		if (v < old)
			AT64(lane, 0) = v ^ identity(op);
		return;
	case QUERN_MAX:
		if (v > old)
			AT64(lane, 0) = v ^ identity(op);
		return;
	case QUERN_AND:
		AT64(lane, 0) = (old & v) ^ identity(op);
		return;
	case QUERN_OR:
		AT64(lane, 0) = old | v;
		return;
	case QUERN_XOR:
		AT64(lane, 0) = old ^ v;
		return;
	default:
		AT64(lane, 0) = old + v;
	}
}

static __always_inline __s64 read_value(void *p, const int wide)
{
	return wide ? (__s64)AT64(p, 0) : (__s64)(__s32)AT32(p, 0);
}

/* Applies one lane of all pairs. Returns 0 if it could not do all. */
static __always_inline int apply_lane(void *p, void *end, void *table, __u32 count, const int class,
				      const int lanes, const int wide, const int lane, const int op)
{
	const __u64 slots = (1ULL << slot_bits) + QUERN_PROBES;

	for (__u32 i = 0; i < QUERN_BODY / PAIR_BYTES(class, lanes, wide); i++) {
		__s64 old, v, sum;
		__u64 number;
		__s32 carry;
		void *slot;

		if (i >= count)
			break;
		if (p + PAIR_BYTES(class, lanes, wide) > end)
			return 0;
		number = AT32(p, 0) >> QUERN_META_LEN_BITS;
		if (number >= slots)
			return 0;
		slot = table + sizeof(struct quern_table) + number * SLOT_BYTES(class, lanes);
		v = read_value(p + 4 + lane * VALUE_BYTES(wide), wide);
		if (op == QUERN_SUM) {
			old = AT64(slot, SLOT_LANES_AT + 8 * lane);
			sum = old + v;
			AT64(slot, SLOT_LANES_AT + 8 * lane) = sum;
			if (lane == 0)
				AT32(slot, 4) |= SLOT_APPLIED;
			if (((old ^ sum) & (v ^ sum)) < 0) {
				carry = v < 0 ? -1 : 1;
				if (lane == 0)
					AT32(slot, 4) += carry * SLOT_CARRY;
				else
					AT32(slot, SLOT_CARRIES_AT(lanes) + 4 * (lane - 1)) += carry;
			}
		} else {
			if (lane == 0)
				AT32(slot, 4) |= SLOT_APPLIED;
			apply_value(slot + SLOT_LANES_AT + 8 * lane, v, op);
		}
		p += PAIR_BYTES(class, lanes, wide);
	}
	return 1;
}

/* Claims the frame. Returns 0 if it had been claimed before. */
static __always_inline int claim(struct quern_stream *stream, __u32 seq)
{
	__u64 bit = 1ULL << (seq % 32);

	return !(__sync_fetch_and_or(&stream->seen[seq / 32 % (QUERN_SEGMENT / 32)], bit) & bit);
}

/* How a frame ends that is claimed by now, by us or by others. */
#define ANSWER_OR_DROP(ctx, head)                                              \
	do {                                                                   \
		if (!((head)->flags & QUERN_WANT_ACK))                         \
			return XDP_DROP;                                       \
		bpf_tail_call(ctx, &chain, QUERN_CHAIN_ACK);                   \
		/* User space will find it claimed, and answer. */             \
		return leave(QUERN_R_ANSWER_UP, XDP_PASS);                     \
	} while (0)

static __always_inline int torn(struct quern_cell *cell)
{
	cell->torn = 1;
	return leave(QUERN_R_TORN, XDP_DROP);
}

static __always_inline void count_applied(struct quern_table *table, struct quern_cell *cell, __u64 n)
{
	table->pairs += n;
	cell->pairs += n;
	cell->frames += 1;
	note(QUERN_R_FOLDED);
}

static __always_inline int apply(struct xdp_md *ctx, const int class, const int lanes, const int wide)
{
	void *end = PACKET_END(ctx), *p, *table;
	struct quern_head *head = frame_head(PACKET(ctx), end);
	struct quern_stream *stream;
	struct quern_cell *cell;
	__u32 key, count, ops;
	int all = 1;

	if (!head || head->shape != SHAPE(class, lanes, wide) || !(table = table_of(head)) || !(cell = cell_of(head)))
		return leave(QUERN_R_UP_CHAIN, XDP_PASS);
	key = head->stream;
	stream = bpf_map_lookup_elem(&streams, &key);
	if (!stream)
		return leave(QUERN_R_UP_CHAIN, XDP_PASS);
	if (!claim(stream, head->seq)) {
		note(QUERN_R_LOST_CLAIM);
		ANSWER_OR_DROP(ctx, head);
	}
	p = head + 1;
	ops = head->s_ops;
#define LANE(lane, op) all = apply_lane(p, end, table, count, class, lanes, wide, lane, op)
#pragma unroll
	for (int lane = 0; lane < lanes; lane++) {
		/*
		 * Read again for every lane: where a loop ends tells the verifier what
		 * count was, and it would walk the next loop once for each.
		 */
		count = *(volatile __u8 *)&head->count;
		switch (ops >> (4 * lane) & 15) {
		case QUERN_SUM:
			LANE(lane, QUERN_SUM);
			break;
		case QUERN_MIN:
			LANE(lane, QUERN_MIN);
			break;
		case QUERN_MAX:
			LANE(lane, QUERN_MAX);
			break;
		case QUERN_AND:
			LANE(lane, QUERN_AND);
			break;
		case QUERN_OR:
			LANE(lane, QUERN_OR);
			break;
		case QUERN_XOR:
			LANE(lane, QUERN_XOR);
			break;
		case QUERN_SUM_BOUND:
			LANE(lane, QUERN_SUM_BOUND);
			break;
		default:
			all = 0;
		}
		if (!all)
			return torn(cell);
	}
#undef LANE
	count_applied(table, cell, head->count);
	ANSWER_OR_DROP(ctx, head);
}

/* Most values of a dense frame: behind offset and number. */
#define DENSE_VALUES(wide) ((QUERN_BODY - 8) / VALUE_BYTES(wide))

static __always_inline int apply_values(void *p, void *end, void *table, __u32 offset, __u32 count, const int wide,
					const int op)
{
	const __u64 mask = (1ULL << slot_bits) - 1;

	for (__u32 i = 0; i < DENSE_VALUES(wide); i++) {
		if (i >= count)
			break;
		if (p + VALUE_BYTES(wide) > end)
			return 0;
		apply_value(table + sizeof(struct quern_table) + ((offset + i) & mask) * 8, read_value(p, wide), op);
		p += VALUE_BYTES(wide);
	}
	return 1;
}

/* A vector: no keys, no pass one. What is checked first is that it lies within the table. */
static __always_inline int apply_dense(struct xdp_md *ctx, const int wide)
{
	void *end = PACKET_END(ctx), *p, *table;
	struct quern_head *head = frame_head(PACKET(ctx), end);
	struct quern_stream *stream;
	struct quern_cell *cell;
	__u32 key, offset, count;
	int all;

	if (!head || (head->shape != (QUERN_SHAPE_DENSE | (wide ? QUERN_SHAPE_WIDE : 0))) ||
	    !(table = table_of(head)) || !(cell = cell_of(head)))
		return leave(QUERN_R_UP_CHAIN, XDP_PASS);
	key = head->stream;
	stream = bpf_map_lookup_elem(&streams, &key);
	p = head + 1;
	if (!stream || p + 8 > end)
		return leave(QUERN_R_UP_CHAIN, XDP_PASS);
	offset = AT32(p, 0);
	count = AT32(p, 4);
	p += 8;
	if ((__u64)offset + count > 1ULL << slot_bits)
		return no_place(head);
	if (!claim(stream, head->seq)) {
		note(QUERN_R_LOST_CLAIM);
		ANSWER_OR_DROP(ctx, head);
	}
#define VALUES(op) all = apply_values(p, end, table, offset, count, wide, op)
	switch (head->s_ops & 15) {
	case QUERN_MIN:
		VALUES(QUERN_MIN);
		break;
	case QUERN_MAX:
		VALUES(QUERN_MAX);
		break;
	case QUERN_AND:
		VALUES(QUERN_AND);
		break;
	case QUERN_OR:
		VALUES(QUERN_OR);
		break;
	case QUERN_XOR:
		VALUES(QUERN_XOR);
		break;
	case QUERN_SUM_BOUND:
		VALUES(QUERN_SUM_BOUND);
		break;
	default:
		all = 0;
	}
#undef VALUES
	if (!all)
		return torn(cell);
	count_applied(table, cell, count);
	ANSWER_OR_DROP(ctx, head);
}

#endif
