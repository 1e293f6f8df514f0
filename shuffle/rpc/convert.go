// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"fmt"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/rpc/shufflepb"
)

// malformed marks messages that no client of this version sends.
func malformed(format string, args ...any) error {
	return fmt.Errorf("a message that makes no sense: %w: "+format, append([]any{shuffle.ErrRefused}, args...)...)
}

func id16(b []byte) (id [16]byte, err error) {
	if len(b) != len(id) {
		return id, malformed("%d bytes where %d are due", len(b), len(id))
	}
	return [16]byte(b), nil
}

func packJob(j *shuffle.JobSpec) *shufflepb.JobSpec {
	p := &shufflepb.JobSpec{
		Id: j.ID[:], Secret: j.Secret[:], SeedA: j.Seed.A, SeedB: j.Seed.B, Bound: j.Bound, Mode: uint32(j.Mode),
		Ops: make([]byte, len(j.Ops)),
	}
	for i, op := range j.Ops {
		p.Ops[i] = byte(op)
	}
	return p
}

func unpackJob(p *shufflepb.JobSpec) (j shuffle.JobSpec, err error) {
	id, err := id16(p.GetId())
	if err != nil {
		return j, err
	}
	if j.Secret, err = id16(p.GetSecret()); err != nil {
		return j, err
	}
	if p.GetMode() > uint32(shuffle.UserOnly) {
		return j, malformed("mode %d", p.GetMode())
	}
	j.ID, j.Seed, j.Bound, j.Mode = id, pairs.Seed{A: p.GetSeedA(), B: p.GetSeedB()}, p.GetBound(), shuffle.Mode(p.GetMode())
	for _, op := range p.GetOps() {
		j.Ops = append(j.Ops, fold.Op(op))
	}
	return j, nil
}

func packTarget(t *shuffle.TargetID) *shufflepb.TargetID {
	return &shufflepb.TargetID{Job: t.Job[:], Partition: t.Partition, Generation: t.Generation}
}

func unpackTarget(p *shufflepb.TargetID) (t shuffle.TargetID, err error) {
	id, err := id16(p.GetJob())
	return shuffle.TargetID{Job: id, Partition: p.GetPartition(), Generation: p.GetGeneration()}, err
}

func packTargetSpec(t *shuffle.TargetSpec) *shufflepb.TargetSpec {
	return &shufflepb.TargetSpec{Id: packTarget(&t.ID), Keys: t.Keys[:], Dense: t.Dense}
}

func unpackTargetSpec(p *shufflepb.TargetSpec) (t shuffle.TargetSpec, err error) {
	if t.ID, err = unpackTarget(p.GetId()); err != nil {
		return t, err
	}
	if len(p.GetKeys()) > len(t.Keys) {
		return t, malformed("keys of %d classes", len(p.GetKeys()))
	}
	copy(t.Keys[:], p.GetKeys())
	t.Dense = p.GetDense()
	return t, nil
}

func packStream(s *shuffle.StreamID) *shufflepb.StreamID {
	return &shufflepb.StreamID{Target: packTarget(&s.Target), Map: s.Map, Segment: s.Segment}
}

func unpackStream(p *shufflepb.StreamID) (s shuffle.StreamID, err error) {
	s.Target, err = unpackTarget(p.GetTarget())
	s.Map, s.Segment = p.GetMap(), p.GetSegment()
	return s, err
}

func packStreams(ids []shuffle.StreamID) *shufflepb.StreamList {
	l := &shufflepb.StreamList{}
	for i := range ids {
		l.Streams = append(l.Streams, packStream(&ids[i]))
	}
	return l
}

func unpackStreams(p *shufflepb.StreamList) ([]shuffle.StreamID, error) {
	ids := make([]shuffle.StreamID, len(p.GetStreams()))
	for i, s := range p.GetStreams() {
		var err error
		if ids[i], err = unpackStream(s); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func packSpecs(specs []shuffle.StreamSpec) *shufflepb.OpenRequest {
	r := &shufflepb.OpenRequest{}
	for i := range specs {
		s := &specs[i]
		r.Streams = append(r.Streams, &shufflepb.StreamSpec{
			Id: packStream(&s.ID), Frames: uint32(s.Frames), Pairs: s.Pairs, Check: s.Check, Checked: s.Check != nil, Digest: s.Digest,
		})
	}
	return r
}

func unpackSpecs(p *shufflepb.OpenRequest) ([]shuffle.StreamSpec, error) {
	specs := make([]shuffle.StreamSpec, len(p.GetStreams()))
	for i, s := range p.GetStreams() {
		id, err := unpackStream(s.GetId())
		if err != nil {
			return nil, err
		}
		if s.GetFrames() > 1<<30 {
			return nil, malformed("%d frames", s.GetFrames())
		}
		specs[i] = shuffle.StreamSpec{ID: id, Frames: int(s.GetFrames()), Pairs: s.GetPairs(), Check: s.GetCheck(), Digest: s.GetDigest()}
		if s.GetChecked() && specs[i].Check == nil {
			specs[i].Check = []uint64{}
		}
	}
	return specs, nil
}
