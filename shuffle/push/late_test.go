// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// lateControl answers what is asked of it in a test by hand.
type lateControl struct{ shuffle.Control }

func (lateControl) Deliver(context.Context, shuffle.StreamID, [][]byte) error { return nil }

func (lateControl) Open(_ context.Context, specs []shuffle.StreamSpec) ([]shuffle.Grant, error) {
	return []shuffle.Grant{{Done: true}}, nil
}

// TestLateCalls has calls about a stream come back when it was closed and its slot
// has another owner, who must not take their frames for its own.
func TestLateCalls(t *testing.T) {
	for name, call := range map[string]func(*push, *stream) func() error{
		"deliver": func(u *push, s *stream) func() error { return u.carry(context.Background(), s, []int{0, 1}) },
		"open":    func(u *push, s *stream) func() error { return u.openAgain(context.Background(), s) },
	} {
		t.Run(name, func(t *testing.T) {
			o, _ := output(t, 500, 1)
			s := bare(o, shuffle.NewMemory(shuffle.Limits{Outgoing: 4}), nil)
			u := s.push
			u.req.Control = lateControl{}
			u.live = map[*stream]bool{} // it was closed
			next := newStream(u, 0, u.spec(0), shuffle.Grant{Slot: 1, Token: 10}, s.slot)
			next.publish(0)
			if err := call(u, s)(); err != nil {
				t.Error(err)
			}
			if n := atomic.LoadUint64(&next.out.Acked[0]); n != 0 {
				t.Errorf("frames %#x are taken for arrived", n)
			}
		})
	}
}

// TestDamagedStamp echoes stamps that no clock has shown: none may keep those that
// come later from being looked at. A stamp is not under a frame's tag.
func TestDamagedStamp(t *testing.T) {
	for _, stamp := range []uint64{1 << 62, 1 << 63, ^uint64(0)} {
		o, _ := output(t, 500, 1)
		s := bare(o, shuffle.NewMemory(shuffle.Limits{Outgoing: 4}), nil)
		w := newWindow(s.push.sender.opts)
		good := uint64(now())
		for _, o := range []uint64{stamp, good} {
			// As programs do: the largest one stays.
			if o > atomic.LoadUint64(&s.out.Stamp) {
				atomic.StoreUint64(&s.out.Stamp, o)
				atomic.StoreUint64(&s.out.Arrived, uint64(now()+1000))
			}
			atomic.AddUint32(&s.out.Answers, 1)
			s.harvest(now()+2000, &w, true)
		}
		if s.stamp != good {
			t.Errorf("after stamp %#x: %#x is not taken for a sample, but %#x", stamp, good, s.stamp)
		}
		for _, o := range []uint64{stamp, good + 3} {
			s.absorb(&wire.AckBody{Stamp: o, From: wire.FromUser}, now()+3000)
		}
		if got := atomic.LoadUint64(&s.out.Stamp); got != good+3 {
			t.Errorf("after an answer with stamp %#x the newest is %#x", stamp, got)
		}
	}
}
