// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"path/filepath"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/group"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/spill"
	"github.com/quernmr/quern/shuffle/wire"
)

// mapRun is the name of the run that a map task leaves.
const mapRun = "map.run"

// mapTask maps one split and leaves one run.
func (e *engine) mapTask(ctx context.Context, req *task.Request) (*task.MapResult, error) {
	if err := e.constants(req.Constants); err != nil {
		return nil, err
	}
	plan, err := input.Unpack(req.Plan, e.opts.Input)
	if err != nil {
		return nil, &permanent{err}
	}
	if len(plan.Splits) != 1 {
		return nil, &permanent{fmt.Errorf("a map task of %d splits: the plan is to be cut with task.Splits", len(plan.Splits))}
	}
	e.plan = plan
	e.total.Store(plan.TotalBytes)
	// Books are balanced at the end: nothing is handed on before.
	e.t.safe = false
	if e.arena, err = pairs.NewArena(e.mem.arena + e.largest()); err != nil {
		return nil, err
	}
	defer e.arena.Close()
	defer e.removeRuns()

	e.setPhase("map")
	if err := e.mapAll(ctx); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return e.leaveMapped(ctx, req.Dir)
}

// leaveMapped leaves what was mapped as one run.
func (e *engine) leaveMapped(ctx context.Context, dir string) (*task.MapResult, error) {
	e.setPhase("merge")
	if err := e.spillRest(ctx); err != nil {
		return nil, err
	}
	f, g, err := e.openDrain(ctx)
	if err != nil {
		return nil, err
	}
	e.total.Store(e.combined)
	e.setPhase("write")
	r := &task.MapResult{
		Records: e.records.Load(), Bytes: e.bytes.Load(), Spills: e.spills.Load(), Spilled: e.spilled,
		Skipped: e.skipped.Load(), Cut: e.cut.Load(), Counters: e.counters(),
	}
	if err := e.leaveRun(ctx, dir, f, g, r); err != nil {
		return nil, err
	}
	if e.sample != nil {
		if r.Sample, err = e.sample.MarshalBinary(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// leaveRun writes all pairs as one run, each key of a fold once, says in r what it
// holds, and balances the books.
func (e *engine) leaveRun(ctx context.Context, dir string, f *fold.Drain, g *group.Drain, r *task.MapResult) (err error) {
	opt := fold.RunOptions
	if f == nil {
		opt = spill.Options{}
	} else {
		r.Scale = slices.Clone(f.Scale())
	}
	w, err := spill.Create(filepath.Join(dir, mapRun), opt)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			w.Abort()
		}
	}()
	out := &runWriter{e: e, w: w, parts: make([]task.Manifest, e.partitions())}
	var read int64
	check := make([]uint64, len(e.t.ops))
	if f != nil {
		read, err = out.folded(ctx, f, check)
	} else {
		read, err = out.grouped(ctx, g, e.combine())
	}
	if err != nil {
		return err
	}
	audit, err := e.balance(f, 0, read, slices.Clone(check))
	if err != nil {
		return err
	}
	for i := range check {
		var sum uint64
		for p := range out.parts {
			sum += out.parts[p].Check[i]
		}
		if sum != check[i] {
			return fmt.Errorf("%w: lane %d has the checksum %#x in the table and %#x in the run", errAudit, i, check[i], sum)
		}
	}
	run, err := w.Close()
	if err != nil {
		return err
	}
	r.Parts, r.Emitted = out.parts, audit.PairsEmitted
	var pairs int64
	for p := range out.parts {
		pairs += out.parts[p].Pairs
	}
	switch {
	case pairs != run.Pairs():
		return fmt.Errorf("%w: %d pairs were handed to a run, it has %d", errAudit, pairs, run.Pairs())
	case pairs == 0:
		return run.Remove()
	}
	r.Run, r.Size = mapRun, run.Bytes()
	return run.Close()
}

// runWriter writes the run of a map task and its manifests.
type runWriter struct {
	e     *engine
	w     *spill.Writer
	parts []task.Manifest
	hash  xxh3.Hasher
	buf   []byte // on its way to hash
	rows  int64  // not counted yet
}

// add writes a pair.
func (o *runWriter) add(part int, key, payload []byte) error {
	m := &o.parts[part]
	m.Pairs++
	m.Bytes += int64(len(key) + len(payload))
	class, ok := wire.ClassOf(len(key))
	if !ok {
		class = wire.Classes
	}
	m.Keys[class]++
	o.buf = binary.AppendUvarint(o.buf, uint64(len(key)))
	o.buf = binary.AppendUvarint(o.buf, uint64(len(payload)))
	o.buf = append(o.buf, key...)
	o.buf = append(o.buf, payload...)
	if len(o.buf) >= 64<<10 {
		o.flush()
	}
	if o.rows++; o.rows == movedStep {
		o.e.rows.Add(o.rows)
		o.rows = 0
	}
	return o.w.Append(part, key, payload)
}

func (o *runWriter) flush() {
	_, _ = o.hash.Write(o.buf) // never fails
	if o.buf = o.buf[:0]; cap(o.buf) > 1<<20 {
		o.buf = nil
	}
}

// end ends a part.
func (o *runWriter) end(part int, scale []uint8) {
	o.buf = append(o.buf, scale...)
	o.flush()
	o.parts[part].Digest = o.hash.Sum64()
	o.hash.Reset()
}

// folded writes the keys of a fold. It returns how many pairs came from runs, and adds
// up in check what the walker made of them.
func (o *runWriter) folded(ctx context.Context, f *fold.Drain, check []uint64) (read int64, err error) {
	ops := o.e.t.ops
	walker := f.Walker()
	var payload []byte
	for part := range o.parts {
		m := &o.parts[part]
		m.Check, m.SumAbs = make([]uint64, len(ops)), make([][2]uint64, len(ops))
		for rng := range f.Ranges(part) {
			err := walker.Each(ctx, part, rng, func(key []byte, lanes, carry []int64) error {
				h := o.e.seed.HashBytes(key)
				for i, op := range ops {
					if op == fold.Sum {
						m.Check[i] += uint64(lanes[i]) * h
						addAbs(&m.SumAbs[i], lanes[i], carryAt(carry, i))
					}
				}
				payload = fold.AppendValue(payload[:0], lanes, carry)
				return o.add(part, key, payload)
			})
			if err != nil {
				return 0, err
			}
		}
		o.end(part, f.Scale())
	}
	copy(check, walker.Check())
	return walker.Pairs(), nil
}

func carryAt(carry []int64, i int) int64 {
	if carry == nil {
		return 0
	}
	return carry[i]
}

// addAbs adds |v + carry x 2^64| to a sum of two words, the upper one first, which
// stays at the largest value when it is reached.
func addAbs(sum *[2]uint64, v, carry int64) {
	hi, lo := uint64(carry+v>>63), uint64(v)
	if int64(hi) < 0 {
		var borrow uint64
		lo, borrow = bits.Sub64(0, lo, 0)
		hi, _ = bits.Sub64(0, hi, borrow)
	}
	var c uint64
	sum[1], c = bits.Add64(sum[1], lo, 0)
	if sum[0], c = bits.Add64(sum[0], hi, c); c != 0 {
		sum[0], sum[1] = ^uint64(0), ^uint64(0)
	}
}

// grouped writes the pairs of a grouped job, combined if it has a combiner. It returns
// how many there were before.
func (o *runWriter) grouped(ctx context.Context, g *group.Drain, combine func(key []byte, values spill.Cursor, add func([]byte)) error) (read int64, err error) {
	for part := range o.parts {
		for rng := range g.Ranges(part) {
			n, err := o.groups(ctx, part, g.Cursor(part, rng), combine)
			if err != nil {
				return 0, err
			}
			read += n
		}
		o.end(part, nil)
	}
	return read, nil
}

// groups writes the pairs of a cursor, and closes it.
func (o *runWriter) groups(ctx context.Context, part int, cur spill.Cursor, combine func(key []byte, values spill.Cursor, add func([]byte)) error) (read int64, err error) {
	defer cur.Close()
	v := &groupValues{cur: cur}
	var out [][]byte
	for more := v.advance(); more; {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if combine == nil {
			if err := o.add(part, cur.Key(), cur.Payload()); err != nil {
				return 0, err
			}
			more = v.advance()
			continue
		}
		v.begin()
		if !v.several() { // there is nothing to combine
			if err := o.add(part, v.key, v.first); err != nil {
				return 0, err
			}
			more = !v.done
			continue
		}
		out = out[:0]
		if err := combine(v.key, v, func(p []byte) { out = append(out, bytes.Clone(p)) }); err != nil {
			return 0, err
		}
		for v.Next() { // what it left
		}
		slices.SortFunc(out, bytes.Compare)
		for _, p := range out {
			if err := o.add(part, v.key, p); err != nil {
				return 0, err
			}
		}
		more = !v.done
	}
	return v.read, cur.Err()
}

// groupValues is a cursor over the pairs of one key at a time of another cursor.
type groupValues struct {
	cur   spill.Cursor
	key   []byte
	first []byte // its first payload: looking for a second one may end the other's memory
	state uint8
	ended bool // the other cursor has left the key
	done  bool // and is at its end
	read  int64
}

const (
	beforeFirst = iota
	atFirst
	behind
)

// advance moves the cursor beneath.
func (v *groupValues) advance() bool {
	v.done = !v.cur.Next()
	if !v.done {
		v.read++
	}
	return !v.done
}

// begin begins with the key at which the cursor beneath stands.
func (v *groupValues) begin() {
	v.key = append(v.key[:0], v.cur.Key()...)
	v.first = append(v.first[:0], v.cur.Payload()...)
	v.state, v.ended = beforeFirst, false
}

// several says whether the key has more than one pair. It is called before Next.
func (v *groupValues) several() bool {
	v.ended = !v.advance() || !bytes.Equal(v.cur.Key(), v.key)
	return !v.ended
}

func (v *groupValues) Next() bool {
	switch v.state {
	case beforeFirst:
		v.state = atFirst
		return true
	case atFirst: // the cursor beneath stands at the second pair already
		v.state = behind
		return !v.ended
	}
	if v.ended {
		return false
	}
	v.ended = !v.advance() || !bytes.Equal(v.cur.Key(), v.key)
	return !v.ended
}

func (v *groupValues) Key() []byte {
	if v.state != behind {
		return v.key
	}
	if v.done {
		return nil
	}
	return v.cur.Key()
}

func (v *groupValues) Payload() []byte {
	if v.state != behind {
		return v.first
	}
	return v.cur.Payload()
}

func (v *groupValues) Err() error { return v.cur.Err() }
func (v *groupValues) Close()     {}
