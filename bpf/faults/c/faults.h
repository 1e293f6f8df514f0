/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/* What the programs of the lab's wire and their Go loader share. */
#ifndef QUERN_FAULTS_H
#define QUERN_FAULTS_H

/* Directions of a port, as a host sees them. A port's plan has index ifindex * 2 + direction. */
#define FAULTS_FROM 0 /* from the host into the bridge */
#define FAULTS_TO 1   /* from the bridge to the host */

#define FAULTS_ACTIVE 1   /* draw for every packet */
#define FAULTS_CUT 2      /* nothing gets through */
#define FAULTS_UDP_ONLY 4 /* draw for UDP alone */

/*
 * The mark of a packet within the bridge's namespace. It says what was decided:
 * a port draws once for a packet, and a held packet that comes again goes out.
 * The kernel clears the mark when the packet enters the host.
 */
#define FAULTS_MARK_FROM 0x80000000u
#define FAULTS_MARK_TO 0x40000000u
#define FAULTS_MARK_HOLD 0x03ffffffu /* microseconds to hold, drawn on the way in */

/* plans[i], written by user space. A probability p is p x 2^32, 2^32 is always. */
struct faults_plan {
	__u64 seed;
	__u64 base; /* packets are numbered from here */
	__u64 loss;
	__u64 duplicate;
	__u64 corrupt;
	__u64 reorder;
	__u32 delay_us;  /* every packet is held that long */
	__u32 jitter_us; /* and up to that much longer, less one */
	__u32 hold_us;   /* a reordered one 1 to that many more */
	__u32 flags;
};

/* tallies[i], written by the programs. */
struct faults_tally {
	__u64 drawn; /* packets that were drawn for: the next one's number */
	__u64 lost;
	__u64 duplicated;
	__u64 corrupted; /* bits flipped */
	__u64 rejected;  /* corrupted and, since no UDP, dropped as the receiver would */
	__u64 reordered;
	__u64 held;      /* handed to user space, for reordering or delay */
	__u64 unheld;    /* to be held, but there was no room: sent on at once */
	__u64 cut;       /* dropped since the link is cut */
	__u64 spare[7];
};

/* A packet that user space holds. Its bytes follow. */
struct faults_held {
	__u64 due; /* CLOCK_MONOTONIC, ns */
	__u32 port; /* ifindex to send it out of */
	__u32 length;
};

#define FAULTS_FRAME 16384 /* longest packet that can be held, with its Ethernet header */

_Static_assert(sizeof(struct faults_plan) == 64, "plan");
_Static_assert(sizeof(struct faults_tally) == 128, "tally");
_Static_assert(sizeof(struct faults_held) == 16, "held");

#endif
