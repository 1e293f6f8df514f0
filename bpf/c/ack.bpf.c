/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The end of the chain: makes the answer to a frame out of the frame itself. It
 * carries the bitmap around the frame, so one answer covers a group, and nothing
 * about answers is kept anywhere. Probes are turned around here too.
 *
 * Where config says that user space answers, the packet goes up with its
 * addresses as they came and is complete but for its kind: user space checks
 * nothing else, puts QUERN_ACK in the place of QUERN_ANSWER and sends the
 * payload to where the packet came from. The tag is that of the acknowledgement.
 * The same is done where the driver has no room for the mark that tc needs.
 */
#define NEED_CONFIG
#define NEED_JOBS
#define NEED_STREAMS
#define NEED_NONCES
#include "maps.h"
#include "answer.h"
#include "parse.h"
#include "tag.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define NONCE_COUNT_BITS 36
#define CPU_MASK 0xfff

SEC("xdp")
int quern_ack(struct xdp_md *ctx)
{
	void *data = PACKET(ctx), *end = PACKET_END(ctx);
	struct quern_stream *stream;
	struct quern_config *conf;
	struct quern_head *head;
	struct quern_job *job;
	struct quern_ack *ack;
	__u32 key = 0, mode, base, probe;
	__u64 *count, nonce, tag;

	head = frame_head(data, end);
	conf = bpf_map_lookup_elem(&config, &key);
	count = bpf_map_lookup_elem(&nonces, &key);
	if (!head || !conf || !count)
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	mode = conf->answer;
	probe = head->kind == QUERN_PROBE;
	if (mode == QUERN_ANSWER_TC && !mark_for_tc(ctx))
		mode = QUERN_ANSWER_USER;
	if (probe && mode == QUERN_ANSWER_USER)
		return leave(QUERN_R_ANSWER_UP, XDP_PASS);

	data = PACKET(ctx);
	end = PACKET_END(ctx);
	head = frame_head(data, end);
	if (!head)
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	if (probe) {
		if (!turn_around(data, end, head))
			return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
		head->kind = QUERN_PROBE_REPLY;
		head->count = 1; /* by the kernel */
		set_lengths(data, head, QUERN_HEAD + head->length);
		return leave(QUERN_R_PROBED, mode == QUERN_ANSWER_TX ? XDP_TX : XDP_PASS);
	}

	/* Bodies have QUERN_MIN_BODY bytes at least: this never grows. */
	if (head->length > sizeof(*ack) && bpf_xdp_adjust_tail(ctx, (int)sizeof(*ack) - (int)head->length))
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	data = PACKET(ctx);
	end = PACKET_END(ctx);
	head = frame_head(data, end);
	if (!head || (void *)(head + 1) + sizeof(*ack) > end)
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	key = head->stream;
	stream = bpf_map_lookup_elem(&streams, &key);
	if (!stream)
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	key = stream->job;
	job = bpf_map_lookup_elem(&jobs, &key);
	if (!job)
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);

	nonce = (__u64)(bpf_get_smp_processor_id() & CPU_MASK) << NONCE_COUNT_BITS;
	nonce |= *count & ((1ULL << NONCE_COUNT_BITS) - 1);
	*count += 1;
	base = head->seq / 32;
	base = base > QUERN_ACK_BEFORE ? base - QUERN_ACK_BEFORE : 0;
	if (base > QUERN_SEGMENT / 32 - QUERN_ACK_WORDS)
		base = QUERN_SEGMENT / 32 - QUERN_ACK_WORDS;
	ack = (void *)(head + 1);
	ack->nonce = nonce;
	ack->stamp = head->stamp;
	ack->share = stream->share;
	ack->base = base;
	ack->from = 1; /* the kernel */
	ack->zero = 0;
#pragma unroll
	for (int i = 0; i < QUERN_ACK_WORDS; i++)
		ack->claimed[i] = stream->seen[(base + i) % (QUERN_SEGMENT / 32)];
	ack->zero2[0] = 0;
	ack->zero2[1] = 0;

	head->kind = QUERN_ACK;
	head->shape = 0;
	head->count = 0;
	head->length = sizeof(*ack);
	head->flags = 0;
	head->s_cell = 0;
	head->s_table = 0;
	head->s_ops = 0;
	head->s_shift = 0;
	head->s_set = 0;
	if (!frame_tag(job, head, end, sizeof(*ack) / QUERN_BODY_STEP, sizeof(*ack) / QUERN_BODY_STEP, nonce, &tag))
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	head->tag = tag;
	set_lengths(data, head, QUERN_HEAD + sizeof(*ack));
	if (mode == QUERN_ANSWER_USER) {
		head->kind = QUERN_ANSWER;
		return leave(QUERN_R_ANSWER_UP, XDP_PASS);
	}
	if (!turn_around(data, end, head))
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	set_lengths(data, head, QUERN_HEAD + sizeof(*ack));
	return leave(QUERN_R_ANSWERED, mode == QUERN_ANSWER_TX ? XDP_TX : XDP_PASS);
}
