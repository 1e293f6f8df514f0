// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/wire"
)

// partTwins are programs of all-reduces and the reference model, which are given the same packets.
type partTwins struct {
	*twins
	kernel, plain reduceEnd
	reader        *ringbuf.Reader
	rounds        []wire.Event // of the model
}

// reduceEnd is a member's end of the one group of these tests as its user space sees it.
type reduceEnd struct {
	group         *wire.Group
	marks         []uint64
	sums, results []byte
}

const (
	partSlot  = 1
	partToken = 0x6e0c_0001_1234_5678
	partBits  = 3 // at most
	// Contents of sums and of results, and where the marks of sums are.
	partSums, partResults = 2, 3
	partSumMarks          = 7
	partResultBlocks      = 64 // 32 members of 2 blocks, 8 of 8
)

// withGroups adds the programs of all-reduces to a rig. Those of broadcasts may be there.
func withGroups(r *rig) (groups []wire.Group, marks []uint64) {
	for _, name := range []string{"reduce", "complete", "reduced"} {
		spec := r.spec(name)
		for m, n := range map[string]int{
			"groups": r.limits.Groups, "tokens": r.limits.Regions + r.limits.Groups, "contents": castContents, "marks": r.limits.Chunks,
		} {
			if spec.Maps[m] != nil {
				spec.Maps[m].MaxEntries = uint32(n)
			}
		}
		program := "quern_" + name
		r.programs[program] = r.load(spec, program).programs[program]
	}
	for i, program := range []string{"quern_reduce", "quern_complete", "quern_reduced"} {
		r.check(r.maps["chain"].Put(uint32(chainReduce+i), r.programs[program]))
	}
	return mapped[wire.Group](r, "groups", r.limits.Groups), mapped[uint64](r, "marks", r.limits.Chunks)
}

// chainReduce is where the chain has what adds up parts; what completes and what stores results follow.
const chainReduce = 5

func newPartTwins(t testing.TB) *partTwins {
	t.Helper()
	sums := (wire.RowCPU + runtime.NumCPU() + 1) << partBits
	limits := shuffle.Limits{
		Streams: twinStreams, Targets: twinTargets, Outgoing: twinOutgoing, Jobs: 2,
		Regions: 2, Casts: 1, Groups: 3, Chunks: partSumMarks + sums + partResultBlocks + castContents,
	}
	r := newRig(t, limits)
	onCPU(t, twinCPU)
	groups, marks := withGroups(r)
	c := &partTwins{twins: &twins{
		t: t, rig: r,
		model:  model.NewHost(model.Config{Limits: limits, CPUs: r.cpus, Reduces: true, Interface: testRunInterface}),
		tables: map[shuffle.TableLayout][2]*twinTable{},
	}}
	for i := range c.tags {
		c.tags[i] = wire.NewTags([16]byte{byte(i + 1)})
		r.check(r.SetJob(i, c.tags[i].Job()))
		r.check(c.model.SetJob(i, c.tags[i].Job()))
	}
	// Marks are where tests want them, and not where the model has put the content.
	for range castContents {
		_, err := c.model.NewContent(limits.Chunks / castContents)
		r.check(err)
	}
	c.model.Content(partSums).Data = make([]byte, sums*wire.ChunkSize)
	c.model.Content(partResults).Data = make([]byte, partResultBlocks*wire.ChunkSize)
	c.kernel = reduceEnd{&groups[partSlot], marks, r.newContent(partSums, sums), r.newContent(partResults, partResultBlocks)}
	c.plain = reduceEnd{&c.model.Groups()[partSlot], c.model.Marks(), c.model.Content(partSums).Data, c.model.Content(partResults).Data}
	reader, err := ringbuf.NewReader(r.maps["rounds"])
	r.check(err)
	t.Cleanup(func() { _ = reader.Close() })
	c.reader = reader
	r.check(c.model.OnRound(func(e wire.Event) { c.rounds = append(c.rounds, e) }))
	return c
}

// bothEnds calls fn for what programs and model share with user space.
func (c *partTwins) bothEnds(fn func(e *reduceEnd)) {
	fn(&c.kernel)
	fn(&c.plain)
}

// openGroup clears everything and opens a member's end on both sides.
func (c *partTwins) openGroup(g wire.Group) {
	c.reset()
	c.bothEnds(func(e *reduceEnd) {
		clear(e.marks)
		clear(e.sums)
		clear(e.results)
		*e.group = g
	})
	c.rig.check(c.rig.maps["tokens"].Put(uint64(partToken), uint32(partSlot)))
	c.rig.check(c.model.SetToken(partToken, partSlot))
	c.readRounds()
	c.rounds = nil
}

// member returns a member's end.
func (c *partTwins) member(rank, members, bits uint8, v6 bool) wire.Group {
	row := uint32(wire.RowCPU + c.rig.cpus + 1)
	return wire.Group{
		Token: partToken, Job: 1, Sums: partSums, SumMarks: partSumMarks, Results: partResults, ResultMarks: partSumMarks + row<<partBits,
		Row: row, Bits: bits, Members: members, Rank: rank, Hop: 1,
		Hops: [2]wire.Hop{{}, hopTo(3, v6, testRunInterface)},
	}
}

// readRounds returns what programs have told since the last call.
func (c *partTwins) readRounds() (all []wire.Event) {
	c.t.Helper()
	c.reader.SetDeadline(time.Unix(1, 0)) // what is there, and no more
	for {
		record, err := c.reader.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return all
		}
		c.rig.check(err)
		b := record.RawSample
		all = append(all, wire.Event{Token: le.Uint64(b), Slot: le.Uint32(b[8:]), First: le.Uint32(b[12:])})
	}
}

// moveTo takes the thread, which is locked, to a CPU.
func moveTo(t reporter, cpu int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
}

// stepPart gives both a packet on a CPU and compares all that came of it.
func (c *partTwins) stepPart(cpu int, packet []byte) (model.Verdict, []byte) {
	c.t.Helper()
	if cpu != twinCPU {
		moveTo(c.t, cpu)
		defer moveTo(c.t, twinCPU)
	}
	wantVerdict, want := c.model.Handle(cpu, bytes.Clone(packet))
	verdict, got := c.rig.run(packet)
	if c.answer == wire.AnswerTC && verdict == uint32(model.Pass) && len(got) == len(want)+4 {
		if binary.LittleEndian.Uint32(got) != wire.Magic {
			c.t.Fatalf("mark is %x", got[:4])
		}
		got = got[4:]
	}
	if verdict != uint32(wantVerdict) {
		c.t.Fatalf("verdict %v, not %v\n%s\n%x", model.Verdict(verdict), wantVerdict, c.compare(), packet)
	}
	if wantVerdict != model.Drop && !bytes.Equal(got, want) {
		c.t.Fatalf("packet\n%x\nbecame\n%x\nnot\n%x", packet, got, want)
	}
	d := c.compare()
	if d == "" {
		d = c.compareParts()
	}
	if d != "" {
		c.t.Fatalf("%s\npacket %x", d, packet)
	}
	return wantVerdict, want
}

// compareParts says what differs in what is of all-reduces.
func (c *partTwins) compareParts() string {
	if *c.kernel.group != *c.plain.group {
		return fmt.Sprintf("group is %+v\nnot %+v", *c.kernel.group, *c.plain.group)
	}
	for i, mark := range c.plain.marks {
		if c.kernel.marks[i] != mark {
			return fmt.Sprintf("mark %d is %#x, not %#x", i, c.kernel.marks[i], mark)
		}
	}
	for _, two := range []struct {
		name      string
		got, want []byte
	}{{"sums", c.kernel.sums, c.plain.sums}, {"results", c.kernel.results, c.plain.results}} {
		if !bytes.Equal(two.got, two.want) {
			at := 0
			for two.got[at] == two.want[at] {
				at++
			}
			return fmt.Sprintf("%s differ at %d (element %d)", two.name, at, at/wire.ChunkSize)
		}
	}
	if got := c.readRounds(); !slices.Equal(got, c.rounds) {
		return fmt.Sprintf("rounds are %+v, not %+v", got, c.rounds)
	}
	c.rounds = nil
	return ""
}

// part makes a frame of an all-reduce.
func (c *partTwins) part(kind wire.Kind, block uint32, p wire.Part, values []byte) []byte {
	f, err := wire.PutPart(make([]byte, wire.FrameSize), kind, partToken, block, p, values, c.tags[1])
	c.rig.check(err)
	return f
}

// partPacket is a packet from another member's port to ours.
func partPacket(frame []byte, v6 bool) []byte {
	return packetOf(frame, v6).Ports(shuffle.Port, shuffle.Port).Bytes
}

// together is an operation on values, as plain as can be.
func together(op, wide uint8, into, values []byte) {
	for i := 0; i < len(values); i += 4 << wide {
		a, b := int64(int32(le.Uint32(into[i:]))), int64(int32(le.Uint32(values[i:])))
		if wide == 1 {
			a, b = int64(le.Uint64(into[i:])), int64(le.Uint64(values[i:]))
		}
		switch op {
		case wire.OpSum:
			a += b
		case wire.OpMin:
			a = min(a, b)
		case wire.OpMax:
			a = max(a, b)
		}
		if wide == 1 {
			le.PutUint64(into[i:], uint64(a))
		} else {
			le.PutUint32(into[i:], uint32(a))
		}
	}
}

func (e *reduceEnd) row(block uint32) uint32 { return (block & (1<<e.group.Bits - 1)) * e.group.Row }

// sum returns an element of a block's row, and rowMarks its marks.
func (e *reduceEnd) sum(block, at uint32) []byte {
	return e.sums[int(e.row(block)+at)*wire.ChunkSize:][:wire.ChunkSize]
}

func (e *reduceEnd) rowMarks(block uint32) []uint64 {
	return e.marks[e.group.SumMarks+e.row(block):][:e.group.Row]
}

// own returns where a reducer's result of a block is.
func (e *reduceEnd) own(reducer uint8, block uint32) (element []byte, mark *uint64) {
	at := uint32(reducer)<<e.group.Bits | block&(1<<e.group.Bits-1)
	return e.results[int(at)*wire.ChunkSize:][:wire.ChunkSize], &e.marks[e.group.ResultMarks+at]
}

// add is what user space does with a part: what programs do, in an element of its own. It says whether it has added it, and
// whether that made the block whole. One goroutine calls it.
func (e *reduceEnd) add(block uint32, p wire.Part, values []byte) (added, whole bool) {
	generation, marks := uint64(block>>e.group.Bits), e.rowMarks(block)
	bit := uint64(1) << p.Member
	for {
		was := atomic.LoadUint64(&marks[wire.RowWhat])
		if was>>32 < generation {
			atomic.CompareAndSwapUint64(&marks[wire.RowWhat], was, generation<<32|uint64(p.What))
			continue
		}
		if was != generation<<32|uint64(p.What) {
			return false, false
		}
		break
	}
	for {
		was := atomic.LoadUint64(&marks[wire.RowClaimed])
		now := generation<<32 | bit
		if was>>32 > generation || was>>32 == generation && was&bit != 0 {
			return false, false
		}
		if was>>32 == generation {
			now = was | bit
		}
		if atomic.CompareAndSwapUint64(&marks[wire.RowClaimed], was, now) {
			break
		}
	}
	last := e.group.Row - 1
	if sum := e.sum(block, last); marks[last]>>32 != generation {
		for i := range sum {
			sum[i] = 0xb5 // behind the values there may be anything
		}
		copy(sum, values)
		marks[last] = generation << 32
	} else {
		together(p.Op, p.Wide, sum, values)
	}
	for {
		was := atomic.LoadUint64(&marks[wire.RowApplied])
		now := generation<<32 | bit
		if was>>32 == generation {
			now |= was
		}
		if atomic.CompareAndSwapUint64(&marks[wire.RowApplied], was, now) {
			return true, uint32(now) == uint32(1<<e.group.Members-1)
		}
	}
}

// complete is what user space does with a block that lacks nothing but its result. It says whether nobody else does.
func (e *reduceEnd) complete(block uint32, p wire.Part) bool {
	generation, marks := uint64(block>>e.group.Bits), e.rowMarks(block)
	was := atomic.LoadUint64(&marks[wire.RowResult])
	if was>>32 >= generation || !atomic.CompareAndSwapUint64(&marks[wire.RowResult], was, generation<<32|wire.MarkWriting) {
		return false
	}
	result, n := e.sum(block, wire.RowResult), (int(p.Bytes)+31)&^31
	first := true
	for i := uint32(wire.RowCPU); i < e.group.Row; i++ {
		switch sum := e.sum(block, i)[:n]; {
		case marks[i]>>32 != generation:
		case first:
			copy(result, sum)
			first = false
		default:
			together(p.Op, p.Wide, result, sum)
		}
	}
	element, mark := e.own(e.group.Rank, block)
	atomic.StoreUint64(mark, generation<<32|wire.MarkWriting)
	copy(element, result[:n])
	atomic.StoreUint64(mark, generation<<32|wire.MarkStored)
	atomic.StoreUint64(&marks[wire.RowResult], generation<<32|wire.MarkStored)
	atomic.AddUint32(&e.group.Stored, 1)
	return true
}

// needCPUs skips tests of what several CPUs do at once.
func needCPUs(t testing.TB, n int) {
	t.Helper()
	if runtime.NumCPU() < n {
		t.Skipf("%d CPUs are needed", n)
	}
}
