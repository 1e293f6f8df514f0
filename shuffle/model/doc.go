// SPDX-License-Identifier: Apache-2.0

// Package model is what the programs at a host's network interface do with a
// packet, in plain Go: the reference that the programs are held to. It is
// written to be read, not to be fast.
//
// # Order of checks
//
// The order decides which reason is counted, so programs and model keep to it.
// A step that a packet fails is the last one for it. "Pass" is untouched where
// nothing else is said.
//
// Every packet:
//
//	1  Ethernet type IPv4 or IPv6; IPv4: first byte 0x45, no fragment (neither offset
//	   nor "more fragments"); IPv6: version 6; next protocol UDP; all headers and
//	   the 64 bytes of a frame's head within the packet; magic.     Foreign, pass
//	2  The kind's end is ours: Data, Probe, Broadcast and Answer have
//	   config.port as destination; Ack, ProbeReply and BroadcastAck as source. A kind
//	   that does not exist: either.                                 Foreign, pass
//	3  IP length + IP header (14 + total length, or 14 + 40 + payload length) is
//	   the packet's length; UDP length is what IP leaves it; version 1; zero 0;
//	   kind 1 to 6 (so an Answer from the wire ends here).          Malformed, drop
//	4  ProbeReply, Broadcast, BroadcastAck are left to user space.  UpShape, pass
//	5  flags, hop and zero2 as one 32-bit word have no bit but FlagWantAck; the
//	   length is a multiple of 32 and at most 1376; at least 64 for Data, 64
//	   for Ack; UDP payload is not shorter than 64 + length; shape: Data 0 to 0x1f, 0x20,
//	   0x40 or 0x50, others 0; count: 0 unless keyed or long, where it is
//	   not 0.                                                       Malformed, drop
//	6  UDP payload is longer than 64 + length: several frames in one packet, from
//	   segmentation offload or its reverse.                         UpShape, pass
//
// Data:
//
//	10  stream < streams, its token is not 0 and is the head's, its job < jobs.
//	                                                                 BadToken, drop
//	11  seq < stream.frames and < 4096.                              BadSeq, drop
//	12  the stream has FlagFold, each of its four operations is 0 to 6, the shape is not
//	    Long, and not Dense with OpSum (a dense table has no carries; OpSumBound is
//	    fine).                                                       UpShape, pass
//	13  lanes of the shape are stream.lanes (Dense: stream.lanes is 0); length is
//	    the least allowed for what is in it: max(64, roundup32(n)), n = count x pair size;
//	    Dense: n = 8 + values x value size, values not 0.            Malformed, drop
//	14  tag, nonce = back << 16 | seq.                               BadTag, drop
//	15  bit seq % 32 of seen[seq / 32] is not set.                   Duplicate; go to 30
//	16  cell = target x CPUs + CPU is there; cell.table[class] (Dense: table[0]) is not 0.
//	    Else cell.want |= 1 << class (Dense: 1), cell.missing++.     UpTable, pass
//	17  The scratch fields and a UDP checksum of 0 are written: s_cell = cell,
//	    s_table = the index (table - 1) & 0xffffff, s_set = (table - 1) >> 24, s_ops =
//	    stream.ops, s_shift = cell.shift[class] (Dense: 0). A tail call that fails
//	    from here to 19, a table that is not there or one for pairs of
//	    another shape.                                               UpChain, pass
//	18  find: each pair, first to last, finds its slot or takes a free one (used++), and
//	    has its hash replaced by the slot's number. The first that finds none, or whose length
//	    is not one of its class (0 to 8, 9 to 16, 17 to 32, 33 to 64): cell.full++; the rest is
//	    not looked at. Dense: offset + values <= 2^bits.
//	                                                                 UpFull, pass
//	19  claim: fetch_or of the bit; it was set.                      LostClaim; go to 30
//	20  apply: every value; mark |= 1; carries of OpSum; table.pairs and cell.pairs += pairs (Dense:
//	    values); cell.frames++.                                      Folded; go to 30
//	    A failure between 19 and the end of 20: cell.torn = 1, Torn, drop.
//	30  No FlagWantAck: drop. Else the answer is made (below). Whatever was counted
//	    above, one more is counted:
//	      AnswerTX   turned around                                   Answered, TX
//	      AnswerTC   turned around                                   Answered, pass
//	      AnswerUser not turned around, kind Answer                  AnswerUp, pass
//	      the packet can't be shrunk                                 AnswerFailed, drop
//
// Answer: the packet is cut to the IP and UDP headers and 128 bytes. Head: kind Ack, shape 0, count
// 0, length 64, flags 0, scratch 0; token, stream, seq, back, stamp, version and zeros stay. Body:
// nonce = CPU << 36 | this CPU's count of answers before this one (36 bits); stamp; share of the stream; base =
// min(max(seq/32 - 6, 0), 120); from = 1; claimed[i] = low half of seen[base + i], read after the claim; the
// rest 0. Then the tag, nonce as in the body. AnswerUser sets kind Answer after the
// tag, so that user space only has to put Ack in its place. Turned around: Ethernet addresses, IP
// addresses and ports swapped; TTL or hop limit 64. Always: IP and UDP length,
// IPv4 header checksum made anew, UDP checksum 0.
//
// Probe:
//
//	40  AnswerUser:                                                  AnswerUp, pass
//	41  kind ProbeReply, count 1 (by the kernel), turned around whole.
//	    AnswerTX: TX; AnswerTC: pass.                                Probed
//
// Ack (the sender's end):
//
//	50  body: zeros 0, from 1 or 2, base <= 120, nonce < 2^48.       Malformed, drop
//	51  back < outgoing, its token is not 0 and is the head's, its job < jobs.
//	                                                                 AckStray, drop
//	52  tag.                                                         AckTag, drop
//	53  acked |= claimed, 32 bits a word, frame 32 x base first; new = bits not set before;
//	    count += new; stamp = that of this answer; arrived, share and from are written;
//	    answers++. If count was below wake and is not now, pass, else drop.
//	                                                                 AbsorbedUp, or Absorbed
//
// Slots, bitmaps and tables hold nothing of a packet that ended at a step before 18.
package model
