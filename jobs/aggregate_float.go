// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/rows"
)

// aggregateFloats is what --floats and the options that go with it ask for.
type aggregateFloats struct {
	nonFinite string // error, skip or count
	quantum   float64
	measured  bool
	sample    bool
	columns   []mapreduce.FloatColumn // of the plan's fields
}

// floats lays out a plan for floats.
func (o *aggregateOptions) floats(p *aggregatePlan) (*aggregateFloats, error) {
	f := &aggregateFloats{nonFinite: o.NaN, quantum: o.Quantum, measured: o.Measure, sample: o.Sample}
	switch o.NaN {
	case "":
		f.nonFinite = "error"
	case "error", "skip", "count":
	default:
		return nil, fmt.Errorf("--nan %q: say error, skip or count", o.NaN)
	}
	if o.Decimals >= 0 {
		return nil, errors.New("--decimals is for exact decimals: leave out --floats, or round with --quantum")
	}
	if !(o.Quantum >= 0) || math.IsInf(o.Quantum, 0) {
		return nil, fmt.Errorf("--quantum %v: it must be a finite number above 0", o.Quantum)
	}
	if o.Measure && (o.Quantum == 0 || len(splitList(o.Sum)) == 0) {
		return nil, errors.New("--measure tells what --quantum makes of a --sum: say both")
	}
	if o.Measure {
		for _, name := range splitList(o.Sum) {
			p.measure(measureError, name)
		}
	}
	if f.nonFinite == "count" {
		for i := range p.fields {
			for _, what := range []measure{measureNaN, measurePosInf, measureNegInf} {
				p.measure(what, p.fields[i].name)
			}
		}
	}
	f.columns = make([]mapreduce.FloatColumn, len(p.fields))
	for _, out := range p.outputs {
		if out.what == measureCount || out.what == measureDistinct {
			continue
		}
		switch c := &f.columns[out.field]; out.what {
		case measureSum, measureMean:
			c.Sum = true
		case measureMin, measureMax:
			c.Extremes = true
		case measureVariance, measureStdDev:
			c.Moments = true
		}
	}
	return f, nil
}

// onlyFloats refuses options that are for --floats alone.
func (o *aggregateOptions) onlyFloats() error {
	for _, c := range []struct {
		said bool
		name string
	}{
		{len(o.Variance) > 0, "variance"},
		{len(o.StdDev) > 0, "stddev"},
		{o.Sample, "sample"},
		{o.NaN != "", "nan"},
		{o.Quantum != 0, "quantum"},
		{o.Measure, "measure"},
	} {
		if c.said {
			return fmt.Errorf("--%s goes with --floats", c.name)
		}
	}
	return nil
}

// floatJob makes a job of floats whose keys keyOf takes from the wanted columns.
func floatJob[K any](p *aggregatePlan, src *source, keyOf func(columns [][]byte) K) mapreduce.Runnable {
	names, kinds := p.columns()
	return &mapreduce.Job[K, mapreduce.FloatRow, []output.Value]{
		Name: "aggregate",
		NewBlockMap: func() func(mapreduce.Block, *mapreduce.Emitter[K, mapreduce.FloatRow]) error {
			return floatMap(p, src, keyOf)
		},
		Fold:        mapreduce.FloatTable(p.floats.columns, len(p.sketches), p.floats.quantum, p.floats.measured, p.floatCells),
		Columns:     names,
		ColumnKinds: kinds,
		KeyColumns:  p.wanted[:p.groups:p.groups],
		FirstBlock:  src.learn,
		Empty: func() ([]output.Value, bool) {
			cells, err := p.floatCells(nil)
			return cells, p.groups == 0 && err == nil
		},
		HideKey: p.groups == 0,
	}
}

// floatMap makes a map function of rows of floats.
func floatMap[K any](p *aggregatePlan, src *source, key func([][]byte) K) func(mapreduce.Block, *mapreduce.Emitter[K, mapreduce.FloatRow]) error {
	reader := src.newReader()
	var check *conditionCheck
	if p.where != nil {
		check = p.where.newCheck(src.typed)
	}
	row := &floatRow{plan: p, FloatRow: mapreduce.FloatRow{Values: make([]float64, len(p.fields)), Blank: make([]bool, len(p.fields)), Sketches: make([][]byte, len(p.sketches))}}
	return func(b mapreduce.Block, emit *mapreduce.Emitter[K, mapreduce.FloatRow]) error {
		err := reader.begin(b)
		columns := reader.Fields()
		records := int64(0)
		for err == nil && reader.Next() {
			records++
			if check != nil {
				var ok bool
				if ok, err = check.holds(reader.Parser, p.whereFirst); err != nil || !ok {
					continue
				}
			}
			if column, bad := row.take(columns); bad != nil {
				err = reader.FieldError(column, bad)
				continue
			}
			emit.Emit(key(columns), row.FloatRow)
		}
		for i, n := range row.skipped {
			if n > 0 {
				emit.Counter(floatSkips[i]).Add(n)
			}
		}
		row.skipped = [len(floatSkips)]int64{}
		if err != nil {
			return err
		}
		return reader.end(emit, records)
	}
}

// The counters of what is left out.
var floatSkips = [...]string{blankFields, "NaN values skipped", "infinite values skipped"}

// floatRow turns the fields of a row into floats, for one goroutine.
type floatRow struct {
	mapreduce.FloatRow
	plan    *aggregatePlan
	skipped [len(floatSkips)]int64
}

var (
	errNonFinite = errors.New("can't be added up; with --nan skip such values are left out, with --nan count they are counted apart")
	errCoarse    = errors.New("is too large for the quantum; use a larger --quantum, or none, which is exact")
)

// take is aggregateRow.take for floats.
func (r *floatRow) take(columns [][]byte) (column int, err error) {
	p := r.plan
	for i := range p.fields {
		text := columns[p.fields[i].column]
		r.Blank[i] = isBlank(text)
		if r.Blank[i] {
			if p.refuseEmpty {
				return p.fields[i].column, errBlank
			}
			r.skipped[0]++
			continue
		}
		v, err := parseFloat(text)
		if err == nil && v-v != 0 {
			switch p.floats.nonFinite {
			case "error":
				err = &rows.NumberError{Text: string(text), Err: errNonFinite}
			case "skip":
				r.Blank[i] = true
				if v != v {
					r.skipped[1]++
				} else {
					r.skipped[2]++
				}
			}
		} else if err == nil && p.floats.quantum != 0 && p.floats.columns[i].Sum && math.Abs(v/p.floats.quantum) >= 1<<62 {
			err = &rows.NumberError{Text: string(text), Err: errCoarse}
		}
		if err != nil {
			return p.fields[i].column, err
		}
		r.Values[i] = v
	}
	for i, column := range p.sketches {
		if r.Sketches[i] = columns[column]; isBlank(columns[column]) {
			r.Sketches[i] = nil
		}
	}
	return 0, nil
}

// parseFloat reads a float, also one that is no number or infinite by the names that are usual.
func parseFloat(text []byte) (float64, error) {
	v, err := rows.ParseFloat(text)
	if err == nil || !errors.Is(err, rows.ErrNotNumber) {
		return v, err
	}
	name := bytes.TrimSpace(text)
	sign := 1
	if len(name) > 0 && (name[0] == '-' || name[0] == '+') {
		if name[0] == '-' {
			sign = -1
		}
		name = name[1:]
	}
	switch string(bytes.ToLower(name[:min(len(name), 9)])) {
	case "nan":
		return math.NaN(), nil
	case "inf", "infinity":
		return math.Inf(sign), nil
	}
	return 0, err
}

// floatCells makes the cells of a group; nil: of nothing.
func (p *aggregatePlan) floatCells(t *mapreduce.FloatTotals) ([]output.Value, error) {
	cells := make([]output.Value, len(p.outputs))
	for i, out := range p.outputs {
		var err error
		if cells[i], err = p.floatCell(&out, t); err != nil {
			return nil, fmt.Errorf("%s of %q: %w", measureNames[out.what], out.name, err)
		}
	}
	return cells, nil
}

func (p *aggregatePlan) floatCell(out *aggregateOutput, t *mapreduce.FloatTotals) (output.Value, error) {
	if kind := out.kind(true); kind == output.Int {
		n := output.Value{Kind: kind}
		switch {
		case t == nil:
		case out.what == measureCount:
			n.I = t.Rows
		case out.what == measureDistinct:
			n.I = t.Distinct(out.field)
		default:
			nan, plus, minus := t.NonFinite(out.field)
			n.I = map[measure]int64{measureNaN: nan, measurePosInf: plus, measureNegInf: minus}[out.what]
		}
		return n, nil
	}
	if t == nil || t.Count(out.field) == 0 {
		return output.Value{Kind: output.Null}, nil
	}
	v := output.Value{Kind: output.Float}
	var err error
	switch out.what {
	case measureSum:
		v.F, err = t.Sum(out.field)
	case measureMin:
		v.F = t.Min(out.field)
	case measureMean:
		v.F = t.Mean(out.field)
	case measureMax:
		v.F = t.Max(out.field)
	case measureVariance:
		v.F, err = t.Variance(out.field, p.floats.sample)
	case measureStdDev:
		v.F, err = t.StdDev(out.field, p.floats.sample)
	case measureError:
		v.F = t.Error(out.field)
	}
	if v.F != v.F { // a sample of one
		v = output.Value{Kind: output.Null}
	}
	return v, err
}
