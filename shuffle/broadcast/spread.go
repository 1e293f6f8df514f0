// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/quernmr/quern/shuffle"
)

// mostPart is how much of a whole goes in a region where nothing else is said, and leastPart
// how little where members have no room for more.
const (
	mostPart  = 256 << 20
	leastPart = 1 << 20
)

// whole is a Spread under way.
type whole struct {
	n    *Node
	spec SpreadSpec
	size int64 // of a part
	gets []int // members that still get it
	rep  *Report
}

// part is a part of a whole, in a group of its own.
type part struct {
	*Group
	of []int // the members of the whole that the group's members are
}

// Spread gives a whole to members, in as many regions as it takes, one after the other. Members that have it are left out;
// those that fail are in the report. The error is about the whole: the source can't be read, the context has ended, this
// host has no room; or it wraps ErrNobody.
func (n *Node) Spread(ctx context.Context, spec SpreadSpec) (*Report, error) {
	start := time.Now()
	if spec.Size < 0 || spec.Size > 0 && spec.Source == nil {
		return nil, fmt.Errorf("broadcast %q: there is nothing of %d bytes to read", spec.Name, spec.Size)
	}
	w := &whole{n: n, spec: spec, size: spec.Window, rep: &Report{}}
	if w.size <= 0 {
		w.size = mostPart
	}
	// The next part is opened before the last one is closed.
	most := min(n.opts.Memory, n.opts.PerJob) / 2
	w.size = max(min(w.size, most-most/128-1<<12, spec.Size), 1)
	for i, m := range spec.Members {
		w.rep.Members = append(w.rep.Members, MemberReport{Name: m.Name})
		w.gets = append(w.gets, i)
	}
	err := w.run(ctx)
	w.rep.Elapsed = time.Since(start)
	return w.rep, err
}

func (w *whole) run(ctx context.Context) error {
	if len(w.gets) == 0 {
		return nil
	}
	p, err := w.first(ctx)
	for off := int64(0); err == nil && p != nil; {
		size := min(w.size, w.spec.Size-off)
		var rep *Report
		rep, err = p.Send(ctx, size, func(b []byte) error { return w.read(b, off) })
		w.note(p)
		w.count(rep)
		if err != nil {
			p.fail()
			return errors.Join(err, p.Close(ctx))
		}
		off += size
		more := off < w.spec.Size
		var next *part
		if more {
			// While members look at what they have got. It may be that there is no room for both.
			if next, err = w.open(ctx, off, w.gets, true); err != nil && !errors.Is(err, shuffle.ErrBusy) && !errors.Is(err, ErrNobody) {
				p.fail()
				return errors.Join(err, p.Close(ctx))
			}
		}
		before := rep.Stored
		err = p.Confirm(ctx, rep)
		w.note(p)
		w.rep.Stored += before
		if err != nil && !errors.Is(err, ErrNobody) {
			p.fail()
		}
		if closed := p.Close(ctx); closed != nil {
			w.n.warn("end a part", closed, "name", w.spec.Name)
		}
		if next != nil {
			w.leave(next)
		}
		if err == nil && more && next == nil {
			if len(w.gets) == 0 {
				err = w.nobody()
			} else {
				next, err = w.open(ctx, off, w.gets, false)
			}
		}
		if err != nil && next != nil {
			next.fail()
			err = errors.Join(err, next.Close(ctx))
		}
		p = next
		if !more {
			break
		}
	}
	if errors.Is(err, ErrNobody) {
		err = w.nobody()
	}
	return err
}

// nobody returns the error of a whole that nobody gets any more: none if somebody has it.
func (w *whole) nobody() error {
	err := error(nil)
	for _, m := range w.rep.Members {
		if m.Have {
			return nil
		}
		if err == nil {
			err = m.Err
		}
	}
	return fmt.Errorf("broadcast %q: %w: %w", w.spec.Name, ErrNobody, err)
}

// fail has Close say that the rest does not come.
func (g *Group) fail() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failed = true
}

func (w *whole) read(b []byte, off int64) error {
	n, err := 0, error(nil)
	for n < len(b) && err == nil {
		var k int
		k, err = w.spec.Source.ReadAt(b[n:], off+int64(n))
		n += k
	}
	if n == len(b) {
		return nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read what is to be spread, %d of %d bytes: %w", off+int64(n), w.spec.Size, err)
}

// first opens the first part, a smaller one if members have no room for what was meant.
func (w *whole) first(ctx context.Context) (*part, error) {
	p, err := w.open(ctx, 0, w.gets, false)
	var refused []int
	for i, m := range w.rep.Members {
		if errors.Is(m.Err, shuffle.ErrRefused) {
			refused = append(refused, i)
		}
	}
	if len(refused) == 0 || err != nil && !errors.Is(err, ErrNobody) {
		return p, err
	}
	size := w.size
	for small := size / 4; small >= leastPart; small /= 4 {
		w.size = small
		try, e := w.open(ctx, 0, refused, false)
		if e != nil {
			continue
		}
		try.fail()
		e = try.Close(ctx)
		if p != nil {
			p.fail()
			e = errors.Join(e, p.Close(ctx))
		}
		w.n.warn("end a part that is too large for a member", e, "name", w.spec.Name)
		w.gets = w.gets[:0]
		for i, m := range w.rep.Members {
			if !m.Have && (m.Err == nil || errors.Is(m.Err, shuffle.ErrRefused)) {
				w.rep.Members[i].Err = nil
				w.gets = append(w.gets, i)
			}
		}
		return w.open(ctx, 0, w.gets, false)
	}
	w.size = size
	return p, err
}

// open opens a part for some of the members. In haste it returns ErrBusy rather than leave out who has no room now.
func (w *whole) open(ctx context.Context, off int64, gets []int, hasty bool) (*part, error) {
	size := min(w.size, w.spec.Size-off)
	spec := GroupSpec{
		Job: w.spec.Job, Secret: w.spec.Secret, Mode: w.spec.Mode, Name: w.spec.Name, Kind: w.spec.Kind,
		Chunks: chunksOf(size), Offset: off, Size: w.spec.Size, Chains: w.spec.Chains, hasty: hasty,
	}
	of := append([]int(nil), gets...)
	for _, i := range of {
		spec.Members = append(spec.Members, w.spec.Members[i])
	}
	g, members, err := w.n.openGroup(ctx, spec)
	if hasty && (errors.Is(err, shuffle.ErrBusy) || anyBusy(members)) {
		if g != nil {
			g.fail()
			w.n.warn("end a part that was opened too early", g.Close(ctx), "name", w.spec.Name)
		}
		return nil, fmt.Errorf("broadcast %q: %w", w.spec.Name, shuffle.ErrBusy)
	}
	w.take(of, members)
	if err != nil {
		return nil, err
	}
	return &part{g, of}, nil
}

func anyBusy(members []*member) bool {
	for _, m := range members {
		if errors.Is(m.err, shuffle.ErrBusy) {
			return true
		}
	}
	return false
}

// take notes how members are, and who still gets the rest.
func (w *whole) take(of []int, members []*member) {
	for i, m := range members {
		r := &w.rep.Members[of[i]]
		r.Have, r.Kernel = r.Have || m.have, r.Kernel || m.kernel
		if r.Err == nil {
			r.Err = m.err
		}
	}
	w.gets = w.gets[:0]
	for i, r := range w.rep.Members {
		if !r.Have && r.Err == nil {
			w.gets = append(w.gets, i)
		}
	}
}

func (w *whole) note(p *part) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.take(p.of, p.members)
}

// leave has the next part do without members that this one has left out.
func (w *whole) leave(next *part) {
	next.mu.Lock()
	defer next.mu.Unlock()
	for _, m := range next.members {
		if err := w.rep.Members[next.of[m.index]].Err; err != nil {
			next.drop(m, err)
		}
	}
}

// count adds up what a part took.
func (w *whole) count(rep *Report) {
	if rep == nil {
		return
	}
	t := w.rep
	t.Chunks += rep.Chunks
	t.Chains = max(t.Chains, rep.Chains)
	t.Sent += rep.Sent
	t.Pumped += rep.Pumped
	t.Again += rep.Again
	t.Woken += rep.Woken
	t.Timers += rep.Timers
	t.Kernel = t.Kernel || rep.Kernel
}
