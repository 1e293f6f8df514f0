// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle/allreduce"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Attempts that are members of a gang reduce vectors with each other while they run. What their processes say of it comes
// here: who is ready, which the master is told; vectors, in memory that is shared with them; states to be kept.
// This worker takes part in the group for all members that it has: theirs are added up here first.

const (
	// formWait bounds how long a group may take to be formed.
	formWait = time.Minute
	// closeWait bounds how long is waited for those who do not answer when a group is closed.
	closeWait = 5 * time.Second
)

// errNoGroups is why an exchange has none.
var errNoGroups = errors.New("this worker takes no part in all-reduces; its log says why")

// gangs are the groups and members that this worker has to do with.
type gangs struct {
	w *Worker

	mu   sync.Mutex
	jobs map[string]*gangJob
}

type gangJob struct {
	id      string
	broken  uint64 // groups up to this generation are none any more
	why     string
	group   *gangGroup
	members map[*gangMember]bool
	over    *api.GangState // there is nothing left to be done

	// Of groups that were formed from here, the last one.
	order  *api.GangForm
	cancel context.CancelFunc
	formed groupFormed     // nil: it is being formed, or was not
	report *api.GangFormed // nil: it is being formed
	told   bool
}

// gangMember is an attempt that is a member.
type gangMember struct {
	a    *attempt
	job  *gangJob
	rank int
	file *os.File // memory that is shared with the process
	vec  *task.Vector
	dir  string // of the process's files

	// Under the lock of gangs.
	generation uint64
	ready      bool
	rounds     int64
	broken     string
	fresh      bool               // the master is to be told
	answer     func(*task.Answer) // to Ready
	group      *gangGroup
	fetching   bool // the state in which it is over
	calling    bool // its vector is not answered yet: its memory may be in use

	uses     sync.WaitGroup // of its memory
	keeps    sync.WaitGroup
	releases []func()
}

// gangGroup is a group as this worker sees it.
type gangGroup struct {
	generation uint64
	size       int             // members of all workers
	local      int             // those of this one
	names      []*api.Attempt  // the same
	end        allreduce.Group // nil: all members are here
	token      uint64
	ctx        context.Context
	cancel     context.CancelCauseFunc

	// Under the lock of gangs.
	err   error
	calls []*gangCall
}

// gangCall is a member's vector.
type gangCall struct {
	m      *gangMember
	sum    *task.AllReduce
	answer func(*task.Answer)
}

func newGangs(w *Worker) *gangs { return &gangs{w: w, jobs: map[string]*gangJob{}} }

// job returns what is known of a job, and begins to know it. The caller holds the lock.
func (s *gangs) job(id string) *gangJob {
	j := s.jobs[id]
	if j == nil {
		j = &gangJob{id: id, members: map[*gangMember]bool{}}
		s.jobs[id] = j
	}
	return j
}

// join makes an attempt a member. leave is to be called when its process has ended.
func (s *gangs) join(a *attempt, dir string) (*gangMember, error) {
	f, err := sharedMemory()
	if err != nil {
		return nil, &own{fmt.Errorf("memory to share with a member of a gang: %w", err)}
	}
	m := &gangMember{a: a, rank: int(a.launch.GetSplit()), file: f, vec: task.OpenVector(int(f.Fd())), dir: dir, rounds: -1}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.job = s.job(a.key.job)
	m.job.members[m] = true
	return m, nil
}

// leave ends a membership. well: the member has come to its end.
func (s *gangs) leave(m *gangMember, well bool) {
	s.mu.Lock()
	g := m.group
	if g != nil && (!well || m.calling) {
		s.fail(g, fmt.Errorf("member %d has ended before its time", m.rank))
	}
	m.group, m.answer = nil, nil
	delete(m.job.members, m)
	s.mu.Unlock()
	m.uses.Wait() // it is over soon: the group is broken, or nobody waits for this member
	m.keeps.Wait()
	_, _ = m.vec.Close(), m.file.Close()
	for _, release := range m.releases {
		release()
	}
}

// hear takes what a member's process says. It does not wait.
func (m *gangMember) hear(r *task.Reply, answer func(*task.Answer)) {
	s := m.a.w.gangs
	switch {
	case r.Ready != nil:
		s.mu.Lock()
		defer s.mu.Unlock()
		if g := m.group; g != nil {
			m.group = nil
			why := r.Ready.Broken
			if g.err != nil {
				why = g.err.Error()
			}
			m.broken = why
			s.fail(g, fmt.Errorf("member %d: %s", m.rank, why))
		}
		m.ready, m.rounds, m.answer, m.fresh = true, int64(r.Ready.Rounds), answer, true
		if g := m.job.group; g != nil && g.has(m) {
			s.attach(g, m) // the master knew before us that the last one was broken
		}
		s.tellOver(m)
		m.a.w.nudge()
	case r.Sum != nil:
		s.call(&gangCall{m, r.Sum, answer})
	case r.Keep != nil:
		m.keeps.Go(func() {
			k := &task.Kept{}
			if err := m.keep(r.Keep); err != nil {
				k.Error = err.Error()
			}
			answer(&task.Answer{Kept: k})
		})
	}
}

// ---- vectors ----

// call takes a member's vector. When the last one of this worker's members has come, they are reduced.
func (s *gangs) call(c *gangCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := c.m.group
	switch {
	case c.m.calling: // one after the other: the memory is mapped anew when a vector is longer
		why := fmt.Errorf("member %d called a second time before it was answered", c.m.rank)
		if g != nil {
			s.fail(g, why)
		}
		c.answer(&task.Answer{Reduced: &task.Reduced{Error: why.Error()}})
		return
	case g == nil:
		c.answer(&task.Answer{Reduced: &task.Reduced{Error: "there is no group"}})
		return
	case g.err != nil:
		c.answer(&task.Answer{Reduced: &task.Reduced{Error: g.err.Error()}})
		return
	}
	c.m.calling = true
	if len(g.calls) > 0 && *g.calls[0].sum != *c.sum {
		g.calls = append(g.calls, c)
		s.fail(g, fmt.Errorf("member %d called with %v, member %d with %v", c.m.rank, *c.sum, g.calls[0].m.rank, *g.calls[0].sum))
		return
	}
	g.calls = append(g.calls, c)
	if len(g.calls) < g.local {
		return
	}
	calls := g.calls
	g.calls = nil
	for _, c := range calls {
		c.m.uses.Add(1)
	}
	go func() {
		answer := &task.Reduced{}
		err := g.reduce(calls)
		s.mu.Lock()
		if err != nil {
			s.fail(g, err)
			answer.Error = g.err.Error()
		}
		for _, c := range calls {
			c.m.calling = false
		}
		s.mu.Unlock()
		for _, c := range calls {
			c.m.uses.Done()
			c.answer(&task.Answer{Reduced: answer})
		}
	}()
}

// reduce replaces the vectors of all members here by the result.
func (g *gangGroup) reduce(calls []*gangCall) error {
	vecs := make([]allreduce.Vector, len(calls))
	for i, c := range calls {
		v := allreduce.Vector{Op: allreduce.Op(c.sum.Op)}
		var err error
		switch c.sum.Width {
		case 4:
			v.Int32, err = c.m.vec.Int32(c.sum.Count, false)
		case 8:
			v.Int64, err = c.m.vec.Int64(c.sum.Count, false)
		default:
			err = fmt.Errorf("values of %d bytes", c.sum.Width)
		}
		if err != nil {
			return fmt.Errorf("member %d: %w", c.m.rank, err)
		}
		vecs[i] = v
	}
	for _, v := range vecs[1:] {
		combine(vecs[0].Op, vecs[0].Int32, v.Int32)
		combine(vecs[0].Op, vecs[0].Int64, v.Int64)
	}
	if g.end != nil {
		if err := g.end.Reduce(g.ctx, vecs[0]); err != nil {
			if cause := context.Cause(g.ctx); cause != nil {
				return cause
			}
			return err
		}
	}
	for _, v := range vecs[1:] {
		copy(v.Int32, vecs[0].Int32)
		copy(v.Int64, vecs[0].Int64)
	}
	return nil
}

// combine has dst take src in.
func combine[T int32 | int64](op allreduce.Op, dst, src []T) {
	src = src[:len(dst)]
	switch op {
	case allreduce.Sum:
		for i, x := range src {
			dst[i] += x
		}
	case allreduce.Min:
		for i, x := range src {
			dst[i] = min(dst[i], x)
		}
	case allreduce.Max:
		for i, x := range src {
			dst[i] = max(dst[i], x)
		}
	}
}

// fail breaks a group here. Others hear of it from each other, or from the master. The caller holds the lock.
func (s *gangs) fail(g *gangGroup, why error) {
	if g.err != nil {
		return
	}
	g.err = why
	g.cancel(why)
	for _, c := range g.calls {
		c.m.calling = false
		c.answer(&task.Answer{Reduced: &task.Reduced{Error: why.Error()}})
	}
	g.calls = nil
	s.closeEnd(g)
}

// closeEnd gives back what a group has at this worker's end.
func (s *gangs) closeEnd(g *gangGroup) {
	if g.end == nil {
		return
	}
	token := g.token
	s.w.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeWait)
		defer cancel()
		if err := s.w.ex.closeGroup(ctx, token); err != nil {
			s.w.opt.Log.Debug("a group's end is gone already", "error", err)
		}
	})
}

// ---- what the master says ----

// form forms a group from here, unless it is known.
func (s *gangs) form(o *api.GangForm) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.job(o.GetJob())
	if o.GetGeneration() <= j.broken || s.w.ctx.Err() != nil {
		return
	}
	if j.order != nil && j.order.GetGeneration() >= o.GetGeneration() {
		j.told = false // it has not heard, perhaps
		s.w.nudge()
		return
	}
	s.unform(j)
	ctx, cancel := context.WithTimeout(s.w.ctx, formWait)
	j.order, j.cancel = o, cancel
	s.w.wg.Go(func() {
		defer cancel()
		r := &api.GangFormed{Job: o.GetJob(), Generation: o.GetGeneration()}
		formed, err := s.w.ex.formGroup(ctx, o)
		s.mu.Lock()
		defer s.mu.Unlock()
		if j.order != o { // it is late
			if formed != nil {
				s.closeFormed(formed)
			}
			return
		}
		if err != nil {
			r.Error = strings.ToValidUTF8(err.Error()[:min(len(err.Error()), maxReason)], "?")
		} else {
			r.Token, r.Kernel = formed.token(), formed.kernel()
		}
		j.formed, j.report, j.told = formed, r, false
		s.w.nudge()
	})
}

// unform gives back what was formed from here. The caller holds the lock.
func (s *gangs) unform(j *gangJob) {
	if j.order == nil {
		return
	}
	j.cancel()
	if j.formed != nil {
		s.closeFormed(j.formed)
	}
	j.order, j.cancel, j.formed, j.report = nil, nil, nil, nil
}

func (s *gangs) closeFormed(f groupFormed) {
	s.w.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeWait)
		defer cancel()
		if err := f.close(ctx); err != nil {
			s.w.opt.Log.Debug("a group can't be closed at all workers; they do so themselves", "error", err)
		}
	})
}

// enter has members of this worker be in a group.
func (s *gangs) enter(o *api.GangGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.job(o.GetJob())
	if o.GetGeneration() <= j.broken {
		// Both were said in one breath. The master takes its members to be in the group until they say that it is broken.
		late := &gangGroup{generation: o.GetGeneration(), names: o.GetMembers(), err: errors.New(j.why)}
		for m := range j.members {
			if late.has(m) {
				s.attach(late, m)
			}
		}
		return
	}
	g := j.group
	if g == nil || g.generation != o.GetGeneration() {
		if g != nil {
			s.fail(g, errors.New("there is a new group"))
		}
		g = &gangGroup{generation: o.GetGeneration(), size: int(o.GetSize()), local: len(o.GetMembers()), names: o.GetMembers(), token: o.GetToken()}
		g.ctx, g.cancel = context.WithCancelCause(s.w.ctx)
		if g.token != 0 {
			if g.end, g.err = s.w.ex.group(g.token); g.err != nil {
				g.end = nil
				g.cancel(g.err)
			}
		}
		j.group = g
	}
	var members []*gangMember
	for m := range j.members {
		if g.has(m) {
			members = append(members, m)
		}
	}
	if g.err == nil && len(members) < g.local {
		s.fail(g, errors.New("a member of this worker has ended"))
	}
	for _, m := range members {
		s.attach(g, m)
	}
}

// has says whether the master has named a member of a group.
func (g *gangGroup) has(m *gangMember) bool {
	return slices.ContainsFunc(g.names, func(a *api.Attempt) bool { return keyOf(a) == m.a.key })
}

// attach has a member that waits be in a group. One that is in it, or in an older one of which it will find out that it is
// broken, stays as it is. The caller holds the lock.
func (s *gangs) attach(g *gangGroup, m *gangMember) {
	if !m.ready || m.generation >= g.generation || m.answer == nil {
		return
	}
	m.generation = g.generation
	if g.err != nil {
		m.broken, m.fresh = g.err.Error(), true // it waits on
		s.w.nudge()
		return
	}
	m.ready, m.broken, m.group = false, "", g
	m.answer(&task.Answer{Group: &task.Group{Rank: m.rank, Size: g.size}})
	m.answer = nil
}

// leaveGroup breaks a group, and those before it.
func (s *gangs) leaveGroup(o *api.GangBreak) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.job(o.GetJob())
	if o.GetGeneration() > j.broken {
		j.broken, j.why = o.GetGeneration(), o.GetReason()
	}
	if j.group != nil && j.group.generation <= j.broken {
		s.fail(j.group, errors.New(j.why))
		j.group = nil
	}
	if j.order != nil && j.order.GetGeneration() <= j.broken {
		s.unform(j)
	}
}

// over notes that there is nothing left to be done.
func (s *gangs) over(o *api.GangOver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.job(o.GetJob())
	j.over = o.GetState()
	for m := range j.members {
		s.tellOver(m)
	}
}

// tellOver gives a member that waits what the iteration came to. The caller holds the lock.
func (s *gangs) tellOver(m *gangMember) {
	o := m.job.over
	if o == nil || !m.ready || m.answer == nil || m.fetching {
		return
	}
	m.fetching = true
	m.keeps.Go(func() {
		path, release, err := s.w.blobs.get(m.a.ctx, o.GetBlob(), "")
		s.mu.Lock()
		defer s.mu.Unlock()
		m.fetching = false
		if err != nil {
			// It waits on, and is told again when the master hears of it once more.
			s.w.opt.Log.Warn("what an iteration came to can't be fetched", "attempt", m.a.key, "error", err)
			m.fresh = true
			return
		}
		m.releases = append(m.releases, release)
		if m.answer != nil {
			m.ready = false
			m.answer(&task.Answer{Over: &task.State{Rounds: int(o.GetRounds()), Final: true, Path: path}})
			m.answer = nil
		}
	})
}

// forget drops all of a job.
func (s *gangs) forget(job string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[job]
	if j == nil {
		return
	}
	if j.group != nil {
		s.fail(j.group, fmt.Errorf("%w: its job has ended", errStopped))
	}
	s.unform(j)
	delete(s.jobs, job)
}

// ---- what the master is told ----

// stands says how a member stands; nil if there is nothing to be told: it is not ready yet.
func (m *gangMember) stands() *api.GangMember {
	switch {
	case m.ready:
		return &api.GangMember{Attempt: m.a.launch.GetAttempt(), Generation: m.generation, Ready: true, Rounds: m.rounds, Broken: m.broken}
	case m.group != nil:
		return &api.GangMember{Attempt: m.a.launch.GetAttempt(), Generation: m.generation, Rounds: m.rounds}
	}
	return nil
}

// news are what was not told yet; all: what there is.
func (s *gangs) news(all bool) (members []*api.GangMember, formed []*api.GangFormed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		for m := range j.members {
			if !m.fresh && !all {
				continue
			}
			m.fresh = false
			if g := m.stands(); g != nil {
				members = append(members, g)
			}
		}
		if j.report != nil && (!j.told || all) {
			j.told = true
			formed = append(formed, j.report)
		}
	}
	return members, formed
}

// repeat has all be told once more that may not have been heard.
func (s *gangs) repeat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		j.told = false
		for m := range j.members {
			m.fresh = true
		}
	}
}

// ---- states ----

// keep has the master keep a state that a member's process has left in its folder.
func (m *gangMember) keep(k *task.Keep) error {
	if k.File == "" || k.File != filepath.Base(k.File) || k.File == "." || k.File == ".." {
		return fmt.Errorf("the program left it in %q, which is no file of its folder", k.File)
	}
	path := filepath.Join(m.dir, k.File)
	if st, err := os.Lstat(path); err != nil || !st.Mode().IsRegular() {
		return fmt.Errorf("the program says that it left it in file %q, which is not there", k.File)
	}
	defer os.Remove(path) //nolint:errcheck // it goes with the folder
	digest, size, err := digestOf(path)
	if err != nil {
		return err
	}
	w, ctx, pause := m.a.w, m.a.ctx, m.a.w.opt.pause
	req := &api.KeepStateRequest{
		Attempt: m.a.launch.GetAttempt(), Worker: w.id, Rounds: uint64(max(0, k.Rounds)), Final: k.Final, Digest: digest, Size: size,
	}
	for stored := 0; ; {
		l, err := w.current(ctx)
		if err != nil {
			return err
		}
		call, cancel := context.WithTimeout(l.ctx, finishWait)
		stop := context.AfterFunc(ctx, cancel)
		reply, err := l.client.KeepState(call, req)
		stop()
		cancel()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && reply.GetRefused() != "":
			return errors.New(reply.GetRefused())
		case err == nil:
			return nil
		case status.Code(err) == codes.FailedPrecondition && stored < keepTries:
			stored++
			if err := w.keepBlob(ctx, digest, path, size); err != nil {
				return err
			}
			continue
		case status.Code(err) == codes.FailedPrecondition, status.Code(err) == codes.InvalidArgument:
			return err
		}
		w.opt.Log.Warn("a state could not be kept, it is tried again", "attempt", m.a.key, "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause = min(2*pause, maxOffer)
	}
}

// digestOf is SHA-256 of a file, and its size.
func digestOf(path string) (digest string, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	sum := sha256.New()
	size, err = io.Copy(sum, f)
	return hex.EncodeToString(sum.Sum(nil)), size, err
}
