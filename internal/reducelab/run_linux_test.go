// SPDX-License-Identifier: Apache-2.0

package reducelab

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
	"github.com/quernmr/quern/shuffle/wire"
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
func rig(t *testing.T, l Limits, cfg NodeConfig, o netlab.Options) *Rig {
	t.Helper()
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	if cfg.Blocks == 0 {
		cfg.Blocks = 24576
	}
	cfg.Verbose = os.Getenv("QUERN_REDUCE_VERBOSE") != ""
	r, err := NewRig(l, cfg, o)
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

// TestRandomReduces has cases drawn from seeds happen under faults drawn from them, over real
// veths. QUERN_REDUCE_RUNS says how many (without it 16, with QUERN_LONG=1 600),
// QUERN_REDUCE_SEED the first seed: one that fails is repeated by its seed with one run.
func TestRandomReduces(t *testing.T) {
	runs, first := env(t, "QUERN_REDUCE_RUNS", sample(16, 600)), uint64(env(t, "QUERN_REDUCE_SEED", 1))
	l := Limits{Hosts: 9, Kernel: 5, Mortal: 3, Members: 8, Calls: sample(60, 300), Largest: sample(100_000, 400_000)}
	begin := time.Now()
	r := rig(t, l, NodeConfig{Patience: 2 * time.Second}, netlab.Options{Seed: first, StaticNeighbours: true})
	t.Logf("%d hosts after %v", l.Hosts, time.Since(begin).Round(time.Millisecond))
	var all Deeds
	var kernel, user, killed, failed, calls int
	for seed := first; seed < first+uint64(runs); seed++ {
		c := NewCase(seed, l)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		out, err := Run(ctx, r, c)
		cancel()
		all.add(&out.Deeds, 1)
		done := 0
		for _, results := range out.Results {
			user += len(results)
			for _, result := range results {
				done += result.Done
				switch {
				case result.Killed:
					killed++
				case result.Err != "":
					failed++
				}
			}
		}
		calls += done
		kernel += out.Kernel
		user -= out.Kernel
		d := &out.Deeds
		if err != nil {
			t.Errorf("%s:\n%v\n%+v\nto repeat: QUERN_REDUCE_RUNS=1 QUERN_REDUCE_SEED=%d go test -run TestRandomReduces ./internal/reducelab", c, err, out, seed)
			if t.Context().Err() != nil {
				return
			}
			continue
		}
		t.Logf("%s:\n%d calls are right; programs completed %d blocks, user space %d, %d results again, %d parts again, %d pieces of streams, woken %d times and %d by timers, %d packets overran; %v",
			c, done, d.Programs[wire.BlockReduced], d.User[wire.BlockReduced], count(d.Programs, wire.ResultAgain)+count(d.User, wire.ResultAgain), d.Again, d.Pieces, d.Woken, d.Timers, out.Overrun,
			out.Took.Round(time.Millisecond))
	}
	t.Logf("%d calls are right; programs served %d members, %d did without, %d were killed, %d calls failed for a reason; %d parts went again, %d were damaged",
		calls, kernel, user, killed, failed, all.Again, count(all.Programs, wire.PartTag)+count(all.User, wire.PartTag))
	if runs < 16 {
		return
	}
	for what, n := range map[string]uint64{
		"members with programs": uint64(kernel), "members without": uint64(user), "killed members": uint64(killed), "failed calls": uint64(failed),
		"parts sent again": all.Again, "pieces of streams": all.Pieces, "blocks that programs completed": all.Programs[wire.BlockReduced],
		"results that programs passed on": all.Programs[wire.ResultPassed], "results that user space passed on": all.User[wire.ResultPassed],
		"results that programs sent again": all.Programs[wire.ResultAgain], "results that user space sent again": all.User[wire.ResultAgain],
		"damaged frames": count(all.Programs, wire.PartTag) + count(all.User, wire.PartTag),
	} {
		if n == 0 {
			t.Errorf("there were no %s", what)
		}
	}
}
