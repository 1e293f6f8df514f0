// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"fmt"
	"math"
	"net/netip"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/rpc/shufflepb"
	"github.com/quernmr/quern/shuffle/wire"
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

func packEndpoint(e *shuffle.Endpoint) *shufflepb.EndpointReply {
	return &shufflepb.EndpointReply{Port: uint32(e.Port), Kernel: e.Kernel, Generic: e.Generic, Frame: uint32(e.Frame), Window: uint32(e.Window), Stream: uint32(e.Stream)}
}

func unpackEndpoint(p *shufflepb.EndpointReply) shuffle.Endpoint {
	return shuffle.Endpoint{
		Port: int(min(p.GetPort(), 1<<30)), Kernel: p.GetKernel(), Generic: p.GetGeneric(),
		Frame: int(min(p.GetFrame(), 1<<30)), Window: int(min(p.GetWindow(), 1<<30)), Stream: int(min(p.GetStream(), 1<<30)),
	}
}

// packAddress makes "" of what is not valid.
func packAddress(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func unpackAddress(s string) (netip.AddrPort, error) {
	if s == "" {
		return netip.AddrPort{}, nil
	}
	a, err := netip.ParseAddrPort(s)
	if err != nil || a.Port() == 0 {
		return netip.AddrPort{}, malformed("address %.80q", s)
	}
	return a, nil
}

// maxName bounds the name and the kind of what is broadcast, and the names of groups and their members, in bytes.
const maxName = 1 << 10

func packRegion(s *shuffle.RegionSpec) *shufflepb.RegionSpec {
	return &shufflepb.RegionSpec{
		Job: s.Job[:], Secret: s.Secret[:], Mode: uint32(s.Mode), Token: s.Token, Source: packAddress(s.Source),
		Chunks: uint32(min(uint64(max(s.Chunks, 0)), math.MaxUint32)), Chain: uint32(s.Chain), Bit: uint32(s.Bit), Next: packAddress(s.Next),
		Name: s.Name, Kind: s.Kind, Offset: s.Offset, Size: s.Size, Eager: s.Eager,
	}
}

func unpackRegion(p *shufflepb.RegionSpec) (s shuffle.RegionSpec, err error) {
	id, err := id16(p.GetJob())
	if err != nil {
		return s, err
	}
	if s.Secret, err = id16(p.GetSecret()); err != nil {
		return s, err
	}
	if s.Source, err = unpackAddress(p.GetSource()); err != nil {
		return s, err
	}
	if s.Next, err = unpackAddress(p.GetNext()); err != nil {
		return s, err
	}
	switch {
	case p.GetMode() > uint32(shuffle.UserOnly):
		return s, malformed("mode %d", p.GetMode())
	case p.GetToken() == 0 || !s.Source.IsValid():
		return s, malformed("a region without a token or a source")
	case p.GetChunks() == 0 || p.GetChunks() > math.MaxInt32:
		return s, malformed("a region of %d chunks", p.GetChunks())
	case p.GetChain() >= wire.MaxChains || p.GetBit() >= wire.MaxChains:
		return s, malformed("member %d of chain %d", p.GetBit(), p.GetChain())
	case len(p.GetName()) > maxName || len(p.GetKind()) > maxName:
		return s, malformed("a name of %d bytes and a kind of %d", len(p.GetName()), len(p.GetKind()))
	case p.GetOffset() < 0 || p.GetSize() < -1 || p.GetSize() >= 0 && p.GetOffset() > p.GetSize():
		return s, malformed("offset %d of %d bytes", p.GetOffset(), p.GetSize())
	}
	s.Job, s.Mode, s.Token, s.Chunks = id, shuffle.Mode(p.GetMode()), p.GetToken(), int(p.GetChunks())
	s.Chain, s.Bit, s.Name, s.Kind = uint16(p.GetChain()), uint8(p.GetBit()), p.GetName(), p.GetKind()
	s.Offset, s.Size, s.Eager = p.GetOffset(), p.GetSize(), p.GetEager()
	return s, nil
}

func packGaps(gaps []shuffle.Gap) *shufflepb.GapList {
	l := &shufflepb.GapList{}
	for _, g := range gaps {
		l.Places, l.Counts = append(l.Places, g.Place), append(l.Counts, g.Count)
	}
	return l
}

// unpackGaps reads the gaps in total chunks from first on.
func unpackGaps(p *shufflepb.GapList, first, total uint32) ([]shuffle.Gap, error) {
	if len(p.GetPlaces()) != len(p.GetCounts()) {
		return nil, malformed("%d gaps with %d sizes", len(p.GetPlaces()), len(p.GetCounts()))
	}
	if len(p.GetPlaces()) == 0 {
		return nil, nil
	}
	gaps := make([]shuffle.Gap, len(p.GetPlaces()))
	for i, next := 0, uint64(first); i < len(gaps); i++ {
		place, n := p.GetPlaces()[i], p.GetCounts()[i]
		// What is asked for twice would be sent twice, as often as a member likes.
		if end := uint64(place) + uint64(n); n == 0 || uint64(place) < next || end > uint64(first)+uint64(total) {
			return nil, malformed("gap %d of %d chunks at %d among %d from %d on", i, n, place, total, first)
		} else {
			next = end
		}
		gaps[i] = shuffle.Gap{Place: place, Count: n}
	}
	return gaps, nil
}

// Sizes of groups, as log2 of the blocks of a reducer that there is room for.
const (
	minBits = 2
	maxBits = 12
)

func packGroup(s *shuffle.GroupSpec) *shufflepb.GroupSpec {
	p := &shufflepb.GroupSpec{
		Job: s.Job[:], Secret: s.Secret[:], Mode: uint32(s.Mode), Token: s.Token, Name: s.Name,
		// What is negative is refused.
		Rank: uint32(min(uint64(s.Rank), math.MaxUint32)), Bits: uint32(min(uint64(s.Bits), math.MaxUint32)), Streams: uint32(s.Streams),
	}
	for _, m := range s.Members {
		p.Members = append(p.Members, &shufflepb.GroupMember{Name: m.Name, Address: packAddress(m.Address), Stream: uint32(min(uint64(m.Stream), math.MaxUint32))})
	}
	return p
}

func unpackGroup(p *shufflepb.GroupSpec) (s shuffle.GroupSpec, err error) {
	id, err := id16(p.GetJob())
	if err != nil {
		return s, err
	}
	if s.Secret, err = id16(p.GetSecret()); err != nil {
		return s, err
	}
	members := p.GetMembers()
	switch {
	case p.GetMode() > uint32(shuffle.UserOnly):
		return s, malformed("mode %d", p.GetMode())
	case p.GetToken() == 0:
		return s, malformed("a group without a token")
	case len(members) == 0 || len(members) > wire.MaxMembers:
		return s, malformed("a group of %d members", len(members))
	case int64(p.GetRank()) >= int64(len(members)):
		return s, malformed("member %d of %d", p.GetRank(), len(members))
	case p.GetBits() < minBits || p.GetBits() > maxBits:
		return s, malformed("room for 2^%d blocks", p.GetBits())
	case p.GetStreams() > uint32(shuffle.StreamsAlways):
		return s, malformed("use %d of streams", p.GetStreams())
	case len(p.GetName()) > maxName:
		return s, malformed("a name of %d bytes", len(p.GetName()))
	}
	s.Job, s.Mode, s.Token, s.Name = id, shuffle.Mode(p.GetMode()), p.GetToken(), p.GetName()
	s.Rank, s.Bits, s.Streams = int(p.GetRank()), int(p.GetBits()), shuffle.StreamUse(p.GetStreams())
	s.Members = make([]shuffle.GroupMember, len(members))
	for i, m := range members {
		a, err := unpackAddress(m.GetAddress())
		switch {
		case err != nil:
			return s, err
		case !a.IsValid():
			return s, malformed("member %d has no address", i)
		case len(m.GetName()) > maxName:
			return s, malformed("a name of %d bytes", len(m.GetName()))
		case m.GetStream() > math.MaxUint16:
			return s, malformed("port %d", m.GetStream())
		}
		s.Members[i] = shuffle.GroupMember{Name: m.GetName(), Address: a, Stream: int(m.GetStream())}
	}
	return s, nil
}
