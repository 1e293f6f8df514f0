// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"unsafe"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/wire"
)

var (
	testSeed = pairs.Seed{A: 3, B: 5}
	testTags = wire.NewTags([16]byte{1, 2, 3})
)

const (
	testSlot   = 5
	testToken  = 0x1122334455667788
	testJob    = 3
	testTarget = 2
)

// bench is a host with one stream and a table.
type bench struct {
	*Host
	stream *wire.Stream
	table  *shuffle.Table
	cell   *wire.Cell
	ops    uint16
}

type failer interface {
	Helper()
	Fatal(args ...any)
}

// newBench opens a stream of 40 frames of shape into a table of 1<<bits slots.
func newBench(t failer, cfg Config, shape wire.Shape, bits int, ops ...uint8) *bench {
	t.Helper()
	cfg.Limits = shuffle.Limits{Streams: 16, Targets: 8, Outgoing: 16, Jobs: 8, Regions: 4, Casts: 4, Chunks: 64}
	b := &bench{Host: NewHost(cfg), ops: wire.PackOps(ops...)}
	if err := b.SetJob(testJob, testTags.Job()); err != nil {
		t.Fatal(err)
	}
	layout := shuffle.TableLayout{Class: shape.Class(), Lanes: shape.Lanes(), Bits: bits}
	lanes := shape.Lanes()
	if shape&wire.Dense != 0 {
		layout, lanes = shuffle.TableLayout{Dense: true, Bits: bits}, 0
	}
	tables, err := b.NewTables(layout, 1)
	if err != nil {
		t.Fatal(err)
	}
	b.table = tables[0]
	b.stream = &b.Memory().Streams[testSlot]
	*b.stream = wire.Stream{
		Token: testToken, Job: testJob, Target: testTarget, Frames: 40, Ops: b.ops, Lanes: uint8(lanes),
		Flags: wire.FlagFold, Share: 17,
	}
	b.cell = &b.Memory().Cells[testTarget*b.Memory().CPUs]
	b.cell.SetPlace(layout.Class, uint32(b.table.ID)+1, 0)
	return b
}

// state is a digest of everything that a packet may change but for counters of
// reasons, and for cells' notes of what was missing.
func (b *bench) state() string {
	h := fnv.New128a()
	m := b.Memory()
	for i := range m.Streams {
		h.Write(unsafe.Slice((*byte)(unsafe.Pointer(&m.Streams[i])), unsafe.Sizeof(m.Streams[i])))
	}
	for i := range m.Outgoing {
		h.Write(unsafe.Slice((*byte)(unsafe.Pointer(&m.Outgoing[i])), unsafe.Sizeof(m.Outgoing[i])))
	}
	for i := range m.Cells {
		c := m.Cells[i]
		c.Want, c.Missing, c.Full = 0, 0, 0
		h.Write(unsafe.Slice((*byte)(unsafe.Pointer(&c)), unsafe.Sizeof(c)))
	}
	h.Write(b.table.Memory)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// counted returns the reasons counted since the last call.
func (b *bench) counted() map[wire.Reason]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[wire.Reason]uint64{}
	for r, n := range b.reasons {
		if n != 0 {
			all[wire.Reason(r)] = n
		}
	}
	clear(b.reasons[:])
	return all
}

func head(seq uint32) wire.Head {
	return wire.Head{Token: testToken, Stream: testSlot, Seq: seq, Back: 9, Stamp: 0x5566}
}

// keyedFrame returns a frame of n pairs of shape with keys from first on, and its pairs.
func keyedFrame(t failer, shape wire.Shape, h wire.Head, first, n int) ([]byte, []Pair) {
	t.Helper()
	var b wire.Builder
	b.Reset(make([]byte, wire.FrameSize), shape)
	var all []Pair
	for i := first; i < first+n; i++ {
		p := Pair{Key: fmt.Sprintf("%0*d", shape.KeyBytes(), i)}
		for l := range shape.Lanes() {
			p.Lanes = append(p.Lanes, int64((i+1)*(l+3)*(1-2*(i&1))))
		}
		if !b.Add(testSeed.HashBytes([]byte(p.Key)), []byte(p.Key), p.Lanes) {
			t.Fatal("frame is full", b.Err())
		}
		all = append(all, p)
	}
	f := b.Finish(h, testTags)
	if f == nil {
		t.Fatal(b.Err())
	}
	return f, all
}

func denseFrame(t failer, shape wire.Shape, h wire.Head, offset uint32, values ...int64) []byte {
	t.Helper()
	var b wire.Builder
	b.Reset(make([]byte, wire.FrameSize), shape)
	for i, v := range values {
		if !b.AddValue(offset+uint32(i), v) {
			t.Fatal("frame is full", b.Err())
		}
	}
	return b.Finish(h, testTags)
}

func (b *bench) drain(t failer) string {
	t.Helper()
	all, err := Drain(b.table.Memory, b.table.Layout.Class, b.table.Layout.Lanes, b.ops)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(all)
}

func clone(p *Packet) []byte { return bytes.Clone(p.Bytes) }
