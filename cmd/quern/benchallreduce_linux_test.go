// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"strings"
	"syscall"
	"testing"

	"github.com/quernmr/quern/internal/netlab"
)

// TestBenchAllReduceSignals ends a benchmark in the middle of a turn that would last an
// hour: nothing is left.
func TestBenchAllReduceSignals(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	for path, s := range map[string]struct {
		signal syscall.Signal
		code   int
	}{
		"ring-tcp": {syscall.SIGINT, exitInterrupted},
		"ps-tcp":   {syscall.SIGTERM, 143},
		"kernel":   {syscall.SIGTERM, 143},
	} {
		temp := t.TempDir()
		cmd := command(t, call{
			args: []string{
				"bench", "allreduce", "--quick", "--members=2", "--elements=16384", "--conditions=idle", "--time=1h", "--rounds=1000000000", "--turns=2",
				"--paths=" + path,
			},
			env: []string{"TMPDIR=" + temp},
		})
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			said.WriteString(lines.Text() + "\n")
			if strings.Contains(lines.Text(), "measuring") {
				if err := cmd.Process.Signal(s.signal); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != s.code {
			t.Errorf("%s, %v: exit code %d, want %d; it said\n%s", path, s.signal, got, s.code, said.String())
		}
		if left := entries(t, temp); len(left) != 0 {
			t.Errorf("%s: %v left %q", path, s.signal, left)
		}
	}
}
