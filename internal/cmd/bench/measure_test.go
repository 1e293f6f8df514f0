// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain lets the test binary be the small process that measure starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == measureArg {
		os.Exit(measureMain(os.Args[2:]))
	}
	os.Exit(m.Run())
}

func TestMeasure(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	u, err := measure(t.Context(), []string{"sh", "-c", "echo hello"}, out)
	if err != nil {
		t.Fatal(err)
	}
	if u.Wall <= 0 || u.PeakRSS < 64<<10 {
		t.Errorf("usage %+v: want some time and memory", u)
	}
	text, err := os.ReadFile(out)
	if err != nil || string(text) != "hello\n" {
		t.Errorf("output %q, %v", text, err)
	}
}

func TestMeasureFailure(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	for _, tt := range []struct {
		argv []string
		want string
	}{
		{[]string{"sh", "-c", "echo no room >&2; exit 3"}, "no room"},
		{[]string{"/does/not/exist"}, "no such file"},
		{shell("false | true"), "exit status 1"},
	} {
		if _, err := measure(t.Context(), tt.argv, out); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: error %v, want one with %q", tt.argv, err, tt.want)
		}
	}
}

func TestTable(t *testing.T) {
	d := &dataset{name: "x", title: "Words"}
	var b strings.Builder
	printTable(&b, d, 2_000_000, []line{
		{label: "quern", quern: true, runs: []usage{{Wall: 3e9, PeakRSS: 1 << 20}, {Wall: 1e9, PeakRSS: 2 << 20}, {Wall: 2e9, PeakRSS: 1 << 20}}, result: digest{total: 5, rows: 2}},
		{label: "mawk", runs: []usage{{Wall: 5e9, PeakRSS: 1 << 20}}},
		{label: "DuckDB", skipped: "DuckDB is not installed"},
	})
	const want = `
### Words

2000000 bytes, 5 pairs, 2 keys

| tool | seconds | MB/s | peak memory, MiB | time against Quern | memory against Quern |
|---|---:|---:|---:|---:|---:|
| quern | 2.00 | 1 | 2 | 1.00 x | 1.00 x |
| mawk | 5.00 | 0 | 1 | 2.50 x | 0.50 x |
| DuckDB | DuckDB is not installed | | | | |
`
	if got := b.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
