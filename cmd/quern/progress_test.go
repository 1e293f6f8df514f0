// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/quernmr/quern/mapreduce"
)

func TestProgressText(t *testing.T) {
	for _, c := range []struct {
		p    mapreduce.Progress
		want string
	}{
		{mapreduce.Progress{Phase: "plan"}, "looking at the input, 0 B"},
		{
			mapreduce.Progress{Phase: "map", Bytes: 250_000_000, TotalBytes: 1_000_000_000, Elapsed: 5 * time.Second},
			"reading 25 %, 250 MB of 1.0 GB, 50 MB/s, about 15s left",
		},
		{
			mapreduce.Progress{Phase: "map", Bytes: 3_000_000, Elapsed: 3 * time.Second, Spills: 1},
			"reading, 3.0 MB, 1.0 MB/s, 1 run spilled",
		},
		{
			mapreduce.Progress{Phase: "write", Bytes: 2_000, TotalBytes: 1_000, Rows: 1_234_567},
			"writing 100 %, 2.0 kB of 1.0 kB, 1,234,567 rows written",
		},
	} {
		if got := progressText(c.p); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestLinesComeSeldom(t *testing.T) {
	var out bytes.Buffer
	l := &lines{w: &out, job: "j", next: quietAtFirst}
	for tenth := range 400 { // 0 to 39.9 s
		l.show(mapreduce.Progress{Phase: "map", Bytes: 1, Elapsed: time.Duration(tenth) * 100 * time.Millisecond})
	}
	if got := strings.Count(out.String(), "\n"); got != 4 { // at 2, 12, 22 and 32 s
		t.Errorf("%d lines in 40 s, want 4:\n%s", got, out.String())
	}
	l.hide()
	l.show(mapreduce.Progress{Phase: "map", Elapsed: time.Hour})
	if got := strings.Count(out.String(), "\n"); got != 4 {
		t.Errorf("a line after the end")
	}
}

func TestBarRemovesItself(t *testing.T) {
	var out bytes.Buffer
	b := &bar{w: &out, job: "j"}
	b.show(mapreduce.Progress{Phase: "plan"})
	b.show(mapreduce.Progress{Phase: "map", Bytes: 10, TotalBytes: 100})
	b.show(mapreduce.Progress{Phase: "map", Bytes: 100, TotalBytes: 100}) // full, but not at its end
	b.show(mapreduce.Progress{Phase: "map", Bytes: 200, TotalBytes: 100}) // a file that grew
	b.show(mapreduce.Progress{Phase: "merge", Bytes: 100, TotalBytes: 100})
	b.show(mapreduce.Progress{Phase: "write", Rows: 3})
	b.show(mapreduce.Progress{Phase: "done"})
	b.hide()
	shown := out.Len()
	b.show(mapreduce.Progress{Phase: "map", Bytes: 1, TotalBytes: 100})
	if out.Len() != shown {
		t.Error("it shows something after hide")
	}
	for _, s := range []string{"j: looking at the input", "j: reading", "j: merging", "j: writing, 3 rows"} {
		if !strings.Contains(out.String(), s) {
			t.Errorf("%q was not shown: %q", s, out.String())
		}
	}
	if left := onScreen(out.String()); left != "" {
		t.Errorf("left on the screen: %q", left)
	}
	if strings.Contains(out.String(), "\x1b[3") {
		t.Errorf("colours: %q", out.String())
	}
}

// onScreen returns what is left of a terminal's line after all that was
// written: a carriage return goes back to its start, where later text covers
// earlier, and "erase in line" clears it.
func onScreen(written string) string {
	var line []rune
	at := 0
	runes := []rune(written)
	for i := 0; i < len(runes); i++ {
		switch r := runes[i]; {
		case r == '\r':
			at = 0
		case r == '\x1b' && i+1 < len(runes) && runes[i+1] == '[':
			for i += 2; i < len(runes) && (runes[i] < '@' || runes[i] > '~'); i++ {
			}
			if i < len(runes) && runes[i] == 'K' {
				line, at = line[:0], 0
			}
		default:
			for len(line) <= at {
				line = append(line, ' ')
			}
			line[at] = r
			at++
		}
	}
	return strings.TrimSpace(string(line))
}
