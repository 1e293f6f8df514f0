// SPDX-License-Identifier: Apache-2.0

package tasktest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"

	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/spill"
)

// sideFile holds the side inputs of a job.
const sideFile = "side-inputs"

// Runner runs the tasks of a job one after another.
type Runner struct {
	// Command makes a command that runs the program, not started yet.
	Command func() *exec.Cmd
	Dir     string // a folder for runs and for what tasks write
	Job     string // the job's id; "": "00"
	Call    int
	Earlier []task.CallResult
	Memory  int64 // per task, in bytes; 0: 64 MiB
	Workers int   // per task; 0: 2
	// Folded has the runs of a fold made one, with each key once, before they are
	// reduced, as they come from a receiver.
	Folded bool
	// Before, if not nil, may change a request before it is sent; side inputs get their
	// descriptors afterwards.
	Before func(r *task.Request)
	// Members is how many members a gang may have; 0: 1. They run at once, and Before is called by several goroutines.
	Members int
	// Lose, if not nil, says whether a member's process is to be killed at its nth call, from 1. Another one takes
	// its place.
	Lose func(member, n int) bool

	mu    sync.Mutex // guards tasks
	tasks int
	sides []task.SideInput // of the job's plan, in sideFile
}

// Outcome is what the tasks of a job said.
type Outcome struct {
	Plan    *task.PlanResult
	Maps    []*task.MapResult
	Reduces []*task.ReduceResult
	Commit  *task.CommitResult
	Audit   task.Audit
	Scale   []uint8
	Groups  int // of a gang: that were formed
}

// Do has a fresh child serve one request and returns its last message. An error of
// the task is a *task.Error. Job, call and means are filled in.
func (r *Runner) Do(ctx context.Context, req *task.Request) (*task.Reply, error) {
	return r.do(ctx, req, nil)
}

func (r *Runner) do(ctx context.Context, req *task.Request, g *gang) (*task.Reply, error) {
	req.Protocol, req.Call, req.Earlier = task.Protocol, r.Call, r.Earlier
	if req.Job = r.Job; req.Job == "" {
		req.Job = "00"
	}
	if req.Memory = r.Memory; req.Memory == 0 {
		req.Memory = 64 << 20
	}
	if req.Workers = r.Workers; req.Workers == 0 {
		req.Workers = 2
	}
	if req.Kind == task.Plan {
		req.Members = r.Members
	}
	r.mu.Lock()
	r.tasks++
	req.Dir = filepath.Join(r.Dir, fmt.Sprintf("task-%04d-%s", r.tasks, req.Kind))
	r.mu.Unlock()
	if err := os.MkdirAll(req.Dir, 0o700); err != nil {
		return nil, err
	}
	if req.Kind == task.Map || req.Kind == task.Reduce {
		req.SideInputs = slices.Clone(r.sides)
	}
	if r.Before != nil {
		r.Before(req)
	}
	cmd := r.Command()
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	conn, err := task.Pipe(cmd)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if len(req.SideInputs) > 0 {
		f, err := os.Open(filepath.Join(r.Dir, sideFile))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		for i, s := range req.SideInputs {
			req.SideInputs[i] = task.HandOn(cmd, s.Name, f, s.Offset, s.Size)
		}
	}
	hear := func(*task.Reply) bool { return false }
	lost := make(chan struct{})
	if g != nil && req.Gang != nil {
		m, err := g.join(req)
		if err != nil {
			return nil, err
		}
		defer g.leave(m)
		req.Gang.Vector = task.HandOnVector(cmd, m.file)
		m.send = func(a *task.Answer) { _ = conn.Send(a) } // who has ended says so by itself
		m.lose = func() { close(lost); _ = cmd.Process.Kill() }
		hear = func(r *task.Reply) bool {
			if r.Ready == nil && r.Sum == nil && r.Keep == nil {
				return false
			}
			g.hear(m, r)
			return true
		}
	}
	err = cmd.Start()
	conn.Started()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	reply, err := converse(conn, req, hear)
	if err != nil {
		_ = cmd.Process.Kill()
	}
	ended := cmd.Wait()
	select {
	case <-lost:
		return nil, errLost
	default:
	}
	if err == nil && ended != nil {
		err = fmt.Errorf("the child of a %s task replied and then failed: %w", req.Kind, ended)
	} else if errors.Is(err, io.EOF) {
		err = fmt.Errorf("the child of a %s task ended without a reply: %w", req.Kind, errors.Join(err, ended))
	}
	if err != nil {
		return nil, err
	}
	if reply.Error != nil {
		return nil, reply.Error
	}
	if reply.Plan != nil {
		if err := r.planned(req.Dir, reply.Plan); err != nil {
			return nil, err
		}
	}
	return reply, nil
}

// planned checks the side inputs of a plan and takes them over into one file, where they do
// not begin at the borders of pages, as little as they do in a cluster.
func (r *Runner) planned(dir string, plan *task.PlanResult) error {
	r.sides = nil
	if len(plan.SideInputs) == 0 {
		return nil
	}
	f, err := os.Create(filepath.Join(r.Dir, sideFile))
	if err != nil {
		return err
	}
	defer f.Close()
	at := int64(32)
	for _, s := range plan.SideInputs {
		content, err := os.ReadFile(filepath.Join(dir, s.File))
		if err != nil {
			return err
		}
		digest := sha256.Sum256(content)
		if int64(len(content)) != s.Size || hex.EncodeToString(digest[:]) != s.Digest {
			return fmt.Errorf("side input %q: %d bytes of digest %x, the plan says %d of %s", s.Name, len(content), digest, s.Size, s.Digest)
		}
		if _, err := f.WriteAt(content, at); err != nil {
			return err
		}
		r.sides = append(r.sides, task.SideInput{Name: s.Name, Offset: at, Size: s.Size})
		at += s.Size + 1344
	}
	return nil
}

func converse(conn *task.Conn, req *task.Request, hear func(*task.Reply) bool) (*task.Reply, error) {
	if err := conn.Send(req); err != nil {
		return nil, err
	}
	greeted := false
	for {
		reply, err := conn.Recv()
		switch {
		case err != nil:
			return nil, err
		case reply.Hello != nil:
			greeted = true
		case reply.Progress != nil, hear(reply):
		case !greeted && reply.Error == nil:
			return nil, errors.New("a reply before Hello")
		default:
			return reply, nil
		}
	}
}

// Run runs all tasks of the job.
func (r *Runner) Run(ctx context.Context) (*Outcome, error) {
	o := &Outcome{}
	reply, err := r.Do(ctx, &task.Request{Kind: task.Plan})
	if err != nil {
		return nil, err
	}
	o.Plan = reply.Plan
	o.Plan.Partitions = max(o.Plan.Partitions, 1)
	constants := task.Constants{Seed: [2]uint64{0x1234567890abcdef, 0xfedcba0987654321}, Partitions: o.Plan.Partitions, Parts: o.Plan.Partitions}
	if o.Plan.TotalOrder {
		constants.Partitions = 1
	}
	if err := r.maps(ctx, o, constants); err != nil {
		return o, err
	}
	if err := r.reduces(ctx, o, constants); err != nil {
		return o, err
	}
	commit := &task.CommitRequest{Audit: o.Audit}
	for _, part := range o.Reduces {
		commit.Parts = append(commit.Parts, part.Name)
	}
	if reply, err = r.Do(ctx, &task.Request{Kind: task.Commit, Ticket: o.Plan.Ticket, Constants: constants, Commit: commit}); err != nil {
		return o, err
	}
	o.Commit = reply.Commit
	return o, nil
}

// mapped is the run of a map task.
type mapped struct {
	run   *spill.Run
	scale []uint8
}

func (r *Runner) maps(ctx context.Context, o *Outcome, c task.Constants) error {
	splits, err := task.ParsePlan(o.Plan.Plan)
	if err != nil {
		return err
	}
	if o.Plan.Gang != nil {
		return r.gang(ctx, o, c, splits)
	}
	if splits.Len() != len(o.Plan.Splits) {
		return fmt.Errorf("a plan of %d splits tells of %d", splits.Len(), len(o.Plan.Splits))
	}
	for i := range splits.Len() {
		plan, err := splits.Split(i)
		if err != nil {
			return err
		}
		req := &task.Request{Kind: task.Map, Plan: plan, Constants: c, Map: &task.MapRequest{Split: i}}
		reply, err := r.Do(ctx, req)
		if err != nil {
			return err
		}
		m := reply.Map
		if m.Run != "" {
			m.Run = filepath.Join(req.Dir, m.Run)
		}
		o.mapped(m)
	}
	return nil
}

// mapped takes the result of the next map task.
func (o *Outcome) mapped(m *task.MapResult) {
	o.Maps = append(o.Maps, m)
	o.Audit.PairsEmitted += m.Emitted
	for lane, s := range m.Scale {
		if o.Scale == nil {
			o.Scale = make([]uint8, len(o.Plan.Ops))
		}
		o.Scale[lane] = max(o.Scale[lane], s)
	}
}

func (r *Runner) reduces(ctx context.Context, o *Outcome, c task.Constants) error {
	var runs []mapped
	for _, m := range o.Maps {
		if m.Run == "" {
			continue
		}
		run, err := spill.Open(m.Run)
		if err != nil {
			return err
		}
		defer run.Close()
		runs = append(runs, mapped{run, m.Scale})
	}
	var cuts [][]byte
	if o.Plan.TotalOrder {
		var samples [][]byte
		for _, m := range o.Maps {
			samples = append(samples, m.Sample)
		}
		all, err := task.MergeSamples(samples...)
		if err != nil {
			return err
		}
		if cuts, err = task.Cuts(all, o.Plan.Partitions); err != nil {
			return err
		}
	}
	var total int64
	for _, m := range o.Maps {
		for _, p := range m.Parts {
			total += p.Pairs
		}
	}
	for part := range o.Plan.Partitions {
		in := &task.ReduceRequest{Part: part, Attempt: fmt.Sprintf("a%d", part), NoKeys: total == 0, Scale: o.Scale}
		if err := r.gather(ctx, o, c, cuts, runs, in); err != nil {
			return err
		}
		reply, err := r.Do(ctx, &task.Request{Kind: task.Reduce, Constants: c, Ticket: o.Plan.Ticket, Reduce: in})
		if err != nil {
			return err
		}
		o.Reduces = append(o.Reduces, reply.Reduce)
		o.Audit.Keys += reply.Reduce.Keys
		o.Audit.Rows += reply.Reduce.Rows
	}
	return o.balanceSequence()
}

// balanceSequence compares the checks of a total order, whose parts are known only
// when they were cut.
func (o *Outcome) balanceSequence() error {
	if !o.Plan.TotalOrder || o.Plan.Grouped {
		return nil
	}
	want, got := o.check(0), make([]uint64, len(o.Plan.Ops))
	for _, r := range o.Reduces {
		for lane, v := range r.Check {
			got[lane] += v
		}
	}
	for lane := range want {
		if want[lane] != got[lane] {
			return fmt.Errorf("lane %d: the map tasks' checksum is %#x, the parts' %#x", lane, want[lane], got[lane])
		}
	}
	return nil
}

// check is the sum of the map tasks' checks for a partition, at the job's scale.
func (o *Outcome) check(partition int) []uint64 {
	sum := make([]uint64, len(o.Plan.Ops))
	for _, m := range o.Maps {
		for lane, v := range m.Parts[partition].Check {
			from, to := uint8(0), uint8(0)
			if m.Scale != nil {
				from = m.Scale[lane]
			}
			if o.Scale != nil {
				to = o.Scale[lane]
			}
			for range to - from {
				v *= 10
			}
			sum[lane] += v
		}
	}
	return sum
}

// gather makes the runs of a reduce task.
func (r *Runner) gather(ctx context.Context, o *Outcome, c task.Constants, cuts [][]byte, runs []mapped, in *task.ReduceRequest) error {
	partition, low, high := in.Part, []byte(nil), []byte(nil)
	if o.Plan.TotalOrder {
		partition = 0
		if low, high = task.Between(cuts, in.Part); len(low) == 0 {
			low = nil
		}
		if len(high) == 0 {
			high = nil
		}
	}
	dir, err := os.MkdirTemp(r.Dir, fmt.Sprintf("part-%04d-", in.Part))
	if err != nil {
		return err
	}
	var local []fold.Run
	for i, m := range runs {
		path := filepath.Join(dir, fmt.Sprintf("from-%04d", i))
		run, err := extract(m.run, partition, low, high, path, !o.Plan.Grouped)
		if err != nil {
			return err
		}
		defer run.Close()
		in.Pairs += run.Pairs()
		in.Runs = append(in.Runs, task.RunFile{Path: path, Scale: m.scale})
		local = append(local, fold.Run{Run: run, Scale: m.scale})
	}
	if o.Plan.Grouped {
		return nil
	}
	if !o.Plan.TotalOrder {
		in.Check = o.check(partition)
	}
	if r.Folded && len(local) > 0 {
		path := filepath.Join(dir, "folded")
		if err := foldRuns(ctx, o, c, local, path); err != nil {
			return err
		}
		in.Runs, in.Folded = []task.RunFile{{Path: path, Scale: o.Scale}}, true
	}
	return nil
}

// extract writes a part of a run as a run of its own.
func extract(run *spill.Run, part int, low, high []byte, path string, folded bool) (*spill.Run, error) {
	opt := spill.Options{}
	if folded {
		opt = fold.RunOptions
	}
	w, err := spill.Create(path, opt)
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	cur := run.Cursor(part, low, high)
	defer cur.Close()
	for cur.Next() {
		if err := w.Append(0, cur.Key(), cur.Payload()); err != nil {
			return nil, err
		}
	}
	if err := cur.Err(); err != nil {
		return nil, err
	}
	return w.Close()
}

// foldRuns makes one run with each key once.
func foldRuns(ctx context.Context, o *Outcome, c task.Constants, runs []fold.Run, path string) error {
	arena, err := pairs.NewArena(64 << 20)
	if err != nil {
		return err
	}
	defer arena.Close()
	cfg := fold.Config{Arena: arena, Seed: pairs.Seed{A: c.Seed[0], B: c.Seed[1]}, Suffix: o.Plan.Suffix, Partitions: 1, SubBuckets: 1, Share: 32 << 20}
	for _, op := range o.Plan.Ops {
		cfg.Ops = append(cfg.Ops, fold.Op(op))
	}
	d, err := fold.NewDrain(ctx, cfg, nil, runs, fold.Options{Scale: o.Scale})
	if err != nil {
		return err
	}
	w, err := spill.Create(path, fold.RunOptions)
	if err != nil {
		return err
	}
	defer w.Abort()
	var payload []byte
	walker := d.Walker()
	for rng := range d.Ranges(0) {
		err := walker.Each(ctx, 0, rng, func(key []byte, lanes, carry []int64) error {
			payload = fold.AppendValue(payload[:0], lanes, carry)
			return w.Append(0, key, payload)
		})
		if err != nil {
			return err
		}
	}
	run, err := w.Close()
	if err != nil {
		return err
	}
	return run.Close()
}
