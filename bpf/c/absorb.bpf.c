/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The sender's end: takes acknowledgements in. User space reads what they said
 * from mapped memory, and gets the packet itself only when it asked to be woken.
 */
#define NEED_JOBS
#define NEED_OUTGOING
#include "maps.h"
#include "parse.h"
#include "tag.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Bits set in v. */
static __always_inline __u32 ones(__u32 v)
{
	v -= v >> 1 & 0x55555555;
	v = (v & 0x33333333) + (v >> 2 & 0x33333333);
	v = (v + (v >> 4)) & 0x0f0f0f0f;
	return v * 0x01010101 >> 24;
}

SEC("xdp")
int quern_absorb(struct xdp_md *ctx)
{
	void *data = PACKET(ctx), *end = PACKET_END(ctx);
	struct quern_outgoing *out;
	struct quern_head *head;
	struct quern_job *job;
	struct quern_ack *ack;
	__u64 before, fresh = 0, tag;
	__u32 key, base;

	head = frame_head(data, end);
	ack = (void *)(head + 1);
	if (!head || (void *)(ack + 1) > end)
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	base = ack->base;
	if (ack->zero || ack->zero2[0] || ack->zero2[1] || ack->from - 1u > 1 ||
	    base > QUERN_SEGMENT / 32 - QUERN_ACK_WORDS || ack->nonce >> 48)
		return leave(QUERN_R_MALFORMED, XDP_DROP);
	key = head->back;
	out = bpf_map_lookup_elem(&outgoing, &key);
	if (!out || out->token == 0 || out->token != head->token)
		return leave(QUERN_R_ACK_STRAY, XDP_DROP);
	key = out->job;
	job = bpf_map_lookup_elem(&jobs, &key);
	if (!job)
		return leave(QUERN_R_ACK_STRAY, XDP_DROP);
	if (!frame_tag(job, head, end, sizeof(*ack) / QUERN_BODY_STEP, sizeof(*ack) / QUERN_BODY_STEP,
		       ack->nonce, &tag) || tag != head->tag)
		return leave(QUERN_R_ACK_TAG, XDP_DROP);

	/* Answers of one stream may come in on several CPUs at once. */
	for (int i = 0; i < QUERN_ACK_WORDS; i++) {
		__u32 *word = (__u32 *)out->acked + ((base + i) % (QUERN_SEGMENT / 32));
		__u32 claimed = ack->claimed[i];

		if (claimed & ~*word)
			fresh += ones(claimed & ~__sync_fetch_and_or(word, claimed));
	}
	before = fresh ? __sync_fetch_and_add(&out->count, fresh) : out->count;
	/* The last to come, not the largest: the stamp of a data frame is not under its tag, and a damaged one is not to stay. */
	out->stamp = ack->stamp;
	out->arrived = bpf_ktime_get_ns();
	out->share = ack->share;
	out->from = ack->from;
	__sync_fetch_and_add(&out->answers, 1);
	if (before < out->wake && before + fresh >= out->wake)
		return leave(QUERN_R_ABSORBED_UP, XDP_PASS);
	return leave(QUERN_R_ABSORBED, XDP_DROP);
}
