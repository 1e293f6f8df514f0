// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/shuffle"
)

const (
	// parcel is how many bytes of frames one Deliver takes, or one frame that is larger.
	parcel = 1 << 20
	// diversion is after how many rounds of missing frames, which answers had claimed, packets are
	// not trusted any more; after twice as many nothing is.
	diversion = 3
)

// op runs f beside the goroutine of Push; what it returns is run by that.
func (u *push) op(f func() func() error) {
	u.waiting++
	go func() { u.results <- f() }()
}

// hear takes in what the loop told.
func (u *push) hear() error {
	u.mu.Lock()
	events := u.events
	u.events = nil
	sendErr := u.sendErr
	u.mu.Unlock()
	log := u.sender.opts.Log
	for _, e := range events {
		switch e.what {
		case finished:
			u.checks = append(u.checks, e.s)
		case stuck:
			log.Warn("a stream makes no progress", "stream", e.s.id.String(), "dest", u.req.Dest, "step", e.times, "error", sendErr)
			switch e.times {
			case 1:
				u.again = append(u.again, e.s)
			case 2:
				log.Warn("frames go over the control connection", "target", u.req.Target.ID.String(), "dest", u.req.Dest)
				u.path.detour(u)
			}
		case dead:
			err := fmt.Errorf("%w for %s, by packets or over the control connection; is UDP port %d of the receiver reachable, and its process alive?", ErrStalled, u.sender.opts.Stall, u.path.dest.Port())
			if sendErr != nil {
				err = fmt.Errorf("%w (the system said: %w)", err, sendErr)
			}
			return err
		}
	}
	return nil
}

// launch starts what there is to do on the control plane, one call of a kind at a time.
func (u *push) launch(ctx context.Context) error {
	ahead := u.sender.opts.Ahead
	if !u.opening && u.opened < u.report.Segments && len(u.live) <= ahead/2 {
		u.opening = true
		from, n, wait := u.opened, min(ahead-len(u.live), u.report.Segments-u.opened), len(u.live) == 0
		u.op(func() func() error { return u.open(ctx, from, n, wait) })
	}
	if !u.checking && len(u.checks) > 0 {
		u.checking = true
		list := u.checks
		u.checks = nil
		u.op(func() func() error { return u.check(ctx, list) })
	}
	if !u.sending {
		if s, frames := u.nextParcel(); s != nil {
			u.sending = true
			u.op(func() func() error { return u.carry(ctx, s, frames) })
		}
	}
	for _, s := range u.again {
		u.op(func() func() error { return u.openAgain(ctx, s) })
	}
	u.again = nil
	return nil
}

func (u *push) spec(segment int) shuffle.StreamSpec {
	return u.out.Stream(u.req.Target.ID, u.req.Map, segment)
}

// open opens n segments, or fewer if there are not as many slots.
func (u *push) open(ctx context.Context, from, n int, wait bool) func() error {
	slots, err := u.sender.acquire(ctx, n, wait)
	if err != nil {
		return func() error { return err }
	}
	if len(slots) == 0 {
		pause(ctx, time.Millisecond)
		return func() error { u.opening = false; return nil }
	}
	specs := make([]shuffle.StreamSpec, len(slots))
	for i := range specs {
		specs[i] = u.spec(from + i)
	}
	var grants []shuffle.Grant
	err = u.call(ctx, "open streams", func(ctx context.Context) (err error) {
		if grants, err = u.req.Control.Open(ctx, specs); err == nil && len(grants) != len(specs) {
			err = fmt.Errorf("%d grants for %d streams", len(grants), len(specs))
		}
		if err != nil {
			specs = specs[:(len(specs)+1)/2] // perhaps it has no room for as many
		}
		return err
	})
	if err != nil {
		u.sender.release(slots...)
		return func() error { return err }
	}
	if n := len(specs); n < len(slots) {
		u.sender.release(slots[n:]...)
		slots = slots[:n]
	}
	return func() error {
		u.opening = false
		u.opened = from + len(specs)
		var ready []*stream
		for i, g := range grants {
			if g.Done || g.Token == 0 {
				u.sender.release(slots[i])
				if !g.Done {
					return fmt.Errorf("%s was granted no token", specs[i].ID)
				}
				u.report.Known += uint64(specs[i].Frames)
				u.closed++
				continue
			}
			s := newStream(u, from+i, specs[i], g, slots[i])
			u.live[s] = true
			s.publish(u.jobSlot)
			ready = append(ready, s)
		}
		if len(ready) > 0 {
			u.path.send(ready...)
		}
		return nil
	}
}

// openAgain asks for the present state of a stream that makes no progress.
func (u *push) openAgain(ctx context.Context, s *stream) func() error {
	var grants []shuffle.Grant
	err := u.call(ctx, "open a stream again", func(ctx context.Context) (err error) {
		if grants, err = u.req.Control.Open(ctx, []shuffle.StreamSpec{u.spec(s.index)}); err == nil && len(grants) != 1 {
			err = fmt.Errorf("%d grants for a stream", len(grants))
		}
		return err
	})
	return func() error {
		if err != nil {
			return err
		}
		if !u.live[s] {
			return nil // it was closed meanwhile, and its slot may be another's
		}
		u.report.Reopened++
		g := grants[0]
		if g.Done || g.Token != s.grant.Token || g.Slot != s.grant.Slot {
			return fmt.Errorf("%s has another grant: %w", s.id, shuffle.ErrReset)
		}
		m := claims(g.Claimed, s.n)
		s.learn(m.list())
		return nil
	}
}

// check asks whether streams are complete, and confirms those that are.
func (u *push) check(ctx context.Context, list []*stream) func() error {
	ids := make([]shuffle.StreamID, len(list))
	for i, s := range list {
		ids[i] = s.id
	}
	var status []shuffle.StreamStatus
	err := u.call(ctx, "ask for the state of streams", func(ctx context.Context) (err error) {
		if status, err = u.req.Control.Status(ctx, ids); err == nil && len(status) != len(ids) {
			err = fmt.Errorf("%d answers about %d streams", len(status), len(ids))
		}
		return err
	})
	var complete []shuffle.StreamID
	for i := range status {
		if err == nil && status[i].Complete {
			complete = append(complete, ids[i])
		}
	}
	if len(complete) > 0 {
		err = u.call(ctx, "confirm streams", func(ctx context.Context) error { return u.req.Control.Confirm(ctx, complete) })
	}
	return func() error {
		u.checking = false
		u.report.StatusCalls++
		if err != nil {
			return err
		}
		var missing, waiting []*stream
		for i, s := range list {
			if status[i].Complete {
				u.closed++
				u.moved = true
				delete(u.live, s)
				u.sender.release(s.slot)
				continue
			}
			if s.miss(status[i].Claimed) {
				if s.rounds++; s.rounds == diversion {
					u.distrust = true
					u.path.detour(u)
				} else if s.rounds > 2*diversion {
					return fmt.Errorf("%w: %s was sent %d times, and %d of its frames are still missing", ErrStalled, s.id, s.rounds, s.nLost)
				}
				missing = append(missing, s)
				continue
			}
			if s.asked == 0 {
				s.asked = now()
			} else if now()-s.asked > int64(u.sender.opts.Stall) {
				return fmt.Errorf("%w: the receiver has all frames of %s, and does not complete it", ErrStalled, s.id)
			}
			waiting = append(waiting, s)
		}
		if len(missing) > 0 {
			u.path.send(missing...)
		}
		if len(waiting) > 0 {
			u.op(func() func() error {
				pause(ctx, 2*time.Millisecond)
				return func() error { u.checks = append(u.checks, waiting...); return nil }
			})
		}
		return nil
	}
}

// miss takes what the receiver has for what has arrived, and says whether there is anything missing.
// The stream is not with the loop.
func (s *stream) miss(claimed []uint32) bool {
	have := claims(claimed, s.n)
	n := have.count()
	if n == s.n {
		return false
	}
	var all bitmap
	all.fill(s.n)
	for i := range have {
		// Answers that come late may set bits again that are right by now.
		atomic.AndUint64(&s.out.Acked[i], have[i])
		s.lost[i] = all[i] &^ have[i]
		s.flight[i], s.tcp[i] = 0, 0
	}
	s.known = have
	s.nKnown, s.nLost, s.nFlight = n, s.n-n, 0
	atomic.StoreUint64(&s.out.Count, uint64(n))
	s.next, s.base = s.n, 0
	for s.known.has(s.base) {
		s.base++
	}
	s.warned, s.tries = 0, 0
	return true
}

func (m *bitmap) list() (frames []int) {
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			frames = append(frames, i<<6+bits.TrailingZeros64(w))
		}
	}
	return frames
}

// nextParcel returns frames of a stream that are to go over the control connection.
func (u *push) nextParcel() (*stream, []int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for s, frames := range u.parcels {
		if len(frames) == 0 || !u.live[s] {
			delete(u.parcels, s)
			continue
		}
		bytes, n := 0, 0
		for n < len(frames) && (n == 0 || bytes < parcel) {
			bytes += u.out.Size(s.first + frames[n])
			n++
		}
		u.parcels[s] = frames[n:]
		return s, frames[:n]
	}
	return nil, nil
}

// carry brings frames over the control connection.
func (u *push) carry(ctx context.Context, s *stream, frames []int) func() error {
	list := make([][]byte, len(frames))
	for i, f := range frames {
		list[i] = s.frame(f, make([]byte, 0, u.out.Size(s.first+f)))
	}
	err := u.call(ctx, "deliver frames", func(ctx context.Context) error { return u.req.Control.Deliver(ctx, s.id, list) })
	return func() error {
		u.sending = false
		if err != nil {
			return err
		}
		u.report.Delivered += uint64(len(frames))
		if u.live[s] { // else it was closed meanwhile, and its slot may be another's
			s.deliver(frames)
		}
		return nil
	}
}
