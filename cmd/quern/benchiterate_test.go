// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/mapreduce/cluster"
)

func TestBenchIterateFlags(t *testing.T) {
	for flag, says := range map[string]string{
		"--hosts=0": "1 to 32", "--hosts=33": "1 to 32", "--points=999": "1,000 to", "--points=many": `"many"`, "--dimensions=0": "dimensions",
		"--clusters=0": "clusters", "--rounds=0": "rounds", "--rounds=4001": "1 to 4,000", "--turns=0": "turns", "--shuffle=pigeon": `"pigeon"`,
	} {
		quern(t, "bench", "iterate", flag).failure(t, exitUsage, says)
	}
	quern(t, "bench", "iterate", "kmeans").failure(t, exitUsage, "kmeans")
}

// TestBenchIterateSubmittable: whoever built quern with libraries of this machine hears so at once.
func TestBenchIterateSubmittable(t *testing.T) {
	var usage *usageError
	err := submittable(file(t, "quern", "#!/bin/sh\n"))
	if !errors.As(err, &usage) || !errors.Is(err, cluster.ErrProgram) || !strings.Contains(usage.hint, "CGO_ENABLED=0 go build") {
		t.Errorf("of a script: %v", err)
	}
	if _, platform := cluster.Platform(binary); platform == nil {
		if err := submittable(binary); err != nil {
			t.Errorf("of this one: %v", err)
		}
	}
}

// TestIterateResult has figures worked out by hand.
func TestIterateResult(t *testing.T) {
	f := iterateFlags{hosts: 4, points: 5000, rounds: 2}
	got := f.result(clusterEngine, []iterateRun{
		{Took: []int64{4000, 1000}, Waited: []int64{1000, 500}, TotalNs: 2e6},
		{Took: []int64{2000, 3000}, Waited: []int64{500, 500}, TotalNs: 8e6},
		{Took: []int64{5000, 5000}, Waited: []int64{2500, 0}, TotalNs: 3e6},
	})
	if want := (iterateResult{clusterEngine, 4, 2, 5000, 3, 5, 0.25, 3}); got != want {
		t.Errorf("%+v, not %+v", got, want)
	}
	if got := f.result(localEngine, []iterateRun{{}}); got != (iterateResult{Engine: localEngine, Hosts: 1, Rounds: 2, Points: 5000}) {
		t.Errorf("of nothing: %+v", got)
	}
}

// The local engine and a cluster come to the same, to the last bit.
func TestBenchIterateJSON(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	o := quern(t, "bench", "iterate", "--json", "--quiet", "--quick", "--points=20000", "--rounds=12")
	var got struct {
		Results   []map[string]any
		Identical *bool
	}
	if err := json.Unmarshal([]byte(o.success(t)), &got); err != nil {
		t.Fatalf("%v in %q", err, o.stdout)
	}
	if got.Identical == nil || !*got.Identical {
		t.Errorf("not identical: %s", o.stdout)
	}
	var engines []string
	for _, r := range got.Results {
		engine, _ := r["engine"].(string)
		engines = append(engines, engine)
		hosts := map[string]float64{localEngine: 1, clusterEngine: 2}[engine]
		if r["hosts"] != hosts || r["rounds"] != 12.0 || r["points"] != 20000.0 {
			t.Errorf("%v", r)
		}
		for _, name := range []string{"round_p50_us", "round_p99_us", "total_ms"} {
			if v, ok := r[name].(float64); !ok || v <= 0 {
				t.Errorf("%s: %s is %v", engine, name, r[name])
			}
		}
		if v, ok := r["wait_share"].(float64); !ok || v < 0 || v > 1 {
			t.Errorf("%s: waits for %v of the time", engine, r["wait_share"])
		}
	}
	if strings.Join(engines, " ") != "local cluster" {
		t.Errorf("engines %q", engines)
	}
	if o.stderr != "" {
		t.Errorf("--quiet said %q", o.stderr)
	}
}
