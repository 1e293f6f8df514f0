// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"fmt"
	"iter"
	"math"
	"math/big"
	"sync"
)

// FloatColumn says what FloatTable works out of a column. How many values there are is always counted.
type FloatColumn struct {
	Sum      bool // sum and mean
	Extremes bool // smallest and largest value
	Moments  bool // variance and standard deviation, which are always exact
}

// FloatRow is a row of floats, one a column.
type FloatRow struct {
	Values []float64
	Blank  []bool // columns without a value; nil: none
	// Sketches are texts, one for each sketch, whose number of different ones is estimated as by Distinct; nil: none.
	Sketches [][]byte
}

// FloatTotals is what is known of the rows of a key, until the function that it is handed to returns. What a
// column was not asked for is NaN.
type FloatTotals struct {
	Rows     int64
	asked    []FloatColumn
	columns  []floatTotal
	ranks    [][]int64
	step     *quantum // nil: exact
	measured bool     // beside exact sums
}

// floatTotal is that of a column.
type floatTotal struct {
	n                int64 // finite values
	nan, plus, minus int64
	least, most      int64 // in order
	sum, squares     exact
	multiples        *big.Int // of the quantum
}

// FloatTable makes a fold of rows of floats that works out many things of many columns in one pass, all the same
// to the last bit for any order and any cutting of the input: sums are exact and rounded once, as in Float64Sum. It has four
// lanes and so runs in the kernel; a value of a column takes a pair for its sum, one for all else, and two more for Moments; a 0 takes one.
// Values that are not finite are counted apart.
//
// quantum, if it is not 0, has sums and means add multiples of it, as Quantum does: a pair less for a value. With measure
// exact sums are kept too, so that Error tells what the quantum made. The fold says the bound to the user.
func FloatTable[R any](columns []FloatColumn, sketches int, quantum float64, measure bool, result func(t *FloatTotals) (R, error)) Fold[FloatRow, R] {
	t := &floatTable{columns: columns, sketches: sketches, exactly: quantum == 0 || measure}
	f := Fold[FloatRow, R]{ops: []Op{OpSum, OpSum, OpMax, OpMax}, putSub: t.put}
	if len(columns) > maxTableColumns || sketches > maxTableSketches {
		f.err = fmt.Errorf("fold FloatTable of %d columns and %d sketches: at most %d and %d are possible", len(columns), sketches, maxTableColumns, maxTableSketches)
	}
	if quantum != 0 {
		var o floatOptions
		Quantum(quantum).setFloat(&o)
		if o.err != nil {
			f.err = o.err
		}
		q := newQuantum(o.quantum)
		t.step = &q
		f.notes = q.notes(boundSum + ", " + boundMean)
	}
	pool := sync.Pool{New: func() any {
		return &FloatTotals{asked: columns, columns: make([]floatTotal, len(columns)), ranks: make([][]int64, sketches), step: t.step, measured: t.exactly}
	}}
	f.getSub = func(subs iter.Seq2[uint32, Lanes]) (R, error) {
		totals := pool.Get().(*FloatTotals)
		defer pool.Put(totals)
		if err := t.gather(totals, subs); err != nil {
			var none R
			return none, err
		}
		return result(totals)
	}
	return f
}

// Parts of a key: 0 counts rows that the first column does not, then come tableParts for each column, and registers of sketches.
const (
	tableStats    = 64  // what is no sum, behind the windows of sums
	tableInfinite = 65  // values that are NaN and +Inf
	tableNegative = 66  // values that are -Inf
	tableSquares  = 128 // two for every window of squares
	tableParts    = 512

	tableSketches    = 1 << 31
	maxTableColumns  = tableSketches/tableParts - 1
	maxTableSketches = 1 << 16
)

type floatTable struct {
	columns  []FloatColumn
	sketches int
	step     *quantum
	exactly  bool // keep exact sums
}

func (t *floatTable) put(p *Parts, row FloatRow) {
	if len(row.Values) != len(t.columns) || row.Blank != nil && len(row.Blank) != len(t.columns) || row.Sketches != nil && len(row.Sketches) != t.sketches {
		p.Fail(fmt.Errorf("%w: a row of %d values, %d blanks and %d sketches; it has %d columns and %d sketches", ErrVector, len(row.Values), len(row.Blank), len(row.Sketches), len(t.columns), t.sketches))
		return
	}
	lanes := (*[partLanes]int64)(p.Lanes)
	idle := OpMax.Identity()
	if len(t.columns) == 0 || row.Blank != nil && row.Blank[0] || row.Values[0]-row.Values[0] != 0 {
		*lanes = [partLanes]int64{1, 0, idle, idle}
		p.Put(0)
	}
	for i := range t.columns {
		if row.Blank != nil && row.Blank[i] {
			continue
		}
		c, v, base := &t.columns[i], row.Values[i], uint32(1+tableParts*i)
		if v-v != 0 {
			*lanes = [partLanes]int64{0, 0, idle, idle}
			switch {
			case v < 0:
				lanes[0] = 1
				p.Put(base + tableNegative)
			case v > 0:
				lanes[1] = 1
				p.Put(base + tableInfinite)
			default:
				lanes[0] = 1
				p.Put(base + tableInfinite)
			}
			continue
		}
		*lanes = [partLanes]int64{1, 0, idle, idle}
		if c.Extremes {
			lanes[2] = orderOf(v)
			lanes[3] = ^lanes[2]
		}
		if c.Sum && t.step != nil {
			k, ok := t.step.count(v)
			if !ok {
				p.Fail(fmt.Errorf("column %d: value %v: %w (%v)", i, v, ErrQuantum, t.step.q))
				return
			}
			lanes[1] = k
		}
		p.Put(base + tableStats)
		if v == 0 {
			continue
		}
		if c.Sum && t.exactly || c.Moments {
			window := put64(lanes[:2], v)
			lanes[2], lanes[3] = idle, idle
			p.Put(base + window)
		}
		if c.Moments {
			sub := base + tableSquares + 2*putProduct(lanes[:], v, v)
			high := [2]int64(lanes[2:])
			lanes[2], lanes[3] = idle, idle
			p.Put(sub)
			lanes[0], lanes[1] = high[0], high[1]
			p.Put(sub + 1)
		}
	}
	for i, text := range row.Sketches {
		if text == nil {
			continue
		}
		register, rank := DistinctRegister(text)
		*lanes = [partLanes]int64{0, 0, rank, idle}
		p.Put(tableSketches + uint32(i)<<distinctBits + register)
	}
}

// gather adds up the parts of a key.
func (t *floatTable) gather(totals *FloatTotals, subs iter.Seq2[uint32, Lanes]) error {
	totals.Rows = 0
	for i := range totals.columns {
		totals.columns[i] = floatTotal{least: OpMax.Identity(), most: OpMax.Identity()}
	}
	for i := range totals.ranks {
		totals.ranks[i] = totals.ranks[i][:0]
	}
	for sub, l := range subs {
		switch {
		case sub == 0:
			totals.Rows = l.V[0]
			continue
		case sub >= tableSketches:
			i := (sub - tableSketches) >> distinctBits
			if int(i) >= len(totals.ranks) {
				return errPart
			}
			totals.ranks[i] = append(totals.ranks[i], l.V[2])
			continue
		case int(sub-1)/tableParts >= len(totals.columns):
			return errPart
		}
		c, part := &totals.columns[(sub-1)/tableParts], (sub-1)%tableParts
		switch {
		case part < tableStats:
			if err := addDouble(&c.sum, part, l); err != nil {
				return err
			}
		case part == tableStats:
			c.n, c.most, c.least = l.V[0], l.V[2], l.V[3]
			c.multiples = l.Big(1)
		case part == tableInfinite:
			c.nan, c.plus = l.V[0], l.V[1]
		case part == tableNegative:
			c.minus = l.V[0]
		case part < tableSquares || (part-tableSquares)/2 > windowsProduct:
			return errPart
		default:
			at := uint((part-tableSquares)/2)<<window64 + uint(part-tableSquares)%2*2*laneSquare
			c.squares.add(l.V[0], carryOf(l, 0), at)
			c.squares.add(l.V[1], carryOf(l, 1), at+laneSquare)
		}
	}
	if len(totals.columns) > 0 {
		totals.Rows += totals.columns[0].n
	}
	return nil
}

// Count is the number of finite values of a column.
func (t *FloatTotals) Count(column int) int64 { return t.columns[column].n }

// NonFinite counts the values of a column that are NaN, +Inf and -Inf.
func (t *FloatTotals) NonFinite(column int) (nan, positive, negative int64) {
	c := &t.columns[column]
	return c.nan, c.plus, c.minus
}

// Sum is that of a column, rounded once, or ErrFloatOverflow.
func (t *FloatTotals) Sum(column int) (float64, error) {
	c := &t.columns[column]
	if !t.asked[column].Sum {
		return math.NaN(), nil
	}
	if t.step != nil {
		if c.n == 0 {
			return 0, nil
		}
		return finite(t.step.times(c.multiples, formatFloat64))
	}
	a := c.sum
	return finite(a.rounded(formatFloat64, unit64))
}

// Error is the sum that a quantum makes less the exact one, rounded once; FloatTable has to measure it.
func (t *FloatTotals) Error(column int) float64 {
	c := &t.columns[column]
	switch {
	case !t.asked[column].Sum || t.step != nil && !t.measured:
		return math.NaN()
	case t.step == nil || c.n == 0:
		return 0
	}
	d := new(big.Int).Mul(c.multiples, new(big.Int).SetUint64(t.step.m))
	d.Lsh(d, uint(t.step.exp-unit64))
	d.Sub(d, c.sum.integer())
	v := formatFloat64.round(words64(d), unit64, false)
	if d.Sign() < 0 {
		return -v
	}
	return v
}

// Mean is the sum over the count, rounded once; NaN without values.
func (t *FloatTotals) Mean(column int) float64 {
	c := &t.columns[column]
	switch {
	case c.n <= 0 || !t.asked[column].Sum:
		return math.NaN()
	case t.step != nil:
		n := new(big.Int).Mul(c.multiples, new(big.Int).SetUint64(t.step.m))
		return quotient(n, big.NewInt(c.n), t.step.exp)
	}
	a := c.sum
	return a.mean(unit64, uint64(c.n))
}

// Min is the smallest finite value of a column, NaN if there is none.
func (t *FloatTotals) Min(column int) float64 {
	if c := &t.columns[column]; c.least != OpMax.Identity() {
		return floatAt(^c.least)
	}
	return math.NaN()
}

// Max is the largest finite value of a column, NaN if there is none.
func (t *FloatTotals) Max(column int) float64 {
	if c := &t.columns[column]; c.most != OpMax.Identity() {
		return floatAt(c.most)
	}
	return math.NaN()
}

// Variance is that of the population, or of a sample, rounded once, or ErrFloatOverflow; NaN for too few values.
func (t *FloatTotals) Variance(column int, sample bool) (float64, error) {
	return t.deviation(column, sample, quotient)
}

// StdDev is the square root of the Variance, rounded once.
func (t *FloatTotals) StdDev(column int, sample bool) (float64, error) {
	return t.deviation(column, sample, root)
}

func (t *FloatTotals) deviation(column int, sample bool, result func(num, den *big.Int, exp int) float64) (float64, error) {
	c, less := &t.columns[column], int64(0)
	if sample {
		less = 1
	}
	if c.n <= less || !t.asked[column].Moments {
		return math.NaN(), nil
	}
	return finite(spread(&c.sum, &c.squares, c.n, less, result))
}

// Distinct estimates the number of different texts of a sketch.
func (t *FloatTotals) Distinct(sketch int) int64 {
	return DistinctEstimate(func(yield func(int64) bool) {
		for _, r := range t.ranks[sketch] {
			if !yield(r) {
				return
			}
		}
	})
}
