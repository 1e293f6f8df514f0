// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/quernmr/quern/internal/netlab"
)

func TestChance(t *testing.T) {
	for text, want := range map[string]float64{"0": 0, "5%": 0.05, "0.05": 0.05, "100%": 1, "1": 1, "0.5%": 0.005} {
		var c chance
		if err := c.Set(text); err != nil || float64(c) != want {
			t.Errorf("%s is %v, want %v; %v", text, float64(c), want, err)
		}
	}
	for _, text := range []string{"", "%", "5", "-1%", "101%", "x", "NaN", "inf", "5%%"} {
		var c chance
		if err := c.Set(text); err == nil {
			t.Errorf("%q is %v, want an error", text, float64(c))
		}
	}
	for _, text := range []string{"0%", "5%", "0.9%", "0.07%", "14.3%", "29%", "57%", "99.99%", "100%"} {
		var c chance
		if err := c.Set(text); err != nil || c.String() != text {
			t.Errorf("%s becomes %s; %v", text, c.String(), err)
		}
	}
}

func TestDescribeCounters(t *testing.T) {
	var none, full, some netlab.Counters
	full.Links, some.Links = make([]netlab.Link, 1), make([]netlab.Link, 1)
	full.Links[0].To.Overrun = 3
	some.Links[0].To.Drawn, some.Links[0].To.Lost = 1000, 5
	for _, c := range []struct {
		counters netlab.Counters
		faults   bool
		want     string
	}{
		{none, false, "there were no faults"},
		{full, false, "there were no faults, 3 dropped since a queue was full"},
		{none, true, "no packet was touched"},
		{some, true, "of 1,000 packets 5 lost"},
	} {
		if got := describeCounters(c.counters, c.faults); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// What takes no variables does not ignore them in silence.
func TestFlagsAlone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		env  string
		says []string
	}{
		{[]string{"lab", "run", "--", "true"}, "QUERN_LOSS=5%", []string{"QUERN_LOSS", "--loss"}},
		{[]string{"lab", "run", "--", "true"}, "QUERN_UDP_ONLY=true", []string{"QUERN_UDP_ONLY", "--udp-only"}},
		{[]string{"bench", "fold"}, "QUERN_RUNS=zz", []string{"QUERN_RUNS", "--runs"}},
		{[]string{"bench", "contention"}, "QUERN_TRIPS=3", []string{"QUERN_TRIPS", "--trips"}},
		{[]string{"bench", "wordcount"}, "QUERN_SIZE=1", []string{"QUERN_SIZE", "--size"}},
	} {
		run(t, call{args: c.args, env: []string{c.env}}).failure(t, exitUsage, c.says...)
	}
	// Those of jobs, empty ones and the lab's own are fine; --runs 0 is what is wrong.
	for _, env := range []string{"QUERN_QUIET=true", "QUERN_MEMORY=1GiB", "QUERN_RUNS=", "QUERN_LAB_HOSTS=x"} {
		run(t, call{args: []string{"bench", "fold", "--runs", "0"}, env: []string{env}}).failure(t, exitUsage, "--runs 0")
	}
}

func TestLabHelp(t *testing.T) {
	if text := quern(t, "lab").success(t); !strings.Contains(text, "run") || !strings.Contains(text, "clean") {
		t.Errorf("%s", text)
	}
	text := quern(t, "lab", "run", "--help").success(t)
	for _, flag := range []string{"hosts", "mtu", "loss", "duplicate", "reorder", "corrupt", "delay", "jitter", "hold", "seed", "json", "quiet", "name", "no-cluster", "slots", "shuffle", "logs"} {
		if !strings.Contains(text, "--"+flag) {
			t.Errorf("help does not show --%s", flag)
		}
	}
	quern(t, "lab", "rnu").failure(t, exitUsage, "rnu")
	quern(t, "lab", "run", "--loss", "5", "--", "true").failure(t, exitUsage, "--loss", "5% or 0.05")
	quern(t, "lab", "run", "--delay", "5", "--", "true").failure(t, exitUsage, "--delay", "5ms")
}
