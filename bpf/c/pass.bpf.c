/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Lets everything through. On a veth, what a program turns around by XDP_TX
 * arrives only if the far device has an XDP program; this one will do.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("xdp")
int quern_pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}
