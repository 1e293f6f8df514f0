// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
)

const books = "../../testdata/books"

// Six different words in ten; the paragraphs have 21, 14 and 5 bytes.
func TestByHand(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.txt": "To be, or\n'not' to be\n\n\n\n  The miller's \n  \n\n",
		"b.txt": "to be",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{dir}, 16, "", &out); err != nil {
		t.Fatal(err)
	}
	const want = "(all)\t10\t6\t3\t12\t21\t21\nA\t8\t6\t2\t12\t21\t21\nB\t2\t2\t1\t5\t5\t5\n"
	got := strings.NewReplacer(filepath.Join(dir, "a.txt"), "A", filepath.Join(dir, "b.txt"), "B").Replace(out.String())
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// reference is what testdata/reference.py found of a file.
type reference struct {
	Words, Distinct, Paragraphs, Median, P90, P99 int64

	Estimates map[int]int64 // by 2-logarithm of the number of registers
}

func readReference(t *testing.T) map[string]reference {
	t.Helper()
	var ref struct{ Files map[string]reference }
	text, err := os.ReadFile("testdata/reference.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &ref); err != nil {
		t.Fatal(err)
	}
	if len(ref.Files) != 8 {
		t.Fatalf("the reference has %d files", len(ref.Files))
	}
	return ref.Files
}

// The books, against exact counts and quantiles and against a HyperLogLog in Python.
func TestBooks(t *testing.T) {
	const precision = 12
	ref := readReference(t)
	rows, _, err := mapreduce.Collect(t.Context(), sketches(precision), mapreduce.Options{
		Inputs: []string{books},
		// Sketches of many parts of a file are those of the whole.
		Input: input.Options{Delimiter: []byte("\n\n"), SplitSize: 50_000},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != len(ref) {
		t.Errorf("%d rows, want %d", len(rows), len(ref))
	}
	for _, row := range rows {
		name, got := filepath.Base(row.Key), row.Result
		want := ref[name]
		if got.Words != want.Words || got.Paragraphs != want.Paragraphs {
			t.Errorf("%s: %d words in %d paragraphs, want %d in %d", name, got.Words, got.Paragraphs, want.Words, want.Paragraphs)
		}
		for _, q := range [][2]int64{{got.Median, want.Median}, {got.P90, want.P90}, {got.P99, want.P99}} {
			// A bin is no wider than 1/32 of its least value, and its middle is reported.
			if off := max(q[0]-q[1], q[1]-q[0]); off*64 > q[1] {
				t.Errorf("%s: quantile %d, want %d", name, q[0], q[1])
			}
		}
		if got.Distinct != want.Estimates[precision] {
			t.Errorf("%s: %d different words, Python's estimate is %d", name, got.Distinct, want.Estimates[precision])
		}
	}
}

// With few registers and many, estimates are near the exact counts, and equal to those of Python.
func TestPrecision(t *testing.T) {
	ref := readReference(t)
	together := map[string]bool{}
	check := func(name string, words map[string]bool) {
		want := ref[name]
		if int64(len(words)) != want.Distinct {
			t.Errorf("%s: %d different words, sort has %d", name, len(words), want.Distinct)
		}
		for precision, estimate := range want.Estimates {
			got := estimateOf(maps.Keys(words), precision)
			// The hash is fixed, so this holds always or never. Of 48 estimates that were
			// normal, one in eight sets would have one beyond three standard errors.
			limit := 3 * 1.04 / math.Sqrt(math.Exp2(float64(precision))) * float64(want.Distinct)
			if off := math.Abs(float64(got - want.Distinct)); off > limit {
				t.Errorf("%s, 2^%d registers: %d different words, want %d", name, precision, got, want.Distinct)
			}
			if got != estimate {
				t.Errorf("%s, 2^%d registers: %d different words, Python's estimate is %d", name, precision, got, estimate)
			}
		}
	}
	for name := range ref {
		if name == all {
			continue
		}
		text, err := os.ReadFile(filepath.Join(books, name))
		if err != nil {
			t.Fatal(err)
		}
		words := map[string]bool{}
		for _, word := range strings.FieldsFunc(strings.ToLower(string(text)), notInWords) {
			if word = strings.Trim(word, "'"); word != "" {
				words[word], together[word] = true, true
			}
		}
		check(name, words)
	}
	check(all, together)
}

// estimateOf is what a sketch of words says of how many different ones there are.
func estimateOf(words iter.Seq[string], precision int) int64 {
	ranks := map[uint32]int64{}
	for word := range words {
		r, rank := register([]byte(word), precision)
		ranks[r] = max(ranks[r], rank)
	}
	var l logs
	for _, r := range slices.Sorted(maps.Keys(ranks)) {
		l.add(ranks[r])
	}
	return l.estimate(precision)
}

// From none to many values, most registers empty or none.
func TestEstimate(t *testing.T) {
	const precision = 10
	for _, n := range []int{0, 1, 2, 10, 100, 1000, 3000, 10_000, 100_000, 300_000} {
		got := float64(estimateOf(func(yield func(string) bool) {
			for i := range n {
				if !yield(string(binary.LittleEndian.AppendUint32(nil, uint32(i)))) {
					return
				}
			}
		}, precision))
		// Half of one is for rounding.
		if math.Abs(got-float64(n)) > 3*1.04/32*float64(n)+0.5 {
			t.Errorf("%d values: estimate %v", n, got)
		}
	}
}

// By hand: FNV-1a of no bytes is its offset, and the mixing is worked out by Python.
func TestRegister(t *testing.T) {
	const h = 0xefd01f60ba992926
	if got := hash(nil); got != h {
		t.Fatalf("hash of nothing: %#x", got)
	}
	for _, c := range []struct {
		precision int
		register  uint32
		rank      int64
	}{
		// 1110 1111 1101 0000 0001 1111 0110 ...
		{4, 0b1110, 1},
		{12, 0b1110_1111_1101, 8},
		{16, 0b1110_1111_1101_0000, 4},
	} {
		r, rank := register(nil, c.precision)
		if r != c.register || rank != c.rank {
			t.Errorf("%d bits: register %b, rank %d", c.precision, r, rank)
		}
	}
}

// Every length lies in a bin whose middle is near it, and larger ones in none before.
func TestBins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shift := rapid.IntRange(0, 62).Draw(t, "shift")
		v := rapid.Int64Range(0, math.MaxInt64).Draw(t, "v") >> shift
		b := bin(v)
		if b >= registers {
			t.Fatalf("%d: bin %d is a register", v, b)
		}
		m := middle(b)
		if off := max(m-v, v-m); off > v>>(binBits+1) {
			t.Fatalf("%d: the middle of bin %d is %d", v, b, m)
		}
		if v > 0 && bin(v-1) > b || bin(v-1) < b-1 && b > 0 {
			t.Fatalf("%d is in bin %d, one less in %d", v, b, bin(v-1))
		}
	})
}

// Quantiles of random values, against sorting them.
func TestQuantiles(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		values := make([]int64, 1+rnd.IntN(50))
		counts := map[uint32]int64{}
		for i := range values {
			values[i] = rnd.Int64N(1 << rnd.IntN(20))
			counts[bin(values[i])]++
		}
		slices.Sort(values)
		var h histogram
		for b, n := range counts {
			h = append(h, count{b, n})
		}
		slices.SortFunc(h, func(a, b count) int { return int(a.bin) - int(b.bin) })
		for _, percent := range []int64{1, 50, 90, 99, 100} {
			want := values[int(math.Ceil(float64(len(values))*float64(percent)/100))-1]
			if got := h.quantile(percent); got != middle(bin(want)) {
				t.Errorf("%d%% of %v: %d, want the middle of %d's bin", percent, values, got, want)
			}
		}
	}
	if got := histogram(nil).quantile(50); got != 0 {
		t.Errorf("the median of nothing is %d", got)
	}
}

func TestErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.txt")
	for _, c := range []struct {
		input, want string
		precision   int
	}{
		{missing, missing, 12},
		{books, "2^3 registers", 3},
		{books, "2^17 registers", 17},
	} {
		var out bytes.Buffer
		err := run(t.Context(), []string{c.input}, c.precision, "", &out)
		if err == nil || !strings.Contains(err.Error(), c.want) || out.Len() != 0 {
			t.Errorf("error %v, standard output %q", err, fmt.Sprint(out.String()))
		}
	}
}
