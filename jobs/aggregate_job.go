// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
)

// blankFields is the counter of fields that hold no value.
const blankFields = "blank fields skipped"

// job makes the job that the plan describes. Keys are a byte string, or several
// if rows are grouped by several columns.
func (p *aggregatePlan) job(src *source) mapreduce.Runnable {
	switch {
	case p.groups > 1:
		return anyJob(p, src, func(columns [][]byte) mapreduce.Fields { return columns[:p.groups:p.groups] })
	case p.groups == 1:
		return anyJob(p, src, func(columns [][]byte) []byte { return columns[0] })
	}
	return anyJob(p, src, func([][]byte) []byte { return nil })
}

// anyJob makes a job of floats or of decimals.
func anyJob[K any](p *aggregatePlan, src *source, keyOf func(columns [][]byte) K) mapreduce.Runnable {
	if p.floats != nil {
		return floatJob(p, src, keyOf)
	}
	return aggregateJob(p, src, keyOf)
}

// aggregateJob makes a job whose keys keyOf takes from the wanted columns.
func aggregateJob[K any](p *aggregatePlan, src *source, keyOf func(columns [][]byte) K) mapreduce.Runnable {
	names, kinds := p.columns()
	keys := p.wanted[:p.groups:p.groups]
	if p.rankLane < 0 {
		return &mapreduce.Job[K, []int64, []output.Value]{
			Name: "aggregate",
			NewBlockMap: func() func(mapreduce.Block, *mapreduce.Emitter[K, []int64]) error {
				return aggregateMap(p, src, keyOf, func(emit *mapreduce.Emitter[K, []int64], key K, r *aggregateRow, _ [][]byte) {
					emit.Emit(key, r.lanes)
				})
			},
			Fold:        mapreduce.NewLaneFold(p.ops, p.result),
			Columns:     names,
			ColumnKinds: kinds,
			KeyColumns:  keys,
			FirstBlock:  src.learn,
			Empty:       p.empty,
			HideKey:     p.groups == 0,
		}
	}
	return &mapreduce.Job[K, aggregatePart, []output.Value]{
		Name: "aggregate",
		NewBlockMap: func() func(mapreduce.Block, *mapreduce.Emitter[K, aggregatePart]) error {
			rank := make([]int64, len(p.ops)) // lanes that only tell a register something
			for lane, op := range p.ops {
				rank[lane] = op.Identity()
			}
			return aggregateMap(p, src, keyOf, func(emit *mapreduce.Emitter[K, aggregatePart], key K, r *aggregateRow, columns [][]byte) {
				emit.Emit(key, aggregatePart{0, r.lanes})
				for i, column := range p.sketches {
					if isBlank(columns[column]) {
						continue
					}
					var register uint32
					register, rank[p.rankLane] = mapreduce.DistinctRegister(columns[column])
					emit.Emit(key, aggregatePart{1 + uint32(i)*registersPerSketch + register, rank})
				}
			})
		},
		Fold: mapreduce.NewSubFold(p.ops,
			func(dst []int64, v aggregatePart) uint32 {
				copyLanes(dst, v.lanes)
				return v.sub
			},
			p.resultOfParts),
		Columns:     names,
		ColumnKinds: kinds,
		KeyColumns:  keys,
		FirstBlock:  src.learn,
		Empty:       p.empty,
		HideKey:     p.groups == 0,
	}
}

// copyLanes is copy for a few lanes: a loop beats the call.
func copyLanes(dst, lanes []int64) {
	dst = dst[:len(lanes)]
	//lint:ignore S1001 see above
	for i, v := range lanes {
		dst[i] = v
	}
}

// aggregatePart is what one sub-key of a group is told: 0 has the lanes of
// numbers, all others are registers of sketches.
type aggregatePart struct {
	sub   uint32
	lanes []int64
}

// aggregateMap makes a map function that hands the rows of its blocks to emitRow.
func aggregateMap[K, V any](p *aggregatePlan, src *source, key func([][]byte) K,
	emitRow func(emit *mapreduce.Emitter[K, V], key K, r *aggregateRow, columns [][]byte),
) func(mapreduce.Block, *mapreduce.Emitter[K, V]) error {
	reader := src.newReader()
	var check *conditionCheck
	if p.where != nil {
		check = p.where.newCheck(src.typed)
	}
	var row *aggregateRow
	return func(b mapreduce.Block, emit *mapreduce.Emitter[K, V]) error {
		if row == nil {
			row = p.newRow(emit.SetScale)
		}
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
			if !row.takeQuick(columns) {
				if column, bad := row.take(columns); bad != nil {
					err = reader.FieldError(column, bad)
					continue
				}
			}
			emitRow(emit, key(columns), row, columns)
		}
		if row.skipped > 0 {
			emit.Counter(blankFields).Add(row.skipped)
			row.skipped = 0
		}
		if err != nil {
			return err
		}
		return reader.end(emit, records)
	}
}

// empty makes the row over everything if there is nothing.
func (p *aggregatePlan) empty() ([]output.Value, bool) {
	if p.groups > 0 {
		return nil, false
	}
	nothing := mapreduce.Lanes{V: make([]int64, len(p.ops))}
	cells, err := p.cells(nothing, make([][]int64, len(p.sketches)))
	return cells, err == nil
}

// result makes the cells of a group.
func (p *aggregatePlan) result(l mapreduce.Lanes) ([]output.Value, error) {
	return p.cells(l, nil)
}

// resultOfParts makes the cells of a group from its numbers and its sketches.
func (p *aggregatePlan) resultOfParts(subs iter.Seq2[uint32, mapreduce.Lanes]) ([]output.Value, error) {
	var numbers mapreduce.Lanes
	ranks := make([][]int64, len(p.sketches))
	for sub, l := range subs {
		if sub == 0 {
			numbers = mapreduce.Lanes{V: slices.Clone(l.V), Carry: slices.Clone(l.Carry), Scale: slices.Clone(l.Scale)}
			continue
		}
		sketch := int(sub-1) / registersPerSketch
		if sketch >= len(ranks) {
			return nil, fmt.Errorf("damaged intermediate data: sub-key %d of %d sketches", sub, len(ranks))
		}
		ranks[sketch] = append(ranks[sketch], l.V[p.rankLane])
	}
	if numbers.V == nil {
		return nil, errors.New("damaged intermediate data: a group without rows")
	}
	return p.cells(numbers, ranks)
}

func (p *aggregatePlan) cells(l mapreduce.Lanes, ranks [][]int64) ([]output.Value, error) {
	cells := make([]output.Value, len(p.outputs))
	for i, out := range p.outputs {
		var err error
		switch out.what {
		case measureCount:
			cells[i], err = sumCell(l, p.countLane, "number of rows")
			cells[i].Kind = output.Int
		case measureDistinct:
			cells[i] = output.Value{Kind: output.Int, I: mapreduce.DistinctEstimate(slices.Values(ranks[out.field]))}
		default:
			cells[i], err = p.fields[out.field].cell(out.what, l)
		}
		if err != nil {
			return nil, err
		}
	}
	return cells, nil
}

// cell makes one cell of what is known about a column of numbers.
func (f *aggregateField) cell(what measure, l mapreduce.Lanes) (output.Value, error) {
	if l.V[f.n] == 0 && carry(l, f.n) == 0 {
		return output.Value{Kind: output.Null}, nil
	}
	switch what {
	case measureSum:
		return sumCell(l, f.sum, fmt.Sprintf("sum of %q", f.name))
	case measureMin:
		return decimalCell(l, f.min), nil
	case measureMax:
		return decimalCell(l, f.max), nil
	}
	return output.Value{Kind: output.Float, F: l.Mean(f.sum, f.n)}, nil
}

func sumCell(l mapreduce.Lanes, lane int, what string) (output.Value, error) {
	if carry(l, lane) != 0 {
		return output.Value{}, fmt.Errorf("%w: %s is %v", mapreduce.ErrOverflow, what, l.Big(lane))
	}
	return decimalCell(l, lane), nil
}

func carry(l mapreduce.Lanes, lane int) int64 {
	if len(l.Carry) == 0 {
		return 0
	}
	return l.Carry[lane]
}

func decimalCell(l mapreduce.Lanes, lane int) output.Value {
	v := output.Value{Kind: output.Decimal, I: l.V[lane]}
	if len(l.Scale) > 0 {
		v.Scale = l.Scale[lane]
	}
	return v
}
