/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The second half of quern_reduce. Of the part that makes a block whole it makes
 * the block's result: puts together what CPUs and user space have of the block,
 * keeps that for whoever asks again and for this member itself, and sends it to the
 * next member. Of a part that came before it makes the result for the member it came from.
 *
 * What programs cannot send goes up as the part it is: user space finds the
 * result stored and does the rest.
 */
#define NEED_CONFIG
#define NEED_JOBS
#define NEED_GROUPS
#define NEED_CONTENTS
#define NEED_ROUNDS
#include "maps.h"
#include "part.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Most CPUs that a group may have elements for, and user space's. */
#define ELEMENTS (256 + 1)

#define EACH_STEP(steps)                                                     \
	for (__u64 i = 0; i < PART_STEPS && i < (steps); i++, ({ HIDE(i); }))

/* Puts one element into another. A function of its own, which the verifier looks at once and not for each element. */
__noinline int quern_put_together(struct block *into, struct block *from, __u32 steps, __u32 how)
{
	void *to = into, *of = from;

	if (!into || !from)
		return 0;
#define PUT(op, wide)                                   \
	EACH_STEP(steps) {                              \
		put_together(to, of, op, wide);         \
		to += QUERN_BODY_STEP;                  \
		of += QUERN_BODY_STEP;                  \
		HIDE(to);                               \
		HIDE(of);                               \
	}
	FOR_EACH_HOW(how, return 0, PUT)
#undef PUT
	return 1;
}

/* Copies an element to two others. */
__noinline int quern_copy_twice(struct block *first, struct block *second, struct block *from, __u32 steps)
{
	void *a = first, *b = second, *of = from;

	if (!first || !second || !from)
		return 0;
	EACH_STEP(steps) {
#pragma unroll
		for (int at = 0; at < QUERN_BODY_STEP; at += 8) {
			__u64 v = AT64(of, at);

			AT64(a, at) = v;
			AT64(b, at) = v;
		}
		a += QUERN_BODY_STEP;
		b += QUERN_BODY_STEP;
		of += QUERN_BODY_STEP;
		HIDE(a);
		HIDE(b);
		HIDE(of);
	}
	return 1;
}

/* Takes the mark of what this member is about to write, unless it is of this generation or a newer one. */
static __always_inline int take_mark(__u64 *mark, __u32 generation)
{
	__u64 was = MARK_READ(mark);

	return MARK_GENERATION(was) < generation &&
	       __sync_val_compare_and_swap(mark, was, MARK_OF(generation, QUERN_MARK_WRITING)) == was;
}

/* Makes what is behind the last value 0, which in elements may be anything. Returns 0 if it is not all there. */
static __always_inline int clear_behind(struct quern_head *head, void *end)
{
	struct quern_part *part = (void *)(head + 1);
	__u32 bytes, rest;
	void *last;

	if ((void *)(part + 1) > end)
		return 0;
	bytes = part->bytes;
	rest = bytes % QUERN_BODY_STEP;
	if (!rest)
		return 1;
	last = (void *)(part + 1) + (bytes & 0x7ff & ~(QUERN_BODY_STEP - 1));
	if (last + QUERN_BODY_STEP > end)
		return 0;
#pragma unroll
	for (int at = 4; at < QUERN_BODY_STEP; at += 4) {
		HIDE(rest);
		if (at >= rest)
			AT32(last, at) = 0;
	}
	return 1;
}

SEC("xdp")
int quern_complete(struct xdp_md *ctx)
{
	void *data = PACKET(ctx), *end = PACKET_END(ctx), *sums, *results, *result, *own, *sum;
	__u32 key, slot, bits, place, row, base, marked, generation, steps, how, cpu, again, mode, in = ctx->ingress_ifindex, out;
	__u64 token, tag, *mark, *own_mark, *other;
	struct quern_group *group;
	struct quern_config *conf;
	struct quern_part *part;
	struct quern_head *head;
	struct quern_hop *hop;
	struct quern_job *job;

	head = frame_head_only(data, end);
	part = (void *)(head + 1);
	if (!head || (void *)(part + 1) > end)
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	again = head->s_set;
	if (!again)
		note(QUERN_R_ADDED);
	token = head->token;
	slot = head->s_table;
	key = slot;
	group = bpf_map_lookup_elem(&groups, &key);
	if (!group || group->token != token)
		return leave(QUERN_R_UP_GROUP, XDP_PASS);
	key = group->job;
	job = bpf_map_lookup_elem(&jobs, &key);
	key = group->sums;
	sums = bpf_map_lookup_elem(&contents, &key);
	key = 0;
	conf = bpf_map_lookup_elem(&config, &key);
	if (!job || !sums || !conf)
		return leave(QUERN_R_UP_GROUP, XDP_PASS);
	bits = group->bits & 31;
	generation = head->seq >> bits;
	place = head->seq & ((1u << bits) - 1);
	row = group->row;
	base = place * row;
	how = part_how(part);
	steps = part_steps(head);
	marked = base + QUERN_ROW_RESULT;
	result = bpf_map_lookup_elem(sums, &marked);
	marked += group->sum_marks;
	mark = bpf_map_lookup_elem(&marks, &marked);
	if (!result || !mark)
		return leave(QUERN_R_UP_GROUP, XDP_PASS);

	if (!again) {
		key = group->results;
		results = bpf_map_lookup_elem(&contents, &key);
		if (!results)
			return leave(QUERN_R_UP_GROUP, XDP_PASS);
		key = (__u32)group->rank << bits | place;
		own = bpf_map_lookup_elem(results, &key);
		key += group->result_marks;
		own_mark = bpf_map_lookup_elem(&marks, &key);
		cpu = bpf_get_smp_processor_id();
		key = base + QUERN_ROW_CPU + cpu;
		sum = bpf_map_lookup_elem(sums, &key);
		marked = group->sum_marks + base;
		if (!own || !own_mark || !sum)
			return leave(QUERN_R_UP_GROUP, XDP_PASS);
		/* User space may have been quicker. */
		if (!take_mark(mark, generation))
			return XDP_DROP;
		for (__u64 i = 0; i < ELEMENTS && i + QUERN_ROW_CPU < row; i++, ({ HIDE(i); })) {
			void *element;

			if (i == cpu)
				continue;
			key = marked + QUERN_ROW_CPU + i;
			other = bpf_map_lookup_elem(&marks, &key);
			if (!other || MARK_GENERATION(MARK_READ(other)) != generation)
				continue;
			key = base + QUERN_ROW_CPU + i;
			element = bpf_map_lookup_elem(sums, &key);
			if (element)
				quern_put_together(sum, element, steps, how);
		}
		if (!take_mark(own_mark, generation)) {
			own = result;
			own_mark = 0;
		}
		quern_copy_twice(result, own, sum, steps);
		/* Exchanged and not just written: what was copied is seen before it. */
		__sync_lock_test_and_set(mark, MARK_OF(generation, QUERN_MARK_STORED));
		__sync_fetch_and_add(&group->reduced, 1);
		note(QUERN_R_REDUCED);
		if (own_mark) {
			__sync_lock_test_and_set(own_mark, MARK_OF(generation, QUERN_MARK_STORED));
			COUNT_STORED(group, token, slot);
		}
	} else if (__sync_fetch_and_or(mark, 0) != MARK_OF(generation, QUERN_MARK_STORED)) {
		/* Looked at once more, atomically: so the result is read behind it. */
		return leave(QUERN_R_PART_STRAY, XDP_DROP);
	}

	/* What becomes of it now. */
	hop = &group->hops[group->hop & 1];
	mode = conf->answer;
	if (mode == QUERN_ANSWER_USER)
		return leave(QUERN_R_UP_HOP, XDP_PASS);
	out = in;
	if (!again) {
		if (!hop_serves(hop, is_ipv6(data)))
			return leave(QUERN_R_UP_HOP, XDP_PASS);
		out = hop->interface;
	}
	if (mode == QUERN_ANSWER_TC && out == in && !mark_for_tc(ctx))
		return leave(QUERN_R_UP_HOP, XDP_PASS);
	data = PACKET(ctx);
	end = PACKET_END(ctx);
	head = frame_head(data, end);
	part = (void *)(head + 1);
	if (!head || (void *)(part + 1) > end || !(again ? turn_around(data, end, head) : set_hop(data, end, head, hop)))
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	head->kind = QUERN_REDUCED;
	AT64(head, QUERN_HEAD - 8) = 0; /* the scratch */
	part->member = 0;
	set_lengths(data, head, QUERN_HEAD + head->length);

	/* What follows looks at nothing before the frame, and is verified once for both versions of IP. */
	HIDE(ctx);
	data = PACKET(ctx);
	end = PACKET_END(ctx);
	head = frame_head_only(data, end);
	if (!head || !copy_data((void *)(head + 1) + QUERN_PART_HEAD, end, result, part_steps(head), 1))
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	/*
	 * Who stands still between two instructions, as a processor of a virtual machine may, could have copied some of
	 * the slot's next block. No member would take that, for all have this one by then, but no two messages may have one tag's pad.
	 */
	if (__sync_fetch_and_or(mark, 0) != MARK_OF(generation, QUERN_MARK_STORED))
		return leave(QUERN_R_PART_STRAY, XDP_DROP);
	/* How far the loop came is no longer known. */
	HIDE(ctx);
	data = PACKET(ctx);
	end = PACKET_END(ctx);
	head = frame_head_only(data, end);
	if (!head || !clear_behind(head, end))
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	HIDE(ctx);
	end = PACKET_END(ctx);
	head = frame_head_only(PACKET(ctx), end);
	part = (void *)(head + 1);
	if (!head || (void *)(part + 1) > end ||
	    !frame_tag(job, head, end, head->length / QUERN_BODY_STEP, QUERN_BODY / QUERN_BODY_STEP, part_nonce(part, head->seq), &tag))
		return leave(QUERN_R_ANSWER_FAILED, XDP_DROP);
	HIDE(head);
	head->tag = tag;
	__sync_fetch_and_add(&group->passed, 1);
	if (again)
		note(QUERN_R_RESULT_AGAIN);
	if (out != in)
		return bpf_redirect(out, 0);
	return mode == QUERN_ANSWER_TX ? XDP_TX : XDP_PASS;
}
