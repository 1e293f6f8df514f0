// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
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
	slots    map[int]uint64 // the last token of a group's slot
	groups   map[uint64]wire.Group
	contents int
	refuse   bool // there is no room
}

func newStrict(t testing.TB, h *model.Host) *strict {
	return &strict{Host: h, t: t, cleared: map[uint64]int{}, slots: map[int]uint64{}, groups: map[uint64]wire.Group{}}
}

// known says whether programs may know a group. mu is held.
func (s *strict) known(token uint64) bool {
	return s.cleared[token] == 0 || s.cleared[token] >= s.quiesced
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
	c, err := s.Host.NewContent(chunks)
	if err == nil {
		s.contents++
	}
	return c, err
}

func (s *strict) FreeContent(c *shuffle.Content) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for token, g := range s.groups {
		if (g.Sums == c.ID || g.Results == c.ID) && s.known(token) {
			s.t.Errorf("content %d is freed, and programs may know the group that has it", c.ID)
		}
		if g.Results == c.ID {
			delete(s.groups, token)
		}
	}
	s.contents--
	return s.Host.FreeContent(c)
}

func (s *strict) SetToken(token uint64, slot int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &s.Groups()[slot]
	if old := s.slots[slot]; old != 0 && s.known(old) {
		s.t.Errorf("slot %d is used again, and programs may know what it was", slot)
	}
	if atomic.LoadUint64(&g.Token) != token {
		s.t.Errorf("slot %d is shown before it has its token", slot)
	}
	s.slots[slot] = token
	s.groups[token] = wire.Group{Job: g.Job, Sums: g.Sums, Results: g.Results}
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
	for token, g := range s.groups {
		if int(g.Job) == slot && s.known(token) {
			s.t.Errorf("keys in slot %d change under a group", slot)
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
	hosts := l.hosts(2, setting{limits: shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1, Groups: 1, Jobs: 1, Chunks: 1500}}, kinds["kernel"])
	for i := range 6 {
		f, ends := l.form(hosts, FormSpec{Job: shuffle.JobID{byte(i / 2)}, Secret: [16]byte{byte(i / 2)}, Mode: shuffle.KernelOnly, Bits: 7})
		if !f.Kernel[0] || !f.Kernel[1] {
			t.Fatalf("%d: programs serve %v", i, f.Kernel)
		}
		reduce(t, ends, 5000, Sum, true, uint64(i))
		if err := f.Close(testContext(t)); err != nil {
			t.Fatal(err)
		}
		for _, h := range hosts {
			if h.strict.used() != 0 {
				t.Errorf("%d contents are left", h.strict.used())
			}
		}
	}
}

// Where programs have no room user space does it, unless that is ruled out.
func TestNoRoomForPrograms(t *testing.T) {
	l := newLab(t, 1, faults{})
	hosts := l.hosts(3, setting{limits: shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1, Groups: 1, Jobs: 8, Chunks: 3000}}, kinds["kernel"])
	first, _ := l.form(hosts, FormSpec{Bits: 7})
	f, ends := l.form(hosts, FormSpec{Bits: 7}) // there is one slot
	if !first.Kernel[0] || f.Kernel[0] {
		t.Errorf("programs serve %v, then %v", first.Kernel, f.Kernel)
	}
	reduce(t, ends, 5000, Sum, true, 1)
	spec := FormSpec{Bits: 7}
	for _, h := range hosts {
		spec.Members = append(spec.Members, Member{Address: hostAddress(h), Control: h.Control()})
	}
	spec.Mode = shuffle.KernelOnly
	if _, err := Form(testContext(t), spec); !errors.Is(err, shuffle.ErrBusy) {
		t.Error(err)
	}
	if err := first.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	hosts[2].strict.mu.Lock()
	hosts[2].strict.refuse = true
	hosts[2].strict.mu.Unlock()
	if _, err := Form(testContext(t), spec); !errors.Is(err, shuffle.ErrBusy) {
		t.Error(err)
	}
	f, ends = l.form(hosts, FormSpec{Bits: 7})
	if !f.Kernel[0] || !f.Kernel[1] || f.Kernel[2] {
		t.Errorf("programs serve %v", f.Kernel)
	}
	reduce(t, ends, 5000, Sum, true, 1)
	for _, h := range hosts[:2] {
		if s := h.Stats(); h.strict.used() != 2 || s.Open != 2 {
			t.Errorf("%d contents, %+v", h.strict.used(), s)
		}
	}
}

// What an earlier process left open in the mapped memory is closed before it is used.
func TestLeftOpen(t *testing.T) {
	k := model.NewHost(model.Config{Limits: shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1, Groups: 2, Chunks: 10}, Reduces: true})
	k.Groups()[1] = wire.Group{Token: 77}
	if err := k.SetToken(77, 1); err != nil {
		t.Fatal(err)
	}
	s := newStrict(t, k)
	n, err := New(Options{Kernel: s, Send: sendNowhere})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if k.Groups()[1].Token != 0 || s.cleared[77] == 0 || s.quiesced <= s.cleared[77] {
		t.Errorf("%+v", s)
	}
}

// A job that is to do without programs does, though there are some; and so does a host.
func TestUserOnly(t *testing.T) {
	for name, mode := range map[string][2]shuffle.Mode{"job": {shuffle.UserOnly, shuffle.Auto}, "host": {shuffle.Auto, shuffle.UserOnly}} {
		l := newLab(t, 1, faults{})
		hosts := l.hosts(3, setting{opts: Options{Mode: mode[1]}}, kinds["kernel"])
		f, ends := l.form(hosts, FormSpec{Mode: mode[0]})
		reduce(t, ends, 5000, Sum, false, 1)
		for i, h := range hosts {
			if r, _ := h.kernel.Reasons(); f.Kernel[i] || r[wire.Added] != 0 || r[wire.UpGroup] == 0 {
				t.Errorf("%s: programs added %d parts", name, r[wire.Added])
			}
		}
	}
}

// Programs that can't send leave it to user space: for good, by their way of answering, and until neighbours are known.
func TestProgramsDoNotSend(t *testing.T) {
	for name, s := range map[string]setting{"answers by user space": {answer: wire.AnswerUser}, "strangers": {strangers: true}} {
		l := newLab(t, 1, faults{Lose: 0.05})
		hosts := l.hosts(3, s, kinds["kernel"])
		_, ends := l.form(hosts, FormSpec{})
		for i := range 5 {
			reduce(t, ends, 1+i*3000, Sum, false, uint64(i))
		}
		passed := uint64(0)
		for i, h := range hosts {
			r, _ := h.kernel.Reasons()
			if r[wire.Added] == 0 || r[wire.BlockReduced] == 0 {
				t.Errorf("%s: programs of host %d added %d parts and reduced %d blocks", name, i, r[wire.Added], r[wire.BlockReduced])
			}
			if u := h.Stats().Reasons; s.answer == wire.AnswerUser && (r[wire.ResultPassed] != 0 || u[wire.ResultPassed] == 0) {
				t.Errorf("%s: programs of host %d sent on %d results, user space %d", name, i, r[wire.ResultPassed], u[wire.ResultPassed])
			}
			passed += r[wire.ResultPassed]
		}
		if s.strangers && passed == 0 {
			t.Errorf("%s: programs sent nothing on", name)
		}
	}
}

// Parts that are sent again many at a time may be joined when they arrive, and get past programs to user space. Results still
// get to who asks, though programs of those between stop them.
func TestAgainPastPrograms(t *testing.T) {
	l := newLab(t, 5, faults{Lose: 0.1})
	l.pass = func(packet []byte) bool { return payload(packet)[4] == byte(wire.Reduce) }
	_, ends := l.form(l.hosts(4, setting{}, kinds["kernel"]), FormSpec{})
	for i := range 5 {
		reduce(t, ends, 1+i*3000, Op(i%3), i%2 == 1, uint64(i))
	}
}

// In a group that programs serve, user space does nothing but begin and end calls.
func TestProgramsDoAll(t *testing.T) {
	l := newLab(t, 1, faults{})
	hosts := l.hosts(4, setting{}, kinds["kernel"])
	_, ends := l.form(hosts, FormSpec{})
	for i := range 8 {
		reduce(t, ends, 100, Sum, false, uint64(i))
	}
	for i, h := range hosts {
		s := h.Stats()
		for reason, n := range s.Reasons {
			if n != 0 {
				t.Errorf("host %d: %d frames came up: %d", i, n, reason)
			}
		}
		// Of eight calls of one block each this one reduced two, whose results it may have sent, and sent parts to the others for six.
		if s.Sent-s.Again < 6 || s.Sent-s.Again > 8 {
			t.Errorf("host %d: %+v", i, s)
		}
	}
}
