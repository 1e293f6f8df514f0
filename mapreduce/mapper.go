// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"bytes"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/group"
	"github.com/quernmr/quern/shuffle/pairs"
)

// mapper runs the user's map function over blocks. It belongs to one goroutine.
type mapper interface {
	block(b Block) error
	seen() (records int64, counters map[string]*Counter)
	// count has the mapper count records on the way, in steps. Nil: it does not.
	count(live *atomic.Int64)
	combiner() *fold.Combiner
	collector() *group.Collector
	sampleKeys(size int)
	sampled() *pairs.BottomK
}

// InputError is an error of a map function about a place in the input. The
// engine fills in the line.
type InputError struct {
	File   string
	Offset int64 // of the record in the (decompressed) file
	Line   int64 // 1-based; 0: unknown
	Err    error
}

func (e *InputError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
	}
	return fmt.Sprintf("%s: offset %d: %v", e.File, e.Offset, e.Err)
}

// Unwrap returns the cause.
func (e *InputError) Unwrap() error { return e.Err }

// PanicError is a panic in the code of a job.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("panic in the job's code: %v\n%s", e.Value, e.Stack)
}

// guard calls code of the job's and turns a panic into an error, also that of a write to a
// side input, which would end the process otherwise.
func guard(fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = caught(r)
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	return fn()
}

type typedMapper[K, V any] struct {
	emit   *Emitter[K, V]
	record func(rec Record, emit *Emitter[K, V]) error
	blocks func(b Block, emit *Emitter[K, V]) error
	delim  []byte
	at     int64 // offset of the record in hand
	live   *atomic.Int64
}

// liveStep is how many records a mapper counts at once while it maps a block.
const liveStep = 16

func (p *program[K, V, R]) newMapper(comb *fold.Combiner, coll *group.Collector, delim []byte) mapper {
	j := p.job
	e := &Emitter[K, V]{
		comb: comb, coll: coll,
		keyKind:  p.key.kind,
		key:      p.key,
		keyText:  p.keyText,
		put:      j.Fold.put,
		putSub:   j.Fold.putSub,
		putSome:  j.Fold.putSome,
		plain:    j.Fold.plain,
		direct:   j.Fold.direct,
		encode:   p.value.Append,
		order:    j.ValueOrder,
		lanes:    make([]int64, len(j.Fold.ops)),
		counters: map[string]*Counter{},
	}
	e.parts = Parts{Lanes: e.lanes, comb: comb, nonFinite: j.Fold.nonFinite, counter: e.Counter}
	e.parts.one = len(j.Fold.ops) == 1 && j.Fold.ops[0] == fold.Sum
	for _, op := range j.Fold.ops {
		e.parts.idle = append(e.parts.idle, op.Identity())
	}
	m := &typedMapper[K, V]{emit: e, delim: delim}
	switch {
	case j.NewBlockMap != nil:
		m.blocks = j.NewBlockMap()
	case j.NewMap != nil:
		m.record = j.NewMap()
	default:
		m.record = j.Map
	}
	if bytes.Equal(delim, []byte{'\n'}) {
		m.delim = nil
	}
	return m
}

func (m *typedMapper[K, V]) block(b Block) (err error) {
	m.at = b.Offset
	defer func() {
		if r := recover(); r != nil {
			err = atRecord(b.File.Path, m.at, caught(r))
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	if m.blocks != nil {
		if err = m.blocks(b, m.emit); err == nil && m.emit.parts.err != nil {
			err = fmt.Errorf("%s: in the block at offset %d: %w", b.File.Path, b.Offset, m.emit.parts.err)
		}
	} else {
		err = m.each(b)
	}
	if c := m.emit.comb; c != nil {
		c.Flush()
	}
	if err == nil {
		err = m.emit.err()
	}
	return err
}

func (m *typedMapper[K, V]) each(b Block) error {
	rec := Record{File: b.File.Path}
	if len(m.delim) > 0 {
		return input.EachLine(b.Data, m.delim, func(line []byte, off int) error {
			rec.Value, rec.Offset = line, b.Offset+int64(off)
			return m.one(rec)
		})
	}
	data, off := b.Data, b.Offset
	for len(data) > 0 {
		n := bytes.IndexByte(data, '\n')
		next := n + 1
		if n < 0 {
			n, next = len(data), len(data)
		} else if n > 0 && data[n-1] == '\r' {
			n--
		}
		rec.Value, rec.Offset = data[:n:n], off
		if err := m.one(rec); err != nil {
			return err
		}
		data = data[next:]
		off += int64(next)
	}
	return nil
}

func (m *typedMapper[K, V]) one(rec Record) error {
	m.at = rec.Offset
	m.emit.records++
	if m.live != nil && m.emit.records%liveStep == 0 {
		m.live.Add(liveStep)
	}
	if err := m.record(rec, m.emit); err != nil {
		return atRecord(rec.File, rec.Offset, err)
	}
	if err := m.emit.parts.err; err != nil {
		return atRecord(rec.File, rec.Offset, err)
	}
	return nil
}

// atRecord says at which record a map function failed. An error about a side input has nothing to
// do with the record at which it was met.
func atRecord(file string, offset int64, err error) error {
	if side := (*SideInputError)(nil); errors.As(err, &side) {
		return err
	}
	return &InputError{File: file, Offset: offset, Err: err}
}

func (m *typedMapper[K, V]) seen() (int64, map[string]*Counter) {
	return m.emit.records, m.emit.counters
}
func (m *typedMapper[K, V]) count(live *atomic.Int64)    { m.live = live }
func (m *typedMapper[K, V]) combiner() *fold.Combiner    { return m.emit.comb }
func (m *typedMapper[K, V]) collector() *group.Collector { return m.emit.coll }
