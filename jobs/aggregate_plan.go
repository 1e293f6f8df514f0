// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"fmt"
	"slices"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
)

// measure is what aggregate computes of a field.
type measure uint8

const (
	measureSum measure = iota
	measureMin
	measureMean
	measureMax
	measureVariance
	measureStdDev
	measureCount
	measureDistinct
	measureError
	measureNaN
	measurePosInf
	measureNegInf
)

var measureNames = [...]string{"sum", "min", "mean", "max", "variance", "stddev", "count", "distinct", "error", "nan", "pos_inf", "neg_inf"}

// registersPerSketch is the number of sub-keys of a key that one --distinct
// takes; sub-key 0 is for all else.
const registersPerSketch = 1 << 14

// aggregatePlan says which columns are read, what each lane of the fold holds,
// and how a result's cells come from the lanes.
type aggregatePlan struct {
	wanted   []string // columns: those to group by first
	groups   int      // how many these are
	fields   []aggregateField
	sketches []int // wanted columns of which distinct values are estimated
	outputs  []aggregateOutput

	ops       []mapreduce.Op
	countLane int // rows; -1: none
	rankLane  int // registers of sketches; -1: none

	floats *aggregateFloats // nil: exact decimals in lanes

	decimals    int // digits to round to; -1: exact
	refuseEmpty bool
	where       *condition
	whereFirst  int // its first column among the wanted ones
}

// aggregateField is a column of numbers and its lanes; -1: no such lane.
type aggregateField struct {
	name          string
	column        int // among the wanted ones
	n             int // how many values
	sum, min, max int
	// most is the largest magnitude of a value, unless min and max tell it. It is
	// there so that whether all values have room at the scale that they end up
	// with depends on the values alone, not on which mapper saw which.
	most int
}

// aggregateOutput is one cell of the result after the group's columns.
type aggregateOutput struct {
	what  measure
	name  string // of the field
	field int    // index in fields or sketches
}

func newAggregatePlan(groupBy []string) *aggregatePlan {
	return &aggregatePlan{
		wanted: slices.Clone(groupBy), groups: len(groupBy),
		countLane: -1, rankLane: -1, decimals: -1,
	}
}

// column returns the number of a wanted column, which is added if need be.
func (p *aggregatePlan) column(name string) int {
	if i := slices.Index(p.wanted, name); i >= 0 {
		return i
	}
	p.wanted = append(p.wanted, name)
	return len(p.wanted) - 1
}

// measure adds a cell to the result.
func (p *aggregatePlan) measure(what measure, name string) {
	out := aggregateOutput{what: what, name: name}
	switch what {
	case measureCount:
	case measureDistinct:
		out.field = len(p.sketches)
		p.sketches = append(p.sketches, p.column(name))
	default:
		out.field = slices.IndexFunc(p.fields, func(f aggregateField) bool { return f.name == name })
		if out.field < 0 {
			out.field = len(p.fields)
			p.fields = append(p.fields, aggregateField{name: name, column: p.column(name), n: -1, sum: -1, min: -1, max: -1, most: -1})
		}
	}
	p.outputs = append(p.outputs, out)
}

// layLanes gives every field the lanes that its measures need. Sum and mean
// share theirs.
func (p *aggregatePlan) layLanes() error {
	lane := func(at *int, op mapreduce.Op) {
		if *at < 0 {
			*at = len(p.ops)
			p.ops = append(p.ops, op)
		}
	}
	for _, out := range p.outputs {
		switch out.what {
		case measureCount:
			lane(&p.countLane, mapreduce.OpSum)
			continue
		case measureDistinct:
			lane(&p.rankLane, mapreduce.OpMax)
			continue
		}
		f := &p.fields[out.field]
		switch out.what {
		case measureSum, measureMean:
			lane(&f.sum, mapreduce.OpSum)
		case measureMin:
			lane(&f.min, mapreduce.OpMin)
		case measureMax:
			lane(&f.max, mapreduce.OpMax)
		}
		lane(&f.n, mapreduce.OpSum)
	}
	for i := range p.fields {
		if f := &p.fields[i]; p.decimals < 0 && (f.min < 0 || f.max < 0) {
			lane(&f.most, mapreduce.OpMax)
		}
	}
	if len(p.ops) > mapreduce.MaxLanes {
		return fmt.Errorf("too much to compute at once: it takes %d lanes, but a job has at most %d; split it into several jobs", len(p.ops), mapreduce.MaxLanes)
	}
	return nil
}

// columns returns the names and kinds of the cells after the group's columns.
func (p *aggregatePlan) columns() (names []string, kinds []output.Kind) {
	for _, out := range p.outputs {
		name := measureNames[out.what]
		if out.what != measureCount {
			name += "_" + out.name
		}
		names = append(names, name)
		kinds = append(kinds, out.kind(p.floats != nil))
	}
	return names, kinds
}

// kind is that of the cell.
func (o *aggregateOutput) kind(floats bool) output.Kind {
	switch o.what {
	case measureCount, measureDistinct, measureNaN, measurePosInf, measureNegInf:
		return output.Int
	case measureMean:
		return output.Float
	}
	if floats {
		return output.Float
	}
	return output.Decimal
}
