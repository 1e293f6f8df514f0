// SPDX-License-Identifier: Apache-2.0

package tasktest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle/allreduce"
)

// errLost ends a member that is to be lost.
var errLost = errors.New("lost on purpose")

// gang has the map tasks of a job run at once, and is what they reduce vectors by.
type gang struct {
	r    *Runner
	size int

	mu     sync.Mutex
	ready  map[int]*member
	calls  map[int]*call
	broken string      // why there is no group; "": there is one, or never was
	kept   *task.State // the last one
	last   *task.State // what it came to
	groups int
}

// member is a member's process.
type member struct {
	number int
	file   *os.File
	vec    *task.Vector
	dir    string
	sums   int
	send   func(*task.Answer)
	lose   func()
}

type call struct {
	m   *member
	sum *task.AllReduce
}

// hear takes what a member says.
func (g *gang) hear(m *member, r *task.Reply) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case r.Ready != nil && g.last != nil:
		m.send(&task.Answer{Over: g.last})
	case r.Ready != nil:
		if len(g.ready) == 0 && g.broken == "" {
			g.fail("a member has left it")
		}
		if g.ready[m.number] = m; len(g.ready) < g.size {
			return
		}
		g.broken = ""
		g.groups++
		for _, m := range g.ready {
			m.send(&task.Answer{Group: &task.Group{Rank: m.number, Size: g.size}})
		}
		g.ready = map[int]*member{}
	case r.Sum != nil:
		m.sums++
		if lose := g.r.Lose; lose != nil && lose(m.number, m.sums) {
			m.lose()
			g.fail(fmt.Sprintf("member %d is lost", m.number))
			return
		}
		if g.broken != "" {
			m.send(&task.Answer{Reduced: &task.Reduced{Error: g.broken}})
			return
		}
		if g.calls[m.number] = (&call{m, r.Sum}); len(g.calls) < g.size {
			return
		}
		answer := &task.Reduced{}
		if err := g.reduce(); err != nil {
			answer.Error = err.Error()
			g.broken = answer.Error
		}
		for _, c := range g.calls {
			c.m.send(&task.Answer{Reduced: answer})
		}
		g.calls = map[int]*call{}
	case r.Keep != nil:
		k := &task.Kept{}
		s := &task.State{Rounds: r.Keep.Rounds, Final: r.Keep.Final, Path: filepath.Join(m.dir, r.Keep.File)}
		if _, err := os.Stat(s.Path); err != nil {
			k.Error = err.Error()
		} else if g.kept = s; s.Final && g.last == nil {
			g.last = s
		}
		m.send(&task.Answer{Kept: k})
	}
}

// fail breaks the group. The caller holds the lock.
func (g *gang) fail(why string) {
	g.broken = why
	for _, c := range g.calls {
		c.m.send(&task.Answer{Reduced: &task.Reduced{Error: why}})
	}
	g.calls = map[int]*call{}
}

// reduce replaces all members' vectors by the result.
func (g *gang) reduce() error {
	first := g.calls[0].sum
	ends := allreduce.Local(g.size)
	errs := make([]error, g.size)
	var wg sync.WaitGroup
	for i, c := range g.calls {
		if *c.sum != *first {
			return fmt.Errorf("member %d calls with %v, member 0 with %v", i, *c.sum, *first)
		}
		v := allreduce.Vector{Op: allreduce.Op(first.Op)}
		var err error
		if first.Width == 4 {
			v.Int32, err = c.m.vec.Int32(first.Count, false)
		} else {
			v.Int64, err = c.m.vec.Int64(first.Count, false)
		}
		if err != nil {
			return err
		}
		wg.Go(func() { errs[i] = ends[i].Reduce(context.Background(), v) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// gang runs the map tasks of a gang. The first error ends all.
func (r *Runner) gang(ctx context.Context, o *Outcome, c task.Constants, splits *task.Splits) error {
	plan := o.Plan.Gang
	if err := plan.Check(splits.Len()); err != nil {
		return err
	}
	g := &gang{r: r, size: len(plan.Shares), ready: map[int]*member{}, calls: map[int]*call{}, broken: "there is none"}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make([]*task.MapResult, g.size)
	var wg sync.WaitGroup
	for n := range g.size {
		first, end := plan.Share(n)
		part, err := splits.Share(first, end)
		if err != nil {
			return err
		}
		wg.Go(func() {
			for {
				req := &task.Request{Kind: task.Map, Plan: part, Constants: c, Map: &task.MapRequest{Split: n}}
				req.Gang = &task.GangRequest{Size: g.size, First: first, Splits: splits.Len()}
				g.mu.Lock()
				req.Gang.State = g.kept
				if g.last != nil {
					req.Gang.State = g.last
				}
				g.mu.Unlock()
				reply, err := r.do(ctx, req, g)
				if errors.Is(err, errLost) {
					continue
				}
				if err != nil {
					cancel(err)
					return
				}
				m := reply.Map
				if m.Run != "" {
					m.Run = filepath.Join(req.Dir, m.Run)
				}
				results[n] = m
				return
			}
		})
	}
	wg.Wait()
	o.Groups = g.groups
	if err := context.Cause(ctx); err != nil {
		return err
	}
	for _, m := range results {
		o.mapped(m)
	}
	return nil
}

// join makes a member's end, whose messages come from do.
func (g *gang) join(req *task.Request) (*member, error) {
	f, err := os.Create(filepath.Join(req.Dir, "vector"))
	if err != nil {
		return nil, err
	}
	return &member{number: req.Map.Split, file: f, vec: task.OpenVector(int(f.Fd())), dir: req.Dir}, nil
}

func (g *gang) leave(m *member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ready[m.number] == m {
		delete(g.ready, m.number)
	}
	_, _ = m.vec.Close(), m.file.Close()
}
