// SPDX-License-Identifier: Apache-2.0

package push

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// courier is a Transmitter that sends by the sender's own sockets.
type courier struct {
	s    *Sender
	deaf bool // what it is given gets lost
	err  error

	mu     sync.Mutex
	calls  int
	frames uint64
	least  int
}

func (c *courier) Transmit(from uint16, to netip.AddrPort, frames [][]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if c.err != nil {
		return c.err
	}
	c.frames += uint64(len(frames))
	if c.least == 0 || len(frames) < c.least {
		c.least = len(frames)
	}
	if len(frames) > shuffle.TransmitAtOnce {
		return fmt.Errorf("%d frames at once", len(frames))
	}
	if c.deaf {
		return nil
	}
	c.s.mu.Lock()
	ports := c.s.ports[0]
	c.s.mu.Unlock()
	for _, p := range ports {
		if uint16(p.conn.LocalAddr().(*net.UDPAddr).Port) != from {
			continue
		}
		for _, f := range frames {
			if _, err := p.conn.WriteToUDPAddrPort(f, to); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("port %d is none of the sender's", from)
}

func TestPushPastSockets(t *testing.T) {
	for _, tc := range []struct {
		name   string
		kernel bool // programs fold at the receiver
		bad    faults
		c      *courier
		past   func(r Report, c *courier) bool
	}{
		{
			name: "as it should be", kernel: true,
			// How many depends on how wide the window is whenever the loop gets to run.
			past: func(r Report, c *courier) bool {
				return r.Past >= pastLeast && r.Past == c.frames && c.least >= pastLeast
			},
		},
		{
			name: "over a bad wire", kernel: true, bad: faults{Lose: 0.1, Double: 0.1, Damage: 0.02},
			past: func(r Report, c *courier) bool { return r.Past > 0 && r.Past == c.frames },
		},
		{
			name: "to a receiver without programs",
			past: func(r Report, c *courier) bool { return r.Past == 0 && c.calls == 0 },
		},
		{
			name: "not yet", kernel: true, c: &courier{err: fmt.Errorf("wait: %w", shuffle.ErrNotNow)},
			past: func(r Report, c *courier) bool { return r.Past == 0 && c.calls > 1 },
		},
		{
			name: "never", kernel: true, c: &courier{err: fmt.Errorf("it can't be")},
			past: func(r Report, c *courier) bool { return r.Past == 0 && c.calls == 1 },
		},
		{
			// All that goes past the sockets is lost: after a while nothing does any more.
			name: "into a hole", kernel: true, c: &courier{deaf: true},
			past: func(r Report, _ *courier) bool {
				return r.Past > 0 && r.Past < uint64(r.Frames)/2 && r.Delivered < 20 // 12 keys are too large for packets
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newReceiver(t, false, 5)
			r.end.Kernel, r.share, r.data, r.acks = tc.kernel, 256, tc.bad, tc.bad
			c := tc.c
			if c == nil {
				c = &courier{}
			}
			s := sender(t, Options{Transmitter: c})
			c.s = s
			o, want := output(t, 60_000, 1)
			rep, err := s.Push(ctxFor(t), request(r, o, 1))
			if err != nil {
				t.Fatal(err)
			}
			r.check(t, want)
			if !tc.past(rep, c) {
				t.Errorf("%+v; %d calls, %d frames, at least %d at once", rep, c.calls, c.frames, c.least)
			}
		})
	}
	if pastLeast > atOnce || atOnce > shuffle.TransmitAtOnce || atOnce%burst != 0 || wire.Segment < atOnce {
		t.Error("sizes do not fit each other")
	}
}
