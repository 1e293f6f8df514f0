// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"fmt"
	"strings"

	"github.com/quernmr/quern/shuffle/wire"
)

// How progress is told: one short line each.

// pushedWords says what became of the frames of a push, to go on a line with more.
func pushedWords(p *StreamPushed) string {
	return countWords([]count{
		{"frames", p.Report.Sent},
		{"again", p.Report.Retransmitted},
		{"again for nothing", p.Report.Spurious},
		{"by the control connection", p.Report.Delivered},
		{"probes", p.Report.Probes},
	})
}

// sentWords says how much was sent how fast.
func sentWords(s Sent) string {
	rate := 0.0
	if s.Took > 0 {
		rate = float64(s.Pairs) / s.Took.Seconds() / 1e6
	}
	return fmt.Sprintf("%d pairs in %.2f s, %.1f M pairs/s", s.Pairs, s.Took.Seconds(), rate)
}

// statsWords says how a receiver's frames ended, and what else was out of the ordinary.
func statsWords(s *StreamStats) string {
	list := append(reasonCounts("kernel: ", s.Kernel), reasonCounts("user space: ", s.Reasons)...)
	list = append(list, count{"no room", s.Busy}, count{"tables made", s.Tables}, count{"sealed", s.Flips}, count{"no memory for a table", s.NoTable}, count{"runs written to disk", s.Stats.Runs})
	return strings.TrimPrefix(countWords(list), ", ")
}

func reasonCounts(of string, counts [wire.Reasons]uint64) (list []count) {
	for i, n := range counts {
		list = append(list, count{of + wire.Reason(i).String(), n})
	}
	return list
}

type count struct {
	of string
	n  uint64
}

// countWords lists what is not 0.
func countWords(list []count) string {
	var b strings.Builder
	for _, c := range list {
		if c.n != 0 {
			fmt.Fprintf(&b, ", %s %d", c.of, c.n)
		}
	}
	return b.String()
}
