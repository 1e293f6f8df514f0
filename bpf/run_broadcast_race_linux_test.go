// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/wire"
)

// onCPUs runs fn on several CPUs at once, at least two if there are as many, and waits.
func onCPUs(t *testing.T, n int, fn func(cpu int)) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			runtime.LockOSThread() // not unlocked: the thread ends with its affinity
			var set unix.CPUSet
			set.Set(i % runtime.NumCPU())
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				t.Error(err)
				return
			}
			fn(i)
		})
	}
	wg.Wait()
}

// The same chunks come in on several CPUs, and by user space, at the same time: each is stored and counted
// once, and none is sent on that is not here.
func TestRunBroadcastRace(t *testing.T) {
	c := newCastTwins(t)
	const total = castChunks
	c.region(1, wire.Region{
		Token: castToken(1), Job: 1, Content: 2, Marks: 5, Chunks: total, Chain: 7, Bit: 4,
		Hops: [2]wire.Hop{hopTo(3, false, testRunInterface)},
	})
	region, marks := &c.ends.Regions[1], c.marks[5:][:total]
	var packets [][]byte
	for i := range uint32(total) {
		packets = append(packets, packetOf(c.chunk(wire.Chunk{Place: i, Total: total, Chain: 7}, i, 0, wire.ChunkSize), false).Bytes)
	}
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	workers := max(2, min(4, runtime.NumCPU()))
	var busy atomic.Int64
	for round := range rounds {
		clear(c.contents[2])
		clear(c.marks)
		region.Stored, region.Passed = 0, 0
		var byUser, whole, passed atomic.Int64
		onCPUs(t, workers, func(cpu int) {
			if cpu == 0 && round%2 == 0 { // user space
				for i := range total {
					if m := &marks[i]; wire.ClaimMark(m) {
						copy(c.contents[2][i*wire.ChunkSize:], castData(i, wire.ChunkSize))
						wire.SetMark(m, wire.MarkStored)
						byUser.Add(1)
						if wire.CountMark(&marks[0]) == total {
							whole.Add(1)
						}
					}
				}
				return
			}
			for i, p := range packets {
				v, err := c.rig.programs["quern_dispatch"].Run(&ebpf.RunOptions{Data: p})
				switch {
				case err != nil:
					t.Error(err)
				case v == uint32(model.TX):
					passed.Add(1)
					if wire.MarkState(&marks[i]) != wire.MarkStored {
						t.Errorf("chunk %d was sent on, and is not here", i)
					}
				case v == uint32(model.Drop):
					busy.Add(1)
				default:
					t.Errorf("verdict %d", v)
				}
			}
		})
		whole.Add(int64(len(c.readEvents())))
		for i := range marks {
			if wire.MarkState(&marks[i]) != wire.MarkStored {
				t.Fatalf("chunk %d is not stored", i)
			}
			if !bytes.Equal(c.contents[2][i*wire.ChunkSize:][:wire.ChunkSize], castData(i, wire.ChunkSize)) {
				t.Fatalf("chunk %d is something else", i)
			}
		}
		if n := int64(region.Stored) + byUser.Load(); n != total || wire.MarkCount(&marks[0]) != total || whole.Load() != 1 || int64(region.Passed) != passed.Load() {
			t.Fatalf("%d chunks were stored %d times (%d by user space), counted %d times, told %d times; %d were sent on, %d counted",
				total, n, byUser.Load(), wire.MarkCount(&marks[0]), whole.Load(), passed.Load(), region.Passed)
		}
	}
	t.Logf("%d chunks were dropped since another CPU was at them", busy.Load())
}

// The same answers come in on several CPUs: each is counted once and clocks one chunk, no two chunks
// have the same transmission, and one answer wakes the source.
func TestRunCollectRace(t *testing.T) {
	c := newCastTwins(t)
	const total, chains = castChunks, 3
	c.bothContents(3, func(b []byte) { copy(b, castData(1, len(b))) })
	open := func() *wire.Cast {
		k := wire.Cast{
			Token: castToken(1), Job: 1, Content: 3, Marks: 60, Chunks: total, Chains: chains, Flags: wire.FlagPump,
			Total: total, Bytes: 1344, Wake: total * chains,
		}
		for i := range chains {
			k.Want[i], k.Heads[i] = 1<<4, hopTo(100+i, false, testRunInterface)
		}
		c.cast(2, k)
		clear(c.marks)
		return &c.ends.Casts[2]
	}
	var packets [][]byte
	for i := range uint32(total * chains) {
		f := c.chunk(wire.Chunk{Place: i / chains, Total: total, Chain: uint16(i % chains)}, i, 0, wire.ChunkSize)
		wire.PassChunk(f, uint16(i%chains), 4, c.tags[1])
		packets = append(packets, packetOf(wire.AnswerChunk(f, c.tags[1]), false).Ports(shuffle.Port, shuffle.Port).Bytes)
	}
	rounds := 40
	if testing.Short() {
		rounds = 6
	}
	for range rounds {
		cast := open()
		var woken atomic.Int64
		var mu sync.Mutex
		seen := map[uint32]bool{}
		sent := map[[2]uint32]int{}
		onCPUs(t, max(2, min(4, runtime.NumCPU())), func(int) {
			out := make([]byte, 4096)
			for _, p := range packets {
				o := ebpf.RunOptions{Data: p, DataOut: out[:cap(out)]}
				v, err := c.rig.programs["quern_dispatch"].Run(&o)
				switch {
				case err != nil:
					t.Error(err)
				case v == uint32(model.Pass):
					woken.Add(1)
				case v == uint32(model.TX):
					h, chunk, _, err := wire.ParseChunk(model.PayloadOf(o.DataOut))
					if err != nil || !c.tags[1].OpenChunk(model.PayloadOf(o.DataOut)) {
						t.Errorf("%v, or the tag is wrong", err)
					}
					mu.Lock()
					if seen[h.Seq] {
						t.Errorf("two transmissions %d", h.Seq)
					}
					seen[h.Seq] = true
					sent[[2]uint32{uint32(chunk.Chain), chunk.Place}]++
					mu.Unlock()
				}
			}
		})
		for at, n := range sent {
			if n != 1 {
				t.Errorf("chunk %d was sent to chain %d %d times", at[1], at[0], n)
			}
		}
		// The last answer wakes; those that came before it all found a chunk to send, the first of every chain on.
		if cast.Done != total*chains || woken.Load() != 1 || int(cast.Pumped) != len(sent) || len(sent) < chains*total-1 || cast.Transmissions != cast.Pumped {
			t.Fatalf("%d done, %d wakes, %d pumped, %d sent, %d transmissions", cast.Done, woken.Load(), cast.Pumped, len(sent), cast.Transmissions)
		}
	}
}
