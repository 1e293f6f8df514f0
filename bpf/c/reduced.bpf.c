/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * A member's end of an all-reduce: stores a block's result into mapped memory and
 * sends it on to the next member, as it came. Nothing of a frame is written
 * anywhere before its tag was found right, and only what is new here is sent on.
 * The order of the checks is the reference model's; see shuffle/model.
 *
 * A result that programs cannot send on goes up as it came: user space finds it
 * stored and does the rest.
 */
#define NEED_CONFIG
#define NEED_JOBS
#define NEED_GROUPS
#define NEED_CONTENTS
#define NEED_ROUNDS
#include "maps.h"
#include "part.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("xdp")
int quern_reduced(struct xdp_md *ctx)
{
	void *data = PACKET(ctx), *end = PACKET_END(ctx), *results, *element, KEPT kept_results;
	__u32 key, *found, slot, bits, generation, reducer, next, mode;
	__u64 token, was, *mark;
	struct quern_group *group, KEPT kept_group;
	struct quern_config *conf;
	struct quern_part *part;
	struct quern_head *head;
	struct quern_hop *hop;
	struct quern_job *job;

	head = frame_head_only(data, end);
	if (!head)
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	token = head->token;
	found = bpf_map_lookup_elem(&tokens, &token);
	if (!found)
		return leave(QUERN_R_UP_GROUP, XDP_PASS);
	slot = *(volatile __u32 *)found; /* once: the element may be another's by and by */
	key = slot;
	group = bpf_map_lookup_elem(&groups, &key);
	if (!group || group->token == 0 || group->token != token)
		return leave(QUERN_R_UP_GROUP, XDP_PASS);
	key = group->job;
	job = bpf_map_lookup_elem(&jobs, &key);
	key = group->results;
	results = bpf_map_lookup_elem(&contents, &key);
	if (!job || !results)
		return leave(QUERN_R_UP_GROUP, XDP_PASS);
	kept_group = group;
	kept_results = results;

	switch (part_fits(head, end)) {
	case CHUNK_MALFORMED:
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	case CHUNK_SEVERAL:
		return leave(QUERN_R_UP_SHAPE, XDP_PASS);
	case CHUNK_FITS:
		break;
	}
	part = (void *)(head + 1);
	if ((void *)(part + 1) > end || part->member)
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	if (part->reducer >= group->members || part->reducer == group->rank || head->seq >> (group->bits & 31) == 0)
		return leave(QUERN_R_PART_STRAY, XDP_DROP);
	key = (__u32)part->reducer << (group->bits & 31) | (head->seq & ((1u << (group->bits & 31)) - 1));
	element = bpf_map_lookup_elem(results, &key);
	if (element)
		fetch_element(element);
	head = part_genuine(ctx, job, head, end);
	if (!head)
		return leave(QUERN_R_PART_TAG, XDP_DROP);
	group = kept_group;
	end = PACKET_END(ctx);
	part = (void *)(head + 1);
	if ((void *)(part + 1) > end)
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	reducer = part->reducer;
	bits = group->bits & 31;
	generation = head->seq >> bits;
	key = reducer << bits | (head->seq & ((1u << bits) - 1));
	results = kept_results;
	element = bpf_map_lookup_elem(results, &key);
	key += group->result_marks;
	mark = bpf_map_lookup_elem(&marks, &key);
	if (!element || !mark)
		return leave(QUERN_R_UP_GROUP, XDP_PASS);

	was = MARK_READ(mark);
	if (MARK_GENERATION(was) >= generation ||
	    __sync_val_compare_and_swap(mark, was, MARK_OF(generation, QUERN_MARK_WRITING)) != was)
		return leave(QUERN_R_RESULT_BEFORE, XDP_DROP);
	if (!copy_data((void *)(head + 1) + QUERN_PART_HEAD, end, element, part_steps(head), 0)) {
		__sync_lock_test_and_set(mark, was);
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	}
	/* Exchanged and not just written: what was copied is seen before it. */
	__sync_lock_test_and_set(mark, MARK_OF(generation, QUERN_MARK_STORED));
	note(QUERN_R_RESULT_STORED);
	COUNT_STORED(group, group->token, slot);

	/* What becomes of it now. The last one before the reducer sends it to nobody. */
	next = group->rank + 1;
	if (next >= group->members)
		next = 0;
	if (next == reducer)
		return XDP_DROP;
	key = 0;
	conf = bpf_map_lookup_elem(&config, &key);
	mode = conf ? conf->answer : QUERN_ANSWER_USER;
	hop = &group->hops[group->hop & 1];
	HIDE(ctx);
	data = PACKET(ctx);
	end = PACKET_END(ctx);
	if (mode == QUERN_ANSWER_USER || !frame_head_only(data, end) || !hop_serves(hop, is_ipv6(data)))
		return leave(QUERN_R_UP_HOP, XDP_PASS);
	if (mode == QUERN_ANSWER_TC && hop->interface == ctx->ingress_ifindex && !mark_for_tc(ctx))
		return leave(QUERN_R_UP_HOP, XDP_PASS);
	data = PACKET(ctx);
	end = PACKET_END(ctx);
	head = frame_head(data, end);
	if (!head || !set_hop(data, end, head, hop))
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	set_lengths(data, head, QUERN_HEAD + head->length);
	__sync_fetch_and_add(&group->passed, 1);
	note(QUERN_R_RESULT_PASSED);
	if (hop->interface != ctx->ingress_ifindex)
		return bpf_redirect(hop->interface, 0);
	return mode == QUERN_ANSWER_TX ? XDP_TX : XDP_PASS;
}
