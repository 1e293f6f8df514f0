// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"

	"github.com/quernmr/quern/mapreduce/output"
)

// lastState is the state that an iteration has come to, once it has.
type lastState struct{ numbers []float64 }

// stateRows makes the job that writes the rows of the last state.
func stateRows(name string, columns []string, key string, rows func([]float64, func(string, ...float64)) error, last *lastState) (code, error) {
	if columns == nil {
		columns = []string{"value"}
	}
	if rows == nil {
		if key == "" {
			key = "index"
		}
		return rowsJob(name, columns, key, func(emit *Emitter[int64, []float64]) error {
			for i := 0; i < len(last.numbers); i += len(columns) {
				emit.Emit(int64(i/len(columns)), last.numbers[i:i+len(columns)])
			}
			return nil
		})
	}
	if key == "" {
		key = "key"
	}
	return rowsJob(name, columns, key, func(emit *Emitter[string, []float64]) error {
		var wrong error
		err := guard(func() error {
			return rows(last.numbers, func(key string, values ...float64) {
				if len(values) == len(columns) {
					emit.Emit(key, values)
				} else if wrong == nil {
					wrong = &permanent{fmt.Errorf("row %q has %d values, and there are %d Columns", key, len(values), len(columns))}
				}
			})
		})
		if err == nil {
			err = wrong
		}
		if err != nil {
			return fmt.Errorf("the rows of the output: %w", err)
		}
		return nil
	})
}

// rowsJob is a job whose pairs are the rows themselves. They come from no block.
func rowsJob[K any](name string, columns []string, key string, emitAll func(*Emitter[K, []float64]) error) (code, error) {
	j := &Job[K, []float64, []output.Value]{
		Name: name, Columns: columns, KeyColumns: []string{key},
		NewBlockMap: func() func(Block, *Emitter[K, []float64]) error {
			return func(_ Block, emit *Emitter[K, []float64]) error { return emitAll(emit) }
		},
		ValueCodec: Codec[[]float64]{
			Append: func(dst []byte, v []float64) []byte {
				for _, x := range v {
					dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(x))
				}
				return dst
			},
			Decode: func(b []byte) ([]float64, error) {
				if len(b) != 8*len(columns) {
					return nil, errValue
				}
				v := make([]float64, len(columns))
				for i := range v {
					v[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
				}
				return v, nil
			},
		},
		Reduce: func(_ K, values iter.Seq[[]float64], yield func([]output.Value)) error {
			var row []output.Value
			for v := range values {
				if row != nil {
					return &permanent{errors.New("there are two rows of that key")}
				}
				row = make([]output.Value, len(v))
				for i, x := range v {
					row[i] = output.Value{Kind: output.Float, F: x}
				}
			}
			yield(row)
			return nil
		},
	}
	for range columns {
		j.ColumnKinds = append(j.ColumnKinds, output.Float)
	}
	p, err := j.build()
	if err != nil {
		return nil, err
	}
	return p, nil
}
