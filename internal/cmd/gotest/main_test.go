// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRun runs go test on a small module: one test passes, one is skipped, one
// fails if it is told to.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	write("go.mod", "module m\n\ngo 1.26\n")
	write("m_test.go", `package m

import ("os"; "testing")

func TestGood(t *testing.T) {}
func TestSkipped(t *testing.T) { t.Skip("needs mawk") }
func TestMaybe(t *testing.T) { if os.Getenv("GOTEST_FAIL") != "" { t.Error("told to") } }
`)
	listed := write("listed", "# a comment\nm TestSkipped: needs .*\n")
	other := write("other", "m TestOther: .*\n")
	report := filepath.Join(dir, "report")
	t.Chdir(dir)
	t.Setenv("GOFLAGS", "-mod=mod")
	t.Setenv("GOWORK", "off")
	for _, tt := range []struct {
		name string
		args []string
		fail string
		code int
		said string
	}{
		{"a skip is told", []string{"--strict=false"}, "", 0, "SKIPPED: m TestSkipped: needs mawk\n"},
		{"a skip fails", []string{"--strict=true", "--expected", other}, "", 1, "SKIPPED: m TestSkipped: needs mawk\n"},
		{"a listed skip does not", []string{"--strict=true", "--expected", listed}, "", 0, "skipped, as is to be: m TestSkipped: needs mawk\n"},
		{"a failure fails", []string{"--strict=false"}, "1", 1, "told to\n"},
		{"no list", []string{"--expected", filepath.Join(dir, "none")}, "", 2, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("GOTEST_FAIL", tt.fail)
			os.Remove(report)
			var out strings.Builder
			code, err := run(append(tt.args, "--report", report, "--", "./..."), &out)
			if code != tt.code || !strings.Contains(out.String(), tt.said) {
				t.Errorf("exit code %d (%v), want %d; wrote\n%s\nwant %q", code, err, tt.code, out.String(), tt.said)
			}
			if tt.code < 2 {
				text, err := os.ReadFile(report)
				if err != nil || !strings.Contains(out.String(), string(text)) || !strings.Contains(string(text), "TestSkipped") {
					t.Errorf("report: %v\n%s", err, text)
				}
			}
		})
	}
}
