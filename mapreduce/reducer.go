// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/group"
	"github.com/quernmr/quern/shuffle/spill"
)

// rowFunc takes a row and its key as pairs have it, by which total order is cut.
type rowFunc func(key []byte, row *output.Row) error

// reducer turns ranges of a drain into rows. It belongs to one goroutine.
type reducer interface {
	// visit hands the rows of a range to row in order, or keeps them for top.
	visit(ctx context.Context, part, rng int, row rowFunc) error
	// state returns what was counted.
	state() *reduceState
	// top hands the first rows by rank, over all reducers of the job, to row.
	top(all []reducer, row rowFunc) error
	// empty hands the row of a job without keys to row.
	empty(row rowFunc) error
}

type reduceState struct {
	keys  int64 // given by the drain
	kept  int64 // rows left by Keep
	pairs int64 // read from runs
	check []uint64

	groupPairs int64 // pairs of grouped jobs
	sortedTop  int   // rows at the front of the ranking that are in order

	moved *atomic.Int64 // counts what is taken in, in steps of movedStep
}

// movedStep is how many keys or pairs are taken in before that is told.
const movedStep = 1 << 10

// key counts a key.
func (s *reduceState) key() {
	if s.keys++; s.keys%movedStep == 0 && s.moved != nil {
		s.moved.Add(movedStep)
	}
}

type typedReducer[K, V, R any] struct {
	p       *program[K, V, R]
	walker  *fold.Walker
	groups  *group.Drain
	scale   []uint8
	s       reduceState
	ranked  []ranked[R]
	row     output.Row
	simple  bool // rows are a string and an int64: the usual case, without the detour
	result  R    // the row in hand: a field, so that pointers to it cost no allocation
	key     K
	scratch []byte
	keyBuf  []byte
	subs    []subLanes
	subKey  []byte
}

// ranked is a row kept for Top.
type ranked[R any] struct {
	key    []byte
	result R
}

type subLanes struct {
	sub   uint32
	lanes []int64
	carry []int64
}

func (p *program[K, V, R]) newReducer(f *fold.Drain, g *group.Drain) reducer {
	r := &typedReducer[K, V, R]{p: p, groups: g}
	if p.key.kind == keyBytes && !p.job.HideKey && p.job.Repeat == nil && p.rows.isInt64() {
		r.simple = true
		r.row = output.Row{Keys: []output.Value{{Kind: output.Bytes}}, Values: []output.Value{{Kind: output.Int}}}
	}
	if f != nil {
		r.walker = f.Walker()
		r.scale = f.Scale()
	}
	return r
}

func (r *typedReducer[K, V, R]) state() *reduceState {
	if r.walker != nil {
		r.s.check, r.s.pairs = r.walker.Check(), r.walker.Pairs()
	}
	return &r.s
}

func (r *typedReducer[K, V, R]) visit(ctx context.Context, part, rng int, row rowFunc) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("reduce part %d: %w", part, caught(p))
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	switch {
	case r.groups != nil:
		return r.visitGroups(ctx, part, rng, row)
	case r.p.job.Fold.getSub != nil:
		return r.visitSubs(ctx, part, rng, row)
	}
	get := r.p.job.Fold.get
	return r.walker.Each(ctx, part, rng, func(key []byte, lanes, carry []int64) error {
		res, err := get(Lanes{V: lanes, Carry: carry, Scale: r.scale})
		if err != nil {
			return r.keyError(key, err)
		}
		r.s.key()
		return r.emit(key, res, row)
	})
}

func (r *typedReducer[K, V, R]) keyError(key []byte, err error) error {
	var k K
	if r.p.key.decode(key, unsafe.Pointer(&k)) != nil {
		return fmt.Errorf("key %q: %w", key, err)
	}
	return fmt.Errorf("key %s: %w", r.p.keyText(k), err)
}

// emit filters a row and hands it on.
func (r *typedReducer[K, V, R]) emit(key []byte, res R, row rowFunc) error {
	j := r.p.job
	if j.Keep != nil {
		var zero K
		r.key = zero
		if err := r.p.key.decode(key, unsafe.Pointer(&r.key)); err != nil {
			return err
		}
		if !j.Keep(r.key, res) {
			return nil
		}
	}
	r.s.kept++
	if j.CountKeys {
		return nil
	}
	if j.Top > 0 {
		r.rank(key, res)
		return nil
	}
	return r.write(key, res, row)
}

func (r *typedReducer[K, V, R]) write(key []byte, res R, row rowFunc) error {
	if r.p.collect != nil {
		if err := r.p.collect(key, res); err != nil {
			return err
		}
	}
	if r.simple {
		r.result = res
		r.row.Keys[0].B, r.row.Values[0].I = key, *(*int64)(unsafe.Pointer(&r.result))
		return row(key, &r.row)
	}
	var err error
	r.row.Keys, r.row.Values = r.row.Keys[:0], r.row.Values[:0]
	if !r.p.job.HideKey {
		if r.row.Keys, err = r.p.key.values(r.row.Keys, key, &r.scratch); err != nil {
			return err
		}
	}
	r.result = res
	if r.row.Values, err = r.p.rows.values(r.row.Values, unsafe.Pointer(&r.result)); err != nil {
		return err
	}
	if r.p.job.Repeat == nil {
		return row(key, &r.row)
	}
	var k K
	if err := r.p.key.decode(key, unsafe.Pointer(&k)); err != nil {
		return err
	}
	for range r.p.job.Repeat(k, res) {
		if err := row(key, &r.row); err != nil {
			return err
		}
	}
	return nil
}

// rank keeps a row if it may be among the first Top ones.
func (r *typedReducer[K, V, R]) rank(key []byte, res R) {
	top := r.p.job.Top
	if r.worse(key, res) {
		return
	}
	r.ranked = append(r.ranked, ranked[R]{bytes.Clone(key), res})
	// Sorting when twice as many are there makes the cost of a row constant
	// but for the logarithm.
	if len(r.ranked) >= 2*top+64 {
		r.shrink(top)
	}
}

// worse says that a row can't be among the first, as the list begins with Top
// rows that are all better.
func (r *typedReducer[K, V, R]) worse(key []byte, res R) bool {
	top := r.p.job.Top
	if r.s.sortedTop < top {
		return false
	}
	x := &r.ranked[top-1]
	if c := r.p.job.Rank(res, x.result); c != 0 {
		return c > 0
	}
	return bytes.Compare(key, x.key) > 0
}

func (r *typedReducer[K, V, R]) shrink(top int) {
	slices.SortFunc(r.ranked, func(a, b ranked[R]) int {
		return cmp.Or(r.p.job.Rank(a.result, b.result), bytes.Compare(a.key, b.key))
	})
	if len(r.ranked) > top {
		clear(r.ranked[top:])
		r.ranked = r.ranked[:top]
	}
	r.s.sortedTop = len(r.ranked)
}

func (r *typedReducer[K, V, R]) top(all []reducer, row rowFunc) error {
	for _, o := range all {
		if o := o.(*typedReducer[K, V, R]); o != r {
			r.ranked = append(r.ranked, o.ranked...)
			o.ranked = nil
		}
	}
	r.shrink(r.p.job.Top)
	for _, x := range r.ranked {
		if err := r.write(x.key, x.result, row); err != nil {
			return err
		}
	}
	return nil
}

func (r *typedReducer[K, V, R]) empty(row rowFunc) error {
	if r.p.job.Empty == nil {
		return nil
	}
	res, ok := r.p.job.Empty()
	if !ok {
		return nil
	}
	var k K
	return r.write(r.p.key.append(nil, unsafe.Pointer(&k)), res, row)
}

// visitSubs gathers the parts of each key.
func (r *typedReducer[K, V, R]) visitSubs(ctx context.Context, part, rng int, row rowFunc) error {
	r.subs, r.subKey = r.subs[:0], r.subKey[:0]
	// Pairs and the sample of a total order have the escaped key.
	escaped := func(_ []byte, to *output.Row) error { return row(r.subKey, to) }
	flush := func() error {
		if len(r.subs) == 0 {
			return nil
		}
		var err error
		if r.keyBuf, _, err = unescape(r.keyBuf[:0], r.subKey); err != nil {
			return err
		}
		res, err := r.p.job.Fold.getSub(func(yield func(uint32, Lanes) bool) {
			for _, s := range r.subs {
				if !yield(s.sub, Lanes{V: s.lanes, Carry: s.carry, Scale: r.scale}) {
					return
				}
			}
		})
		r.subs = r.subs[:0]
		if err != nil {
			return r.keyError(r.keyBuf, err)
		}
		r.s.key()
		return r.emit(r.keyBuf, res, escaped)
	}
	err := r.walker.Each(ctx, part, rng, func(key []byte, lanes, carry []int64) error {
		if len(key) < subSuffix {
			return errKey
		}
		group := key[:len(key)-subSuffix]
		if !bytes.Equal(group, r.subKey) {
			if err := flush(); err != nil {
				return err
			}
			r.subKey = append(r.subKey[:0], group...)
		}
		// Reuse the memory of lanes of groups before.
		n := len(r.subs)
		if n < cap(r.subs) {
			r.subs = r.subs[:n+1]
		} else {
			r.subs = append(r.subs, subLanes{})
		}
		s := &r.subs[n]
		s.sub = binary.BigEndian.Uint32(key[len(group):])
		s.lanes = append(s.lanes[:0], lanes...)
		s.carry = nil
		if carry != nil {
			s.carry = slices.Clone(carry)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return flush()
}

// visitGroups calls the job's Reduce per key.
func (r *typedReducer[K, V, R]) visitGroups(ctx context.Context, part, rng int, row rowFunc) error {
	cur := r.groups.Cursor(part, rng)
	defer cur.Close()
	g := grouper[V]{ctx: ctx, cur: cur, decode: r.p.value.Decode, ordered: r.p.job.ValueOrder != nil, pairs: &r.s.groupPairs, moved: r.s.moved}
	// Results that outlive the range must not share memory with what comes after.
	keep := r.p.job.Top > 0 || r.p.collect != nil
	if keep {
		g.decode = func(b []byte) (V, error) { return r.p.value.Decode(bytes.Clone(b)) }
	}
	more := g.next()
	for more {
		if keep {
			g.key = nil
		}
		g.key = append(g.key[:0], cur.Key()...)
		var k K
		if err := r.p.key.decode(g.key, unsafe.Pointer(&k)); err != nil {
			return err
		}
		var failed error
		r.s.key()
		err := r.p.job.Reduce(k, g.values, func(res R) {
			if failed == nil {
				failed = r.emit(g.key, res, row)
			}
		})
		if err == nil {
			err = failed
		}
		if err == nil {
			err = g.err
		}
		if err != nil {
			return r.keyError(g.key, err)
		}
		if more, err = g.skip(); err != nil {
			return err
		}
	}
	if err := cur.Err(); err != nil {
		return fmt.Errorf("merge runs: %w", err)
	}
	return ctx.Err()
}

// grouper cuts a cursor into groups of equal keys.
type grouper[V any] struct {
	ctx     context.Context
	cur     spill.Cursor
	decode  func([]byte) (V, error)
	ordered bool
	key     []byte
	at      bool // the cursor stands on a pair of the group
	done    bool // the cursor is at its end
	pairs   *int64
	moved   *atomic.Int64 // as in reduceState; may be nil
	err     error
}

// next moves to the next pair, of whatever key.
func (g *grouper[V]) next() bool {
	g.at = g.cur.Next()
	g.done = !g.at
	if g.at {
		if *g.pairs++; *g.pairs%movedStep == 0 && g.moved != nil {
			g.moved.Add(movedStep)
		}
	}
	return g.at
}

// skip passes over what is left of the group and says whether another follows.
func (g *grouper[V]) skip() (bool, error) {
	for !g.done && bytes.Equal(g.cur.Key(), g.key) {
		if *g.pairs&0xffff == 0 && g.ctx.Err() != nil {
			return false, g.ctx.Err()
		}
		g.next()
	}
	return !g.done, nil
}

// values is the sequence that Reduce ranges over. Each pass goes on where the
// one before stopped.
func (g *grouper[V]) values(yield func(V) bool) {
	for !g.done && g.err == nil && bytes.Equal(g.cur.Key(), g.key) {
		if *g.pairs&0xffff == 0 && g.ctx.Err() != nil {
			g.err = g.ctx.Err()
			return
		}
		b := g.cur.Payload()
		if g.ordered {
			if b, g.err = skipOrder(b); g.err != nil {
				return
			}
		}
		v, err := g.decode(b)
		if err != nil {
			g.err = err
			return
		}
		more := yield(v)
		g.next()
		if !more {
			return
		}
	}
}

// skipOrder drops the bytes of ValueOrder in front of a value.
func skipOrder(b []byte) ([]byte, error) {
	for {
		i := bytes.IndexByte(b, escape)
		if i < 0 || i+1 >= len(b) {
			return nil, errValue
		}
		end := b[i+1] == terminator
		b = b[i+2:]
		if end {
			return b, nil
		}
	}
}

// combine makes the function that a collector shrinks groups with.
func (p *program[K, V, R]) combine() func(key []byte, values spill.Cursor, add func([]byte)) error {
	j := p.job
	if j.Combine == nil {
		return nil
	}
	return func(key []byte, cur spill.Cursor, add func([]byte)) (err error) {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("combine: %w", caught(r))
			}
		}()
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		var k K
		if err := p.key.decode(key, unsafe.Pointer(&k)); err != nil {
			return err
		}
		var n int64
		g := grouper[V]{ctx: context.Background(), cur: cur, decode: p.value.Decode, ordered: j.ValueOrder != nil, pairs: &n, key: key}
		g.next()
		var buf, order []byte
		err = j.Combine(k, iter.Seq[V](g.values), func(v V) {
			buf = buf[:0]
			if j.ValueOrder != nil {
				order = j.ValueOrder(order[:0], v)
				buf = appendEscaped(buf, order)
			}
			buf = p.value.Append(buf, v)
			add(buf)
		})
		if err == nil {
			err = g.err
		}
		return err
	}
}
