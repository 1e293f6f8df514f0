/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The second half of quern_collect: makes the answer to a chunk into the chunk
 * that the chain gets next. It grows the packet, copies the data out of the
 * mapped content, and sends it to the chain's first member. What it cannot
 * do is left to user space, which is woken by the answer.
 */
#define NEED_CONFIG
#define NEED_JOBS
#define NEED_CASTS
#define NEED_CONTENTS
#include "maps.h"
#include "chunk.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("xdp")
int quern_pump(struct xdp_md *ctx)
{
	void *data = PACKET(ctx), *end = PACKET_END(ctx), *content, *element;
	__u32 key = 0, number, mode, first, total, place, bytes, steps;
	struct quern_config *conf;
	struct quern_chunk *chunk;
	struct quern_cast *cast;
	struct quern_head *head;
	struct quern_hop *hop;
	struct quern_job *job;
	__u64 sum;

	head = frame_head_only(data, end);
	if (!head || (void *)(head + 1) + QUERN_CHUNK_ANSWER > end)
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	conf = bpf_map_lookup_elem(&config, &key);
	key = head->back;
	cast = bpf_map_lookup_elem(&casts, &key);
	if (!conf || !cast)
		return leave(QUERN_R_COLLECTED_UP, XDP_PASS);
	key = cast->job;
	job = bpf_map_lookup_elem(&jobs, &key);
	key = cast->content;
	content = bpf_map_lookup_elem(&contents, &key);
	chunk = (void *)(head + 1);
	/* Of the answer, which is of the message under way: another may have begun just now. */
	first = chunk->first;
	total = chunk->total;
	number = chunk->chain;
	HIDE(number);
	number &= QUERN_CHAINS - 1;
	hop = &cast->heads[number];
	mode = conf->answer;
	/* The answer goes up as it came as long as no chunk is taken: growing is what may fail, and shrinking does not. */
	if (!job || !content || mode == QUERN_ANSWER_USER || !hop_serves(hop, is_ipv6(data)) ||
	    bpf_xdp_adjust_tail(ctx, QUERN_BODY - QUERN_CHUNK_ANSWER))
		return leave(QUERN_R_COLLECTED_UP, XDP_PASS);

	place = __sync_fetch_and_add(&cast->next[number], 1);
	if (place - first >= total)
		return leave(QUERN_R_COLLECTED, XDP_DROP);
	key = place;
	element = bpf_map_lookup_elem(content, &key);
	if (!element)
		return leave(QUERN_R_COLLECTED, XDP_DROP);
	bytes = QUERN_CHUNK;
	if (place - first == total - 1)
		bytes = cast->bytes;
	HIDE(bytes);
	if (bytes - 1 >= QUERN_CHUNK)
		return leave(QUERN_R_COLLECTED, XDP_DROP);
	steps = (bytes + QUERN_BODY_STEP - 1) / QUERN_BODY_STEP;
	if (steps < CHUNK_STEPS && bpf_xdp_adjust_tail(ctx, (int)(steps * QUERN_BODY_STEP) - QUERN_CHUNK))
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	if (mode == QUERN_ANSWER_TC && hop->interface == ctx->ingress_ifindex && !mark_for_tc(ctx))
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);

	data = PACKET(ctx);
	end = PACKET_END(ctx);
	head = frame_head(data, end);
	chunk = (void *)(head + 1);
	if (!head || (void *)(chunk + 1) > end || !set_hop(data, end, head, hop))
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	head->kind = QUERN_BROADCAST;
	head->seq = __sync_fetch_and_add(&cast->transmissions, 1) + 1;
	head->length = QUERN_CHUNK_HEAD + steps * QUERN_BODY_STEP;
	head->stamp = 0;
	head->hop = 0;
	chunk->place = place;
	chunk->bytes = bytes;
	chunk->group = 0;
	set_lengths(data, head, QUERN_HEAD + QUERN_CHUNK_HEAD + steps * QUERN_BODY_STEP);

	/* What follows looks at nothing before the frame, and is verified once for both versions of IP. */
	head = frame_head_only(data, end);
	if (!head || !copy_data((void *)(head + 1) + QUERN_CHUNK_HEAD, end, element, steps, 1))
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	/*
	 * The verifier knows how many steps were copied, and would go through all that
	 * follows for each number. So packet and length are read anew.
	 */
	HIDE(ctx);
	data = PACKET(ctx);
	end = PACKET_END(ctx);
	head = frame_head_only(data, end);
	if (!head)
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	if (!frame_sum(job, head, end, head->length / QUERN_BODY_STEP, QUERN_BODY / QUERN_BODY_STEP, &sum))
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	chunk = (void *)(head + 1);
	HIDE(chunk);
	if ((void *)(chunk + 1) > end)
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	head->tag = sum + chunk_pad(job, head, chunk);
	__sync_fetch_and_add(&cast->pumped, 1);
	note(QUERN_R_COLLECTED);
	note(QUERN_R_PUMPED);
	if (hop->interface != ctx->ingress_ifindex)
		return bpf_redirect(hop->interface, 0);
	return mode == QUERN_ANSWER_TX ? XDP_TX : XDP_PASS;
}
