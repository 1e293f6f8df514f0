// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/quernmr/quern/shuffle/wire"
)

// The self-test's group: member 0 of three is here.
const (
	selfBits    = 2
	selfMembers = 3
)

// selfBlocks is the number of elements that the self-test's group needs.
func selfBlocks(cpus int) int { return (wire.RowCPU+cpus+1)<<selfBits + selfMembers<<selfBits }

// selfReduce has programs add known parts up, which come twice, and damaged too, and store a known result.
func (h *Host) selfReduce() (err error) {
	tags := wire.NewTags([16]byte{7, 7, 7})
	if err := h.SetJob(0, tags.Job()); err != nil {
		return err
	}
	const token, loopback, block = 0x0fedcba987654321, 1, 1<<selfBits + 1
	row := wire.RowCPU + h.memory.CPUs + 1
	sums, err := h.NewContent(row << selfBits)
	if err != nil {
		return err
	}
	results, err := h.NewContent(selfMembers << selfBits)
	if err != nil {
		return err
	}
	g := &h.Groups()[0]
	*g = wire.Group{
		Sums: sums.ID, SumMarks: sums.Mark, Results: results.ID, ResultMarks: results.Mark, Row: uint32(row), Bits: selfBits, Members: selfMembers,
		Hops: [2]wire.Hop{{
			MACTo: [6]byte{2, 0, 0, 0, 0, 9}, Interface: loopback, PortTo: [2]byte{0x11, 0x22}, PortFrom: [2]byte{0x33, 0x44},
			To: [16]byte{192, 0, 2, 9}, From: [16]byte{192, 0, 2, 1},
		}},
	}
	atomic.StoreUint64(&g.Token, token)
	if err := h.SetToken(token, 0); err != nil {
		return err
	}
	// What member 0 has was added by its user space: -5, -1, -1, -1 ...
	const what, values = 0x1234, 168
	own, mine := sums.Data[(row+row-1)*wire.ChunkSize:][:wire.ChunkSize], sums.Marks[row:][:row]
	for i := range values {
		binary.LittleEndian.PutUint64(own[8*i:], 1<<64-1)
	}
	binary.LittleEndian.PutUint64(own, 1<<64-5)
	mine[row-1] = 1 << 32
	mine[wire.RowWhat], mine[wire.RowClaimed], mine[wire.RowApplied] = 1<<32|what, 1<<32|1, 1<<32|1

	numbers := func(first, rest uint64) []byte {
		b := make([]byte, 8*values)
		for i := range values {
			binary.LittleEndian.PutUint64(b[8*i:], rest)
		}
		binary.LittleEndian.PutUint64(b, first)
		return b
	}
	sum := numbers(15, 2) // worked out by hand
	for _, f := range []struct {
		name   string
		kind   wire.Kind
		part   wire.Part
		values []byte
		spoil  bool
		want   uint32
		ends   []wire.Reason
	}{
		{"part of member 1", wire.Reduce, wire.Part{Member: 1}, numbers(20, 1), false, xdpDrop, []wire.Reason{wire.Added}},
		{"the same again", wire.Reduce, wire.Part{Member: 1}, numbers(20, 1), false, xdpDrop, []wire.Reason{wire.PartBefore}},
		{"a damaged part", wire.Reduce, wire.Part{Member: 2}, numbers(0, 2), true, xdpDrop, []wire.Reason{wire.PartTag}},
		{"part of member 2", wire.Reduce, wire.Part{Member: 2}, numbers(0, 2), false, xdpTX, []wire.Reason{wire.Added, wire.BlockReduced}},
		{"one that asks for the result", wire.Reduce, wire.Part{Member: 1}, numbers(20, 1), false, xdpTX, []wire.Reason{wire.ResultAgain}},
		{"a result", wire.Reduced, wire.Part{Reducer: 2}, numbers(7, 8), false, xdpTX, []wire.Reason{wire.ResultStored, wire.ResultPassed}},
		{"the result again", wire.Reduced, wire.Part{Reducer: 2}, numbers(7, 8), false, xdpDrop, []wire.Reason{wire.ResultBefore}},
	} {
		f.part.What, f.part.Wide = what, 1
		frame, err := wire.PutPart(make([]byte, wire.FrameSize), f.kind, token, block, f.part, f.values, tags)
		if err != nil {
			return err
		}
		packet := append(h.selfHeaders(len(frame)), frame...)
		if f.spoil {
			packet[len(packet)-1] ^= 1
		}
		before, err := h.Reasons()
		if err != nil {
			return err
		}
		verdict, out, err := h.Run(packet)
		if err != nil {
			return err
		}
		after, err := h.Reasons()
		if err != nil {
			return err
		}
		if verdict != f.want {
			return fmt.Errorf("%s ended with verdict %d, want %d", f.name, verdict, f.want)
		}
		for _, reason := range f.ends {
			if after[reason] != before[reason]+1 {
				return fmt.Errorf("%s: reason %d was counted %d times, want once", f.name, reason, after[reason]-before[reason])
			}
		}
		if f.want != xdpTX {
			continue
		}
		want := f.values
		if f.kind == wire.Reduce {
			want = sum
		}
		if err := checkResult(tags, out, block, f.part.Reducer, want); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if n := atomic.LoadUint32(&g.Stored); n != 2 || !bytes.Equal(results.Data[wire.ChunkSize:][:len(sum)], sum) ||
		!bytes.Equal(results.Data[(2<<selfBits+1)*wire.ChunkSize:][:8*values], numbers(7, 8)) {
		return errors.New("what is stored are not the results")
	}
	return nil
}

// checkResult looks at a result that programs send.
func checkResult(tags *wire.Tags, packet []byte, block uint32, reducer uint8, want []byte) error {
	if len(packet) < headersV4 {
		return fmt.Errorf("the result has %d bytes", len(packet))
	}
	h, p, values, err := wire.ParsePart(packet[headersV4:])
	if err != nil {
		return fmt.Errorf("the result: %w", err)
	}
	if h.Kind != wire.Reduced || h.Seq != block || p.Reducer != reducer || p.Member != 0 || !tags.OpenPart(packet[headersV4:]) || !bytes.Equal(values, want) {
		return fmt.Errorf("the result is wrong: %+v %+v", h, p)
	}
	return nil
}
