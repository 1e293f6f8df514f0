/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * At tc ingress: sends packets that quern_ack turned around, or that the programs
 * of broadcasts readdressed, and marked, out by the interface that they came in
 * by. For paths where XDP_TX does not arrive.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "answer.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("tc")
int quern_answer_tc(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	__u32 *mark = (void *)(long)skb->data_meta;

	if ((void *)(mark + 1) > data || *mark != ANSWER_MARK)
		return TC_ACT_UNSPEC;
	/* A virtual link hands what is before a packet on with it: at the far end the mark would still be there. */
	*mark = 0;
	return bpf_redirect(skb->ifindex, 0);
}
