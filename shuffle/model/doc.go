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
//	2  The kind's end is ours: Data, Probe, Broadcast, Answer, Reduce and Reduced have
//	   config.port as destination; Ack, ProbeReply and BroadcastAck as source. A kind
//	   that does not exist: either.                                 Foreign, pass
//	3  IP length + IP header (14 + total length, or 14 + 40 + payload length) is
//	   the packet's length; UDP length is what IP leaves it; version 1; zero 0;
//	   kind 1 to 9 but Answer, which is 7.                          Malformed, drop
//	4  ProbeReply is left to user space.                            UpShape, pass
//	   Broadcast goes to 60, BroadcastAck to 70, Reduce to 90, Reduced to 110. Where there
//	   are no programs for them:                                    UpChain, pass
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
// Broadcast (a member's end):
//
//	60  the head's token is in tokens, its slot < regions, the region's token is not 0 and is
//	    the head's, its job < jobs, its content is there.            UpRegion, pass
//	61  shape, count, stream, flags and zero2 are 0; hop is at most 63; the length is a
//	    multiple of 32 from 64 to 1376; UDP payload is not shorter than 64 + length.
//	                                                                 Malformed, drop
//	62  UDP payload is longer than that.                             UpShape, pass
//	63  total is not 0; first <= place < first + total <= 2^32 - 1; zero 0; chain below 64,
//	    ChainDirect or ChainAll; bytes 1 to 1344, less than 1344 only if place is
//	    first + total - 1; length = max(64, roundup32(32 + bytes)).  Malformed, drop
//	64  first + total <= region.chunks; chain is the region's, ChainDirect or ChainAll; place is
//	    within the content and region.marks + place within marks.    ChunkPlace, drop
//	65  tag, with the pad of a chunk.                                ChunkTag, drop
//	66  the mark of the place. None: it is set to Writing by compare-and-swap; length - 32 bytes
//	    are copied to the content; it is set to Stored; region.stored++; the count of the message, in the
//	    high half of the mark of first, goes up, and if it is total now and the region is
//	    not FlagQuiet, an event is sent.
//	                                                                 Stored; go to 67
//	    Stored already.                                              StoredBefore; go to 67
//	    Anything else.                                               ChunkBusy, drop
//	67  AnswerUser; or chain is not ChainDirect, and hops[hop & 1] has interface 0 or another version
//	    of IP than the packet; or 69 marks for tc and there is no room for that.
//	                                                                 UpHop, pass
//	68  chain = the region's, unless it is ChainDirect; group |= 1 << bit; hop++. ChainDirect, or hops[hop & 1]
//	    is the tail: the packet is cut to 64 bytes of body, kind BroadcastAck, length 64, bytes 0, the body
//	    behind its first 32 bytes 0. A new tag.
//	                                                  ChainAnswered or PassedOn; region.passed++
//	    The packet can't be cut.                                     AnswerFailed, drop
//	69  ChainDirect: turned around. Else hardware addresses, addresses and ports are those of hops[hop & 1], and TTL or
//	    hop limit 64. Lengths and checksums as in an answer. It leaves:
//	      by the interface it came in by, AnswerTX                   TX
//	      by that, AnswerTC                                          pass, marked for tc
//	      by another                                                 redirect
//
// The padding of a genuine chunk is not looked at. Nothing is written of a packet that ended before 66.
//
// BroadcastAck (a source's end):
//
//	70  back < casts, its token is not 0 and is the head's, its job < jobs.
//	                                                                 UpRegion, pass
//	71  as 61, with hop at most 64 and a length of 64.               Malformed, drop
//	72  UDP payload is longer.                                       UpShape, pass
//	73  as 63 up to chain; bytes 0; the body behind its first 32 bytes is 0.
//	                                                                 Malformed, drop
//	74  tag.                                                         AckTag, drop
//	75  first and total are the cast's, place < cast.chunks, chain is ChainDirect or < cast.chains.
//	                                                                 AckStray, drop
//	76  arrived is written, answers++. ChainDirect: direct++, and if it is direct_wake now:
//	                                                                 CollectedUp, pass
//	    else:                                                        Collected, drop
//	77  want[chain] is 0, or group lacks a bit of it, or bit chain is set in the mark of the place; else
//	    that is set.                                                 Collected, drop
//	78  done++; if it is wake now:                                   CollectedUp, pass
//	79  not FlagPump, or next[chain] is not before first + total.    Collected, drop
//	80  no content; AnswerUser; heads[chain] has interface 0 or another version of IP; the packet can't be
//	    made larger.                                                 CollectedUp, pass
//	81  place = next[chain]++. It is not before first + total, or not in the content.
//	                                                                 Collected, drop
//	82  The packet becomes chunk place of the message, of this chain: kind Broadcast, seq = ++transmissions,
//	    hop 0, stamp 0, group 0, data from the content (cast.bytes of it in the last one), tag. It leaves
//	    for heads[chain] as in 69; pumped++.                         Collected and Pumped
//
// Reduce (a reducer's end). Block q, which is seq, is in slot q mod 2^bits and of generation q >> bits. A mark has its generation in its high half;
// row(x) is number slot x group.row + x, of the elements of group.sums, and of the marks from group.sumMarks on.
//
//	90  the head's token is in tokens, its slot < groups, the group's token is not 0 and is the head's, its job < jobs, its
//	    sums are there.                                              UpGroup, pass
//	91  as 61, with hop 0.                                           Malformed, drop
//	92  UDP payload is longer.                                       UpShape, pass
//	93  back 0; operation Sum, Min or Max; wide 0 or 1; reducer and member below 32; zeros 0; bytes 1 to 1344 and a
//	    multiple of 4 or, if wide, 8; length = roundup32(32 + bytes).
//	                                                                 Malformed, drop
//	94  member < group.members and not group.rank; reducer is group.rank; generation is not 0.
//	                                                                 PartStray, drop
//	95  tag, nonce = reducer << 40 | member << 32 | seq.             PartTag, drop
//	96  CPU < group.row - 5; the element and the mark of row(RowCPU + CPU) are there.
//	                                                                 UpGroup, pass
//	97  mark RowWhat: of an older generation, it becomes (generation, what) by compare-and-swap. It is of a newer
//	    one now:                                                     PartStray, drop
//	    It is of this one, with another what:                        PartDiffers, pass
//	98  mark RowClaimed: of a newer generation:                      PartStray, drop
//	    of this one, with the member's bit: go to 102 if mark RowResult is (generation, Stored), else:
//	                                                                 PartBefore, drop
//	    Else the bit is set, alone if it was of an older one, by compare-and-swap; after 8 in vain:
//	                                                                 UpGroup, pass
//	99  length - 32 bytes of values go to the element: copied if its mark is not of this generation, which it is then; else added, or
//	    the least or the largest of both. Then the bit is set in mark RowApplied, alone if that was of an older generation.
//	                                                                 Added
//	    Bits of members lack there: drop.
//	100 scratch: s_table is the group's slot, s_set 0; a UDP checksum of 0. The tail call fails:
//	                                                                 UpChain, pass
//	    element or mark of RowResult, or of this member's own result (111) is not there:
//	                                                                 UpGroup, pass
//	    Mark RowResult is not of an older generation: drop. Else it becomes (generation, Writing) by compare-and-swap.
//	101 The elements of all other CPUs, and of user space, whose marks are of this generation are put together in this CPU's, which is copied to
//	    RowResult, and if this member's own result is of an older generation, to that: Writing, Stored, stored++, event as in 113. Mark
//	    RowResult = (generation, Stored); reduced++.                 BlockReduced; go to 103
//	102 As 100, with s_set 1 and nothing of this member's own.
//	103 AnswerUser; or, behind 101, hops[hop & 1] has interface 0 or another version of IP than the packet; or there is no room
//	    for the mark for tc.                                         UpHop, pass
//	104 The packet becomes the result: kind Reduced, member 0, the scratch behind s_cell 0, values from RowResult, zeros behind the last one, a new tag. Behind
//	    101 it goes to hops[hop & 1], behind 102 it is turned around; it leaves as in 69. passed++. Behind 102:
//	                                                                 ResultAgain
//	    Mark RowResult is another by then, since this CPU stood still for long:
//	                                                                 PartStray, drop
//
// Reduced (a member's end):
//
//	110 as 90 to 95, with the group's results for its sums; member is 0 (93, Malformed); reducer < group.members and not group.rank (94).
//	111 result = reducer << bits | slot: the element of group.results, and the mark from group.resultMarks on, are there.
//	                                                                 UpGroup, pass
//	112 the mark is of an older generation, and becomes (generation, Writing) by compare-and-swap.
//	                                                                 else ResultBefore, drop
//	113 length - 32 bytes of values are copied to the element; the mark is (generation, Stored); stored++, and if it is wake now, an
//	    event is sent: token, slot, stored.                          ResultStored
//	114 the next member, rank + 1 or 0 behind the last one, is the reducer: drop. Else as 103.
//	                                                                 UpHop, pass
//	115 It goes to hops[hop & 1], and nothing else of it is changed. It leaves as in 69.
//	                                                                 ResultPassed; passed++
//
// The padding of a genuine part or result is not looked at.
//
// At the way out ([Host.Egress]): a Broadcast of hop 0 and ChainAll, IPv4 without options or IPv6 without extension
// headers, whose back and token are a cast's, becomes one packet for every chain < cast.chains whose head has an interface and the packet's
// version of IP, hardware addresses, addresses, ports and checksums being all that is changed. If there is none, the packet stays what it is.
//
// Slots, bitmaps and tables hold nothing of a packet that ended at a step before 18.
package model
