/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * A source's end of a broadcast: takes in the answers of chains. An answer that
 * is new sends the next chunk of its chain off, see pump.bpf.c, so user space
 * sleeps until all is there, or nothing more comes. Answers are hints: user
 * space looks at the marks, and believes only what members say of digests.
 */
#define NEED_JOBS
#define NEED_CASTS
#define NEED_CONTENTS
#define NEED_CHAIN
#include "maps.h"
#include "chunk.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("xdp")
int quern_collect(struct xdp_md *ctx)
{
	void *data = PACKET(ctx), *end = PACKET_END(ctx);
	struct quern_chunk *chunk;
	struct quern_cast *cast;
	struct quern_head *head;
	struct quern_job *job;
	__u64 sum, want, *mark;
	__u32 key, number, before, first, total;

	head = frame_head_only(data, end);
	if (!head)
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	key = head->back;
	cast = bpf_map_lookup_elem(&casts, &key);
	if (!cast || cast->token == 0 || cast->token != head->token)
		return leave(QUERN_R_UP_REGION, XDP_PASS);
	key = cast->job;
	job = bpf_map_lookup_elem(&jobs, &key);
	if (!job)
		return leave(QUERN_R_UP_REGION, XDP_PASS);

	switch (chunk_fits(head, end, QUERN_CHAINS, QUERN_CHUNK_ANSWER, QUERN_CHUNK_ANSWER)) {
	case CHUNK_MALFORMED:
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	case CHUNK_SEVERAL:
		return leave(QUERN_R_UP_SHAPE, XDP_PASS);
	case CHUNK_FITS:
		break;
	}
	chunk = (void *)(head + 1);
	if ((void *)chunk + QUERN_CHUNK_ANSWER > end || !numbers_fit(chunk) || chunk->bytes ||
	    (AT64(chunk, 32) | AT64(chunk, 40) | AT64(chunk, 48) | AT64(chunk, 56)))
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	sum = 0;
	NH32(sum, (void *)head, (void *)job->nh);
	NH32(sum, (void *)chunk, (void *)job->nh + QUERN_TAGGED_HEAD);
	NH32(sum, (void *)chunk + 32, (void *)job->nh + QUERN_TAGGED_HEAD + 32);
	if (sum + chunk_pad(job, head, chunk) != head->tag)
		return leave(QUERN_R_ACK_TAG, XDP_DROP);

	number = chunk->chain;
	first = cast->first;
	total = cast->total;
	if (chunk->first != first || chunk->total != total || chunk->place >= cast->chunks ||
	    (number != QUERN_CHAIN_DIRECT && number >= cast->chains))
		return leave(QUERN_R_ACK_STRAY, XDP_DROP);
	cast->arrived = bpf_ktime_get_ns();
	__sync_fetch_and_add(&cast->answers, 1);
	if (number == QUERN_CHAIN_DIRECT) {
		before = __sync_fetch_and_add(&cast->direct, 1);
		if (before + 1 == cast->direct_wake)
			return leave(QUERN_R_COLLECTED_UP, XDP_PASS);
		return leave(QUERN_R_COLLECTED, XDP_DROP);
	}
	HIDE(number);
	number &= QUERN_CHAINS - 1;
	want = cast->want[number];
	key = cast->marks + chunk->place;
	mark = bpf_map_lookup_elem(&marks, &key);
	if (!mark || want == 0 || (chunk->group & want) != want ||
	    (*(volatile __u64 *)mark >> number & 1) ||
	    (__sync_fetch_and_or(mark, 1ULL << number) >> number & 1))
		return leave(QUERN_R_COLLECTED, XDP_DROP);
	before = __sync_fetch_and_add(&cast->done, 1);
	if (before + 1 == cast->wake)
		return leave(QUERN_R_COLLECTED_UP, XDP_PASS);
	if ((cast->flags & QUERN_CAST_PUMP) && cast->next[number] - first < total) {
		bpf_tail_call(ctx, &chain, QUERN_CHAIN_PUMP);
		/* Nothing pumps: user space goes on. */
		return leave(QUERN_R_COLLECTED_UP, XDP_PASS);
	}
	return leave(QUERN_R_COLLECTED, XDP_DROP);
}
