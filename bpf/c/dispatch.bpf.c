/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The program at the interface. It decides for every packet whether it is a
 * frame for one of our ends, whole, authentic and new, and hands it to the chain:
 * pairs to the fold, acknowledgements to the absorber, what is of broadcasts and
 * all-reduces to programs that check more of it themselves. The order of the checks is
 * the reference model's; see shuffle/model.
 */
#define NEED_CONFIG
#define NEED_JOBS
#define NEED_STREAMS
#define NEED_CELLS
#define NEED_CHAIN
#include "maps.h"
#include "parse.h"
#include "tag.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Cells per target: the number of possible CPUs. Set by the loader. */
const volatile __u32 cpus = 1;

#define KINDS_TO_PORT \
	(1 << QUERN_DATA | 1 << QUERN_PROBE | 1 << QUERN_BROADCAST | 1 << QUERN_ANSWER | 1 << QUERN_REDUCE | 1 << QUERN_REDUCED)
#define KINDS_FROM_PORT (1 << QUERN_ACK | 1 << QUERN_PROBE_REPLY | 1 << QUERN_BROADCAST_ACK)
#define KINDS_OF_CHUNKS (1 << QUERN_BROADCAST | 1 << QUERN_BROADCAST_ACK)
#define KINDS_OF_PARTS (1 << QUERN_REDUCE | 1 << QUERN_REDUCED)

/* Says whether the port at our end of this kind of frame is ours. A kind that does not exist may be at either. */
static __always_inline int port_is_ours(__u32 kind_bit, __u16 port, struct quern_head *head)
{
	int from = AT16(head, -8) == port, to = AT16(head, -6) == port;

	if (kind_bit & KINDS_TO_PORT)
		return to;
	if (kind_bit & KINDS_FROM_PORT)
		return from;
	return from | to;
}

/* Says whether shape and count may be in a frame of that kind. */
static __always_inline int shape_exists(__u8 kind, __u8 shape, __u8 count)
{
	if (kind != QUERN_DATA)
		return shape == 0 && count == 0;
	if (shape <= QUERN_SHAPE_LONG)
		return count != 0;
	return (shape & ~QUERN_SHAPE_WIDE) == QUERN_SHAPE_DENSE && count == 0;
}

/* Says whether each of the four operations is one that apply links know. */
static __always_inline int ops_exist(__u32 ops)
{
	return !((ops & 0x8888) | (ops & ops >> 1 & ops >> 2 & 0x1111));
}

/*
 * Returns the length of the body that holds what the frame says is in it, or 0
 * if the shape is not what the stream folds.
 */
static __always_inline __u64 body_length(struct quern_head *head, void *end, const struct quern_stream *stream)
{
	__u32 shape = head->shape;
	__u64 bytes;

	if (shape & QUERN_SHAPE_DENSE) {
		__u64 values;

		if (stream->lanes != 0 || (void *)(head + 1) + 8 > end)
			return 0;
		values = AT32(head, QUERN_HEAD + 4);
		if (values == 0)
			return 0;
		bytes = 8 + (values << (shape & QUERN_SHAPE_WIDE ? 3 : 2));
	} else {
		__u32 lanes = (shape >> 2 & 3) + 1;

		if (stream->lanes != lanes)
			return 0;
		bytes = 4 + (lanes << (shape & QUERN_SHAPE_WIDE ? 3 : 2)) + (8 << (shape & 3));
		bytes *= head->count;
	}
	bytes = (bytes + QUERN_BODY_STEP - 1) & ~(__u64)(QUERN_BODY_STEP - 1);
	return bytes < QUERN_MIN_BODY ? QUERN_MIN_BODY : bytes;
}

SEC("xdp")
int quern_dispatch(struct xdp_md *ctx)
{
	void *data = PACKET(ctx), *end = PACKET_END(ctx);
	struct quern_stream *stream;
	struct quern_config *conf;
	struct quern_head *head;
	struct quern_cell *cell;
	struct quern_job *job;
	__u32 key = 0, kind_bit, seq, class, index, table, set;
	__u64 at, payload, length, tag;

	if (!parse_udp(data, end, &at))
		return leave(QUERN_R_FOREIGN, XDP_PASS);
	head = data + at;
	conf = bpf_map_lookup_elem(&config, &key);
	if (!conf || (void *)(head + 1) > end)
		return leave(QUERN_R_FOREIGN, XDP_PASS);
	kind_bit = head->kind < 16 ? 1u << head->kind : 0;
	if (head->magic != QUERN_MAGIC || !port_is_ours(kind_bit, conf->port, head))
		return leave(QUERN_R_FOREIGN, XDP_PASS);

	payload = payload_size(data, end, at);
	if (!payload || head->version != QUERN_VERSION || head->zero != 0 ||
	    !(kind_bit & (KINDS_TO_PORT | KINDS_FROM_PORT) & ~(1 << QUERN_ANSWER)))
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	if (head->kind == QUERN_PROBE_REPLY)
		return leave(QUERN_R_UP_SHAPE, XDP_PASS);
	if (kind_bit & KINDS_OF_CHUNKS) {
		/* Where broadcasts are not set up, the chain has nothing there. */
		bpf_tail_call(ctx, &chain, head->kind == QUERN_BROADCAST ? QUERN_CHAIN_CHUNK : QUERN_CHAIN_COLLECT);
		return leave(QUERN_R_UP_CHAIN, XDP_PASS);
	}
	if (kind_bit & KINDS_OF_PARTS) {
		bpf_tail_call(ctx, &chain, head->kind == QUERN_REDUCE ? QUERN_CHAIN_REDUCE : QUERN_CHAIN_REDUCED);
		return leave(QUERN_R_UP_CHAIN, XDP_PASS);
	}
	/* Flags, hop and zero2 in one. */
	length = head->length;
	if ((AT32(head, 48) & ~QUERN_WANT_ACK) || length % QUERN_BODY_STEP || length > QUERN_BODY ||
	    payload < QUERN_HEAD + length || !shape_exists(head->kind, head->shape, head->count))
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	if (head->kind == QUERN_DATA ? length < QUERN_MIN_BODY :
	    head->kind == QUERN_ACK && length != sizeof(struct quern_ack))
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	if (payload != QUERN_HEAD + length)
		return leave(QUERN_R_UP_SHAPE, XDP_PASS);

	if (head->kind == QUERN_ACK) {
		bpf_tail_call(ctx, &chain, QUERN_CHAIN_ABSORB);
		return leave(QUERN_R_UP_CHAIN, XDP_PASS);
	}
	if (head->kind == QUERN_PROBE)
		goto answer;

	key = head->stream;
	stream = bpf_map_lookup_elem(&streams, &key);
	if (!stream || stream->token == 0 || stream->token != head->token)
		return leave(QUERN_R_TOKEN, XDP_DROP);
	key = stream->job;
	job = bpf_map_lookup_elem(&jobs, &key);
	if (!job)
		return leave(QUERN_R_TOKEN, XDP_DROP);
	seq = head->seq;
	if (seq >= stream->frames || seq >= QUERN_SEGMENT)
		return leave(QUERN_R_SEQ, XDP_DROP);
	if (!(stream->flags & QUERN_STREAM_FOLD) || head->shape == QUERN_SHAPE_LONG || !ops_exist(stream->ops) ||
	    ((head->shape & QUERN_SHAPE_DENSE) && (stream->ops & 15) == QUERN_SUM))
		return leave(QUERN_R_UP_SHAPE, XDP_PASS);
	if (length != body_length(head, end, stream))
		return leave(QUERN_R_MALFORMED, XDP_DROP);

	/* Nothing of the packet has been written anywhere, and nothing is before this. */
	if (!frame_tag(job, head, end, length / QUERN_BODY_STEP, QUERN_BODY / QUERN_BODY_STEP,
		       (__u64)head->back << 16 | seq, &tag) || tag != head->tag)
		return leave(QUERN_R_TAG, XDP_DROP);

	HIDE(seq); /* 6.1 has forgotten its range */
	if (stream->seen[seq / 32 % (QUERN_SEGMENT / 32)] >> (seq % 32) & 1) {
		note(QUERN_R_DUPLICATE);
		if (head->flags & QUERN_WANT_ACK)
			goto answer;
		return XDP_DROP;
	}

	key = stream->target * cpus + bpf_get_smp_processor_id();
	cell = bpf_map_lookup_elem(&cells, &key);
	class = head->shape & QUERN_SHAPE_DENSE ? 0 : head->shape & 3;
	table = cell ? cell->table[class] : 0;
	if (table == 0) {
		if (cell) {
			cell->want |= 1u << class;
			cell->missing += 1;
		}
		return leave(QUERN_R_UP_TABLE, XDP_PASS);
	}
	table -= 1;
	set = table >> 24;
	head->s_cell = key;
	head->s_table = table & QUERN_TABLE_MASK;
	head->s_ops = stream->ops;
	head->s_shift = head->shape & QUERN_SHAPE_DENSE ? 0 : cell->shift[class];
	head->s_set = set;
	clear_udp_sum(head);
	index = QUERN_CHAIN_SET(set);
	if (head->shape & QUERN_SHAPE_WIDE)
		index += QUERN_CHAIN_WIDE;
	if (head->shape & QUERN_SHAPE_DENSE)
		index += QUERN_CHAIN_APPLY;
	bpf_tail_call(ctx, &chain, index);
	return leave(QUERN_R_UP_CHAIN, XDP_PASS);

answer:
	bpf_tail_call(ctx, &chain, QUERN_CHAIN_ACK);
	/* User space answers: it finds a frame that is claimed, or a probe. */
	return leave(QUERN_R_UP_CHAIN, XDP_PASS);
}
