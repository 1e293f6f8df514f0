// SPDX-License-Identifier: Apache-2.0

package commit

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

const denseHead = 8

// DenseIndexHash is the hash by which the value at an index counts in a
// check: that of a key of the index in 8 little-endian bytes.
func DenseIndexHash(job *shuffle.JobSpec, index uint32) uint64 {
	return job.Seed.HashShort(uint64(index), 0, 8)
}

// Dense commits a vector: value i is folded into value i of the target, which
// is at least as long. Frames hold values one behind the other, of 4 bytes each
// if all fit an int32, else 8. The job has one lane. values is copied.
func Dense(job *shuffle.JobSpec, values []int64) (*Output, error) {
	if len(job.Ops) != 1 {
		return nil, fmt.Errorf("a vector in a job of %d lanes; it takes a job of one", len(job.Ops))
	}
	if uint64(len(values)) > math.MaxUint32 {
		return nil, fmt.Errorf("a vector of %d values; 2^32 are possible, use more partitions", len(values))
	}
	t := &tally{out: newOutput(1), ops: job.Ops}
	t.out.manifest.Dense = uint64(len(values))
	if len(values) == 0 {
		return t.finish(), nil
	}
	var wide uint64
	for _, v := range values {
		wide |= uint64(v+1<<31) >> 32
	}
	shape := wire.Dense
	if wide != 0 {
		shape |= wire.Wide
	}
	width := shape.ValueBytes()
	per := (wire.BodySize - denseHead) / width
	p := part{shape: shape, frames: (len(values) + per - 1) / per, size: wire.PaddedSize(denseHead + per*width)}
	p.last = wire.PaddedSize(denseHead + (len(values)-(p.frames-1)*per)*width)
	p.body = make([]byte, (p.frames-1)*p.size+p.last)
	for f := range p.frames {
		t.begin()
		in := values[f*per : min(len(values), (f+1)*per)]
		to := p.body[f*p.size:]
		binary.LittleEndian.PutUint32(to, uint32(f*per))
		binary.LittleEndian.PutUint32(to[4:], uint32(len(in)))
		to = to[denseHead:]
		for i, v := range in {
			t.value(0, v, DenseIndexHash(job, uint32(f*per+i)))
			if wide != 0 {
				binary.LittleEndian.PutUint64(to[8*i:], uint64(v))
			} else {
				binary.LittleEndian.PutUint32(to[4*i:], uint32(v))
			}
		}
	}
	t.out.parts = []part{p}
	return t.finish(), nil
}
