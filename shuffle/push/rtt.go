// SPDX-License-Identifier: Apache-2.0

package push

import (
	"math/bits"
	"time"
)

// histogram counts durations in steps of a sixteenth of their power of two.
type histogram struct {
	total  uint64
	counts [64 * 16]uint32
}

func bucketOf(ns uint64) int {
	if ns < 16 {
		return int(ns)
	}
	e := bits.Len64(ns) - 5 // ns>>e is 16 to 31
	return e*16 + int(ns>>e)
}

func valueOf(bucket int) uint64 {
	if bucket < 32 {
		return uint64(bucket)
	}
	e := bucket/16 - 1
	return uint64(bucket%16+16)<<e + 1<<e/2
}

func (h *histogram) add(ns int64) {
	h.total++
	h.counts[bucketOf(uint64(ns))]++
}

func (h *histogram) merge(o *histogram) {
	h.total += o.total
	for i, c := range o.counts {
		h.counts[i] += c
	}
}

// quantile returns about the value below which a part q of all are.
func (h *histogram) quantile(q float64) time.Duration {
	rank, seen := uint64(q*float64(h.total)), uint64(0)
	for i, c := range h.counts {
		if seen += uint64(c); seen > rank {
			return time.Duration(valueOf(i))
		}
	}
	return 0
}

func (h *histogram) report() RTT {
	if h.total == 0 {
		return RTT{}
	}
	return RTT{Samples: h.total, P50: h.quantile(0.5), P99: h.quantile(0.99)}
}
