// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// maxGaps is how many gaps Missing lists at most.
const maxGaps = 4096

// maxFates is how many regions are remembered that have ended.
const maxFates = 512

// fate is how a region ended.
type fate struct {
	at  uint32 // place behind what was taken
	err error
}

// fates remembers how regions ended, for sources that ask later.
type fates struct {
	of    map[uint64]fate
	order []uint64
}

func (f *fates) put(token uint64, end fate) {
	if f.of == nil {
		f.of = map[uint64]fate{}
	}
	_, known := f.of[token]
	f.of[token] = end
	if known {
		return
	}
	if f.order = append(f.order, token); len(f.order) > maxFates {
		delete(f.of, f.order[0])
		f.order = f.order[1:]
	}
}

// control is a node as its sources see it.
type control struct{ n *Node }

// Control returns what a source asks of this host as a member.
func (n *Node) Control() shuffle.BroadcastControl { return control{n} }

func (c control) BroadcastEndpoint(context.Context) (shuffle.Endpoint, error) {
	return shuffle.Endpoint{Port: c.n.opts.Port, Kernel: c.n.kernel != nil, Frame: wire.FrameSize}, nil
}

func (c control) OpenRegion(ctx context.Context, spec shuffle.RegionSpec) (shuffle.RegionGrant, error) {
	n := c.n
	if err := n.begin(); err != nil {
		return shuffle.RegionGrant{}, err
	}
	defer n.work.Done()
	n.mu.Lock()
	o := n.opening[spec.Token]
	if o == nil {
		o = &opening{spec: spec, ready: make(chan struct{})}
		n.opening[spec.Token] = o
		n.mu.Unlock()
		o.region, o.err = n.open(spec)
		switch {
		case o.region != nil:
			o.grant.Kernel = o.region.shared != nil
		default:
			o.grant.Have = o.err == nil
			n.mu.Lock()
			delete(n.opening, spec.Token)
			n.mu.Unlock()
		}
		close(o.ready)
		return o.grant, o.err
	}
	n.mu.Unlock()
	if o.spec != spec {
		return shuffle.RegionGrant{}, fmt.Errorf("broadcast %q: token %#x is open for something else: %w", spec.Name, spec.Token, shuffle.ErrRefused)
	}
	select {
	case <-o.ready:
	case <-ctx.Done():
		return shuffle.RegionGrant{}, ctx.Err()
	}
	if o.region != nil {
		o.region.said.Add(1)
	}
	return o.grant, o.err
}

// region finds an open one. The call counts as heard of its source.
func (n *Node) region(token uint64) (*region, error) {
	if r := (*n.tokens.Load())[token]; r != nil {
		r.said.Add(1)
		return r, nil
	}
	return nil, n.unknown(token)
}

// unknown says why a region is not open.
func (n *Node) unknown(token uint64) error {
	n.mu.Lock()
	end, known := n.fates.of[token]
	n.mu.Unlock()
	switch {
	case !known:
		return fmt.Errorf("broadcast with token %#x: %w", token, shuffle.ErrUnknown)
	case errors.Is(end.err, shuffle.ErrDigest):
		return end.err
	case end.err != nil:
		return fmt.Errorf("broadcast with token %#x: %w (it ended: %w)", token, shuffle.ErrUnknown, end.err)
	}
	return fmt.Errorf("broadcast with token %#x: %w (it ended whole, with all before chunk %d)", token, shuffle.ErrUnknown, end.at)
}

func (c control) Relink(_ context.Context, token uint64, next netip.AddrPort) error {
	r, err := c.n.region(token)
	if err != nil {
		return err
	}
	if !r.gate.enter() {
		return c.n.unknown(token)
	}
	defer r.gate.leave()
	r.relink(next)
	return nil
}

func (c control) Missing(_ context.Context, token uint64, first, total uint32) ([]shuffle.Gap, error) {
	r, err := c.n.region(token)
	if err != nil {
		return nil, err
	}
	if !r.gate.enter() {
		return nil, c.n.unknown(token)
	}
	defer r.gate.leave()
	r.wake()
	end := uint64(first) + uint64(total)
	if end > uint64(len(r.marks)) {
		return nil, fmt.Errorf("broadcast %q: chunks %d to %d, of %d: %w", r.spec.Name, first, end, len(r.marks), shuffle.ErrRefused)
	}
	var gaps []shuffle.Gap
	for p := first; p < uint32(end); p++ {
		if wire.MarkState(&r.marks[p]) == wire.MarkStored {
			continue
		}
		if last := len(gaps) - 1; last >= 0 && gaps[last].Place+gaps[last].Count == p {
			gaps[last].Count++
			continue
		}
		if len(gaps) == maxGaps {
			break
		}
		gaps = append(gaps, shuffle.Gap{Place: p, Count: 1})
	}
	return gaps, nil
}

func (c control) ConfirmMessage(ctx context.Context, token uint64, first uint32) error {
	r, err := c.n.region(token)
	if err != nil {
		c.n.mu.Lock()
		end, known := c.n.fates.of[token]
		c.n.mu.Unlock()
		if known && first < end.at {
			return nil
		}
		return err
	}
	ok, err := r.confirm(ctx.Done(), first)
	switch {
	case err != nil:
		return err
	case !ok:
		return ctx.Err()
	}
	r.said.Add(1)
	return nil
}

func (c control) CloseRegion(ctx context.Context, token uint64, whole bool) error {
	r, err := c.n.region(token)
	if err != nil {
		c.n.mu.Lock()
		end, known := c.n.fates.of[token]
		c.n.mu.Unlock()
		if known && (end.err == nil || !whole) {
			return nil
		}
		return err
	}
	if whole {
		r.stop(nil)
	} else {
		r.stop(fmt.Errorf("broadcast %q: %w", r.spec.Name, ErrEnded))
	}
	select {
	case <-r.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if whole && r.err != nil && !errors.Is(r.err, ErrEnded) {
		return r.err
	}
	return nil
}
