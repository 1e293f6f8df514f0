// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/wire"
)

// partValues are bytes of values of a member, small and large ones of both signs.
func partValues(n int, wide, member uint8, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, uint64(member)))
	b := make([]byte, n)
	for i := 0; i < n; i += 4 << wide {
		v := rng.Uint64()
		switch v >> 4 & 7 {
		case 0:
			v = uint64([]int64{math.MaxInt64, math.MinInt64, math.MaxInt32, math.MinInt32}[v&3])
		case 1, 2, 3:
			v = uint64(int64(v) >> 48)
		}
		if wide == 1 {
			le.PutUint64(b[i:], v)
		} else {
			le.PutUint32(b[i:], uint32(v))
		}
	}
	return b
}

// A block goes all the way: parts of three members and the reducer's own, the result to the next member, again to who asks
// again; the next member stores it and sends it on, the last one keeps it.
func TestRunReduceRound(t *testing.T) {
	c := newPartTwins(t)
	for _, v6 := range []bool{false, true} {
		for _, mode := range []wire.AnswerMode{wire.AnswerTX, wire.AnswerTC} {
			for how := range uint8(6) {
				op, wide := how/2, how%2
				n := []int{wire.ChunkSize, 40, 8, 1000}[how%4]
				const members, rank, bits = 4, 2, 2
				leaves := map[wire.AnswerMode]model.Verdict{wire.AnswerTX: model.TX, wire.AnswerTC: model.Pass}[mode]
				g := c.member(rank, members, bits, v6)
				g.Wake = 2
				c.openGroup(g)
				c.setAnswer(mode)
				block := uint32(5<<bits | 1)
				p := wire.Part{What: 77, Bytes: uint16(n), Op: op, Wide: wide, Reducer: rank}
				want := partValues(n, wide, 0, 9)
				var packets [members][]byte
				for m := range uint8(members) {
					values := partValues(n, wide, m, 9)
					if m != 0 {
						together(op, wide, want, values)
					}
					p.Member = m
					if m != rank {
						packets[m] = partPacket(c.part(wire.Reduce, block, p, values), v6)
					}
				}
				for _, m := range []int{0, 1, 0} {
					if verdict, _ := c.stepPart(m%c.rig.cpus, packets[m]); verdict != model.Drop {
						t.Fatalf("part of member %d: %v", m, verdict)
					}
				}
				p.Member = rank
				c.bothEnds(func(e *reduceEnd) {
					if added, whole := e.add(block, p, partValues(n, wide, rank, 9)); !added || whole {
						t.Fatalf("our own part: %v, %v", added, whole)
					}
				})
				check := func(name string, verdict model.Verdict, out []byte) {
					t.Helper()
					if verdict != leaves {
						t.Fatalf("%s: %v", name, verdict)
					}
					h, got, values, err := wire.ParsePart(model.PayloadOf(out))
					p.Member = 0
					if err != nil || !c.tags[1].OpenPart(model.PayloadOf(out)) || h.Kind != wire.Reduced || h.Seq != block || got != p {
						t.Fatalf("%s: %+v %+v %v", name, h, got, err)
					}
					if !bytes.Equal(values, want) {
						t.Fatalf("%s: operation %d, %d bytes: %x, not %x", name, op, n, values, want)
					}
				}
				verdict, out := c.stepPart(0, packets[3])
				check("the last part", verdict, out)
				result := bytes.Clone(model.PayloadOf(out))
				if out[5] != 3 {
					t.Fatalf("it went to %x", out[:6])
				}
				if kept, mark := c.kernel.own(rank, block); !bytes.Equal(kept[:n], want) || *mark != 5<<32|wire.MarkStored {
					t.Fatalf("our own: mark %#x, %x", *mark, kept[:n])
				}
				verdict, out = c.stepPart(1%c.rig.cpus, packets[1])
				check("a part again", verdict, out)
				if g := c.kernel.group; g.Stored != 1 || g.Reduced != 1 || g.Passed != 2 {
					t.Fatalf("%+v", g)
				}

				// At the members behind it: the next one, and the last one.
				for m, last := range map[uint8]bool{3: false, 1: true} {
					g := c.member(m, members, bits, v6)
					g.Wake = 1
					c.openGroup(g)
					c.setAnswer(mode)
					verdict, out := c.stepPart(0, partPacket(result, v6))
					if last {
						if verdict != model.Drop {
							t.Fatalf("a result at the last member: %v", verdict)
						}
					} else if check("a result", verdict, out); !bytes.Equal(model.PayloadOf(out), result) {
						t.Fatal("it was changed")
					}
					if kept, mark := c.kernel.own(rank, block); !bytes.Equal(kept[:n], want) || *mark != 5<<32|wire.MarkStored || c.kernel.group.Stored != 1 {
						t.Fatalf("member %d: mark %#x, %x", m, *mark, kept[:n])
					}
					if verdict, _ := c.stepPart(0, partPacket(result, v6)); verdict != model.Drop || c.kernel.group.Stored != 1 {
						t.Fatalf("a result again: %v", verdict)
					}
				}
			}
		}
	}
}

// resealPart gives a damaged frame a tag that fits it.
func (c *partTwins) resealPart(packet []byte) {
	frame := packet[min(len(packet), frameAt(packet)):]
	if len(frame) < wire.HeadSize+wire.PartHead {
		return
	}
	if n := int(wire.ReadHead(frame).Length); n < wire.PartHead || n > wire.BodySize || n%wire.BodyStep != 0 || len(frame) < wire.HeadSize+n {
		return
	}
	c.tags[1].SealPart(frame)
}

// TestRunReduceDamage breaks good packets in every way that changes one bit, or the length.
func TestRunReduceDamage(t *testing.T) {
	c := newPartTwins(t)
	const block = 3<<2 | 1
	for _, v6 := range []bool{false, true} {
		body := 61
		if v6 {
			body = 599
		}
		p := wire.Part{What: 5, Reducer: 1, Member: 2, Op: wire.OpMax, Wide: 1}
		of := func(kind wire.Kind, p wire.Part, n int) []byte {
			return partPacket(c.part(kind, block, p, partValues(n, p.Wide, 0, 1)), v6)
		}
		seeds := map[string][]byte{"part": of(wire.Reduce, p, wire.ChunkSize), "last": of(wire.Reduce, wire.Part{What: 5, Reducer: 1, Op: wire.OpMax, Wide: 1}, 48)}
		p.Member, p.Reducer = 0, 3
		seeds["result"] = of(wire.Reduced, p, wire.ChunkSize)
		open := func() {
			c.openGroup(c.member(1, 4, 2, v6))
			c.bothEnds(func(e *reduceEnd) {
				e.group.Wake = 1
				// All but member 0, whose part is the last, and one more if it is not a good one.
				for m := uint8(1); m < 4; m++ {
					if m != 2 {
						e.add(block, wire.Part{What: 5, Bytes: 48, Op: wire.OpMax, Wide: 1, Reducer: 1, Member: m}, partValues(48, 1, m, 1))
					}
				}
			})
		}
		for name, good := range seeds {
			if v6 && name == "last" {
				continue // differs in the frame alone
			}
			open()
			for bit := range len(good) * 8 {
				if at := bit / 8; at >= frameAt(good)+wire.HeadSize+wire.PartHead+4 && bit%body != 0 {
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
						c.resealPart(bad)
					}
					c.stepPart(0, bad)
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
					c.stepPart(0, short)
				}
			}
			for _, n := range []int{1, 4, 31, 32, 64, len(good)} {
				for _, fix := range []bool{false, true} {
					long := append(bytes.Clone(good), make([]byte, n)...)
					if fix {
						resize(long)
					}
					c.stepPart(0, long)
				}
			}
			open()
			want := map[string]model.Verdict{"part": model.Drop, "last": model.Drop, "result": model.TX}[name]
			if verdict, _ := c.stepPart(0, good); verdict != want {
				t.Errorf("%s as it is: %v", name, verdict)
			}
		}
	}
}

// partHistory opens an end and gives both sides packets of both kinds, good and bad. choose returns a number below n.
func (c *partTwins) partHistory(steps int, choose func(n int) int) {
	yes := func(n int) bool { return choose(n) == 0 }
	v6 := yes(2)
	members := uint8(2 + choose(4))
	bits := uint8(1 + choose(3))
	if yes(10) {
		members, bits = 32, 1
	}
	rank := uint8(choose(int(members)))
	hop := func(n int) wire.Hop {
		return hopTo(n, v6 != yes(12), []uint32{testRunInterface, testRunInterface, testRunInterface, 0, 99}[choose(5)])
	}
	g := c.member(rank, members, bits, v6)
	g.Hop, g.Hops = uint32(choose(4)), [2]wire.Hop{hop(3), hop(4)}
	g.Stored, g.Wake = uint32(choose(2))*math.MaxUint32, uint32(choose(3))
	switch choose(60) {
	case 0:
		g.Job = 2 // which is not there
	case 1:
		g.Sums = castContents
	case 2:
		g.Results = castContents
	case 3:
		g.SumMarks = uint32(c.rig.limits.Chunks) - 3
	case 4:
		g.ResultMarks = uint32(c.rig.limits.Chunks) - 3
	case 5:
		g.Row = uint32(choose(6)) // no CPU has an element
	case 6:
		g.Members = uint8(choose(2))
	case 7:
		g.Token++
	case 8:
		g.Job = 0
	}
	c.openGroup(g)
	c.setAnswer(wire.AnswerMode(choose(3)))

	// The blocks of every slot go from generation to generation.
	generations := make([]uint32, 1<<bits)
	for i := range generations {
		generations[i] = uint32(1 + choose(3))
	}
	block := func() uint32 {
		slot := choose(min(len(generations), 3))
		generation := generations[slot]
		switch choose(40) {
		case 0:
			generation--
		case 1:
			generation++
		}
		return generation<<bits | uint32(slot)
	}
	// What all parts of a block have alike follows from its number.
	call := func(block uint32) (wire.Part, int) {
		p := wire.Part{What: block * 0x9e3779b1, Op: uint8(block % 3), Wide: uint8(block / 3 % 2), Reducer: rank}
		n := wire.ChunkSize
		if block%5 < 2 {
			n = 8 * (1 + int(block%150))
		}
		return p, n
	}
	var sent [][]byte
	part := func(block uint32, member uint8) []byte {
		p, n := call(block)
		p.Member = member
		tags, token := c.tags[1], uint64(partToken)
		switch choose(80) {
		case 0:
			p.What++
		case 1:
			p.Reducer = uint8(choose(32))
		case 2:
			p.Member = uint8(choose(32))
		case 3:
			tags = c.tags[0]
		case 4:
			token++
		case 5:
			p.Op, p.Wide = uint8(choose(3)), uint8(choose(2))
		}
		f, err := wire.PutPart(make([]byte, wire.FrameSize), wire.Reduce, token, block, p, partValues(n, p.Wide, member, uint64(block)), tags)
		c.rig.check(err)
		sent = append(sent, partPacket(f, v6))
		return sent[len(sent)-1]
	}
	other := func() uint8 {
		for {
			if m := uint8(choose(int(members))); m != rank {
				return m
			}
		}
	}
	result := func() []byte {
		block := block()
		p, n := call(block)
		p.Reducer = other()
		if yes(20) {
			p.Reducer = uint8(choose(32))
		}
		tags := c.tags[1]
		if yes(20) {
			tags = c.tags[0]
		}
		f, err := wire.PutPart(make([]byte, wire.FrameSize), wire.Reduced, partToken, block, p, partValues(n, p.Wide, p.Reducer, uint64(block)), tags)
		c.rig.check(err)
		sent = append(sent, partPacket(f, v6))
		return sent[len(sent)-1]
	}
	earlier := func() []byte {
		if len(sent) == 0 {
			return part(block(), other())
		}
		return bytes.Clone(sent[choose(len(sent))])
	}
	whole := c.member(rank, members, bits, v6)
	sane := g.Row == whole.Row && g.SumMarks == whole.SumMarks && g.ResultMarks == whole.ResultMarks
	user := func(block uint32, member uint8) {
		if !sane {
			return
		}
		p, n := call(block)
		p.Member, p.Bytes = member, uint16(n)
		values := partValues(n, p.Wide, member, uint64(block))
		var did [2]string
		i := 0
		c.bothEnds(func(e *reduceEnd) {
			added, whole := e.add(block, p, values)
			did[i] = fmt.Sprint(added, whole)
			if whole && e.group.Members > 1 {
				did[i] += fmt.Sprint(e.complete(block, p))
			}
			i++
		})
		if did[0] != did[1] {
			c.t.Fatalf("user space at a part of block %d: %s, not %s", block, did[0], did[1])
		}
	}
	for range steps {
		cpu := choose(c.rig.cpus)
		switch choose(16) {
		default:
			c.stepPart(cpu, part(block(), other()))
		case 4, 5: // all of a block, in any order, some of them doubled
			b := block()
			order := make([]uint8, members)
			for i := range order {
				j := choose(i + 1)
				order[i] = order[j]
				order[j] = uint8(i)
			}
			for _, m := range order {
				if m == rank {
					user(b, m)
					continue
				}
				c.stepPart(choose(c.rig.cpus), part(b, m))
				if yes(8) {
					c.stepPart(cpu, earlier())
				}
			}
			if slot := b & (1<<bits - 1); b>>bits == generations[slot] && yes(2) {
				generations[slot]++
			}
		case 6, 7, 8:
			c.stepPart(cpu, result())
		case 9, 10: // comes again
			c.stepPart(cpu, earlier())
		case 11: // damaged
			p := earlier()
			at := choose(len(p))
			if yes(2) {
				at = choose(min(len(p), frameAt(p)+wire.HeadSize+wire.PartHead))
			}
			p[at] ^= byte(1 << choose(8))
			if yes(2) {
				c.resealPart(p)
			}
			c.stepPart(cpu, p)
		case 12: // cut, or with something behind
			p := earlier()
			if yes(2) {
				p = p[:14+choose(len(p)-14)]
			} else {
				p = append(p, make([]byte, 1+choose(100))...)
			}
			if yes(2) && len(p) > 62 {
				resize(p)
			}
			c.stepPart(cpu, p)
		case 13: // user space adds our own part, or one that came to it
			if b := block(); yes(4) {
				user(b, other())
			} else {
				user(b, rank)
			}
		case 14: // user space has a hand in the marks of a block, or is at a result
			b := block()
			if !sane {
				continue
			}
			generation, reducer := uint64(b>>bits), other()
			c.bothEnds(func(e *reduceEnd) {
				_, mark := e.own(reducer, b)
				*mark = generation<<32 | wire.MarkWriting
			})
			if yes(3) {
				at, low := []uint32{wire.RowWhat, wire.RowClaimed, wire.RowApplied, wire.RowResult, wire.RowCPU}[choose(5)], uint64(choose(4))
				generation += uint64(choose(3)) - 1
				c.bothEnds(func(e *reduceEnd) { e.rowMarks(b)[at] = generation<<32 | low })
			}
		case 15:
			switch choose(8) {
			case 0:
				c.setAnswer(wire.AnswerMode(choose(3)))
			case 1, 2, 3:
				ahead := uint32(1 + choose(2))
				c.bothEnds(func(e *reduceEnd) { e.group.Wake = e.group.Stored + ahead })
			case 4:
				turn, to := uint32(choose(4)), hop(5)
				c.bothEnds(func(e *reduceEnd) { e.group.Hop, e.group.Hops[(turn+1)&1] = turn, to })
			}
		}
	}
}

// TestRunReduceHistories plays random histories.
func TestRunReduceHistories(t *testing.T) {
	c := newPartTwins(t)
	before := c.t
	defer func() { c.t, c.rig.t = before, before }()
	rapid.Check(t, func(t *rapid.T) {
		c.t, c.rig.t = t, t
		c.partHistory(rapid.IntRange(1, 40).Draw(t, "steps"), func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") })
	})
	c.t, c.rig.t = before, before
	rng := rand.New(rand.NewPCG(6, 6))
	n := 48
	switch {
	case os.Getenv("QUERN_LONG") != "":
		n = 3000
	case testing.Short():
		n = 15
	}
	for range n {
		c.partHistory(100, rng.IntN)
	}
	r, err := c.rig.Reasons()
	c.rig.check(err)
	for _, reason := range []wire.Reason{
		wire.Malformed, wire.UpShape, wire.UpGroup, wire.UpHop, wire.PartTag, wire.PartStray, wire.PartDiffers, wire.PartBefore, wire.Added, wire.BlockReduced,
		wire.ResultAgain, wire.ResultStored, wire.ResultBefore, wire.ResultPassed,
	} {
		if r[reason] < uint64(n/6) {
			t.Errorf("%v: %d times only", reason, r[reason])
		}
	}
	t.Logf("reasons %v", r)
}

// Where there are no programs for all-reduces, their frames go up as they came; where the chain has nothing behind the first
// program, a block that is whole and has no result goes up.
func TestRunReduceChain(t *testing.T) {
	c := newPartTwins(t)
	c.openGroup(c.member(0, 2, 2, false))
	good := partPacket(c.part(wire.Reduce, 4, wire.Part{What: 1, Member: 1}, make([]byte, 64)), false)
	c.bothEnds(func(e *reduceEnd) {
		e.add(4, wire.Part{What: 1, Bytes: 64}, make([]byte, 64))
	})
	c.rig.check(c.rig.maps["chain"].Delete(uint32(chainReduce + 1)))
	verdict, out := c.rig.run(good)
	h := wire.ReadHead(model.PayloadOf(out))
	if h.STable != partSlot || h.SSet != 0 {
		t.Errorf("what the next program is to know: %+v", h)
	}
	_, p, _, err := wire.ParsePart(model.PayloadOf(out))
	if verdict != uint32(model.Pass) || err != nil || p.Member != 1 || !c.tags[1].OpenPart(model.PayloadOf(out)) {
		t.Errorf("%v: %+v %v", model.Verdict(verdict), p, err)
	}
	if marks := c.kernel.rowMarks(4); marks[wire.RowApplied] != 1<<32|3 || marks[wire.RowResult] != 0 {
		t.Errorf("marks %x", marks)
	}
	c.rig.check(c.rig.maps["chain"].Delete(uint32(chainReduce)))
	if verdict, out := c.rig.run(good); verdict != uint32(model.Pass) || !bytes.Equal(out, good) {
		t.Errorf("%v: %x", model.Verdict(verdict), out)
	}
	r, err := c.rig.Reasons()
	c.rig.check(err)
	if r[wire.UpChain] != 2 || r[wire.Added] != 1 {
		t.Errorf("reasons %v", r)
	}
}
