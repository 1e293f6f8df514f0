// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/wire"
)

// strict is a kernel that watches who uses what again before no program can know it any more.
type strict struct {
	*model.Host
	t testing.TB

	mu       sync.Mutex
	now      int
	quiesced int            // when the last wait began that has ended
	cleared  map[uint64]int // when programs forgot a token
	slots    map[int]uint64 // the last token of a region's slot
	regions  map[uint64]wire.Region
	keys     map[int]int // when a job's keys were written
	contents int
	refuse   bool // there is no room
}

func newStrict(t testing.TB, h *model.Host) *strict {
	return &strict{Host: h, t: t, cleared: map[uint64]int{}, slots: map[int]uint64{}, regions: map[uint64]wire.Region{}, keys: map[int]int{}}
}

func (s *strict) Quiesce() error {
	s.mu.Lock()
	s.now++
	began := s.now
	s.mu.Unlock()
	err := s.Host.Quiesce()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quiesced = max(s.quiesced, began)
	return err
}

func (s *strict) NewContent(chunks int) (*shuffle.Content, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse {
		return nil, fmt.Errorf("no room: %w", shuffle.ErrBusy)
	}
	s.contents++
	return s.Host.NewContent(chunks)
}

func (s *strict) FreeContent(c *shuffle.Content) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for token, r := range s.regions {
		if r.Content == c.ID && (s.cleared[token] == 0 || s.cleared[token] >= s.quiesced) {
			s.t.Errorf("content %d is freed, and programs may know the region that has it", c.ID)
		}
		if r.Content == c.ID {
			delete(s.regions, token)
		}
	}
	for i := range s.Ends().Casts {
		if cast := &s.Ends().Casts[i]; atomic.LoadUint64(&cast.Token) != 0 && cast.Content == c.ID {
			s.t.Errorf("content %d is freed, and cast %d has it", c.ID, i)
		}
	}
	s.contents--
	return s.Host.FreeContent(c)
}

func (s *strict) SetToken(token uint64, slot int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.Ends().Regions[slot]
	if old := s.slots[slot]; old != 0 && (s.cleared[old] == 0 || s.cleared[old] >= s.quiesced) {
		s.t.Errorf("slot %d is used again, and programs may know what it was", slot)
	}
	if atomic.LoadUint64(&r.Token) != token {
		s.t.Errorf("slot %d is shown before it has its token", slot)
	}
	s.slots[slot] = token
	s.regions[token] = *r
	return s.Host.SetToken(token, slot)
}

func (s *strict) ClearToken(token uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now++
	s.cleared[token] = s.now
	return s.Host.ClearToken(token)
}

func (s *strict) SetJob(slot int, keys *wire.Job) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for token, r := range s.regions {
		if int(r.Job) == slot && (s.cleared[token] == 0 || s.cleared[token] >= s.quiesced) {
			s.t.Errorf("keys in slot %d change under a region", slot)
		}
	}
	return s.Host.SetJob(slot, keys)
}

func (s *strict) used() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.contents
}

// Slots, contents and keys are used again and again, and only when no program knows them.
func TestReuse(t *testing.T) {
	l := newLab(t, 1, faults{})
	few := shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1, Regions: 1, Casts: 1, Jobs: 1, Chunks: 200}
	v := virtualSetting{kernel: true, limits: few, strict: true}
	v.opts.Mode = shuffle.Auto
	source, member := l.host(v), l.host(v)
	for i := range 12 {
		data := noise(uint64(i), 1000*i)
		rep, err := source.Spread(testContext(t), SpreadSpec{
			Job: job(byte(i / 3)), Secret: [16]byte{byte(i / 3)}, Mode: shuffle.KernelOnly, Name: fmt.Sprint(i), Members: []Member{member.member("it")},
			Source: bytes.NewReader(data), Size: int64(len(data)),
		})
		if err != nil {
			t.Fatal(err)
		}
		if m := rep.Members[0]; m.Err != nil || !m.Kernel || !bytes.Equal(member.whole(fmt.Sprint(i)), data) {
			t.Errorf("%d: %+v", i, m)
		}
		if i%3 == 2 {
			eventually(t, "keys are given back", func() bool { return member.virtual.strict.used() == 0 })
		}
	}
}

// Where programs have no room user space does it, unless that is ruled out.
func TestNoRoomForPrograms(t *testing.T) {
	l := newLab(t, 1, faults{})
	v := virtualSetting{kernel: true, strict: true}
	source, member := l.host(v), l.host(v)
	source.virtual.strict.refuse, member.virtual.strict.refuse = true, true
	data := noise(1, 20_000)
	rep := spread(t, source, []Member{member.member("it")}, data, 1, 0)
	if rep.Kernel || rep.Members[0].Kernel || rep.Members[0].Err != nil || !bytes.Equal(member.whole("whole"), data) {
		t.Errorf("%+v", rep)
	}
	if _, err := source.Open(testContext(t), GroupSpec{Mode: shuffle.KernelOnly, Members: []Member{member.member("it")}, Chunks: 1}); !errors.Is(err, shuffle.ErrBusy) {
		t.Error(err)
	}
	spec := regionSpec(4, 1)
	spec.Mode = shuffle.KernelOnly
	if _, err := member.Control().OpenRegion(testContext(t), spec); !errors.Is(err, shuffle.ErrBusy) {
		t.Error(err)
	}
	if source.inUse() != 0 {
		t.Error("bytes are in use")
	}
	eventually(t, "all is given back", func() bool { return member.inUse() == 0 })
}

// A job that is to do without programs does, though there are some.
func TestUserOnly(t *testing.T) {
	for name, mode := range map[string][2]shuffle.Mode{"job": {shuffle.UserOnly, shuffle.Auto}, "host": {shuffle.Auto, shuffle.UserOnly}} {
		l := newLab(t, 1, faults{})
		v := virtualSetting{kernel: true}
		v.opts.Mode = mode[1]
		source := l.host(v)
		list, members := l.hosts(3, v, kinds["kernel"])
		data := noise(1, 50_000)
		rep, err := source.Spread(testContext(t), SpreadSpec{Job: job(1), Mode: mode[0], Name: "whole", Members: members, Source: bytes.NewReader(data), Size: int64(len(data)), Chains: 1})
		if err != nil {
			t.Fatal(err)
		}
		for i, h := range list {
			if rep.Members[i].Kernel || !bytes.Equal(h.whole("whole"), data) {
				t.Errorf("%s: member %d: %+v", name, i, rep.Members[i])
			}
			if r, _ := h.virtual.kernel.Reasons(); r[wire.Stored] != 0 || r[wire.UpRegion] == 0 {
				t.Errorf("%s: programs stored %d chunks", name, r[wire.Stored])
			}
		}
		if rep.Kernel || rep.Again != 0 && rep.Timers == 0 {
			t.Errorf("%s: %+v", name, rep)
		}
	}
}

// What an earlier process left open in the mapped memory is closed before it is used.
func TestLeftOpen(t *testing.T) {
	k := model.NewHost(model.Config{Limits: shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1, Regions: 2, Casts: 2, Chunks: 10}, Broadcasts: true})
	k.Ends().Regions[1] = wire.Region{Token: 77, Chunks: 5}
	k.Ends().Casts[0].Token = 78
	if err := k.SetToken(77, 1); err != nil {
		t.Fatal(err)
	}
	s := newStrict(t, k)
	n, err := New(Options{Kernel: s})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if k.Ends().Regions[1].Token != 0 || k.Ends().Casts[0].Token != 0 || s.cleared[77] == 0 || s.quiesced <= s.cleared[77] {
		t.Errorf("%+v", s)
	}
}

// Ways are found once the system knows its neighbours, and followed when they change.
func TestWaysAreFoundLater(t *testing.T) {
	l := newLab(t, 1, faults{})
	v := virtualSetting{kernel: true, strangers: true}
	source := l.host(v)
	list, members := l.hosts(3, v, kinds["kernel"])
	g := openGroup(t, source, members, GroupSpec{Chunks: 1000, Chains: 1})
	data := noise(1, 100_000)
	confirm(t, g, send(t, g, data))
	eventually(t, "all ways are found", func() bool {
		for _, h := range list {
			r := (*h.tokens.Load())[g.token]
			r.linking.Lock()
			hop := r.shared.Hops[r.shared.Hop]
			r.linking.Unlock()
			if hop.Interface == 0 {
				return false
			}
		}
		return !g.pending()
	})
	before, _ := list[0].virtual.kernel.Reasons()
	confirm(t, g, send(t, g, data))
	after, _ := list[0].virtual.kernel.Reasons()
	if after[wire.UpHop] != before[wire.UpHop] || after[wire.PassedOn]-before[wire.PassedOn] < uint64(chunksOf(100_000)) {
		t.Errorf("programs sent %d on, and left %d to user space", after[wire.PassedOn]-before[wire.PassedOn], after[wire.UpHop]-before[wire.UpHop])
	}
	if err := g.Close(testContext(t)); err != nil {
		t.Error(err)
	}
}
