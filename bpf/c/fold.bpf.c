/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The fold, one pair of programs a shape: key class, lanes, and values of 4 bytes
 * (n) or 8 (w). The loader takes those of one table layout at a time and leaves
 * the others out.
 */
#include "fold.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define PROGRAMS(class, lanes, wide, letter)                                   \
	SEC("xdp") int find_c##class##_l##lanes##_##letter(struct xdp_md *ctx) \
	{                                                                      \
		return find(ctx, class, lanes, wide);                          \
	}                                                                      \
	SEC("xdp") int apply_c##class##_l##lanes##_##letter(struct xdp_md *ctx) \
	{                                                                      \
		return apply(ctx, class, lanes, wide);                         \
	}

#define WIDTHS(class, lanes) PROGRAMS(class, lanes, 0, n) PROGRAMS(class, lanes, 1, w)
#define LANES(class) WIDTHS(class, 1) WIDTHS(class, 2) WIDTHS(class, 3) WIDTHS(class, 4)

LANES(0)
LANES(1)
LANES(2)
LANES(3)

SEC("xdp")
int apply_dense_n(struct xdp_md *ctx)
{
	return apply_dense(ctx, 0);
}

SEC("xdp")
int apply_dense_w(struct xdp_md *ctx)
{
	return apply_dense(ctx, 1);
}
