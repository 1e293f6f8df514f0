// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/group"
	"github.com/quernmr/quern/shuffle/pairs"
)

// iterated is an iteration without its types, as the process of a member runs it.
type iterated interface {
	// member loads the splits of the engine's plan, whose first one has that number among all of them, and takes
	// part in the rounds until the last one. It returns what the iteration came to, for finish.
	member(ctx context.Context, e *engine, first, total int, g gang) (final []byte, err error)
	// finish takes what a member's iteration came to: newMapper's mappers then emit that. It returns an
	// IterationResult as JSON.
	finish(final []byte) (json.RawMessage, error)
	limit() int // rounds at most; 0: as many as it takes
}

// shareOut cuts splits into contiguous shares of about as many bytes each: no more than members, and none
// without a split, but for one if there is no split at all.
func shareOut(splits []input.Split, members int) *task.Gang {
	n := max(1, min(members, task.MaxMembers, len(splits)))
	total := int64(0)
	for i := range splits {
		total += max(splits[i].Bytes, 0) + 1 // what has no bytes is work, too
	}
	g := &task.Gang{Shares: make([]int, n)}
	done, at := int64(0), 0
	for m := range n {
		until := total / int64(n) * int64(m+1)
		for at < len(splits) {
			size := max(splits[at].Bytes, 0) + 1
			left := len(splits) - at
			switch {
			case left < n-m: // each of the others needs one
			case g.Shares[m] > 0 && m < n-1 && (left == n-m-1 || done+size/2 > until):
			default:
				g.Shares[m]++
				done += size
				at++
				continue
			}
			break
		}
	}
	return g
}

// gangSplits are the map tasks of a gang, each of which has several splits.
func gangSplits(g *task.Gang, splits []task.SplitInfo) []task.SplitInfo {
	shares := make([]task.SplitInfo, len(g.Shares))
	for m := range shares {
		first, end := g.Share(m)
		for i, s := range splits[first:end] {
			if i == 0 {
				shares[m].Path = s.Path
			}
			shares[m].Bytes += s.Bytes
		}
	}
	return shares
}

// gangTask is the map task of a member: it loads its share, takes part in the rounds, and leaves the rows of
// the last state, if it is the first member.
func (h *host) gangTask(ctx context.Context, e *engine, req *task.Request) (*task.MapResult, error) {
	r := req.Gang
	if err := e.constants(req.Constants); err != nil {
		return nil, err
	}
	plan, err := input.Unpack(req.Plan, e.opts.Input)
	if err != nil {
		return nil, &permanent{err}
	}
	if n := len(plan.Splits); r.First < 0 || r.First+n > r.Splits || req.Map.Split < 0 || req.Map.Split >= r.Size {
		return nil, &permanent{fmt.Errorf("a request for member %d of %d with splits %d to %d of %d", req.Map.Split, r.Size, r.First, r.First+n, r.Splits)}
	}
	e.plan = plan
	e.total.Store(plan.TotalBytes)
	e.t.safe = false
	g := newHostedGang(h, e)
	defer g.close()
	var final []byte
	if r.State != nil && r.State.Final {
		if final, err = os.ReadFile(r.State.Path); err != nil {
			return nil, err
		}
	} else {
		final, err = e.t.iter.member(ctx, e, r.First, r.Splits, g)
		switch {
		case errors.Is(err, errGangDone):
			final = g.last
		case err != nil:
			return nil, err
		default:
			if err := g.keepLast(ctx, final); err != nil {
				return nil, err
			}
		}
	}
	about, err := e.t.iter.finish(final)
	if err != nil {
		return nil, err
	}
	if e.arena, err = pairs.NewArena(e.mem.arena + e.largest()); err != nil {
		return nil, err
	}
	defer e.arena.Close()
	defer e.removeRuns()
	first := req.Map.Split == 0
	if err := e.emitLast(first); err != nil {
		return nil, err
	}
	result, err := e.leaveMapped(ctx, req.Dir)
	if err == nil && first {
		result.Iteration = about
	}
	return result, err
}

// emitLast takes the place of the map phase: it leaves the rows of the state that an iteration came to with a mapper, or
// none.
func (e *engine) emitLast(rows bool) error {
	e.configure()
	m := e.newMapper(nil, group.NewCollector(e.grpCfg), nil)
	if e.sample != nil {
		m.sampleKeys(e.sampleSize())
	}
	e.mappers = append(e.mappers, m)
	if !rows {
		return nil
	}
	if err := m.block(Block{}); err != nil {
		return err
	}
	e.pairs.Store(m.collector().Emitted())
	if s := m.sampled(); s != nil {
		e.sample.Merge(s)
	}
	return nil
}

// stateEvery is how long a state is the last one that is kept at least. Who loses more than a second's work has lost
// a worker.
const stateEvery = time.Second

// hostedGang is a gang whose other members are in processes elsewhere. The parent brings them together.
type hostedGang struct {
	h      *host
	e      *engine
	req    *task.Request
	vector *task.Vector
	broken string // why the last group is none any more
	last   []byte // of errGangDone

	answers chan *task.Answer // to Ready and Sum, of which one is under way

	mu     sync.Mutex
	states int           // counts those that were written
	busy   chan struct{} // closed when the state that is under way is kept, or is not
	failed error         // why not
	began  time.Time     // when it was handed over
}

func newHostedGang(h *host, e *engine) *hostedGang {
	g := &hostedGang{h: h, e: e, req: h.req, vector: task.OpenVector(h.req.Gang.Vector), answers: make(chan *task.Answer, 1)}
	h.gang.Store(g)
	return g
}

func (g *hostedGang) close() {
	g.h.gang.Store(nil)
	_ = g.vector.Close() // the process ends soon
}

// answer takes what the parent says.
func (g *hostedGang) answer(a *task.Answer) {
	if a.Kept != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.busy != nil {
			g.failed = nil
			if a.Kept.Error != "" {
				g.failed = errors.New(a.Kept.Error)
			}
			close(g.busy)
			g.busy = nil
		}
		return
	}
	select {
	case g.answers <- a:
	default: // it answers nothing that was asked
	}
}

// ask sends a message, and waits for the answer.
func (g *hostedGang) ask(ctx context.Context, r *task.Reply) (*task.Answer, error) {
	if err := g.h.conn.Reply(r); err != nil {
		return nil, g.h.gone(err)
	}
	select {
	case a := <-g.answers:
		return a, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (g *hostedGang) form(ctx context.Context, rounds int) (allreduce.Group, error) {
	a, err := g.ask(ctx, &task.Reply{Ready: &task.Ready{Rounds: rounds, Broken: g.broken}})
	switch {
	case err != nil:
		return nil, err
	case a.Over != nil:
		if g.last, err = os.ReadFile(a.Over.Path); err != nil {
			return nil, err
		}
		return nil, errGangDone
	case a.Group == nil:
		return nil, errors.New("the worker answered who is ready with something else: build the program anew with the workers' version of the library")
	}
	g.broken = "it was left"
	return &hostedGroup{g: g, rank: a.Group.Rank, size: a.Group.Size}, nil
}

// hostedGroup is a member's end of a group that its worker takes part in.
type hostedGroup struct {
	g          *hostedGang
	rank, size int
	err        error
}

func (o *hostedGroup) Rank() int    { return o.rank }
func (o *hostedGroup) Size() int    { return o.size }
func (o *hostedGroup) Close() error { return nil } // the worker sees that another one is asked for

func (o *hostedGroup) Reduce(ctx context.Context, v allreduce.Vector) error {
	if o.err == nil {
		o.err = o.reduce(ctx, v)
	}
	if o.err != nil {
		o.g.broken = o.err.Error()
		return fmt.Errorf("%w: %w", allreduce.ErrBroken, o.err)
	}
	return nil
}

func (o *hostedGroup) reduce(ctx context.Context, v allreduce.Vector) error {
	ask := &task.AllReduce{Op: uint8(v.Op), Width: 8, Count: v.Len()}
	if len(v.Int32) > 0 {
		ask.Width = 4
	}
	if ask.Count == 0 {
		return nil
	}
	if ask.Width == 4 {
		shared, err := o.g.vector.Int32(ask.Count, true)
		if err != nil {
			return err
		}
		copy(shared, v.Int32)
		defer func() { copy(v.Int32, shared) }()
	} else {
		shared, err := o.g.vector.Int64(ask.Count, true)
		if err != nil {
			return err
		}
		copy(shared, v.Int64)
		defer func() { copy(v.Int64, shared) }()
	}
	a, err := o.g.ask(ctx, &task.Reply{Sum: ask})
	switch {
	case err != nil:
		return err
	case a.Reduced == nil:
		return errors.New("the worker answered a vector with something else")
	case a.Reduced.Error != "":
		return errors.New(a.Reduced.Error)
	}
	return nil
}

// keep hands a state over, unless the last one is still on its way or was a moment ago. It does not wait until it is
// kept: what can't be kept is missed when it is needed alone.
func (g *hostedGang) keep(_ context.Context, rounds int, state []byte) error {
	g.mu.Lock()
	skip := g.busy != nil || time.Since(g.began) < stateEvery
	failed := g.failed
	g.failed = nil
	g.mu.Unlock()
	if failed != nil {
		fmt.Fprintln(os.Stderr, "quern: a state was not kept:", failed)
	}
	if skip {
		return nil
	}
	if _, err := g.handOver(rounds, state, false); err != nil {
		var path *fs.PathError
		if !errors.As(err, &path) {
			return err
		}
		fmt.Fprintln(os.Stderr, "quern: a state is not kept:", err) // for want of room, say
	}
	return nil
}

// handOver writes a state down and tells the parent. The channel is closed when it is kept.
func (g *hostedGang) handOver(rounds int, state []byte, last bool) (<-chan struct{}, error) {
	g.mu.Lock()
	g.states++
	name := fmt.Sprintf("state-%d", g.states)
	busy := make(chan struct{})
	g.busy, g.began, g.failed = busy, time.Now(), nil
	g.mu.Unlock()
	undo := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.busy = nil
	}
	if err := os.WriteFile(filepath.Join(g.req.Dir, name), state, 0o600); err != nil {
		undo()
		return nil, err
	}
	if err := g.h.conn.Reply(&task.Reply{Keep: &task.Keep{Rounds: rounds, Final: last, File: name}}); err != nil {
		undo()
		return nil, g.h.gone(err)
	}
	return busy, nil
}

// keepLast has what the iteration came to kept, and returns when it is: so that whoever is lost from now on, and loses
// what it has, does not need the others, who are gone.
func (g *hostedGang) keepLast(ctx context.Context, final []byte) error {
	wait := func(busy <-chan struct{}) error {
		select {
		case <-busy:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	g.mu.Lock()
	before := g.busy
	g.mu.Unlock()
	if before != nil {
		if err := wait(before); err != nil {
			return err
		}
	}
	rounds := 0
	if p := g.e.iteration.Load(); p != nil {
		rounds = p.Round
	}
	busy, err := g.handOver(rounds, final, true)
	if err != nil {
		return err
	}
	if err := wait(busy); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed != nil {
		return fmt.Errorf("what the iteration came to can't be kept: %w", g.failed)
	}
	return nil
}

func (g *hostedGang) kept() (int, []byte) {
	s := g.req.Gang.State
	if s == nil {
		return 0, nil
	}
	b, err := os.ReadFile(s.Path)
	if err != nil {
		fmt.Fprintln(os.Stderr, "quern: the state that was kept can't be read:", err)
		return 0, nil
	}
	return s.Rounds, b
}

func (g *hostedGang) say(p iterationProgress) { g.e.iteration.Store(&p) }
