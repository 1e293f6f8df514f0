// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
)

// printTable prints a data set's results as a Markdown table. Ratios are to the
// first line of Quern's.
func printTable(w io.Writer, d *dataset, size int64, lines []line) {
	fmt.Fprintf(w, "\n### %s\n\n%d bytes", d.title, size)
	for _, l := range lines {
		if len(l.runs) > 0 {
			fmt.Fprintf(w, ", %s", l.result.summary())
			break
		}
	}
	fmt.Fprint(w, "\n\n| tool | seconds | MB/s | peak memory, MiB | time against Quern | memory against Quern |\n|---|---:|---:|---:|---:|---:|\n")
	var base *line
	for i := range lines {
		if lines[i].quern && len(lines[i].runs) > 0 {
			base = &lines[i]
			break
		}
	}
	for _, l := range lines {
		if len(l.runs) == 0 {
			fmt.Fprintf(w, "| %s | %s | | | | |\n", l.label, l.skipped)
			continue
		}
		seconds, peak := l.median().Seconds(), float64(l.peak())
		fmt.Fprintf(w, "| %s | %.2f | %.0f | %.0f |", l.label, seconds, float64(size)/1e6/seconds, peak/(1<<20))
		if base == nil {
			fmt.Fprint(w, " | |\n")
			continue
		}
		fmt.Fprintf(w, " %.2f x | %.2f x |\n", seconds/base.median().Seconds(), peak/float64(max(base.peak(), 1)))
	}
}
