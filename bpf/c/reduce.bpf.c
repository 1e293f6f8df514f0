/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * A reducer's end of an all-reduce: adds a member's part of a block to what this
 * CPU has of it. Nothing of a part is written anywhere before its tag was found
 * right, and a part is added once however often it comes: whoever claims it adds it,
 * here or in user space. The part that makes a block whole goes on to
 * quern_complete, and so does one that came before if the result is there. The
 * order of the checks is the reference model's; see shuffle/model.
 */
#define NEED_JOBS
#define NEED_GROUPS
#define NEED_CONTENTS
#define NEED_CHAIN
#include "maps.h"
#include "part.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* How often a claim is tried: members that come in at the same time on other CPUs make one fail. */
#define CLAIMS 8

/* Puts steps of values of the packet into an element. Returns 0 if they are not all there. */
static __always_inline int add_part(void *packet, void *end, void *memory, __u32 steps, const int op, const int wide)
{
	HIDE(steps);
	if (steps > PART_STEPS)
		return 0;
	HIDE(steps);
	for (__u64 i = 0; i < PART_STEPS && i < steps;) {
		if (packet + QUERN_BODY_STEP > end)
			return 0;
		put_together(memory, packet, op, wide);
		packet += QUERN_BODY_STEP;
		memory += QUERN_BODY_STEP;
		i++;
		HIDE(i);
		HIDE(packet);
		HIDE(memory);
	}
	return 1;
}

/* Hands the packet to quern_complete, with what that is to know in the head. */
#define COMPLETE(ctx, its_slot, again)                                           \
	do {                                                                     \
		void *from = PACKET(ctx), *to = PACKET_END(ctx);                 \
		struct quern_head *anew = frame_head_only(from, to);             \
		if (anew) {                                                      \
			anew->s_table = (its_slot);                              \
			anew->s_set = (again);                                   \
			clear_udp_sum(anew);                                     \
			bpf_tail_call(ctx, &chain, QUERN_CHAIN_COMPLETE);        \
		}                                                                \
	} while (0)

SEC("xdp")
int quern_reduce(struct xdp_md *ctx)
{
	void *data = PACKET(ctx), *end = PACKET_END(ctx), *sums, *element, KEPT kept_sums;
	__u32 key, *found, slot, bits, row, base, generation, member, what, how, cpu, all;
	__u64 token, was, now, old, *call, *claimed, *applied, *mark;
	struct quern_group *group, KEPT kept_group;
	struct quern_part *part;
	struct quern_head *head;
	struct quern_job *job;
	int whole = 0;

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
	key = group->sums;
	sums = bpf_map_lookup_elem(&contents, &key);
	if (!job || !sums)
		return leave(QUERN_R_UP_GROUP, XDP_PASS);
	kept_group = group;
	kept_sums = sums;

	switch (part_fits(head, end)) {
	case CHUNK_MALFORMED:
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	case CHUNK_SEVERAL:
		return leave(QUERN_R_UP_SHAPE, XDP_PASS);
	case CHUNK_FITS:
		break;
	}
	part = (void *)(head + 1);
	if ((void *)(part + 1) > end)
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	member = part->member;
	if (member >= group->members || member == group->rank || part->reducer != group->rank || head->seq >> (group->bits & 31) == 0)
		return leave(QUERN_R_PART_STRAY, XDP_DROP);
	key = (head->seq & ((1u << (group->bits & 31)) - 1)) * group->row + QUERN_ROW_CPU + bpf_get_smp_processor_id();
	element = bpf_map_lookup_elem(sums, &key);
	if (element)
		fetch_element(element);
	head = part_genuine(ctx, job, head, end);
	if (!head)
		return leave(QUERN_R_PART_TAG, XDP_DROP);
	group = kept_group;
	sums = kept_sums;
	end = PACKET_END(ctx);
	part = (void *)(head + 1);
	if ((void *)(part + 1) > end)
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	what = part->what;
	how = part_how(part);
	member = part->member & (QUERN_MEMBERS - 1);
	bits = group->bits & 31;
	generation = head->seq >> bits;
	row = group->row;
	base = (head->seq & ((1u << bits) - 1)) * row;

	/* User space adds what comes in on a CPU that there was not when the group was made. */
	cpu = bpf_get_smp_processor_id();
	if ((__u64)cpu + QUERN_ROW_CPU + 1 >= row)
		return leave(QUERN_R_UP_GROUP, XDP_PASS);
	key = base + QUERN_ROW_CPU + cpu;
	element = bpf_map_lookup_elem(sums, &key);
	base += group->sum_marks;
	key = base + QUERN_ROW_CPU + cpu;
	mark = bpf_map_lookup_elem(&marks, &key);
	key = base + QUERN_ROW_WHAT;
	call = bpf_map_lookup_elem(&marks, &key);
	key = base + QUERN_ROW_CLAIMED;
	claimed = bpf_map_lookup_elem(&marks, &key);
	key = base + QUERN_ROW_APPLIED;
	applied = bpf_map_lookup_elem(&marks, &key);
	if (!element || !mark || !call || !claimed || !applied)
		return leave(QUERN_R_UP_GROUP, XDP_PASS);

	/* The generation's first part says what call it is of. */
	now = MARK_OF(generation, what);
	was = MARK_READ(call);
	if (MARK_GENERATION(was) < generation) {
		old = __sync_val_compare_and_swap(call, was, now);
		was = old == was ? now : old;
	}
	if (was != now) {
		if (MARK_GENERATION(was) == generation)
			return leave(QUERN_R_PART_DIFFERS, XDP_PASS);
		return leave(QUERN_R_PART_STRAY, XDP_DROP);
	}

	was = MARK_READ(claimed);
	for (__u64 i = 0; i < CLAIMS && !whole; i++) {
		now = was;
		if (MARK_GENERATION(was) != generation) {
			if (MARK_GENERATION(was) > generation)
				return leave(QUERN_R_PART_STRAY, XDP_DROP);
			now = MARK_OF(generation, 0);
		} else if (was >> member & 1) {
			goto before;
		}
		old = __sync_val_compare_and_swap(claimed, was, now | 1ULL << member);
		whole = old == was;
		was = old;
		HIDE(i);
	}
	if (!whole)
		return leave(QUERN_R_UP_GROUP, XDP_PASS);

	/* Nobody else is at this element: programs of a CPU run one after the other. */
	if (MARK_GENERATION(*mark) != generation) {
		whole = copy_data((void *)(head + 1) + QUERN_PART_HEAD, end, element, part_steps(head), 0);
		*mark = MARK_OF(generation, 0);
	} else {
#define ADD(op, wide) \
	whole = add_part((void *)(head + 1) + QUERN_PART_HEAD, end, element, part_steps(head), op, wide)
		FOR_EACH_HOW(how, whole = 0, ADD)
#undef ADD
	}
	if (!whole)
		return leave(QUERN_R_TORN, XDP_DROP);

	/*
	 * Atomic, so what was added is seen before it. A newer generation is out of the
	 * question: this one is not complete without the part.
	 */
	was = MARK_READ(applied);
	old = was;
	if (MARK_GENERATION(was) != generation)
		old = __sync_val_compare_and_swap(applied, was, MARK_OF(generation, 1u << member));
	if (old == was && MARK_GENERATION(was) != generation)
		now = 0;
	else
		now = __sync_fetch_and_or(applied, 1ULL << member);
	all = (1ULL << (group->members & 63)) - 1;
	if (((__u32)now | 1u << member) != all)
		return leave(QUERN_R_ADDED, XDP_DROP);
	COMPLETE(ctx, slot, 0);
	/* User space finds a block that lacks nothing but its result. */
	note(QUERN_R_ADDED);
	return leave(QUERN_R_UP_CHAIN, XDP_PASS);

before:
	key = base + QUERN_ROW_RESULT;
	mark = bpf_map_lookup_elem(&marks, &key);
	if (!mark || MARK_READ(mark) != MARK_OF(generation, QUERN_MARK_STORED))
		return leave(QUERN_R_PART_BEFORE, XDP_DROP);
	COMPLETE(ctx, slot, 1);
	return leave(QUERN_R_UP_CHAIN, XDP_PASS);
}
