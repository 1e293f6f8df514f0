// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"bytes"
	"context"
	"unsafe"

	"github.com/quernmr/quern/mapreduce/output"
)

// Row is a row of a result in memory.
type Row[K, R any] struct {
	Key    K
	Result R
}

// Collect runs a job and returns its rows in memory, in key order, or in the
// order of Rank if the job has a Top. Options.Output and Options.Partitions are
// not looked at. It always runs here, also in a process of a cluster (see
// [Runnable]), each of which then does the same work.
func Collect[K, V, R any](ctx context.Context, job *Job[K, V, R], opts Options) ([]Row[K, R], *Result, error) {
	p, err := job.compile()
	if err != nil {
		return nil, nil, err
	}
	var rows []Row[K, R]
	// One part that takes rows is written by one goroutine, in order.
	p.collect = func(key []byte, res R) error {
		row := Row[K, R]{Result: res}
		rows = append(rows, row)
		return p.key.decode(bytes.Clone(key), unsafe.Pointer(&rows[len(rows)-1].Key))
	}
	opts.Partitions = 1
	opts.Output = output.Func(func(int, *output.Row) error { return nil })
	e, err := newEngine(p, opts)
	if err != nil {
		return nil, nil, err
	}
	res, err := e.run(ctx)
	if err != nil {
		return nil, nil, err
	}
	return rows, res, nil
}
