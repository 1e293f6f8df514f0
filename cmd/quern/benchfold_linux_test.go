// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"strings"
	"syscall"
	"testing"

	"github.com/quernmr/quern/internal/netlab"
)

// TestBenchFoldSignals ends a benchmark in the middle: nothing is left.
func TestBenchFoldSignals(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	for s, code := range map[syscall.Signal]int{syscall.SIGINT: exitInterrupted, syscall.SIGTERM: 143} {
		temp := t.TempDir()
		cmd := command(t, call{
			args: []string{"bench", "fold", "--quick", "--keys=100K", "--pairs=100G", "--conditions=idle", "--paths=socket,kernel"},
			env:  []string{"TMPDIR=" + temp},
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
			if strings.Contains(lines.Text(), "setting up kernel") { // the other path's roles are there
				if err := cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != code {
			t.Errorf("%v: exit code %d, want %d; it said\n%s", s, got, code, said.String())
		}
		if left := entries(t, temp); len(left) != 0 {
			t.Errorf("%v left %q", s, left)
		}
	}
}
