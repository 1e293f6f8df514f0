// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/quernmr/quern/internal/netlab"
)

func TestBenchFoldFlags(t *testing.T) {
	for flag, says := range map[string]string{
		"--keys=0": `"0"`, "--keys=many": `"many"`, "--keys=1G": "1000 to 20000000", "--keys=100M": "1000 to 20000000", "--keys=1K,999": "1000 to 20000000", "--pairs=x": `"x"`, "--runs=0": "--runs",
		"--trips=0": "--trips", "--trips=5000": "4096", "--conditions=tired": `"tired"`, "--paths=pigeon": `"pigeon"`,
	} {
		quern(t, "bench", "fold", flag).failure(t, exitUsage, says)
	}
	quern(t, "bench", "contention", "--pairs=1").failure(t, exitUsage, "--pairs")
	quern(t, "bench", "contention", "--keys=20000001").failure(t, exitUsage, "1 to 20000000")
	quern(t, "bench", "fold", "wordcount").failure(t, exitUsage, "wordcount")
	for text, want := range map[string]int{"7": 7, "1K": 1000, "100k": 100_000, "1M": 1_000_000, "2.5M": 2_500_000} {
		if n, err := parseCount(text); n != want || err != nil {
			t.Errorf("%s is %d, %v", text, n, err)
		}
	}
}

// The figures that stand for a path, by name, and nothing else.
func TestBenchFoldJSON(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	for _, args := range [][]string{
		{"fold", "--keys=2K", "--pairs=10K"},
		{"contention", "--keys=2K"},
	} {
		args = append([]string{"bench"}, append(args, "--json", "--quiet", "--quick", "--runs=1", "--trips=10", "--conditions=busy")...)
		o := quern(t, args...)
		var got struct{ Results []map[string]any }
		if err := json.Unmarshal([]byte(o.success(t)), &got); err != nil {
			t.Fatalf("%v in %q", err, o.stdout)
		}
		var paths []string
		for _, r := range got.Results {
			path, _ := r["path"].(string)
			if order, ok := r["order"].(string); ok {
				path += "-" + order
			}
			paths = append(paths, path)
			if r["keys"] != 2000.0 || r["condition"] != "busy" {
				t.Errorf("%v", r)
			}
			for _, name := range []string{"pairs_per_second", "cpu_ns_per_pair", "rtt_p50_us", "rtt_p99_us"} {
				if v, ok := r[name].(float64); !ok || v <= 0 {
					t.Errorf("%s: %s is %v", path, name, r[name])
				}
			}
			for _, name := range []string{"send_cpu_ns_per_pair", "receive_cpu_ns_per_pair"} {
				if _, ok := r[name].(float64); !ok {
					t.Errorf("%s: %s is %v", path, name, r[name])
				}
			}
		}
		if s := strings.Join(paths, " "); s != "kernel socket tcp-random tcp-hash" {
			t.Errorf("paths %s", s)
		}
		if o.stderr != "" {
			t.Errorf("--quiet said %q", o.stderr)
		}
	}
}
