// SPDX-License-Identifier: Apache-2.0

package fold

import (
	"context"
	"fmt"
	"slices"

	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/spill"
)

// RunOptions say how runs of folded pairs are written: each key once, so
// payloads need no order.
var RunOptions = spill.Options{ByKey: true}

// WriteRun folds what the combiner holds, sorts it by part and key and writes
// it as a run. The combiner is to be Reset afterwards. It returns how many
// records were folded, and offers every distinct key to sample if that is not nil.
func (c *Combiner) WriteRun(path string, sample *pairs.BottomK) (run Run, folded int64, err error) {
	w, err := spill.Create(path, RunOptions)
	if err != nil {
		return Run{}, 0, err
	}
	defer func() {
		if err != nil {
			w.Abort()
		}
	}()
	d := &Drain{cfg: c.cfg}
	f := newFolder(c.cfg)
	lanes := len(c.cfg.Ops)
	sorter := pairs.NewSorter(c.cfg.Arena, pairs.Layout{Lanes: lanes})
	one := []*Combiner{c}
	var ranges [][]pairs.Entry
	var payload []byte
	carry := make([]int64, lanes)
	perPart := c.Records() / int64(c.cfg.Partitions)
	splitters := pairs.Splitters{}
	if n := int(perPart / rangeRecords); n > 1 {
		splitters = pairs.ChooseSplitters(d.sample(one), min(n, 1<<10))
	}
	ranges = make([][]pairs.Entry, splitters.Len())
	for part := range c.cfg.Partitions {
		for b := part * c.cfg.SubBuckets; b < (part+1)*c.cfg.SubBuckets; b++ {
			for _, r := range f.fold(one, b) {
				key := c.cfg.Arena.Rec(r).Key()
				i := splitters.Range(key)
				ranges[i] = append(ranges[i], sorter.Entry(r))
				if sample != nil {
					sample.Add(d.group(key))
				}
			}
		}
		for i := range ranges {
			sorter.Sort(ranges[i])
			for _, e := range ranges[i] {
				rec := c.cfg.Arena.Rec(e.Ref())
				var cr []int64
				if len(f.carries) > 0 {
					for l := range carry {
						if carry[l] = f.carries[uint64(e.Ref())*MaxLanes+uint64(l)]; carry[l] != 0 {
							cr = carry
						}
					}
				}
				payload = appendLanes(payload[:0], rec.Lanes(lanes), cr)
				if err := w.Append(part, rec.Key(), payload); err != nil {
					return Run{}, 0, err
				}
			}
			ranges[i] = ranges[i][:0]
		}
	}
	r, err := w.Close()
	if err != nil {
		return Run{}, 0, err
	}
	return Run{Run: r, Scale: slices.Clone(c.scale)}, f.folded, nil
}

// planRuns cuts every part into ranges by the first keys of the runs' blocks.
func (d *Drain) planRuns() {
	d.borders = make([][][]byte, d.cfg.Partitions)
	var bytesOnDisk int64
	for _, r := range d.runs {
		bytesOnDisk += r.Bytes()
	}
	for part := range d.borders {
		var keys [][]byte
		for _, r := range d.runs {
			for _, k := range r.FirstKeys(part) {
				if len(k) >= d.cfg.Suffix {
					keys = append(keys, d.group(k))
				}
			}
		}
		d.borders[part] = pairs.Borders(keys, int(bytesOnDisk/int64(d.cfg.Partitions)/d.rangeBytes))
	}
}

// eachMerged merges a range of all runs.
func (w *Walker) eachMerged(ctx context.Context, part, rng int, fn func(key []byte, lanes, carry []int64) error) (err error) {
	d := w.d
	lo, hi := pairs.Between(d.borders[part], rng)
	cursors := make([]spill.Cursor, len(d.runs))
	for i, r := range d.runs {
		cursors[i] = r.Cursor(part, lo, hi)
		if !d.sameScale(r.Scale) {
			cursors[i] = &scaled{Cursor: cursors[i], ops: d.cfg.Ops, from: r.Scale, to: d.scale}
		}
	}
	m := spill.NewKeyMerger(cursors)
	defer m.Close()
	lanes := len(d.cfg.Ops)
	sum, carry := make([]int64, lanes), make([]int64, lanes)
	v, vc := make([]int64, lanes), make([]int64, lanes)
	open := false
	flush := func() error {
		if !open {
			return nil
		}
		d.sum(w.check, w.key, sum)
		var c []int64
		for _, n := range carry {
			if n != 0 {
				c = carry
			}
		}
		return fn(w.key, sum, c)
	}
	for n := 0; m.Next(); n++ {
		if n&0xfff == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		w.pairs++
		has, err := decodeLanes(m.Payload(), v, vc)
		if err != nil {
			return err
		}
		if open && m.SameKey() {
			for i, op := range d.cfg.Ops {
				a, b := sum[i], v[i]
				s := op.Apply(a, b)
				sum[i] = s
				if op == Sum && (a^s)&(b^s) < 0 {
					carry[i] += carryOf(b)
				}
				if has {
					carry[i] += vc[i]
				}
			}
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		open = true
		w.key = append(w.key[:0], m.Key()...)
		copy(sum, v)
		clear(carry)
		if has {
			copy(carry, vc)
		}
	}
	if err := m.Err(); err != nil {
		return fmt.Errorf("merge runs: %w", err)
	}
	return flush()
}

// CursorAt returns a cursor over the pairs of a part with lo <= key < hi (see
// [spill.Run.Cursor]) whose values have at least the digits after the point that
// scale says. It is an error if the run has more in a lane.
func (r Run) CursorAt(ops []Op, scale []uint8, part int, lo, hi []byte) (spill.Cursor, error) {
	if scale != nil && len(scale) != len(ops) || r.Scale != nil && len(r.Scale) != len(ops) {
		return nil, fmt.Errorf("scales %v of a run and %v for %d lanes", r.Scale, scale, len(ops))
	}
	same := true
	for i := range ops {
		from, to := at8(r.Scale, i), at8(scale, i)
		if from > to || to > MaxScale {
			return nil, fmt.Errorf("lane %d has %d digits after the point and cannot be brought to %d", i, from, to)
		}
		same = same && from == to
	}
	c := r.Cursor(part, lo, hi)
	if same {
		return c, nil
	}
	return &scaled{Cursor: c, ops: ops, from: r.Scale, to: scale}, nil
}

// at8 returns the scale of a lane, 0 if none was set.
func at8(scale []uint8, lane int) uint8 {
	if lane < len(scale) {
		return scale[lane]
	}
	return 0
}

// scaled brings the lanes of a run to another scale.
type scaled struct {
	spill.Cursor
	ops     []Op
	from    []uint8
	to      []uint8
	payload []byte
	lanes   []int64
	carry   []int64
	err     error
}

// sameScale says whether lanes at scale from need no change.
func (d *Drain) sameScale(from []uint8) bool {
	for i, n := range d.scale {
		if from == nil && n > 0 || from != nil && from[i] != n {
			return false
		}
	}
	return true
}

func (s *scaled) Next() bool {
	if s.err != nil || !s.Cursor.Next() {
		return false
	}
	if s.lanes == nil {
		n := len(s.ops)
		s.lanes, s.carry = make([]int64, n), make([]int64, n)
	}
	clear(s.carry)
	if _, s.err = decodeLanes(s.Cursor.Payload(), s.lanes, s.carry); s.err != nil {
		return false
	}
	for i, op := range s.ops {
		s.lanes[i], s.carry[i], s.err = scaleUp(op, s.lanes[i], s.carry[i], pow10[at8(s.to, i)-at8(s.from, i)])
		if s.err != nil {
			s.err = fmt.Errorf("key %q: %w", s.Cursor.Key(), s.err)
			return false
		}
	}
	var carry []int64
	for _, c := range s.carry {
		if c != 0 {
			carry = s.carry
		}
	}
	s.payload = appendLanes(s.payload[:0], s.lanes, carry)
	return true
}

func (s *scaled) Payload() []byte { return s.payload }

func (s *scaled) Err() error {
	if s.err != nil {
		return s.err
	}
	return s.Cursor.Err()
}
