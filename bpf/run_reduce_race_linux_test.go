// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/wire"
)

// meet has several CPUs be at a place at the same time, if they all are about to come there. It returns at.
func meet(n *atomic.Int32, cpus, at int) int {
	n.Add(1)
	for spins := 0; spins < 2000 && int(n.Load()) < cpus; spins++ {
	}
	return at
}

// The parts of all members come in on all CPUs at the same time, each of them on every CPU and in another order, while user space adds its own
// and some of theirs, and parts of blocks long complete come again. Each is added once, each block is completed once, by programs or by
// user space, its result is that of the operation, and slots are used over and over.
func TestRunReduceRace(t *testing.T) {
	needCPUs(t, 2)
	c := newPartTwins(t)
	const (
		bits, members, rank = 3, 6, 2
		window              = 1 << bits / 2
	)
	c.openGroup(c.member(rank, members, bits, false))
	e := &c.kernel
	rounds := 300
	if testing.Short() {
		rounds = 40
	}
	part := func(block uint32, member uint8) (wire.Part, []byte) {
		wide := uint8(block % 2)
		return wire.Part{What: block ^ 0x55, Bytes: wire.ChunkSize, Op: uint8(block % 3), Wide: wide, Reducer: rank, Member: member},
			partValues(wire.ChunkSize, wide, member, uint64(block))
	}
	packet := func(block uint32, member uint8) []byte {
		p, values := part(block, member)
		return partPacket(c.part(wire.Reduce, block, p, values), false)
	}
	type job struct {
		block  uint32
		member uint8
		packet []byte
	}
	cpus := min(4, runtime.NumCPU())
	outs := make([][]byte, cpus)
	for i := range outs {
		outs[i] = make([]byte, 4096)
	}
	var before []job // of blocks that are complete
	var byUser, completed, results, again atomic.Int64
	run := func(p []byte, out []byte, block uint32, stale bool) {
		o := ebpf.RunOptions{Data: p, DataOut: out}
		verdict, err := c.rig.programs["quern_dispatch"].Run(&o)
		switch {
		case err != nil:
			t.Error(err)
		case verdict == uint32(model.TX):
			results.Add(1)
			h, _, values, err := wire.ParsePart(model.PayloadOf(o.DataOut))
			if err != nil || h.Kind != wire.Reduced || h.Seq != block || !c.tags[1].OpenPart(model.PayloadOf(o.DataOut)) {
				t.Errorf("what came of block %d: %+v, %v", block, h, err)
				return
			}
			if kept, _ := e.own(rank, block); !stale && !bytes.Equal(values, kept[:len(values)]) {
				t.Errorf("the result of block %d that was sent is not the one that is here", block)
			}
			if stale {
				again.Add(1)
			}
		case verdict != uint32(model.Drop):
			t.Errorf("verdict %v", model.Verdict(verdict))
		}
	}
	for round := range rounds {
		var jobs []job
		first := uint32(1<<bits + round*window)
		for b := first; b < first+window; b++ {
			for m := range uint8(members) {
				if m != rank {
					jobs = append(jobs, job{b, m, packet(b, m)})
				}
			}
		}
		var over atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() { // user space
			rng := rand.New(rand.NewPCG(1, uint64(round)))
			for _, i := range rng.Perm(window) {
				runtime.Gosched()
				b, m := first+uint32(i), uint8(rank)
				for range 2 {
					p, values := part(b, m)
					added, whole := e.add(b, p, values)
					if added {
						byUser.Add(1)
					} else if m == rank {
						t.Errorf("our own part of block %d was not taken", b)
					}
					if whole && e.complete(b, p) {
						completed.Add(1)
					}
					m = uint8(rng.IntN(members)) // and perhaps one that came to it
					if m == rank {
						break
					}
				}
			}
			// It completes what is whole, as it would if programs had left that.
			for b := first; !over.Load(); b = first + (b+1-first)%window {
				if marks := e.rowMarks(b); atomic.LoadUint64(&marks[wire.RowApplied]) == uint64(b>>bits)<<32|(1<<members-1) {
					if p, _ := part(b, rank); e.complete(b, p) {
						completed.Add(1)
					}
				}
				runtime.Gosched()
			}
		})
		met := make([]atomic.Int32, len(jobs))
		onCPUs(t, cpus, func(cpu int) {
			rng := rand.New(rand.NewPCG(uint64(round), uint64(cpu)))
			order := rng.Perm(len(jobs))
			for i := range order {
				at := order[i]
				switch round % 3 {
				case 1: // the same part at the same time
					at = meet(&met[i], cpus, i)
				case 2: // those of the same block
					at = meet(&met[i], cpus, i/(members-1)*(members-1)+(i+cpu)%(members-1))
				}
				run(jobs[at].packet, outs[cpu], jobs[at].block, false)
				if len(before) > 0 && rng.IntN(3) == 0 {
					j := before[rng.IntN(len(before))]
					run(j.packet, outs[cpu], j.block, true)
				}
			}
		})
		over.Store(true)
		wg.Wait()
		for b := first; b < first+window; b++ {
			marks := e.rowMarks(b)
			generation := uint64(b >> bits)
			if marks[wire.RowClaimed] != generation<<32|(1<<members-1) || marks[wire.RowApplied] != marks[wire.RowClaimed] || marks[wire.RowResult] != generation<<32|wire.MarkStored {
				t.Fatalf("block %d is not complete: %#x", b, marks)
			}
			p, want := part(b, 0)
			for m := uint8(1); m < members; m++ {
				_, values := part(b, m)
				together(p.Op, p.Wide, want, values)
			}
			kept, mark := e.own(rank, b)
			if !bytes.Equal(kept, want) || !bytes.Equal(e.sum(b, wire.RowResult), want) || *mark != generation<<32|wire.MarkStored {
				t.Fatalf("block %d is something else (operation %d, mark %#x)", b, p.Op, *mark)
			}
		}
		// Slots of the last half are still what they were: their parts may be answered, older ones are strays.
		if before = append(before, jobs...); len(before) > 8*len(jobs) {
			before = before[len(jobs):]
		}
	}
	g := *e.group
	blocks := int64(rounds * window)
	r, err := c.rig.Reasons()
	c.rig.check(err)
	if n := int64(r[wire.Added]) + byUser.Load(); n != blocks*members {
		t.Errorf("%d parts were added, %d by user space, not %d", n, byUser.Load(), blocks*members)
	}
	if n := int64(g.Reduced) + completed.Load(); n != blocks || int64(g.Stored) != blocks || int64(r[wire.BlockReduced]) != int64(g.Reduced) {
		t.Errorf("%d blocks: %d completed by programs (%d), %d by user space, %d stored", blocks, g.Reduced, r[wire.BlockReduced], completed.Load(), g.Stored)
	}
	if int64(g.Passed) != results.Load() || int64(r[wire.ResultAgain])+int64(g.Reduced) != results.Load() {
		t.Errorf("%d results were sent: %d counted, %d again", results.Load(), g.Passed, r[wire.ResultAgain])
	}
	if g.Reduced == 0 || completed.Load() == 0 || again.Load() == 0 || r[wire.PartStray] == 0 || r[wire.PartBefore] == 0 {
		t.Errorf("not all happened: %d and %d completed, %d again, reasons %v", g.Reduced, completed.Load(), again.Load(), r)
	}
	t.Logf("%d blocks: %d completed by programs, %d by user space; %d parts added by it; %d of %d results sent again; %d strays, %d before",
		blocks, g.Reduced, completed.Load(), byUser.Load(), r[wire.ResultAgain], results.Load(), r[wire.PartStray], r[wire.PartBefore])
}

// One result comes in on all CPUs at the same time, and by user space: it is stored once, told of once and sent on once.
func TestRunReducedRace(t *testing.T) {
	needCPUs(t, 2)
	c := newPartTwins(t)
	const bits, members, rank, reducer = 3, 6, 2, 5
	c.openGroup(c.member(rank, members, bits, false))
	e := &c.kernel
	rounds := 300
	if testing.Short() {
		rounds = 40
	}
	cpus := min(4, runtime.NumCPU())
	var passed, byUser, told atomic.Int64
	for round := range rounds {
		first := uint32(1<<bits + round<<bits)
		var packets [][]byte
		values := func(b uint32) []byte { return partValues(wire.ChunkSize, 0, reducer, uint64(b)) }
		for b := first; b < first+1<<bits; b++ {
			packets = append(packets, partPacket(c.part(wire.Reduced, b, wire.Part{What: b, Reducer: reducer}, values(b)), false))
		}
		atomic.StoreUint32(&e.group.Wake, atomic.LoadUint32(&e.group.Stored)+1<<bits)
		count := func() {
			if atomic.AddUint32(&e.group.Stored, 1) == e.group.Wake {
				told.Add(1)
			}
		}
		var wg sync.WaitGroup
		if round%2 == 0 {
			wg.Go(func() { // user space
				for b := first; b < first+1<<bits; b++ {
					element, mark := e.own(reducer, b)
					if was := atomic.LoadUint64(mark); was>>32 < uint64(b>>bits) && atomic.CompareAndSwapUint64(mark, was, uint64(b>>bits)<<32|wire.MarkWriting) {
						copy(element, values(b))
						atomic.StoreUint64(mark, uint64(b>>bits)<<32|wire.MarkStored)
						byUser.Add(1)
						count()
					}
				}
			})
		}
		met := make([]atomic.Int32, len(packets))
		onCPUs(t, cpus, func(int) {
			for i, p := range packets {
				meet(&met[i], cpus, i)
				switch verdict, err := c.rig.programs["quern_dispatch"].Run(&ebpf.RunOptions{Data: p}); {
				case err != nil:
					t.Error(err)
				case verdict == uint32(model.TX):
					passed.Add(1)
				case verdict != uint32(model.Drop):
					t.Errorf("verdict %v", model.Verdict(verdict))
				}
			}
		})
		wg.Wait()
		for b := first; b < first+1<<bits; b++ {
			if element, mark := e.own(reducer, b); *mark != uint64(b>>bits)<<32|wire.MarkStored || !bytes.Equal(element, values(b)) {
				t.Fatalf("block %d: mark %#x, or it is something else", b, *mark)
			}
		}
	}
	told.Add(int64(len(c.readRounds())))
	if n := int64(rounds) << bits; int64(e.group.Stored) != n || passed.Load()+byUser.Load() != n || int64(e.group.Passed) != passed.Load() || told.Load() != int64(rounds) {
		t.Errorf("%d results were stored %d times, %d by user space, sent on %d times (%d counted); %d of %d rounds were told of",
			n, e.group.Stored, byUser.Load(), passed.Load(), e.group.Passed, told.Load(), rounds)
	}
	t.Logf("%d were stored by user space", byUser.Load())
}
