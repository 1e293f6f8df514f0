// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"math/bits"
	"time"
)

// durations knows the median of many durations, in milliseconds, to within a
// thirty-second part: exactly up to 64 ms, upwards rounded beyond.
type durations struct {
	counts []uint32
	total  uint32
}

// steps is how many buckets a power of two has.
const steps = 32

func bucket(d time.Duration) int {
	ms := uint64(max(d.Milliseconds(), 0))
	if ms < 2*steps {
		return int(ms)
	}
	shift := bits.Len64(ms) - 6 // so that ms>>shift has 6 bits: 32 to 63
	return steps*shift + int(ms>>shift)
}

// upper is the largest duration of a bucket.
func upper(b int) time.Duration {
	if b < 2*steps {
		return time.Duration(b) * time.Millisecond
	}
	shift := b/steps - 1
	top := uint64(b - steps*shift + 1)
	return time.Duration(top<<shift-1) * time.Millisecond
}

func (d *durations) add(v time.Duration) {
	b := bucket(v)
	if b >= len(d.counts) {
		d.counts = append(d.counts, make([]uint32, b+1-len(d.counts))...)
	}
	d.counts[b]++
	d.total++
}

func (d *durations) median() time.Duration {
	var seen uint32
	for b, n := range d.counts {
		seen += n
		if n > 0 && seen >= (d.total+1)/2 {
			return upper(b)
		}
	}
	return 0
}
