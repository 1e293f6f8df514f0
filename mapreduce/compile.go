// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/shuffle/fold"
)

// MaxPartitions is the largest number of parts of a result.
const MaxPartitions = 1 << 16

// program is a job made ready to run.
type program[K, V, R any] struct {
	job    *Job[K, V, R]
	key    *keyCodec
	rows   *rowCodec
	value  Codec[V]
	schema output.Schema
	// collect, if not nil, is handed each row's key and result, see Collect.
	collect func(key []byte, res R) error
}

// grouped says whether the job has a Reduce rather than a Fold.
func (j *Job[K, V, R]) grouped() bool { return j.Reduce != nil }

// keyText is a key as errors show it.
func (p *program[K, V, R]) keyText(key K) string {
	if p.job.KeyText != nil {
		return p.job.KeyText(key)
	}
	return p.key.text(key)
}

// Validate says what is wrong with the job itself.
func (j *Job[K, V, R]) Validate() error {
	_, err := j.compile()
	return err
}

func (j *Job[K, V, R]) compile() (*program[K, V, R], error) {
	p, err := j.build()
	if err != nil {
		name := j.Name
		if name == "" {
			name = "without a name"
		}
		return nil, fmt.Errorf("job %s: %w", name, err)
	}
	return p, nil
}

func (j *Job[K, V, R]) build() (*program[K, V, R], error) {
	maps := 0
	for _, set := range []bool{j.Map != nil, j.NewMap != nil, j.NewBlockMap != nil} {
		if set {
			maps++
		}
	}
	if maps != 1 {
		return nil, fmt.Errorf("set exactly one of Map, NewMap and NewBlockMap (%d are set)", maps)
	}
	folds := len(j.Fold.ops) > 0
	if folds == j.grouped() {
		return nil, errors.New("set exactly one of Fold and Reduce")
	}
	if j.Fold.err != nil {
		return nil, j.Fold.err
	}
	if folds && (j.Combine != nil || j.ValueOrder != nil) {
		return nil, errors.New("the fields Combine and ValueOrder go with Reduce, not with Fold")
	}
	if len(j.Fold.ops) > fold.MaxLanes {
		return nil, fmt.Errorf("a fold of %d lanes: %d are the most", len(j.Fold.ops), fold.MaxLanes)
	}
	if j.Top > 0 && j.Rank == nil {
		return nil, errors.New("a job with Top needs Rank")
	}
	if j.Top < 0 {
		return nil, fmt.Errorf("field Top is %d", j.Top)
	}
	if err := checkSides(j.sides); err != nil {
		return nil, err
	}
	p := &program[K, V, R]{job: j}
	var err error
	if p.key, err = newKeyCodec(reflect.TypeFor[K]()); err != nil {
		return nil, err
	}
	if p.key.list {
		if p.key.count = len(j.KeyColumns); p.key.count == 0 {
			return nil, errors.New("a job whose keys are Fields must set KeyColumns")
		}
	}
	if p.rows, err = newRowCodec(reflect.TypeFor[R](), j.Columns, j.ColumnKinds); err != nil {
		return nil, err
	}
	if j.grouped() {
		p.value = j.ValueCodec
		if p.value.Append == nil || p.value.Decode == nil {
			if p.value, err = valueCodec[V](); err != nil {
				return nil, err
			}
		}
	}
	p.schema.Values = p.rows.columns
	if j.CountKeys {
		p.schema.Values = []output.Column{{Name: "value", Kind: output.Int}}
	} else if !j.HideKey {
		if p.schema.Keys, err = p.key.columns(j.KeyColumns); err != nil {
			return nil, err
		}
	}
	return p, nil
}
