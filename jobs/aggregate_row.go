// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"errors"
	"math/bits"

	"github.com/quernmr/quern/mapreduce/rows"
)

// An aggregateRow turns the fields of a row into lanes, for one goroutine.
type aggregateRow struct {
	plan  *aggregatePlan
	lanes []int64 // of the row last taken
	scale []uint8 // per field: digits after the point in its lanes
	// setScale tells the fold that values of a lane have more digits after the
	// point from now on.
	setScale func(lane int, scale uint8)

	skipped int64 // blank fields

	// What takeQuick needs, for plans with one column of exact numbers.
	quick  bool
	column int
	values []int // its lanes but that of the count
	count  int   // lane of the count
	most   int   // lane of the largest magnitude; -1: none
}

func (p *aggregatePlan) newRow(setScale func(lane int, scale uint8)) *aggregateRow {
	r := &aggregateRow{plan: p, lanes: make([]int64, len(p.ops)), scale: make([]uint8, len(p.fields)), setScale: setScale}
	for lane, op := range p.ops {
		r.lanes[lane] = op.Identity()
	}
	if p.countLane >= 0 {
		r.lanes[p.countLane] = 1
	}
	if p.decimals > 0 {
		for i := range p.fields {
			r.raiseScale(i, uint8(p.decimals))
		}
	}
	if len(p.fields) == 1 && p.decimals < 0 {
		f := &p.fields[0]
		r.quick, r.column, r.count, r.most = true, f.column, f.n, f.most
		for _, lane := range [...]int{f.sum, f.min, f.max} {
			if lane >= 0 {
				r.values = append(r.values, lane)
			}
		}
	}
	return r
}

// takeQuick is take for the usual case: one column of numbers, which have as
// many digits after the point as those before. It is false if there is more to
// do; take then does all of it.
func (r *aggregateRow) takeQuick(columns [][]byte) bool {
	if !r.quick {
		return false
	}
	v, scale, err := rows.ParseDecimal(columns[r.column])
	if err != nil || scale != r.scale[0] {
		return false
	}
	lanes := r.lanes
	lanes[r.count] = 1
	for _, lane := range r.values {
		lanes[lane] = v
	}
	if r.most >= 0 {
		lanes[r.most] = magnitude(v)
	}
	return true
}

// take sets the lanes from the wanted columns of a row. If a field is at fault
// it returns its column's number.
func (r *aggregateRow) take(columns [][]byte) (column int, err error) {
	for i := range r.plan.fields {
		f := &r.plan.fields[i]
		text := columns[f.column]
		if isBlank(text) {
			if r.plan.refuseEmpty {
				return f.column, errBlank
			}
			r.skipped++
			r.noValue(f)
			continue
		}
		v, err := r.number(i, text)
		if err != nil {
			return f.column, err
		}
		r.lanes[f.n] = 1
		if f.sum >= 0 {
			r.lanes[f.sum] = v
		}
		if f.min >= 0 {
			r.lanes[f.min] = v
		}
		if f.max >= 0 {
			r.lanes[f.max] = v
		}
		if f.most >= 0 {
			r.lanes[f.most] = magnitude(v)
		}
	}
	return 0, nil
}

var errBlank = errors.New("is blank or null; with --empty skip such fields are left out")

// noValue sets the lanes of a field to what changes nothing.
func (r *aggregateRow) noValue(f *aggregateField) {
	for _, lane := range [...]int{f.n, f.sum, f.min, f.max, f.most} {
		if lane >= 0 {
			r.lanes[lane] = r.plan.ops[lane].Identity()
		}
	}
}

// errNoRoom is about numbers that have few digits after the point where others
// have many.
var errNoRoom = errors.New("out of range: with as many digits after the point as other values of this column have, it does not fit in 64 bits; round with --decimals N")

// number reads the value of field i at the scale of its lanes.
func (r *aggregateRow) number(i int, text []byte) (int64, error) {
	if r.plan.decimals >= 0 {
		return rows.RoundDecimal(text, r.plan.decimals)
	}
	v, scale, err := rows.ParseDecimal(text)
	if err != nil {
		return 0, err
	}
	if scale == r.scale[i] {
		return v, nil
	}
	// A number may be written with more zeros after the point than it needs.
	for scale > r.scale[i] && v%10 == 0 {
		v /= 10
		scale--
	}
	if scale > r.scale[i] {
		r.raiseScale(i, scale)
	}
	v, ok := timesTenTo(v, r.scale[i]-scale)
	if !ok {
		return 0, &rows.NumberError{Text: string(text), Err: errNoRoom}
	}
	return v, nil
}

func (r *aggregateRow) raiseScale(i int, scale uint8) {
	r.scale[i] = scale
	f := &r.plan.fields[i]
	for _, lane := range [...]int{f.sum, f.min, f.max, f.most} {
		if lane >= 0 {
			r.setScale(lane, scale)
		}
	}
}

// timesTenTo returns v times ten to the power of n; false if it does not fit.
func timesTenTo(v int64, n uint8) (int64, bool) {
	for range n {
		hi, lo := bits.Mul64(uint64(max(v, -v)), 10)
		if v == -1<<63 || hi != 0 || lo > 1<<63-1 {
			return 0, false
		}
		v *= 10
	}
	return v, true
}

// magnitude is the distance from 0, 2^63 - 1 for -2^63 too.
func magnitude(v int64) int64 {
	sign := v >> 63
	m := (v ^ sign) - sign
	return m + m>>63
}

func isBlank(b []byte) bool {
	for _, c := range b {
		if c != ' ' && c != '\t' {
			return false
		}
	}
	return true
}
