// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/quernmr/quern/internal/castbench"
	"github.com/quernmr/quern/internal/netlab"
)

func TestBenchBroadcastFlags(t *testing.T) {
	for flag, says := range map[string]string{
		"--members=0": "1 to 64", "--members=65": "1 to 64", "--members=many": `"many"`, "--sizes=7": `"7"`, "--sizes=2GiB": `"2GiB"`, "--sizes=big": `"big"`,
		"--paths=pigeon": `"pigeon"`, "--conditions=tired": `"tired"`, "--turns=0": "0 turns", "--rounds=0": "of 0 rounds", "--time=long": `"long"`,
		"--chains=-1": "chains", "--window=-1": "window", "--network=pigeons": `"pigeons"`,
	} {
		quern(t, "bench", "broadcast", flag).failure(t, exitUsage, says)
	}
	quern(t, "bench", "broadcast", "wordcount").failure(t, exitUsage, "wordcount")
}

// The figures that stand for a path, by name.
func TestBenchBroadcastJSON(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	o := quern(t, "bench", "broadcast", "--json", "--quiet", "--quick", "--members=2", "--sizes=1.4KB,1MB", "--rounds=5")
	var got struct {
		Network string
		Results []map[string]any
	}
	if err := json.Unmarshal([]byte(o.success(t)), &got); err != nil {
		t.Fatalf("%v in %q", err, o.stdout)
	}
	if got.Network != castbench.Switch {
		t.Errorf("network %q", got.Network)
	}
	var paths []string
	for _, r := range got.Results {
		path, _ := r["path"].(string)
		paths = append(paths, path)
		if size := r["bytes"]; r["members"] != 2.0 || size != 1400.0 && size != 1e6 || r["condition"] != "idle" && r["condition"] != "busy" {
			t.Errorf("%v", r)
		}
		for _, name := range []string{"p50_us", "p99_us", "source_bytes"} {
			if v, ok := r[name].(float64); !ok || v <= 0 {
				t.Errorf("%s: %s is %v", path, name, r[name])
			}
		}
		for _, name := range []string{"confirmed_p50_us", "confirmed_p99_us"} {
			v, ok := r[name].(float64)
			if ours := path == castbench.Kernel || path == castbench.Relay; ok != ours || ours && v <= 0 {
				t.Errorf("%s: %s is %v", path, name, r[name])
			}
		}
		if _, ok := r["cpu_us"]; !ok || r["mismatches"] != 0.0 {
			t.Errorf("%v", r)
		}
	}
	if !slices.Equal(paths, slices.Repeat(castbench.Paths, 4)) { // two sizes, two conditions
		t.Errorf("paths %s", strings.Join(paths, " "))
	}
	if o.stderr != "" {
		t.Errorf("--quiet said %q", o.stderr)
	}
}
