// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/quernmr/quern/jobs"
)

func TestBenchJSON(t *testing.T) {
	for _, b := range benchmarks {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			o := run(t, call{args: []string{"bench", b.name, "--json", "--quiet", "--size=200kB", "--runs=1"}, env: []string{"QUERN_FORMAT=nonsense"}})
			var got struct {
				Results []map[string]any
			}
			if err := json.Unmarshal([]byte(o.success(t)), &got); err != nil {
				t.Fatalf("%v in %q", err, o.stdout)
			}
			if len(got.Results) != 1 || len(got.Results[0]) != 4 || got.Results[0]["name"] != b.name {
				t.Fatalf("results: %v", got.Results)
			}
			for _, key := range []string{"seconds", "bytes_per_second", "peak_rss_bytes"} {
				if n, _ := got.Results[0][key].(float64); n <= 0 {
					t.Errorf("%s is %v", key, got.Results[0][key])
				}
			}
			if o.stderr != "" {
				t.Errorf("--quiet said %q", o.stderr)
			}
		})
	}
}

func TestBenchOnFile(t *testing.T) {
	t.Parallel()
	in := file(t, "in", words)
	o := quern(t, "bench", "wordcount", in, "--runs=2", "--memory=256MiB", "--", "--lower")
	table := o.success(t)
	if !strings.Contains(table, "wordcount") || !strings.Contains(table, "peak memory") {
		t.Errorf("table:\n%s", table)
	}
	if !strings.Contains(o.stderr, "run 2 of 2") {
		t.Errorf("stderr: %q", o.stderr)
	}
	quern(t, "bench", "wordcuont").failure(t, exitUsage, `did you mean "wordcount"?`)
	quern(t, "bench", "wordcount", in, "--", "--lowre").failure(t, exitUsage, "--lowre")
	quern(t, "bench", "wordcount", in, "--size=big").failure(t, exitUsage, `"big"`)
	quern(t, "bench", "wordcount", in, "--runs=0").failure(t, exitUsage, "--runs")
	quern(t, "bench", "wordcount", in, "--format=csv").failure(t, exitUsage, "--format")
	quern(t, "bench", "join").failure(t, exitUsage, "join")
}

func TestBenchmarksAreJobs(t *testing.T) {
	for _, name := range benchNames() {
		if _, ok := jobs.Lookup(name); !ok {
			t.Errorf("there is no job %s", name)
		}
	}
}

func TestWriteWords(t *testing.T) {
	var a, b, other bytes.Buffer
	for w, seed := range map[*bytes.Buffer]uint64{&a: 5, &b: 5, &other: 6} {
		if err := writeWords(w, 300_000, seed); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("the same seed made different text")
	}
	if bytes.Equal(a.Bytes(), other.Bytes()) {
		t.Error("different seeds made the same text")
	}
	if n := a.Len(); n < 300_000 || n > 300_100 || a.Bytes()[n-1] != '\n' {
		t.Errorf("%d bytes, the last is %q", n, a.Bytes()[n-1])
	}
	counts := map[string]int{}
	for _, w := range strings.Fields(a.String()) {
		counts[w]++
	}
	most := 0
	for _, n := range counts {
		most = max(most, n)
	}
	if len(counts) < 5_000 || most < 1_000 {
		t.Errorf("%d different words, the most frequent %d times", len(counts), most)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := wordData.write(untilCancelled{ctx, &a}, 1_000_000); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestMadeUpWordsAreDistinct(t *testing.T) {
	seen := map[string]int{}
	rng := rand.New(rand.NewPCG(benchSeed, 3))
	for i := range vocabulary {
		w := madeUpWord(rng, i)
		if j, ok := seen[w]; ok {
			t.Fatalf("words %d and %d are both %s", j, i, w)
		}
		seen[w] = i
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{5, 1}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 9}, 3}} {
		if got := median(c.in); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}
