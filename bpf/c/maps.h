/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The maps. A program file says what it needs by defining NEED_... before it
 * includes this, so that no object carries maps it never reads. The loader sets
 * every max_entries and hands one and the same map to all objects, but for
 * tables, of which every set of fold programs has its own.
 */
#ifndef QUERN_MAPS_H
#define QUERN_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "quern.h"

/* How often programs ended for each reason; written by programs, summed over CPUs by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, QUERN_R_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} reasons SEC(".maps");

static __always_inline void note(__u32 reason)
{
	__u64 *n = bpf_map_lookup_elem(&reasons, &reason);

	if (n)
		*n += 1;
}

/* note() and end, in one line. */
static __always_inline int leave(__u32 reason, int verdict)
{
	note(reason);
	return verdict;
}

#ifdef NEED_CONFIG
/* What programs are told; one entry, written by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quern_config);
} config SEC(".maps");
#endif

#ifdef NEED_JOBS
/* Keys of tags, by job slot; written by user space before a stream names the slot. Not mapped: no CPU may see half a key. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quern_job);
} jobs SEC(".maps");
#endif

#ifdef NEED_STREAMS
/* Receiving ends; user space writes all but seen, which both sides claim frames in. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quern_stream);
} streams SEC(".maps");
#endif

#ifdef NEED_CELLS
/* target x CPUs + CPU: which tables a CPU folds into (user space writes) and what it did (programs write). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quern_cell);
} cells SEC(".maps");
#endif

#ifdef NEED_OUTGOING
/* Sending ends; user space opens them, the absorber writes what acknowledgements say. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quern_outgoing);
} outgoing SEC(".maps");
#endif

#ifdef NEED_NONCES
/* How many answers a CPU has made; written by programs alone and never set back while a token lives. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} nonces SEC(".maps");
#endif

#ifdef NEED_CHAIN
/* Programs that are tail-called; written by user space before a cell names their set, never changed while attached. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, QUERN_CHAIN);
	__type(key, __u32);
	__type(value, __u32);
} chain SEC(".maps");
#endif

#ifdef NEED_TABLES
/* A table: one big element, mapped by user space. The loader patches value_size to the layout of the set. */
struct quern_table_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct quern_table));
};

/* The tables of one set; user space adds them before a cell names them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__array(values, struct quern_table_map);
} tables SEC(".maps");
#endif

#ifdef NEED_REGIONS
/* Members' ends of broadcasts; user space writes all but the counts, which programs count up. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quern_region);
} regions SEC(".maps");
#endif

#ifdef NEED_GROUPS
/* Members' ends of all-reduces; user space writes all but the counts, which programs count up. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quern_group);
} groups SEC(".maps");
#endif

#if defined(NEED_REGIONS) || defined(NEED_GROUPS)
/* Which slot of regions, or of groups, a token has; written by user space: last when it opens one, first when it closes one. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u32);
} tokens SEC(".maps");
#endif

#ifdef NEED_CASTS
/* Sources' ends of broadcasts; user space opens them and begins messages, programs count answers and what they send. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quern_cast);
} casts SEC(".maps");
#endif

#ifdef NEED_CONTENTS
/*
 * What is broadcast: an element is a chunk. Written by user space at a source, by programs and user space at a member. Or what
 * is added up, or was, by an all-reduce: an element is a block. Written by both sides.
 */
struct quern_content_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, QUERN_CHUNK);
};

/* The contents, of whatever number of chunks; user space adds one before a region or a cast names it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__array(values, struct quern_content_map);
} contents SEC(".maps");

/* Marks of the chunks of all contents, see enum quern_mark_state; both sides change them atomically. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} marks SEC(".maps");
#endif

#ifdef NEED_EVENTS
/* struct quern_event for every message that programs have stored whole, of regions that are not quiet; written by programs, read by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} events SEC(".maps");
#endif

#ifdef NEED_ROUNDS
/* struct quern_event for every result that brought stored of a group to its wake; first is that number. Written by programs, read by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} rounds SEC(".maps");
#endif

#endif
