/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * A member's end of a broadcast: stores a chunk into mapped memory and sends it on
 * to the next member of its chain, or cuts it to the answer that the source
 * gets. Nothing of a chunk is written anywhere before its tag was found right,
 * and nothing is sent on that is not stored here. The order of the checks is the
 * reference model's; see shuffle/model.
 *
 * A chunk that programs cannot send on goes up as it came: user space finds it
 * stored and does the rest.
 */
#define NEED_CONFIG
#define NEED_JOBS
#define NEED_REGIONS
#define NEED_CONTENTS
#define NEED_EVENTS
#include "maps.h"
#include "chunk.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("xdp")
int quern_chunk(struct xdp_md *ctx)
{
	void *data = PACKET(ctx), *end = PACKET_END(ctx), *content, *element;
	__u32 key, *found, slot, *state, *count, was, first, total, bytes, steps, mode, out, answer;
	__u64 token, sum, *mark;
	struct quern_region *region;
	struct quern_config *conf;
	struct quern_chunk *chunk;
	struct quern_head *head;
	struct quern_hop *hop;
	struct quern_job *job;
	__u16 chain;

	head = frame_head_only(data, end);
	if (!head)
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	token = head->token;
	found = bpf_map_lookup_elem(&tokens, &token);
	if (!found)
		return leave(QUERN_R_UP_REGION, XDP_PASS);
	slot = *(volatile __u32 *)found; /* once: the element may be another's by and by */
	key = slot;
	region = bpf_map_lookup_elem(&regions, &key);
	if (!region || region->token == 0 || region->token != token)
		return leave(QUERN_R_UP_REGION, XDP_PASS);
	key = region->job;
	job = bpf_map_lookup_elem(&jobs, &key);
	key = region->content;
	content = bpf_map_lookup_elem(&contents, &key);
	if (!job || !content)
		return leave(QUERN_R_UP_REGION, XDP_PASS);

	switch (chunk_fits(head, end, QUERN_CHAINS - 1, QUERN_CHUNK_ANSWER, QUERN_BODY)) {
	case CHUNK_MALFORMED:
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	case CHUNK_SEVERAL:
		return leave(QUERN_R_UP_SHAPE, XDP_PASS);
	case CHUNK_FITS:
		break;
	}
	chunk = (void *)(head + 1);
	if ((void *)(chunk + 1) > end || !numbers_fit(chunk))
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	first = chunk->first;
	total = chunk->total;
	bytes = chunk->bytes;
	chain = chunk->chain;
	steps = (bytes + QUERN_BODY_STEP - 1) / QUERN_BODY_STEP;
	if (bytes == 0 || bytes > QUERN_CHUNK || (bytes < QUERN_CHUNK && chunk->place - first != total - 1) ||
	    (steps + 1) * QUERN_BODY_STEP != head->length)
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	if ((__u64)first + total > region->chunks || (chain != region->chain && chain < QUERN_CHAIN_DIRECT))
		return leave(QUERN_R_CHUNK_PLACE, XDP_DROP);
	key = chunk->place;
	element = bpf_map_lookup_elem(content, &key);
	key += region->marks;
	mark = bpf_map_lookup_elem(&marks, &key);
	state = (__u32 *)mark;
	key = region->marks + first;
	mark = bpf_map_lookup_elem(&marks, &key);
	count = (__u32 *)mark + 1;
	if (!element || !state || !mark)
		return leave(QUERN_R_CHUNK_PLACE, XDP_DROP);

	fetch_element(element);
	if (!frame_sum(job, head, end, steps + 1, QUERN_BODY / QUERN_BODY_STEP, &sum))
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	chunk = (void *)(head + 1);
	HIDE(chunk);
	if ((void *)(chunk + 1) > end)
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	if (sum + chunk_pad(job, head, chunk) != head->tag)
		return leave(QUERN_R_CHUNK_TAG, XDP_DROP);

	was = *(volatile __u32 *)state;
	if (was == QUERN_MARK_NONE)
		was = __sync_val_compare_and_swap(state, QUERN_MARK_NONE, QUERN_MARK_WRITING);
	if (was == QUERN_MARK_NONE) {
		if (!copy_data(chunk + 1, end, element, steps, 0)) {
			__sync_lock_test_and_set(state, QUERN_MARK_NONE);
			return leave(QUERN_R_MALFORMED, XDP_DROP);
		}
		/* Exchanged and not just written: what was copied is seen before it. */
		__sync_lock_test_and_set(state, QUERN_MARK_STORED);
		__sync_fetch_and_add(&region->stored, 1);
		note(QUERN_R_STORED);
		if (__sync_fetch_and_add(count, 1) + 1 == total && !(region->flags & QUERN_REGION_QUIET)) {
			struct quern_event event = { .token = token, .slot = slot, .first = first };

			bpf_ringbuf_output(&events, &event, sizeof(event), 0);
		}
	} else if (was == QUERN_MARK_STORED) {
		note(QUERN_R_STORED_BEFORE);
	} else {
		return leave(QUERN_R_CHUNK_BUSY, XDP_DROP);
	}

	/* What becomes of it now. */
	key = 0;
	conf = bpf_map_lookup_elem(&config, &key);
	mode = conf ? conf->answer : QUERN_ANSWER_USER;
	hop = &region->hops[region->hop & 1];
	if (mode == QUERN_ANSWER_USER)
		return leave(QUERN_R_UP_HOP, XDP_PASS);
	if (chain == QUERN_CHAIN_DIRECT) {
		answer = 1;
		out = ctx->ingress_ifindex;
	} else {
		if (!hop_serves(hop, is_ipv6(data)))
			return leave(QUERN_R_UP_HOP, XDP_PASS);
		chain = region->chain;
		answer = hop->tail;
		out = hop->interface;
	}
	if (mode == QUERN_ANSWER_TC && out == ctx->ingress_ifindex && !mark_for_tc(ctx))
		return leave(QUERN_R_UP_HOP, XDP_PASS);
	steps += 1;
	if (answer && steps > QUERN_CHUNK_ANSWER / QUERN_BODY_STEP) {
		if (bpf_xdp_adjust_tail(ctx, QUERN_CHUNK_ANSWER - (int)(steps * QUERN_BODY_STEP)))
			return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
		steps = QUERN_CHUNK_ANSWER / QUERN_BODY_STEP;
	}

	data = PACKET(ctx);
	end = PACKET_END(ctx);
	head = frame_head(data, end);
	chunk = (void *)(head + 1);
	if (!head || (void *)(head + 1) + QUERN_CHUNK_ANSWER > end)
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	if (!answer) {
		/* All but what is changed stays as it was added up. */
		sum -= NH((void *)chunk + 8, (void *)job->nh + QUERN_TAGGED_HEAD + 8);
		sum -= NH((void *)chunk + 16, (void *)job->nh + QUERN_TAGGED_HEAD + 16);
	}
	chunk->chain = chain;
	chunk->group |= 1ULL << (region->bit % 64);
	head->hop += 1;
	if (answer) {
		chunk->bytes = 0;
#pragma unroll
		for (int i = QUERN_CHUNK_HEAD; i < QUERN_CHUNK_ANSWER; i += 8)
			AT64(chunk, i) = 0;
		head->kind = QUERN_BROADCAST_ACK;
		head->length = QUERN_CHUNK_ANSWER;
		sum = 0;
		NH32(sum, (void *)head, (void *)job->nh);
		NH32(sum, (void *)chunk, (void *)job->nh + QUERN_TAGGED_HEAD);
		NH32(sum, (void *)chunk + 32, (void *)job->nh + QUERN_TAGGED_HEAD + 32);
	} else {
		sum += NH((void *)chunk + 8, (void *)job->nh + QUERN_TAGGED_HEAD + 8);
		sum += NH((void *)chunk + 16, (void *)job->nh + QUERN_TAGGED_HEAD + 16);
	}
	head->tag = sum + chunk_pad(job, head, chunk);
	if (chain == QUERN_CHAIN_DIRECT ? !turn_around(data, end, head) : !set_hop(data, end, head, hop))
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	set_lengths(data, head, QUERN_HEAD + steps * QUERN_BODY_STEP);
	__sync_fetch_and_add(&region->passed, 1);
	note(answer ? QUERN_R_CHAIN_ANSWERED : QUERN_R_PASSED_ON);
	if (out != ctx->ingress_ifindex)
		return bpf_redirect(out, 0);
	return mode == QUERN_ANSWER_TX ? XDP_TX : XDP_PASS;
}
