// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/quernmr/quern/mapreduce/output"
)

func TestMain(m *testing.M) {
	if programMain() {
		return
	}
	goleak.VerifyTestMain(m)
}

// TestSpilling runs jobs over more keys than the least memory holds, and with
// all memory needed: the rows must be the same.
func TestSpilling(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second or two")
	}
	rng := rand.New(rand.NewPCG(3, 4))
	var text bytes.Buffer
	for range 120_000 {
		fmt.Fprintf(&text, "word-%d,%d.%d\n", rng.IntN(100_000), rng.IntN(1000)-500, rng.IntN(100))
	}
	path := write(t, "a.csv", text.String())
	for _, c := range []struct {
		job  string
		args []string
	}{
		{"count", nil},
		{"sort", []string{"--reverse"}},
		{"sort", []string{"--field", "2", "--no-header", "--numeric"}},
		{"aggregate", []string{"--no-header", "--group-by", "1", "--sum", "2", "--mean", "2"}},
	} {
		want, _, err := run(t, way{workers: 2, memory: 1 << 30, partitions: 1}, c.job, append(c.args, path)...)
		if err != nil {
			t.Fatal(err)
		}
		got, res, err := run(t, way{split: 1 << 20, workers: 2, memory: 16 << 20, partitions: 1}, c.job, append(c.args, path)...)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s %v: %d rows with little memory, %d with much, not the same", c.job, c.args, len(got), len(want))
		}
		t.Logf("%s: %d rows, %d spills", c.job, len(got), res.Spills)
	}
}

// TestAggregateAgreesWithBig compares with exact arithmetic.
func TestAggregateAgreesWithBig(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	type group struct {
		n        int64
		sum      big.Rat
		min, max *big.Rat
	}
	groups := map[string]*group{}
	var text strings.Builder
	text.WriteString("k,v\n")
	for range 3000 {
		key := strconv.Itoa(rng.IntN(20))
		digits := rng.IntN(8)
		value := strconv.FormatFloat((rng.Float64()-0.5)*1e6, 'f', digits, 64)
		if rng.IntN(20) == 0 {
			value = ""
		}
		fmt.Fprintf(&text, "%s,%s\n", key, value)
		g := groups[key]
		if g == nil {
			g = &group{}
			groups[key] = g
		}
		if value == "" {
			continue
		}
		v, _ := new(big.Rat).SetString(value)
		g.n++
		g.sum.Add(&g.sum, v)
		if g.min == nil || v.Cmp(g.min) < 0 {
			g.min = v
		}
		if g.max == nil || v.Cmp(g.max) > 0 {
			g.max = v
		}
	}
	path := write(t, "a.csv", text.String())
	rows, _, err := run(t, way{split: 500, workers: 3, memory: 64 << 20, partitions: 2}, "aggregate", "--group-by", "k", "--sum", "v", "--min", "v", "--mean", "v", "--max", "v", path)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != len(groups) {
		t.Fatalf("%d rows, want %d", len(rows), len(groups))
	}
	for _, row := range rows {
		cells := strings.Split(row, "\t")
		g := groups[cells[0]]
		mean, _ := new(big.Rat).Quo(&g.sum, big.NewRat(g.n, 1)).Float64()
		for i, want := range []*big.Rat{&g.sum, g.min, nil, g.max} {
			if want == nil {
				if got, err := strconv.ParseFloat(cells[3], 64); err != nil || got != mean {
					t.Errorf("group %s: mean %s, want %v", cells[0], cells[3], mean)
				}
				continue
			}
			if got, ok := new(big.Rat).SetString(cells[1+i]); !ok || got.Cmp(want) != 0 {
				t.Errorf("group %s, cell %d: %s, want %s", cells[0], i, cells[1+i], want.RatString())
			}
		}
	}
}

// TestHeaderOfStreams has files whose header only the first of many blocks
// shows: compressed, and standard input.
func TestHeaderOfStreams(t *testing.T) {
	var text bytes.Buffer
	text.WriteString("k,v\n")
	const rows = 400_000
	for i := range rows {
		fmt.Fprintf(&text, "key%d,1\n", i%3)
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(text.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want := []string{"key0\t133334", "key1\t133333", "key2\t133333"}
	path := write(t, "a.csv.gz", packed.String())
	got, _, err := run(t, way{workers: 4, memory: 64 << 20, partitions: 1}, "aggregate", "--group-by", "k", "--sum", "v", path)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("gzip: %q, %v", got, err)
	}

	def, options, common, inputs := parseArgs(t, "aggregate", []string{"--group-by", "k", "--sum", "v", "-"})
	job, opts, err := Prepare(def, options, common, inputs, new(bytes.Buffer))
	if err != nil {
		t.Fatal(err)
	}
	got = nil
	opts.Input.Stdin, opts.Workers, opts.Memory = bytes.NewReader(text.Bytes()), 4, 64<<20
	opts.Output = output.Func(func(_ int, r *output.Row) error {
		got = append(got, rowText(t, r))
		return nil
	})
	if _, err := job.Run(context.Background(), opts); err != nil || !slices.Equal(got, want) {
		t.Errorf("standard input: %q, %v", got, err)
	}
}

// TestGrepFiles looks at what grep says of several files.
func TestGrepFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"b.txt": "x\nyx\n", "a.txt": "no\nx\n", "c.txt": "none\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--count"}, []string{in("a.txt") + "\t1", in("b.txt") + "\t2", in("c.txt") + "\t0"}},
		{[]string{"--with-filename"}, []string{in("a.txt") + "\tx", in("b.txt") + "\tx", in("b.txt") + "\tyx"}},
		{[]string{"--with-filename", "--with-offset"}, []string{in("a.txt") + "\t3\tx", in("b.txt") + "\t0\tx", in("b.txt") + "\t2\tyx"}},
		{nil, []string{"x", "x", "yx"}},
	} {
		got, _, err := run(t, way{split: 2, workers: 2, memory: 64 << 20, partitions: 1}, "grep", append(c.args, "--pattern", "x", dir)...)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("grep %q: got %q, %v; want %q", c.args, got, err, c.want)
		}
	}
}
