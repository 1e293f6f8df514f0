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
	middle int    // bucket of the median
	below  uint32 // how many are in buckets before it
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
	if b < d.middle {
		d.below++
	}
	// The middle moves by a few steps at a time.
	for half := (d.total + 1) / 2; ; {
		switch {
		case d.below >= half:
			d.middle--
			d.below -= d.counts[d.middle]
		case d.below+d.counts[d.middle] < half:
			d.below += d.counts[d.middle]
			d.middle++
		default:
			return
		}
	}
}

// median is 0 if there are none.
func (d *durations) median() time.Duration {
	if d.total == 0 {
		return 0
	}
	return upper(d.middle)
}
