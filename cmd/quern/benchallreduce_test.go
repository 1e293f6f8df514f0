// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/internal/reducebench"
)

func TestBenchAllReduceFlags(t *testing.T) {
	for flag, says := range map[string]string{
		"--members=1": "2 to 32", "--members=33": "2 to 32", "--members=many": `"many"`, "--elements=0": "1 to", "--elements=1G": `"1G"`,
		"--paths=pigeon": `"pigeon"`, "--conditions=tired": `"tired"`, "--turns=0": "0 turns", "--rounds=0": "of 0 rounds", "--time=long": `"long"`,
		"--network=pigeons": `"pigeons"`,
	} {
		quern(t, "bench", "allreduce", flag).failure(t, exitUsage, says)
	}
	quern(t, "bench", "allreduce", "wordcount").failure(t, exitUsage, "wordcount")
}

// The figures that stand for a path, by name, and no others.
func TestBenchAllReduceJSON(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	o := quern(t, "bench", "allreduce", "--json", "--quiet", "--quick", "--members=2", "--elements=1024,50000", "--rounds=5")
	var got struct {
		Results []map[string]any
	}
	if err := json.Unmarshal([]byte(o.success(t)), &got); err != nil {
		t.Fatalf("%v in %q", err, o.stdout)
	}
	var paths []string
	for _, r := range got.Results {
		path, _ := r["path"].(string)
		paths = append(paths, path)
		if n := r["elements"]; r["members"] != 2.0 || n != 1024.0 && n != 50000.0 || r["condition"] != "idle" && r["condition"] != "busy" || len(r) != 8 {
			t.Errorf("%v", r)
		}
		for _, name := range []string{"round_p50_us", "round_p99_us", "wire_bytes"} {
			if v, ok := r[name].(float64); !ok || v <= 0 {
				t.Errorf("%s: %s is %v", path, name, r[name])
			}
		}
		if v, ok := r["cpu_us"].(float64); !ok || v < 0 {
			t.Errorf("%s: cpu_us is %v", path, r["cpu_us"])
		}
	}
	if !slices.Equal(paths, slices.Repeat(reducebench.Usual, 4)) { // two lengths, two conditions
		t.Errorf("paths %s", strings.Join(paths, " "))
	}
	if o.stderr != "" {
		t.Errorf("--quiet said %q", o.stderr)
	}
}
