// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quernmr/quern/mapreduce"
	"golang.org/x/term"
)

// worthASummary is how long a job takes at least for a summary to be printed
// where nobody is watching.
const worthASummary = 2 * time.Second

// summary is what --json says about a job that succeeded.
type summary struct {
	Job      string           `json:"job"`
	OK       bool             `json:"ok"`
	Audit    mapreduce.Audit  `json:"audit"`
	Counters map[string]int64 `json:"counters"`
	Notes    []string         `json:"notes"`
	Files    int              `json:"files"`
	Splits   int              `json:"splits"`
	Parts    int              `json:"parts"`
	Bytes    int64            `json:"bytes"`
	Records  int64            `json:"records"`
	Rows     int64            `json:"rows"`
	Spills   int64            `json:"spills"`
	Spilled  int64            `json:"spilled_bytes"`
	Seconds  float64          `json:"seconds"`
	Map      float64          `json:"map_seconds"`
	Drain    float64          `json:"drain_seconds"`
	PeakRSS  int64            `json:"peak_rss_bytes"`
}

// failure is what --json says if the job, or quern before it, failed.
type failure struct {
	Job      string `json:"job,omitempty"`
	OK       bool   `json:"ok"`
	Error    string `json:"error"`
	Kind     string `json:"kind,omitempty"` // of the error, as task.FaultKind has it
	ExitCode int    `json:"exit_code"`
}

func newSummary(job string, r *mapreduce.Result) summary {
	s := summary{
		Job: job, OK: true, Audit: r.Audit, Counters: r.Counters, Notes: r.Notes,
		Files: r.Files, Splits: r.Splits, Parts: r.Parts,
		Bytes: r.Bytes, Records: r.Records, Rows: r.Audit.Rows,
		Spills: r.Spills, Spilled: r.Spilled,
		Seconds: r.Elapsed.Seconds(), Map: r.Map.Seconds(), Drain: r.Drain.Seconds(),
		PeakRSS: peakRSS(),
	}
	if s.Counters == nil {
		s.Counters = map[string]int64{}
	}
	if s.Notes == nil {
		s.Notes = []string{}
	}
	return s
}

// printJSON writes v as the last line of standard error.
func (a *app) printJSON(v any) { _ = writeJSON(a.stderr, v) }

// finish says what the user wants to know about a job that succeeded.
func (a *app) finish(job string, r *mapreduce.Result, said report) {
	s := newSummary(job, r)
	if said.JSON {
		a.printJSON(s)
		return
	}
	if said.Quiet {
		return
	}
	for _, note := range r.Notes {
		fmt.Fprintln(a.stderr, "note: "+note)
	}
	watched := term.IsTerminal(int(a.stderr.Fd()))
	if watched || said.Verbose || r.Elapsed > worthASummary {
		fmt.Fprintf(a.stderr, "quern %s: %s\n", job, s)
		for _, name := range slices.Sorted(maps.Keys(r.Counters)) {
			fmt.Fprintf(a.stderr, "quern %s: %s: %d\n", job, name, r.Counters[name])
		}
	}
}

// String returns the summary as a line of text.
func (s summary) String() string {
	parts := []string{count(int64(s.Files), "file"), size(s.Bytes)}
	if s.Records > 0 {
		parts = append(parts, count(s.Records, "record"))
	}
	parts = append(parts, count(s.Rows, "row"))
	took := fmt.Sprintf("%.2f s", s.Seconds)
	if s.Seconds > 0 && s.Bytes > 0 {
		took += fmt.Sprintf(" (%s/s)", size(int64(float64(s.Bytes)/s.Seconds)))
	}
	parts = append(parts, took)
	if s.Spills > 0 {
		parts = append(parts, fmt.Sprintf("%s spilled (%s)", count(s.Spills, "run"), size(s.Spilled)))
	}
	if s.PeakRSS > 0 {
		parts = append(parts, "peak memory "+size(s.PeakRSS))
	}
	return strings.Join(parts, ", ")
}
