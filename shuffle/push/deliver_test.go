// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/quernmr/quern/shuffle"
)

// TestDeliverAll sends an output without a packet.
func TestDeliverAll(t *testing.T) {
	r := newReceiver(t, false, 1)
	s := sender(t, Options{})
	o, want := output(t, 30_000, 1)
	for again := range 2 {
		rep, err := s.Deliver(ctxFor(t), request(r, o, 1))
		if err != nil {
			t.Fatal(err)
		}
		known, delivered := uint64(0), uint64(o.Frames())
		if again == 1 {
			known, delivered = delivered, known
		}
		if rep.Known != known || rep.Delivered != delivered || rep.Sent != 0 || rep.Segments != len(o.Manifest().Segments) {
			t.Errorf("%+v", rep)
		}
	}
	r.check(t, want)
	if n := r.packets.Load(); n != 0 {
		t.Errorf("%d packets were sent", n)
	}
}

// TestDeliverRest delivers what packets have not brought, and what is said to be missing.
func TestDeliverRest(t *testing.T) {
	r := newReceiver(t, false, 1)
	s := sender(t, Options{})
	o, want := output(t, 5000, 1)
	ctx, cancel := context.WithCancel(ctxFor(t))
	r.reset = func(call string) error {
		if call == "Status" {
			cancel()
		}
		return nil
	}
	if _, err := s.Push(ctx, request(r, o, 1)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	r.mu.Lock()
	r.reset, r.incomplete = nil, 3
	r.mu.Unlock()
	if _, err := s.Deliver(ctxFor(t), request(r, o, 1)); err != nil {
		t.Fatal(err)
	}
	r.check(t, want)
	r.mu.Lock()
	r.incomplete = 1 << 30
	r.mu.Unlock()
	if _, err := s.Deliver(ctxFor(t), request(r, o, 2)); !errors.Is(err, ErrStalled) {
		t.Errorf("a stream that is never complete: %v", err)
	}
}

func TestDeliverToTheRestarted(t *testing.T) {
	for _, call := range []string{"OpenTarget", "Open", "Status", "Confirm", "Deliver"} {
		r := newReceiver(t, false, 1)
		times := 0
		r.reset = func(c string) error {
			if c != call {
				return nil
			}
			if times++; times > 2 {
				return nil
			}
			r.restart()
			return fmt.Errorf("restarted: %w", shuffle.ErrReset)
		}
		s := sender(t, Options{})
		o, want := output(t, 20_000, 1)
		rep, err := s.Deliver(ctxFor(t), request(r, o, 1))
		if err != nil || rep.Resets != 2 {
			t.Errorf("%s: %+v, %v", call, rep, err)
		}
		r.check(t, want)
	}
}

// TestRefused meets a receiver that will never take it: nothing is repeated.
func TestRefused(t *testing.T) {
	for _, call := range []string{"Endpoint", "OpenJob", "OpenTarget", "Open", "Status", "Confirm", "Deliver"} {
		for name, push := range map[string]func(*Sender, context.Context, Request) (Report, error){"Push": (*Sender).Push, "Deliver": (*Sender).Deliver} {
			if name == "Deliver" && call == "Endpoint" {
				continue // it does not ask
			}
			r := newReceiver(t, false, 1)
			times := 0
			r.reset = func(c string) error {
				if c != call {
					return nil
				}
				times++
				return fmt.Errorf("over: %w", shuffle.ErrRefused)
			}
			s := sender(t, Options{})
			o, _ := output(t, 6000, 1)
			rep, err := push(s, ctxFor(t), request(r, o, 1))
			if !errors.Is(err, shuffle.ErrRefused) || rep.Resets != 0 || times != 1 {
				t.Errorf("%s refused in %s: %+v, %d calls, %v", name, call, rep, times, err)
			}
		}
	}
}
