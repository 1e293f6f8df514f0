// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
)

// stated is what a process may take beside its memory budget, on few cores; see
// docs/ARCHITECTURE.md.
const stated = 64 << 20

// With far more keys than the budget holds, runs go to disk and the process
// stays within the budget and the stated constant, for folds and grouped jobs.
func TestMemoryStaysWithinBudget(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	var b strings.Builder
	for i := range 1_200_000 {
		fmt.Fprintf(&b, "%d-is-a-key-of-its-own %d\n", i*7919%1_200_000, i)
	}
	path := file(t, "keys.txt", b.String())
	for _, args := range [][]string{
		{"count"},
		{"wordcount", "--partitions", "7"},
		{"sort", "--reverse"},
	} {
		args = append(args, "--memory", "64MiB", "--workers", "2", "--json", "-q", "--spill-dir", t.TempDir(), path)
		o := quern(t, args...)
		if n := strings.Count(o.success(t), "\n"); n < 1_200_000 {
			t.Errorf("%v: %d rows", args, n)
		}
		j := o.lastJSON(t)
		if spills, _ := j["spills"].(float64); spills < 2 {
			t.Errorf("%v: %v spills", args, j["spills"])
		}
		if rss, _ := j["peak_rss_bytes"].(float64); rss == 0 || rss > 64<<20+stated {
			t.Errorf("%v: %.0f MiB resident", args, rss/(1<<20))
		}
	}
}
