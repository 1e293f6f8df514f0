/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/* No program: the types of quern.h, so that a test can compare them with Go's. */
#include <linux/types.h>
#include "quern.h"

#define KEEP(type) const struct type *keep_##type __attribute__((unused))

KEEP(quern_head);
KEEP(quern_ack);
KEEP(quern_job);
KEEP(quern_stream);
KEEP(quern_target);
KEEP(quern_cell);
KEEP(quern_table);
KEEP(quern_outgoing);
KEEP(quern_config);
KEEP(quern_chunk);
KEEP(quern_hop);
KEEP(quern_region);
KEEP(quern_cast);
KEEP(quern_event);
KEEP(quern_part);
KEEP(quern_group);
const enum quern_mark_state *keep_mark __attribute__((unused));
const enum quern_kind *keep_kind __attribute__((unused));
const enum quern_op *keep_op __attribute__((unused));
const enum quern_answer_mode *keep_answer __attribute__((unused));
const enum quern_reason *keep_reason __attribute__((unused));
