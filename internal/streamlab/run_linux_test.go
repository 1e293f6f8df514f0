// SPDX-License-Identifier: Apache-2.0

package streamlab

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/quernmr/quern/internal/netlab"
)

// TestRandomJobs runs jobs drawn from seeds under faults drawn from them, over
// real veths. QUERN_STREAM_RUNS says how many (without it 12, with QUERN_LONG=1
// 1000), QUERN_STREAM_SEED the first seed: a run that fails is repeated by its seed with one run.
func TestRandomJobs(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	runs, first := env(t, "QUERN_STREAM_RUNS", sample(12, 1000)), uint64(env(t, "QUERN_STREAM_SEED", 1))
	const hosts = 3
	lab, err := netlab.New(netlab.Options{Hosts: hosts, Seed: first})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	}()
	var kernel, user, past uint64
	for seed := first; seed < first+uint64(runs); seed++ {
		j := NewJob(seed, Size{Maps: 4, Partitions: 4, Keys: 100_000, Pairs: 100_000})
		s := NewSetting(seed, hosts)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		report, err := Run(ctx, lab, s, j)
		cancel()
		kernel += report.Kernel
		user += report.User
		past += report.Past
		if err != nil {
			t.Errorf("%s\non %s:\n%v\nto repeat: QUERN_STREAM_RUNS=1 QUERN_STREAM_SEED=%d go test -run TestRandomJobs ./internal/streamlab", j, s, err, seed)
			if t.Context().Err() != nil {
				return
			}
			continue
		}
		t.Logf("%s\non %s: %d pairs, kernel %d, user %d, %d retransmitted, %d delivered, %d past sockets, %d flips, %d runs, %d overflows, %s", j, s,
			report.Pairs, report.Kernel, report.User, report.Retransmitted, report.Delivered, report.Past, report.Flips, report.Runs, report.Overflows, report.Time.Round(time.Millisecond))
	}
	if runs >= 12 && past == 0 && runtime.GOARCH == "amd64" {
		t.Error("no frame went past the sockets: that was to be tried")
	}
	if kernel == 0 || user == 0 {
		t.Errorf("%d pairs folded in the kernel and %d in user space: both paths were to be tried", kernel, user)
	}
}

// sample returns the number of runs: few, or with QUERN_LONG=1 many.
func sample(few, many int) int {
	if os.Getenv("QUERN_LONG") == "1" {
		return many
	}
	return few
}

func env(t *testing.T, name string, otherwise int) int {
	v := os.Getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 {
		t.Fatalf("%s=%q is no number", name, v)
	}
	return n
}
