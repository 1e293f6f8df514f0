// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/spill"
)

const (
	// streamMemory is about what an open stream takes: blocks that are read from, wait and are
	// being received.
	streamMemory = 6 * blockBytes
	// maxFanIn bounds how many streams, or files, are merged at once.
	maxFanIn = 64
	// distrust is how many blocks in a row may arrive damaged until the output is taken for damaged.
	distrust = 3
)

// pull fetches sorted pairs and merges them into runs.
func (s *gathering) pull(ctx context.Context) (_ []task.RunFile, err error) {
	tasks, pairs := s.where.list(s.in)
	whole := len(s.in.GetLow()) == 0 && len(s.in.GetHigh()) == 0
	if s.in.GetPairs() != pairs {
		return nil, fmt.Errorf("exchange: the map outputs hold %d pairs, %d are expected", pairs, s.in.GetPairs())
	}
	grouped := s.g.Constants.GetGrouped()
	opts := spill.Options{}
	var scale []uint8
	if !grouped {
		ops, err := opsOf(s.g.Constants)
		if err != nil {
			return nil, err
		}
		if scale, err = scaleOf(s.in.GetScale(), len(ops)); err != nil {
			return nil, err
		}
		opts = fold.RunOptions
	}
	var runs []*spill.Run
	defer func() {
		for _, r := range runs {
			if err == nil {
				err = r.Close()
				continue
			}
			err = errors.Join(err, r.Remove())
		}
	}()
	n := 0
	newPath := func() string {
		n++
		return filepath.Join(s.g.Dir, fmt.Sprintf("pulled-%d.run", n))
	}
	fanIn := int(min(max(s.g.Memory/streamMemory, 2), maxFanIn))
	for len(tasks) > 0 {
		k := min(fanIn, len(tasks))
		run, err := s.merge(ctx, tasks[:k], whole, opts, newPath())
		if err != nil {
			return nil, err
		}
		runs = append(runs, run)
		tasks = tasks[k:]
	}
	most := int(min(max(s.g.Memory/spill.CursorMemory(0), 8), maxFanIn))
	if runs, err = spill.Compact(ctx, runs, spill.CompactOptions{Write: opts, FanIn: most, NewPath: newPath}); err != nil {
		return nil, fmt.Errorf("%w: %w", errWrite, err)
	}
	var files []task.RunFile
	total := int64(0)
	for _, r := range runs {
		total += r.Pairs()
		if r.Pairs() > 0 {
			files = append(files, task.RunFile{Path: r.Path(), Scale: scale})
			continue
		}
		if err := r.Remove(); err != nil {
			return nil, err
		}
	}
	s.gathered = total
	if whole && total != s.in.GetPairs() {
		return nil, fmt.Errorf("exchange: %d pairs were fetched, %d are expected", total, s.in.GetPairs())
	}
	return files, nil
}

// merge merges what some map tasks have into a run.
func (s *gathering) merge(ctx context.Context, tasks []uint32, whole bool, opts spill.Options, path string) (_ *spill.Run, err error) {
	cursors := make([]spill.Cursor, len(tasks))
	for i, t := range tasks {
		c := &pullCursor{s: s, ctx: ctx, task: t, expect: -1}
		if at, _ := s.where.of(t); whole {
			c.expect = at.GetPairs()
		}
		c.start()
		cursors[i] = c
	}
	var m *spill.Merger
	if opts.ByKey {
		m = spill.NewKeyMerger(cursors)
	} else {
		m = spill.NewMerger(cursors)
	}
	defer m.Close()
	w, err := spill.Create(path, opts)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errWrite, err)
	}
	defer w.Abort()
	for m.Next() {
		if err := w.Append(0, m.Key(), m.Payload()); err != nil {
			return nil, fmt.Errorf("%w: %w", errWrite, err)
		}
	}
	if err := m.Err(); err != nil {
		return nil, err
	}
	run, err := w.Close()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errWrite, err)
	}
	return run, nil
}

// pullCursor reads a map output at another worker, wherever that is. After damage, or
// when a connection breaks, it goes on behind the last good block. It is a spill.Cursor.
type pullCursor struct {
	s      *gathering
	ctx    context.Context
	task   uint32
	expect int64 // pairs; -1: not known

	block        blockReader
	key, payload []byte
	got          int64 // pairs of blocks that were good
	ended        bool
	err          error

	at       *api.MapOutput
	moved    <-chan struct{}
	stream   *pullStream // nil: none
	failures int         // in a row
	bad      int         // damaged blocks in a row
}

// pullStream is one try at fetching; it ends when its context does.
type pullStream struct {
	cancel context.CancelCauseFunc
	blocks chan *api.FetchBlock // closed at the end
	err    error                // read after that
	done   sync.WaitGroup
}

func (p *pullStream) stop() {
	p.cancel(nil)
	for range p.blocks { // whoever sends sees the end of the context, or this
	}
	p.done.Wait()
}

func (c *pullCursor) Key() []byte     { return c.key }
func (c *pullCursor) Payload() []byte { return c.payload }
func (c *pullCursor) Err() error      { return c.err }

func (c *pullCursor) Close() {
	c.ended = true
	c.key, c.payload = nil, nil
	if c.stream != nil {
		c.stream.stop()
		c.stream = nil
	}
}

func (c *pullCursor) Next() bool {
	for c.block.left == 0 {
		if c.ended || c.err != nil || !c.fill() {
			c.key, c.payload = nil, nil
			return false
		}
	}
	c.key, c.payload = c.block.next()
	return true
}

// start begins to fetch from where the output is now, behind what has come.
func (c *pullCursor) start() {
	c.at, c.moved = c.s.where.of(c.task)
	if c.at.GetAddress() == "" && !c.s.x.isSelf(c.at) {
		return
	}
	ctx, cancel := context.WithCancelCause(c.ctx)
	p := &pullStream{cancel: cancel, blocks: make(chan *api.FetchBlock, 1)}
	req := &api.FetchRequest{
		Job: c.at.GetAttempt().GetJob(), MapTask: c.task, Attempt: c.at.GetAttempt(), Partition: c.s.part,
		Low: c.s.in.GetLow(), High: c.s.in.GetHigh(), Skip: c.got,
	}
	if !c.s.g.Constants.GetGrouped() {
		req.Scale = c.s.in.GetScale()
	}
	at := c.at
	p.done.Go(func() {
		defer close(p.blocks)
		p.err = c.s.x.fetchFrom(ctx, at, req, func(b *api.FetchBlock) error {
			select {
			case p.blocks <- b:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	})
	c.stream = p
}

// fill reads the next block.
func (c *pullCursor) fill() bool {
	for {
		if c.ctx.Err() != nil {
			c.err = context.Cause(c.ctx)
			return false
		}
		if c.stream == nil {
			c.start()
		}
		if c.stream == nil { // nobody has it now
			c.wait(nil)
			continue
		}
		select {
		case <-c.moved:
			at, moved := c.s.where.of(c.task)
			if c.moved = moved; at != c.at {
				c.stream.stop()
				c.stream = nil
				c.failures = 0
			}
			continue
		case <-c.ctx.Done():
			continue
		case b, ok := <-c.stream.blocks:
			if !ok {
				err := c.stream.err
				if err == nil {
					err = io.ErrUnexpectedEOF
				}
				c.failed(err)
				if c.err != nil {
					return false
				}
				continue
			}
			if err := c.take(b); err != nil {
				c.failed(err)
				if c.err != nil {
					return false
				}
				continue
			}
			if b.GetLast() || b.GetPairs() > 0 {
				return true
			}
		}
	}
}

// take looks through a block and begins to read it.
func (c *pullCursor) take(b *api.FetchBlock) error {
	if err := c.block.reset(b); err != nil {
		if c.bad++; c.bad >= distrust {
			err = fmt.Errorf("%w: %w", errDamaged, err)
		}
		return err
	}
	n := c.got + int64(b.GetPairs())
	if c.expect >= 0 && (n > c.expect || b.GetLast() && n != c.expect) {
		c.block.left = 0
		return fmt.Errorf("exchange: map task %d: %d pairs came, %d are expected: %w", c.task, n, c.expect, errDamaged)
	}
	c.got, c.bad, c.failures = n, 0, 0
	c.s.pulled.Add(int64(b.GetPairs()))
	if b.GetLast() {
		c.ended = true
		c.stream.stop()
		c.stream = nil
	}
	return nil
}

// failed ends a stream, and the cursor if no other would do better.
func (c *pullCursor) failed(err error) {
	c.stream.stop()
	c.stream = nil
	switch {
	case c.ctx.Err() != nil:
		c.err = context.Cause(c.ctx)
		return
	case errors.Is(err, ErrPermanent):
		c.err = err
		return
	}
	c.failures++
	if c.bad > 0 && c.bad < distrust {
		return // at once
	}
	c.wait(err)
}

// wait tells why an output can't be had, if that is known, and waits a while or until it has moved.
func (c *pullCursor) wait(err error) {
	if at, moved := c.s.where.of(c.task); at != c.at {
		c.failures = 0
		return
	} else {
		c.moved = moved
	}
	if err != nil {
		c.s.lost(c.at, err)
	}
	var timer <-chan time.Time
	if err != nil {
		timer = time.After(backoff(c.failures))
	}
	select {
	case <-timer:
	case <-c.moved:
	case <-c.ctx.Done():
	}
}

// fetchFrom sends the blocks of a map output from where it is.
func (x *Exchange) fetchFrom(ctx context.Context, at *api.MapOutput, req *api.FetchRequest, send func(*api.FetchBlock) error) error {
	if x.isSelf(at) {
		return x.fetch(ctx, req, true, send)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := x.opts.Dial(ctx, at.GetAddress())
	if err != nil {
		return fmt.Errorf("exchange: reach worker %s at %s: %w", at.GetWorker(), at.GetAddress(), err)
	}
	silent := fmt.Errorf("exchange: worker %s at %s has said nothing for %v", at.GetWorker(), at.GetAddress(), x.opts.Stall)
	watch := time.AfterFunc(x.opts.Stall, func() { cancel(silent) })
	defer watch.Stop()
	stream, err := api.NewPeerClient(conn).Fetch(ctx, req, grpc.MaxCallRecvMsgSize(maxMessage))
	for err == nil {
		var b *api.FetchBlock
		watch.Reset(x.opts.Stall)
		if b, err = stream.Recv(); err != nil {
			break
		}
		watch.Stop() // the merge may take its time
		if err := send(b); err != nil {
			return err
		}
		if b.GetLast() {
			return nil
		}
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("exchange: worker %s at %s: %w", at.GetWorker(), at.GetAddress(), io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("exchange: fetch from worker %s at %s: %w", at.GetWorker(), at.GetAddress(), fetchError(err))
}
