// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// bench is one call of this command.
type bench struct {
	dir, quern, duckdb, books string
	runs                      int
	tools                     []string // empty: all
}

// line is one row of a printed table.
type line struct {
	label   string
	runs    []usage
	result  digest
	skipped string // why there is none
	quern   bool
	inexact bool
}

func (l line) median() time.Duration {
	var d []time.Duration
	for _, r := range l.runs {
		d = append(d, r.Wall)
	}
	slices.Sort(d)
	return d[len(d)/2]
}

func (l line) peak() int64 {
	var p int64
	for _, r := range l.runs {
		p = max(p, r.PeakRSS)
	}
	return p
}

func (b *bench) all(ctx context.Context, only []string, dataOnly bool) error {
	if err := os.MkdirAll(filepath.Join(b.dir, "out"), 0o755); err != nil {
		return err
	}
	fmt.Printf("%s/%s, %d CPUs, %d run(s) each, median wall time, largest peak of resident memory.\n",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), b.runs)
	var failed []string
	for _, d := range datasets {
		if len(only) > 0 && !slices.Contains(only, d.name) {
			continue
		}
		size, err := b.data(&d)
		if err != nil {
			return err
		}
		if size == 0 {
			fmt.Printf("\n### %s\n\nskipped: %s is not there (scripts/bench says why)\n", d.title, d.file)
			continue
		}
		if dataOnly {
			continue
		}
		bad, err := b.dataset(ctx, &d, size)
		if err != nil {
			return err
		}
		failed = append(failed, bad...)
	}
	if len(failed) > 0 {
		return fmt.Errorf("not as it should be:\n  %s", strings.Join(failed, "\n  "))
	}
	return nil
}

// data makes a data set's file unless it is there, and returns its size.
func (b *bench) data(d *dataset) (int64, error) {
	name := filepath.Join(b.dir, d.file)
	if st, err := os.Stat(name); err == nil {
		return st.Size(), nil
	}
	if d.make == nil {
		return 0, nil
	}
	f, err := os.Create(name + ".part")
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	w := bufio.NewWriterSize(f, 1<<20)
	if err := d.make(b, w); err != nil {
		return 0, fmt.Errorf("make %s: %w", d.file, err)
	}
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		return 0, fmt.Errorf("make %s: %w", d.file, err)
	}
	if err := os.Rename(name+".part", name); err != nil {
		return 0, err
	}
	st, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// dataset runs every tool, prints the table and returns what went wrong.
func (b *bench) dataset(ctx context.Context, d *dataset, size int64) ([]string, error) {
	in := filepath.Join(b.dir, d.file)
	if err := warm(in); err != nil {
		return nil, err
	}
	var lines []line
	var failed []string
	for i, c := range d.contender {
		if len(b.tools) > 0 && !slices.Contains(b.tools, c.tool) {
			continue
		}
		l := line{label: c.label, quern: c.tool == "quern", inexact: c.inexact, skipped: b.missing(c)}
		for n := 0; n < b.runs && l.skipped == ""; n++ {
			fmt.Fprintf(os.Stderr, "%s: %s, run %d of %d ... ", d.name, c.label, n+1, b.runs)
			out := filepath.Join(b.dir, "out", fmt.Sprintf("%s-%d-%s", d.name, i, c.tool))
			u, err := b.once(ctx, c, in, out)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "failed")
				failed = append(failed, fmt.Sprintf("%s: %s: %v", d.name, c.label, err))
				l.skipped, l.runs = "failed", nil
				break
			}
			fmt.Fprintf(os.Stderr, "%.2f s\n", u.Wall.Seconds())
			l.runs = append(l.runs, u)
			if n > 0 || c.inexact {
				continue // the first run's result is the one that is checked
			}
			if l.result, err = readResult(out, d.result, c.form); err != nil {
				failed = append(failed, fmt.Sprintf("%s: %s: %v", d.name, c.label, err))
			}
		}
		lines = append(lines, l)
	}
	failed = append(failed, disagreements(d.name, lines)...)
	printTable(os.Stdout, d, size, lines)
	return failed, nil
}

// missing says what a contender lacks here.
func (b *bench) missing(c contender) string {
	if c.tool == "duckdb" && b.duckdb == "" {
		return "DuckDB is not installed"
	}
	for _, n := range c.needs {
		if _, err := exec.LookPath(n); err != nil {
			return "there is no " + n
		}
	}
	if c.tool == "quern" {
		if _, err := os.Stat(b.quern); err != nil {
			return "there is no " + b.quern
		}
	}
	return ""
}

func (b *bench) once(ctx context.Context, c contender, in, out string) (usage, error) {
	r := strings.NewReplacer("{in}", in, "{out}", out, "{quern}", b.quern, "{duckdb}", b.duckdb)
	var argv []string
	own := false
	for _, a := range c.argv {
		own = own || a == "{out}"
		argv = append(argv, r.Replace(a))
	}
	if err := os.Remove(out); err != nil && !errors.Is(err, os.ErrNotExist) {
		return usage{}, err
	}
	stdout := out
	if own {
		stdout = out + ".stdout"
	}
	return measure(ctx, argv, stdout)
}

// warm reads a file once, so that every tool finds it in the page cache.
func warm(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.Copy(io.Discard, f)
	return err
}

func disagreements(set string, lines []line) []string {
	var bad []string
	var first *line
	for i := range lines {
		l := &lines[i]
		if len(l.runs) == 0 || l.inexact {
			continue
		}
		if first == nil {
			first = l
			continue
		}
		if why := first.result.differs(l.result); why != "" {
			bad = append(bad, fmt.Sprintf("%s: %s and %s found different things: %s", set, first.label, l.label, why))
		}
	}
	return bad
}
