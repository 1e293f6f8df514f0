// SPDX-License-Identifier: Apache-2.0

package master

import (
	"fmt"
	"math"
	"math/big"
	"math/bits"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/journal"
	"github.com/quernmr/quern/master/schedule"
)

// opSum is fold.Sum as plans name it: the one operation whose values have a balance.
const opSum = 0

// maxScale is the largest number of decimals that a lane can have: 10^19 fits
// 64 bits unsigned, and no lane can use more.
const maxScale = 19

// classes are those of Manifest.Keys.
const classes = 5

// ledger adds up what the map tasks of a job have for each partition of the
// shuffle. Sums are kept at the largest scale seen; that is exact, since bringing a
// lane from scale s to S multiplies by 10^(S-s), mod 2^64 for checks.
type ledger struct {
	maps, parts int // parts of the shuffle
	ops         []uint8
	scale       []uint8 // nil: no lane has decimals
	done        int     // maps that have a result
	outputs     []output
	// By partition, then map task. A result has millions of these at most, and reduce attempts need a row.
	pairs   []int64
	digests []uint64
	sums    []partSum
	totals  totals
	counts  map[string]int64 // the user's counters
}

// output says who has a map task's output.
type output struct {
	attempt schedule.Attempt
	worker  string
	done    bool
	moved   bool // another attempt had it before
	totals  totals
}

// partSum is what all map tasks have for a partition.
type partSum struct {
	pairs   int64
	check   []uint64   // per lane, mod 2^64
	abs     []*big.Int // per lane; nil entries are 0
	noAbs   int        // results that have pairs and no sums of absolute values
	keys    [classes]uint64
	maxKeys [classes]uint64 // of one map task
}

// totals add up over map tasks.
type totals struct {
	emitted, combined, records, bytes, spills, spilled, skipped, cut int64
}

func (t *totals) add(o totals, sign int64) {
	t.emitted += sign * o.emitted
	t.combined += sign * o.combined
	t.records += sign * o.records
	t.bytes += sign * o.bytes
	t.spills += sign * o.spills
	t.spilled += sign * o.spilled
	t.skipped += sign * o.skipped
	t.cut += sign * o.cut
}

func totalsOf(r *task.MapResult) totals {
	t := totals{
		emitted: r.Emitted, records: r.Records, bytes: r.Bytes,
		spills: r.Spills, spilled: r.Spilled, skipped: r.Skipped, cut: r.Cut,
	}
	for i := range r.Parts {
		t.combined += r.Parts[i].Pairs
	}
	return t
}

func newLedger(maps, parts int, ops []uint8) *ledger {
	l := &ledger{
		maps: maps, parts: parts, ops: ops, outputs: make([]output, maps), counts: map[string]int64{},
		pairs: make([]int64, maps*parts), digests: make([]uint64, maps*parts), sums: make([]partSum, parts),
	}
	for i := range l.sums {
		l.sums[i].check = make([]uint64, len(ops))
		l.sums[i].abs = make([]*big.Int, len(ops))
	}
	return l
}

// check says what is wrong with a map result, before it is taken.
func (l *ledger) check(r *task.MapResult) error {
	if len(r.Parts) != l.parts {
		return fmt.Errorf("a map result with %d partitions in a job of %d", len(r.Parts), l.parts)
	}
	if err := checkScale(r.Scale, len(l.ops)); err != nil {
		return err
	}
	if r.Emitted < 0 || r.Records < 0 || r.Bytes < 0 || r.Spills < 0 || r.Spilled < 0 || r.Skipped < 0 || r.Cut < 0 {
		return fmt.Errorf("a map result with negative counts")
	}
	for i := range r.Parts {
		p := &r.Parts[i]
		if p.Pairs < 0 || p.Bytes < 0 || p.Pairs > math.MaxInt64/int64(max(l.maps, 1)) {
			return fmt.Errorf("a map result with %d pairs in %d bytes for partition %d", p.Pairs, p.Bytes, i)
		}
		if n := len(p.Check); n != 0 && n != len(l.ops) {
			return fmt.Errorf("a map result with %d checks for partition %d in a job of %d lanes", n, i, len(l.ops))
		}
		if n := len(p.SumAbs); n != 0 && n != len(l.ops) {
			return fmt.Errorf("a map result with %d sums for partition %d in a job of %d lanes", n, i, len(l.ops))
		}
	}
	return nil
}

func checkScale(scale []uint8, lanes int) error {
	if n := len(scale); n != 0 && n != lanes {
		return fmt.Errorf("a result with decimals for %d lanes in a job of %d", n, lanes)
	}
	for _, s := range scale {
		if s > maxScale {
			return fmt.Errorf("a result with %d decimals; %d are possible", s, maxScale)
		}
	}
	return nil
}

// digest is what a manifest has for the scheduler: 0 if there is nothing.
func digest(m *task.Manifest) uint64 {
	switch {
	case m.Pairs == 0:
		return 0
	case m.Digest == 0:
		return 1
	}
	return m.Digest
}

// add takes a result; the task must have none.
func (l *ledger) add(m *journal.Map) {
	n := int(m.Attempt.Task)
	r := &m.Result
	l.raise(r.Scale)
	factors := l.factors(r.Scale)
	for p := range r.Parts {
		c := &r.Parts[p]
		l.pairs[p*l.maps+n] = c.Pairs
		l.digests[p*l.maps+n] = digest(c)
		l.sums[p].add(c, factors, 1)
	}
	o := output{attempt: m.Attempt, worker: m.Worker, done: true, moved: m.Moved, totals: totalsOf(r)}
	l.outputs[n] = o
	l.totals.add(o.totals, 1)
	for name, c := range r.Counters {
		l.counts[name] += c
	}
	l.done++
}

// remove takes a result out again. It must be the one that was added.
func (l *ledger) remove(m *journal.Map) {
	n := int(m.Attempt.Task)
	factors := l.factors(m.Result.Scale)
	for p := range m.Result.Parts {
		l.pairs[p*l.maps+n] = 0
		l.digests[p*l.maps+n] = 0
		l.sums[p].add(&m.Result.Parts[p], factors, -1)
	}
	l.totals.add(l.outputs[n].totals, -1)
	for name, c := range m.Result.Counters {
		l.counts[name] -= c
	}
	l.outputs[n] = output{}
	l.done--
}

func (s *partSum) add(c *task.Manifest, factors []uint64, sign int) {
	for l, v := range c.Check {
		v *= factors[l]
		if sign < 0 {
			v = -v
		}
		s.check[l] += v
	}
	if len(c.SumAbs) == 0 && c.Pairs > 0 {
		s.noAbs += sign
	}
	for l, v := range c.SumAbs {
		if v == [2]uint64{} {
			continue
		}
		w := words(v)
		w.Mul(w, new(big.Int).SetUint64(factors[l]))
		if s.abs[l] == nil {
			s.abs[l] = new(big.Int)
		}
		if sign < 0 {
			s.abs[l].Sub(s.abs[l], w)
		} else {
			s.abs[l].Add(s.abs[l], w)
		}
	}
	s.pairs += int64(sign) * c.Pairs
	for k, n := range c.Keys {
		if sign < 0 {
			s.keys[k] -= n
			continue // the largest one stays: it serves an estimate
		}
		s.keys[k] += n
		s.maxKeys[k] = max(s.maxKeys[k], n)
	}
}

func words(v [2]uint64) *big.Int {
	w := new(big.Int).SetUint64(v[0])
	return w.Lsh(w, 64).Or(w, new(big.Int).SetUint64(v[1]))
}

// raise brings all sums to a scale that is nowhere below another one.
func (l *ledger) raise(scale []uint8) {
	for lane, s := range scale {
		if s == 0 || l.scale != nil && s <= l.scale[lane] {
			continue
		}
		if l.scale == nil {
			l.scale = make([]uint8, len(l.ops))
		}
		f := pow10(s - l.scale[lane])
		l.scale[lane] = s
		for p := range l.sums {
			l.sums[p].check[lane] *= f
			if abs := l.sums[p].abs[lane]; abs != nil {
				abs.Mul(abs, new(big.Int).SetUint64(f))
			}
		}
	}
}

// factors are what values at a scale are multiplied with to be at the ledger's.
func (l *ledger) factors(scale []uint8) []uint64 {
	f := make([]uint64, len(l.ops))
	for lane := range f {
		have, want := uint8(0), uint8(0)
		if len(scale) > 0 {
			have = scale[lane]
		}
		if l.scale != nil {
			want = l.scale[lane]
		}
		f[lane] = pow10(want - min(want, have))
	}
	return f
}

func pow10(n uint8) uint64 {
	f := uint64(1)
	for range n {
		f *= 10
	}
	return f
}

// bound says per lane whether the sum of all absolute values is below 2^63.
func (s *partSum) bound(ops []uint8) []bool {
	b := make([]bool, len(ops))
	if s.noAbs != 0 {
		return b
	}
	for l, op := range ops {
		b[l] = op == opSum && (s.abs[l] == nil || s.abs[l].BitLen() <= 63)
	}
	return b
}

// wide says whether a sum may be beyond 64 bits. Such a one travels in several pieces, each
// of which is folded as a pair.
func (s *partSum) wide(ops []uint8) bool {
	for lane, b := range s.bound(ops) {
		if !b && ops[lane] == opSum {
			return true
		}
	}
	return false
}

// estimate guesses the distinct keys per class. They are at least as many as the map
// task has that has most, and at most as many as all have together; between the two,
// the geometric mean is wrong by the same factor either way.
func (s *partSum) estimate() []uint64 {
	e := make([]uint64, classes)
	for k := range e {
		e[k] = min(uint64(math.Sqrt(float64(s.keys[k])*float64(s.maxKeys[k]))), s.keys[k])
	}
	return e
}

// locator says who has a map task's output, and where; "" if nobody has at present.
type locator func(task int) (worker, address string)

// input is what a reduce attempt of a partition of the shuffle needs to know.
func (l *ledger) input(p int, locate locator) *api.ReduceInput {
	s := &l.sums[p]
	in := &api.ReduceInput{
		Pairs: s.pairs, NoKeys: l.totals.combined == 0, Bound: s.bound(l.ops), Keys: s.estimate(),
		Check: append([]uint64(nil), s.check...), Scale: append([]byte(nil), l.scale...),
	}
	row := l.pairs[p*l.maps : (p+1)*l.maps]
	n := 0
	for _, pairs := range row {
		if pairs > 0 {
			n++
		}
	}
	in.Outputs = make([]*api.MapOutput, 0, n)
	for t, pairs := range row {
		if pairs > 0 {
			in.Outputs = append(in.Outputs, l.mapOutput(p, t, locate))
		}
	}
	return in
}

// mapOutput says where a map task's output is.
func (l *ledger) mapOutput(p, t int, locate locator) *api.MapOutput {
	o := &l.outputs[t]
	worker, address := locate(t)
	return &api.MapOutput{
		Task: uint32(t), Attempt: toAPI(o.attempt), Worker: worker, Address: address,
		Pairs: l.pairs[p*l.maps+t], Digest: l.digests[p*l.maps+t],
	}
}

// folded is what reduce attempts of a partition of the shuffle took in.
type folded struct {
	pairs int64
	check []uint64 // at the ledger's scale
}

// add counts a reduce result in.
func (f *folded) add(l *ledger, r *journal.Reduce) {
	f.pairs += r.Kernel + r.User + r.Pulled
	if f.check == nil {
		f.check = make([]uint64, len(l.ops))
	}
	factors := l.factors(r.Scale)
	for lane, v := range r.Result.Check {
		if lane < len(f.check) {
			f.check[lane] += v * factors[lane]
		}
	}
}

// balance compares what was folded of a partition with what the map tasks have.
func (l *ledger) balance(p int, f *folded) error {
	s := &l.sums[p]
	if f.pairs != s.pairs && !(f.pairs > s.pairs && s.wide(l.ops)) {
		return fmt.Errorf("audit failed: partition %d has %d pairs of the map tasks, and %d were folded", p, s.pairs, f.pairs)
	}
	for lane, op := range l.ops {
		if op != opSum {
			continue
		}
		var got uint64
		if f.check != nil {
			got = f.check[lane]
		}
		if got != s.check[lane] {
			return fmt.Errorf("audit failed: partition %d, lane %d: the check of values is %#x in the map tasks, and %#x in the output", p, lane, s.check[lane], got)
		}
	}
	return nil
}

// checkSum adds the checks of all partitions and lanes, as the local engine's audit does.
func (l *ledger) checkSum() (sum uint64) {
	for p := range l.sums {
		for _, c := range l.sums[p].check {
			sum += c
		}
	}
	return sum
}

// mulFits says whether a x b is at most limit.
func mulFits(a, b int, limit uint64) bool {
	hi, lo := bits.Mul64(uint64(max(a, 0)), uint64(max(b, 0)))
	return hi == 0 && lo <= limit
}
