// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"strings"
	"syscall"
	"testing"

	"github.com/quernmr/quern/internal/netlab"
)

// TestBenchSignals ends benchmarks of members in the middle of a turn that would last an
// hour: nothing is left.
func TestBenchSignals(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	allReduce, broadcast := []string{"allreduce", "--elements=16384"}, []string{"broadcast", "--sizes=64KB"}
	for _, s := range []struct {
		bench  []string
		path   string
		signal syscall.Signal
		code   int
	}{
		{allReduce, "ring-tcp", syscall.SIGINT, exitInterrupted},
		{allReduce, "ps-tcp", syscall.SIGTERM, 143},
		{allReduce, "kernel", syscall.SIGTERM, 143},
		{broadcast, "tcp-parallel", syscall.SIGINT, exitInterrupted},
		{broadcast, "udp-loop", syscall.SIGTERM, 143},
		{broadcast, "kernel", syscall.SIGTERM, 143},
	} {
		temp := t.TempDir()
		cmd := command(t, call{
			args: append(append([]string{"bench"}, s.bench...), "--quick", "--members=2", "--conditions=idle", "--time=1h", "--rounds=1000000000", "--turns=2", "--paths="+s.path),
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
			if strings.Contains(lines.Text(), "measuring") {
				if err := cmd.Process.Signal(s.signal); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != s.code {
			t.Errorf("%s by %s, %v: exit code %d, want %d; it said\n%s", s.bench[0], s.path, s.signal, got, s.code, said.String())
		}
		if left := entries(t, temp); len(left) != 0 {
			t.Errorf("%s by %s: %v left %q", s.bench[0], s.path, s.signal, left)
		}
	}
}
