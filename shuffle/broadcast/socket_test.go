// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
)

var families = map[string]struct {
	six, both bool
	to        []string
}{
	"four": {false, false, []string{"127.0.0.1"}},
	"six":  {true, false, []string{"::1"}},
	"both": {true, true, []string{"127.0.0.1", "::1"}},
}

func eachFamily(t *testing.T, f func(t *testing.T, p port, to []netip.AddrPort)) {
	for name, tc := range families {
		t.Run(name, func(t *testing.T) {
			p, err := listen(tc.six, tc.both)
			if err != nil {
				t.Skip(err)
			}
			var to []netip.AddrPort
			for _, a := range tc.to {
				to = append(to, netip.AddrPortFrom(netip.MustParseAddr(a), p.number()))
			}
			f(t, p, to)
		})
	}
}

// A wait ends when a frame comes, at its time, and when it is poked, before or while it lasts.
func TestSocketWaits(t *testing.T) {
	eachFamily(t, func(t *testing.T, p port, to []netip.AddrPort) {
		defer p.close()
		far := time.Now().Add(time.Minute)
		none := func([]byte) { t.Error("a frame") }
		for _, until := range []time.Time{{}, time.Now().Add(-time.Second), time.Now().Add(time.Millisecond)} {
			if came, err := p.wait(until, none); came || err != nil {
				t.Errorf("nothing comes: %v, %v", came, err)
			}
		}
		p.poke()
		p.poke()
		if came, err := p.wait(far, none); came || err != nil {
			t.Errorf("poked before: %v, %v", came, err)
		}
		go func() {
			time.Sleep(5 * time.Millisecond)
			p.poke()
		}()
		if came, err := p.wait(far, none); came || err != nil {
			t.Errorf("poked: %v, %v", came, err)
		}
		for _, self := range to {
			if err := p.send([]byte("abc"), 1, self); err != nil {
				t.Fatal(err)
			}
			var got []byte
			for len(got) < 3 {
				came, err := p.wait(far, func(b []byte) { got = append(got, b...) })
				if !came || err != nil {
					t.Fatal(came, err)
				}
			}
			if string(got) != "abc" {
				t.Errorf("%q", got)
			}
			if a, err := p.local(self.Addr()); err != nil || a != self.Addr() {
				t.Errorf("the way to %v is from %v: %v", self, a, err)
			}
		}
	})
}

// Nobody hears at the other end: the system says so by ICMP, and a source goes on.
func TestSocketNobodyHears(t *testing.T) {
	eachFamily(t, func(t *testing.T, p port, to []netip.AddrPort) {
		defer p.close()
		for _, self := range to {
			c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(self.Addr(), 0)))
			if err != nil {
				t.Skip(err)
			}
			deaf := c.LocalAddr().(*net.UDPAddr).AddrPort()
			c.Close()
			for range 3 {
				_ = p.send([]byte("x"), 1, deaf)
				if came, err := p.wait(time.Now().Add(time.Millisecond), func([]byte) {}); came || err != nil {
					t.Fatal(came, err)
				}
			}
			if err := p.send([]byte("y"), 1, self); err != nil {
				t.Fatal(err)
			}
			if came, err := p.wait(time.Now().Add(time.Minute), func([]byte) {}); !came || err != nil {
				t.Error(came, err)
			}
		}
		if err := p.send([]byte("x"), 1, netip.AddrPort{}); err == nil {
			t.Error("it sends to no address")
		}
	})
}

// Closing ends a wait, and what comes later does no harm: nor does it to files that got the same numbers.
func TestSocketClose(t *testing.T) {
	eachFamily(t, func(t *testing.T, p port, to []netip.AddrPort) {
		for round := range 20 {
			if round > 0 {
				var err error
				if p, err = listen(families["four"].six, false); err != nil {
					t.Fatal(err)
				}
			}
			var wg sync.WaitGroup
			for i := range 3 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for range 50 {
						switch i {
						case 0:
							p.poke()
						case 1:
							if err := p.send([]byte("x"), 1, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 9)); errors.Is(err, net.ErrClosed) {
								return
							}
						case 2:
							// Frames that come are a matter of chance, the end is not.
							for {
								if _, err := p.wait(time.Now().Add(time.Minute), func([]byte) {}); err != nil {
									if !errors.Is(err, net.ErrClosed) {
										t.Error(err)
									}
									return
								}
							}
						}
					}
				}()
			}
			if round%2 == 0 {
				time.Sleep(time.Millisecond)
			}
			if err := p.close(); err != nil {
				t.Error(err)
			}
			// Another file gets the numbers now.
			c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			p.poke()
			if _, err := p.wait(time.Now().Add(time.Minute), func([]byte) {}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("wait for what is closed: %v", err)
			}
			if err := p.send([]byte("x"), 1, to[0]); !errors.Is(err, net.ErrClosed) {
				t.Errorf("send by what is closed: %v", err)
			}
			c.Close()
		}
	})
}
