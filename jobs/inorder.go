// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"context"

	"github.com/quernmr/quern/mapreduce"
)

// inOrder is a job whose parts make sense only one after the other: they follow
// each other in key order, whatever the options say.
type inOrder struct {
	mapreduce.Runnable
}

func (j inOrder) Run(ctx context.Context, opts mapreduce.Options) (*mapreduce.Result, error) {
	opts.TotalOrder = true
	return j.Runnable.Run(ctx, opts)
}

func (j inOrder) Explain(ctx context.Context, opts mapreduce.Options) (*mapreduce.Explanation, error) {
	opts.TotalOrder = true
	return j.Runnable.Explain(ctx, opts)
}
