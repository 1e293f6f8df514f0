// SPDX-License-Identifier: Apache-2.0

package castlab

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quernmr/quern/internal/labnode"
	"github.com/quernmr/quern/internal/netlab"
)

func TestMain(m *testing.M) {
	if ChildMain() {
		return
	}
	before, err := labnode.Kept()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if after, err := labnode.Kept(); code == 0 && (err != nil || after != before) {
			fmt.Fprintf(os.Stderr, "%d descriptors of maps, programs and links are open at the end, and %d were at the beginning (%v)\n", after, before, err)
			code = 1
		}
		os.Exit(code)
	}))
}

// sample returns a number: small, or with QUERN_LONG=1 large.
func sample[T any](few, many T) T {
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

// rig opens a rig for a test, which fails if anything of it is left at its end.
func rig(t *testing.T, l Limits, cfg NodeConfig, seed uint64) *Rig {
	t.Helper()
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	cfg.Verbose = os.Getenv("QUERN_CAST_VERBOSE") != ""
	r, err := NewRig(l, cfg, seed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// TestRandomCasts has cases drawn from seeds happen under faults drawn from them, over real
// veths. QUERN_CAST_RUNS says how many (without it 24, with QUERN_LONG=1 400),
// QUERN_CAST_SEED the first seed: one that fails is repeated by its seed with one run.
func TestRandomCasts(t *testing.T) {
	runs, first := env(t, "QUERN_CAST_RUNS", sample(24, 400)), uint64(env(t, "QUERN_CAST_SEED", 1))
	l := Limits{Hosts: 17, Kernel: 10, Mortal: 4, Members: 16, Largest: sample[int64](1<<20, 16<<20)}
	begin := time.Now()
	r := rig(t, l, NodeConfig{Memory: sample[int64](24<<20, 96<<20), Idle: 30 * time.Second, Patience: 5 * time.Second}, first)
	t.Logf("%d hosts after %v", l.Hosts, time.Since(begin).Round(time.Millisecond))
	var kernel, user, dead, again, late, had int
	for seed := first; seed < first+uint64(runs); seed++ {
		c := NewCase(seed, l)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		out, err := Run(ctx, r, c)
		cancel()
		kernel += out.Stored
		user += len(c.Members) - out.Stored - out.Dead
		dead += out.Dead
		again += int(out.Report.Again)
		late += out.Late
		had += out.Had
		if err != nil {
			t.Errorf("%s:\n%v\n%+v\nto repeat: %sQUERN_CAST_RUNS=1 QUERN_CAST_SEED=%d go test -run TestRandomCasts ./internal/castlab",
				c, err, out, sample("", "QUERN_LONG=1 "), seed) // a long run's sizes are other ones
			if t.Context().Err() != nil {
				return
			}
			continue
		}
		t.Logf("%s:\n%d parts, %d of programs, %d late, %d out, %d had it; %d chunks in %d chains, %d pumped, %d again, woken %d times and %d by timers, %d bytes left; %v",
			c, out.Parts, out.Stored, out.Late, out.Dead, out.Had, out.Report.Chunks, out.Report.Chains, out.Report.Pumped, out.Report.Again,
			out.Report.Woken, out.Report.Timers, out.Report.Sent, out.Took.Round(time.Millisecond))
	}
	t.Logf("%d members' programs stored, %d did without, %d were out, %d joined late, %d had it; %d chunks went again", kernel, user, dead, late, had, again)
	if runs >= 24 && (kernel == 0 || user == 0 || dead == 0 || again == 0 || late == 0 || had == 0) {
		t.Error("all of these were to be tried")
	}
}
