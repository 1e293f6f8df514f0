// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"cmp"
	"fmt"

	"github.com/quernmr/quern/mapreduce"
)

// largestFirst ranks rows by falling count, as --top shows them.
func largestFirst(a, b int64) int { return cmp.Compare(b, a) }

// frequency says which rows of keys and counts are kept.
type frequency struct {
	minCount int64
	top      int
}

func (f frequency) check() error {
	if f.minCount < 0 {
		return fmt.Errorf("--min-count %d: must not be negative", f.minCount)
	}
	if f.top < 0 {
		return fmt.Errorf("--top %d: must not be negative", f.top)
	}
	return nil
}

// apply makes job keep and rank rows as the options say.
func (f frequency) apply(job *mapreduce.Job[[]byte, int64, int64]) {
	if f.minCount > 1 {
		job.Keep = func(_ []byte, n int64) bool { return n >= f.minCount }
	}
	if f.top > 0 {
		job.Top, job.Rank = f.top, largestFirst
	}
}
