// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/wire"
)

// member opens region 1 of 20 chunks, which starts at chunk 5 of the marks, and passes on to host 3.
func (c *castTwins) member(v6 bool) wire.Region {
	r := wire.Region{
		Token: castToken(1), Job: 1, Content: 2, Marks: 5, Chunks: 20, Chain: 7, Bit: 4, Hop: 1,
		Hops: [2]wire.Hop{{}, hopTo(3, v6, testRunInterface)},
	}
	c.region(1, r)
	return r
}

// source opens cast 2 of a message of 10 chunks in 9 chains of two members, all bits 4 and 5.
func (c *castTwins) source(v6 bool) wire.Cast {
	k := wire.Cast{
		Token: castToken(1), Job: 1, Content: 3, Marks: 60, Chunks: 20, Chains: 9, Flags: wire.FlagPump,
		First: 3, Total: 10, Bytes: 700, Wake: 90,
	}
	for i := range k.Heads {
		k.Want[i], k.Next[i] = 3<<4, 5
		k.Heads[i] = hopTo(100+i, v6, testRunInterface)
	}
	c.cast(2, k)
	c.bothContents(3, func(b []byte) {
		for i := range (3+9)*wire.ChunkSize + 700 {
			b[i] = byte(i*7 + i>>8)
		}
	})
	return k
}

func castData(place, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(place*31 + i*3 + i>>8 + 1)
	}
	return b
}

// chunk makes a chunk of the cast's.
func (c *castTwins) chunk(ch wire.Chunk, transmission uint32, hop uint8, n int) []byte {
	h := wire.Head{Token: castToken(1), Seq: transmission, Back: 2, Stamp: 77, Hop: hop}
	f, err := wire.PutChunk(make([]byte, wire.FrameSize), h, ch, castData(int(ch.Place), n), c.tags[1])
	c.rig.check(err)
	return f
}

// A chunk goes all the way: stored and passed on by two members, answered by the second, collected, and the next one pumped.
func TestRunBroadcastRound(t *testing.T) {
	c := newCastTwins(t)
	for _, v6 := range []bool{false, true} {
		for _, mode := range []wire.AnswerMode{wire.AnswerTX, wire.AnswerTC} {
			c.resetCasts()
			c.setAnswer(mode)
			leaves := map[wire.AnswerMode]model.Verdict{wire.AnswerTX: model.TX, wire.AnswerTC: model.Pass}[mode]
			r := c.member(v6)
			k := c.source(v6)
			ch := wire.Chunk{Place: 4, First: 3, Total: 10, Chain: wire.ChainAll}
			frame := c.chunk(ch, 11, 0, wire.ChunkSize)
			verdict, out := c.stepCast(packetOf(frame, v6).Bytes)
			if verdict != leaves {
				t.Fatalf("a chunk: %v", verdict)
			}
			h, got, data, err := wire.ParseChunk(model.PayloadOf(out))
			if err != nil || !c.tags[1].OpenChunk(model.PayloadOf(out)) || h.Hop != 1 || got.Chain != 7 || got.Group != 1<<4 || !bytes.Equal(data, castData(4, wire.ChunkSize)) {
				t.Fatalf("%+v %+v %v", h, got, err)
			}
			if !bytes.Equal(c.contents[2][4*wire.ChunkSize:][:wire.ChunkSize], data) || wire.MarkState(&c.marks[5+4]) != wire.MarkStored || wire.MarkCount(&c.marks[5+3]) != 1 {
				t.Fatal("it is not stored")
			}

			// The same host is the tail of the chain now.
			r.Bit, r.Hops[1].Tail = 5, 1
			c.resetCasts()
			c.setAnswer(mode)
			k = c.source(v6)
			c.region(1, r)
			verdict, out = c.stepCast(bytes.Clone(packetOf(bytes.Clone(model.PayloadOf(out)), v6).Bytes))
			if verdict != leaves {
				t.Fatalf("a chunk at the tail: %v", verdict)
			}
			h, got, _, err = wire.ParseChunk(model.PayloadOf(out))
			if err != nil || h.Kind != wire.BroadcastAck || h.Hop != 2 || got.Group != 3<<4 || h.Seq != 11 || h.Back != 2 {
				t.Fatalf("%+v %+v %v", h, got, err)
			}
			answer := bytes.Clone(model.PayloadOf(out))

			verdict, out = c.stepCast(packetOf(answer, v6).Ports(shuffle.Port, shuffle.Port).Bytes)
			if verdict != leaves {
				t.Fatalf("an answer: %v", verdict)
			}
			h, got, data, err = wire.ParseChunk(model.PayloadOf(out))
			if err != nil || !c.tags[1].OpenChunk(model.PayloadOf(out)) || h.Hop != 0 || h.Seq != 1 || got != (wire.Chunk{Place: 5, First: 3, Total: 10, Bytes: wire.ChunkSize, Chain: 7}) ||
				!bytes.Equal(data, c.contents[3][5*wire.ChunkSize:][:wire.ChunkSize]) {
				t.Fatalf("%+v %+v %v", h, got, err)
			}
			if now := c.ends.Casts[2]; now.Done != 1 || now.Next[7] != k.Next[7]+1 || now.Pumped != 1 || c.marks[60+4] != 1<<7 {
				t.Fatalf("%+v", now)
			}
			// Once more: nothing is new.
			if verdict, _ = c.stepCast(packetOf(answer, v6).Ports(shuffle.Port, shuffle.Port).Bytes); verdict != model.Drop {
				t.Fatalf("an answer again: %v", verdict)
			}
		}
	}
}

// resealChunk gives a damaged frame a tag that fits it.
func (c *castTwins) resealChunk(packet []byte) {
	frame := packet[min(len(packet), frameAt(packet)):]
	if len(frame) < wire.HeadSize+wire.ChunkHead {
		return
	}
	if n := int(wire.ReadHead(frame).Length); n < wire.ChunkHead || n > wire.BodySize || n%wire.BodyStep != 0 || len(frame) < wire.HeadSize+n {
		return
	}
	c.tags[1].SealChunk(frame)
}

// castSeeds returns good packets of all kinds, over one version of IP.
func (c *castTwins) castSeeds(v6 bool) map[string][]byte {
	answer := func(ch wire.Chunk) []byte {
		f := c.chunk(ch, 9, 0, wire.ChunkSize)
		wire.PassChunk(f, ch.Chain, 4, c.tags[1])
		wire.PassChunk(f, ch.Chain, 5, c.tags[1])
		return packetOf(wire.AnswerChunk(f, c.tags[1]), v6).Ports(shuffle.Port, shuffle.Port).Bytes
	}
	of := func(frame []byte) []byte { return packetOf(frame, v6).Ports(shuffle.Port, shuffle.Port).Bytes }
	return map[string][]byte{
		"all":    of(c.chunk(wire.Chunk{Place: 4, First: 3, Total: 10, Chain: wire.ChainAll}, 11, 0, wire.ChunkSize)),
		"chain":  of(c.chunk(wire.Chunk{Place: 3, First: 3, Total: 1, Chain: 7, Group: 8}, 11, 3, 33)),
		"direct": of(c.chunk(wire.Chunk{Place: 12, First: 3, Total: 10, Chain: wire.ChainDirect}, 12, 0, 700)),
		"answer": answer(wire.Chunk{Place: 4, First: 3, Total: 10, Chain: 7}),
		"last":   answer(wire.Chunk{Place: 5, First: 3, Total: 10, Chain: wire.ChainDirect}),
	}
}

// TestRunBroadcastDamage breaks good packets in every way that changes one bit, or the length.
func TestRunBroadcastDamage(t *testing.T) {
	c := newCastTwins(t)
	for _, v6 := range []bool{false, true} {
		body := 61
		if v6 {
			body = 599
		}
		open := func() {
			c.resetCasts()
			c.member(v6)
			c.source(v6)
			// The chunk that the answer pumps is the last, which is shorter.
			c.bothEnds(func(e *shuffle.Ends) { e.Casts[2].Next[7] = 12 })
		}
		open()
		for name, good := range c.castSeeds(v6) {
			if v6 && name != "all" && name != "answer" {
				continue // differs in the frame alone
			}
			for bit := range len(good) * 8 {
				if at := bit / 8; at >= frameAt(good)+wire.HeadSize+wire.ChunkHead+4 && bit%body != 0 {
					continue
				}
				if testing.Short() && bit%7 != 0 { // emulated machines are slow
					continue
				}
				for _, seal := range []bool{false, true} {
					if bit%16 == 0 {
						open()
					}
					bad := bytes.Clone(good)
					bad[bit/8] ^= 1 << (bit % 8)
					if seal {
						c.resealChunk(bad)
					}
					c.stepCast(bad)
				}
			}
			step := 60
			if testing.Short() {
				step = 6
			}
			for n := 14; n < len(good); n += 1 + n/step {
				for _, fix := range []bool{false, true} {
					short := bytes.Clone(good[:n])
					if fix {
						resize(short)
					}
					c.stepCast(short)
				}
			}
			for _, n := range []int{1, 4, 31, 32, 64, len(good)} {
				for _, fix := range []bool{false, true} {
					long := append(bytes.Clone(good), make([]byte, n)...)
					if fix {
						resize(long)
					}
					c.stepCast(long)
				}
			}
			open()
			want := model.TX
			if name == "last" {
				want = model.Drop // an answer to a direct chunk clocks nothing
			}
			if verdict, _ := c.stepCast(good); verdict != want {
				t.Errorf("%s as it is: %v", name, verdict)
			}
		}
	}
}

// castHistory opens ends and gives both sides packets of all kinds, good and bad. choose returns a number below n.
func (c *castTwins) castHistory(steps int, choose func(n int) int) {
	c.resetCasts()
	c.setAnswer(wire.AnswerMode(choose(3)))
	v6 := choose(2) == 0
	yes := func(n int) bool { return choose(n) == 0 }
	hop := func(n int) wire.Hop {
		h := hopTo(n, v6 != yes(12), []uint32{testRunInterface, testRunInterface, testRunInterface, 0, 99}[choose(5)])
		h.Tail = uint8(choose(2))
		return h
	}
	member := func() {
		r := wire.Region{
			Token: castToken(1), Job: 1, Content: uint32(choose(2)), Marks: uint32(choose(200)), Chunks: uint32(20 + choose(castChunks-20)),
			Chain: uint16(choose(2)), Bit: uint8(choose(64)), Flags: uint8(choose(2)) * wire.FlagQuiet, Hop: uint32(choose(4)), Hops: [2]wire.Hop{hop(3), hop(4)},
		}
		switch choose(40) {
		case 0:
			r.Job = 2 // which is not there
		case 1:
			r.Content = castContents
		case 2:
			r.Chunks = 1000 // which it has not
		case 3:
			r.Marks = 250
		case 4:
			r.Job = 0
		case 5:
			r.Chunks = uint32(choose(20))
		}
		c.region(1, r)
		if yes(24) {
			c.bothEnds(func(e *shuffle.Ends) { e.Regions[1].Token++ })
		}
	}
	total, first := uint32(1+choose(12)), uint32(choose(8))
	source := func() {
		k := wire.Cast{
			Token: castToken(1), Job: 1, Content: uint32(2 + choose(2)), Marks: uint32(choose(200)), Chunks: castChunks, Chains: 3,
			Flags: uint32(min(1, choose(4))), First: first, Total: total, Bytes: uint32(1 + choose(wire.ChunkSize)), Wake: uint32(choose(16)), DirectWake: uint32(choose(5)),
			Transmissions: uint32(choose(100)),
		}
		for i := range 4 {
			k.Want[i], k.Next[i], k.Heads[i] = uint64(choose(4)), first+uint32(choose(int(total)+1)), hop(100+i)
		}
		if yes(12) {
			k.Bytes = []uint32{0, wire.ChunkSize + 1, 1 << 31}[choose(3)]
		}
		switch choose(20) {
		case 0:
			k.Chunks = first
		case 1:
			k.Chains = uint32(choose(70))
		case 2:
			k.Job = uint32(2 * choose(2))
		}
		if yes(24) {
			k.Content = castContents
		}
		if yes(24) {
			k.Marks = 250
		}
		c.cast(2, k)
		c.bothContents(k.Content%castContents, func(b []byte) {
			copy(b, castData(9, len(b)))
			// What is behind a message's last byte is zeros.
			if end := int(first+total-1)*wire.ChunkSize + int(k.Bytes); end < len(b) {
				clear(b[end:])
			}
		})
	}
	member()
	source()
	message := func() wire.Chunk {
		ch := wire.Chunk{First: first, Total: total, Place: first + uint32(choose(int(total))), Chain: uint16(choose(3)), Group: uint64(3 | choose(9))}
		if yes(3) {
			ch.Chain = []uint16{wire.ChainAll, wire.ChainAll, wire.ChainDirect}[choose(3)]
		}
		switch choose(24) {
		case 0:
			ch.First, ch.Place = ch.First+5, ch.Place+5
		case 1:
			ch.Total += 40
		case 2:
			ch.Group = uint64(choose(9))
		case 3:
			ch.Chain = uint16(choose(64))
		}
		return ch
	}
	var sent [][]byte
	make1 := func(kind wire.Kind) []byte {
		ch, tags := message(), c.tags[1]
		if yes(20) {
			tags = c.tags[0]
		}
		n := wire.ChunkSize
		if ch.Place == ch.First+ch.Total-1 {
			n = 1 + choose(n)
		}
		h := wire.Head{Token: castToken(1), Seq: uint32(choose(100)), Back: 2, Stamp: 5, Hop: uint8(choose(4))}
		if yes(20) {
			h.Hop = uint8(62 + choose(4))
		}
		if yes(20) {
			h.Token = castToken(2 + choose(2))
		}
		if yes(30) {
			h.Back = uint32(choose(5))
		}
		f, err := wire.PutChunk(make([]byte, wire.FrameSize), h, ch, castData(int(ch.Place), n), tags)
		c.rig.check(err)
		if kind == wire.BroadcastAck {
			f = wire.AnswerChunk(f, tags)
		}
		return packetOf(f, v6).Ports(shuffle.Port, shuffle.Port).Bytes
	}
	earlier := func() []byte {
		if len(sent) == 0 {
			sent = append(sent, make1(wire.Broadcast))
		}
		return bytes.Clone(sent[choose(len(sent))])
	}
	for range steps {
		switch choose(16) {
		default:
			sent = append(sent, make1(wire.Broadcast))
			c.stepCast(sent[len(sent)-1])
		case 5, 6, 7, 8:
			sent = append(sent, make1(wire.BroadcastAck))
			c.stepCast(sent[len(sent)-1])
		case 9, 10: // comes again
			c.stepCast(earlier())
		case 11: // damaged
			p := earlier()
			at := choose(len(p))
			if choose(2) == 0 {
				at = choose(min(len(p), frameAt(p)+wire.HeadSize+wire.ChunkHead))
			}
			p[at] ^= byte(1 << choose(8))
			if choose(2) == 0 {
				c.resealChunk(p)
			}
			c.stepCast(p)
		case 12: // cut, or with something behind
			p := earlier()
			if choose(2) == 0 {
				p = p[:14+choose(len(p)-13)]
			} else {
				p = append(p, make([]byte, 1+choose(100))...)
			}
			if choose(2) == 0 && len(p) > 62 {
				resize(p)
			}
			c.stepCast(p)
		case 13: // user space has a hand in marks
			at, state := c.ends.Regions[1].Marks+first+uint32(choose(int(total))), uint64(choose(4))
			if int(at) < castLimits.Chunks {
				c.bothMarks(func(m []uint64) { m[at] = m[at]&^3 | state })
			}
		case 14: // what came out goes in at the next member
			if v, out := c.stepCast(earlier()); v != model.Drop && len(out) >= 62 {
				c.bothEnds(func(e *shuffle.Ends) {
					r := &e.Regions[1]
					r.Bit, r.Hop = r.Bit+1, r.Hop+1
				})
				c.stepCast(packetOf(bytes.Clone(model.PayloadOf(out)), v6).Ports(shuffle.Port, shuffle.Port).Bytes)
			}
		case 15:
			switch choose(6) {
			case 0:
				member()
			case 1:
				source()
			case 2:
				c.setAnswer(wire.AnswerMode(choose(3)))
			}
		}
	}
}

// TestRunBroadcastHistories plays random histories.
func TestRunBroadcastHistories(t *testing.T) {
	c := newCastTwins(t)
	before := c.t
	defer func() { c.t, c.rig.t = before, before }()
	rapid.Check(t, func(t *rapid.T) {
		c.t, c.rig.t = t, t
		c.castHistory(rapid.IntRange(1, 40).Draw(t, "steps"), func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") })
	})
	c.t, c.rig.t = before, before
	rng := rand.New(rand.NewPCG(4, 4))
	n := 60
	switch {
	case os.Getenv("QUERN_LONG") != "":
		n = 3000
	case testing.Short():
		n = 15
	}
	for range n {
		c.castHistory(100, rng.IntN)
	}
	r, err := c.rig.Reasons()
	c.rig.check(err)
	for _, reason := range []wire.Reason{
		wire.Malformed, wire.UpShape, wire.UpRegion, wire.ChunkTag, wire.ChunkPlace, wire.ChunkBusy, wire.Stored, wire.StoredBefore, wire.PassedOn, wire.ChainAnswered, wire.UpHop,
		wire.Collected, wire.CollectedUp, wire.Pumped, wire.AckTag, wire.AckStray,
	} {
		if r[reason] < uint64(n/6) {
			t.Errorf("%v: %d times only", reason, r[reason])
		}
	}
	t.Logf("reasons %v", r)
}
