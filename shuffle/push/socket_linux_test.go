// SPDX-License-Identifier: Apache-2.0

package push

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle/wire"
)

// conn is a socket that fails as a test wants it to.
type conn struct {
	batchConn
	write func(m *ipv4.Message, segment int) error // nil: it is sent
}

func (c conn) WriteBatch(ms []ipv4.Message, flags int) (int, error) {
	for i := range ms {
		segment := 0
		if len(ms[i].OOB) > 0 {
			segment = int(binary.NativeEndian.Uint16(ms[i].OOB[unix.CmsgLen(0):]))
		}
		if err := c.write(&ms[i], segment); err != nil {
			return i, err
		}
		if n, err := c.batchConn.WriteBatch(ms[i:i+1], flags); n != 1 {
			return i, err
		}
	}
	return len(ms), nil
}

// What the system refuses goes another way.
func TestSystemRefuses(t *testing.T) {
	const most = 1200 // bytes of a frame where that is what is refused
	for name, tc := range map[string]struct {
		write func(calls int, m *ipv4.Message, segment int) error
		check func(t *testing.T, rep Report, p *path, large uint64)
	}{
		"no segmentation": {
			func(_ int, _ *ipv4.Message, segment int) error {
				if segment > 0 {
					return unix.EIO
				}
				return nil
			},
			func(t *testing.T, rep Report, p *path, large uint64) {
				if p.segment || rep.Delivered != large {
					t.Errorf("segment: %v, %+v", p.segment, rep)
				}
			},
		},
		"too large": {
			func(_ int, m *ipv4.Message, segment int) error {
				if segment > most {
					return unix.EINVAL
				}
				if segment == 0 && len(m.Buffers[0]) > most {
					return unix.EMSGSIZE
				}
				return nil
			},
			func(t *testing.T, rep Report, p *path, large uint64) {
				if p.frame <= 0 || p.frame > most+300 || !p.segment || rep.Delivered <= large {
					t.Errorf("frame: %d, segment: %v, %+v", p.frame, p.segment, rep)
				}
			},
		},
		"no memory at times": {
			func(calls int, _ *ipv4.Message, _ int) error {
				if calls%3 == 0 {
					return unix.ENOBUFS
				}
				return nil
			},
			func(t *testing.T, rep Report, _ *path, large uint64) {
				if rep.Delivered != large {
					t.Errorf("%+v", rep)
				}
			},
		},
		"no route": {
			func(int, *ipv4.Message, int) error { return unix.EHOSTUNREACH },
			func(t *testing.T, rep Report, _ *path, _ uint64) {
				if rep.Delivered != uint64(rep.Frames) || rep.Bursts > 60 {
					t.Errorf("%+v", rep)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t, false, 1)
			s := sender(t, Options{Stall: 4 * time.Second})
			var mu sync.Mutex
			calls := 0
			s.wrap = func(b batchConn) batchConn {
				return conn{b, func(m *ipv4.Message, segment int) error {
					mu.Lock()
					defer mu.Unlock()
					calls++
					return tc.write(calls, m, segment)
				}}
			}
			o, want := output(t, 12_000, 1)
			rep, err := s.Push(ctxFor(t), request(r, o, 1))
			if err != nil {
				t.Fatal(err)
			}
			r.check(t, want)
			large := uint64(0)
			for i := range o.Frames() {
				if o.Size(i) > wire.FrameSize {
					large++
				}
			}
			for _, p := range s.paths {
				tc.check(t, rep, p, large)
			}
		})
	}
}

// The error of a push that got nowhere says what the system said.
func TestStallTellsTheCause(t *testing.T) {
	r := newReceiver(t, false, 1)
	r.reset = func(call string) error {
		if call == "Deliver" {
			return errors.New("broken pipe")
		}
		return nil
	}
	s := sender(t, Options{Stall: 100 * time.Millisecond})
	s.wrap = func(b batchConn) batchConn {
		return conn{b, func(*ipv4.Message, int) error { return unix.EPERM }}
	}
	o, _ := output(t, 100, 1)
	if _, err := s.Push(ctxFor(t), request(r, o, 1)); !errors.Is(err, ErrStalled) || !strings.Contains(err.Error(), "operation not permitted") {
		t.Errorf("got %v", err)
	}
}

// Once packets were found not to get through, other pushes do not try them in turn.
func TestBlockedWayIsRemembered(t *testing.T) {
	r := newReceiver(t, false, 1)
	r.deaf = true
	s := sender(t, Options{Stall: 4 * time.Second})
	o, want := output(t, 3000, 1)
	if _, err := s.Push(ctxFor(t), request(r, o, 1)); err != nil {
		t.Fatal(err)
	}
	rep, err := s.Push(ctxFor(t), request(r, o, 2))
	if err != nil || rep.Sent != 0 || rep.Delivered != uint64(o.Frames()) {
		t.Errorf("%+v, %v", rep, err)
	}
	r.check(t, want, want)
}

// cutter sends the segments of packets one by one, and loses, doubles and damages some.
type cutter struct {
	batchConn
	mu  sync.Mutex
	rng *rand.Rand
}

func (c *cutter) WriteBatch(ms []ipv4.Message, flags int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range ms {
		b := ms[i].Buffers[0]
		size := len(b)
		if len(ms[i].OOB) > 0 {
			size = int(binary.NativeEndian.Uint16(ms[i].OOB[unix.CmsgLen(0):]))
		}
		for len(b) > 0 {
			frame := append([]byte(nil), b[:min(size, len(b))]...)
			b = b[len(frame):]
			times := 1
			switch c.rng.IntN(20) {
			case 0:
				times = 0
			case 1:
				times = 2
			case 2:
				frame[c.rng.IntN(len(frame))] ^= 1 << c.rng.IntN(8)
			}
			for range times {
				m := []ipv4.Message{{Buffers: [][]byte{frame}, Addr: ms[i].Addr}}
				if _, err := c.batchConn.WriteBatch(m, flags); err != nil {
					return i, err
				}
			}
		}
	}
	return len(ms), nil
}
