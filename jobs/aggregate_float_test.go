// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quernmr/quern/mapreduce/output"
)

// Columns that exact decimals refuse.
const floatColumn = `k,v
a,1e300
b,0.1
a,1
b,0.2
a,-1e300
b,0.3
a,6.02e23
b,
a,3.14159265358979323846264338327950288419716939937510
b,5e-324
`

const notFiniteColumn = `k,v,w
a,1.5,1
a,NaN,2
b,+Infinity,3
a, -inf ,nan
b,nan,5
a,2.5,-Inf
`

// The wanted figures were worked out with fractions of integers (Python's fractions, statistics by their definition,
// square roots of 800 digits), each rounded once at the end.
func TestAggregateFloats(t *testing.T) {
	for name, c := range map[string]struct {
		input string
		args  string
		want  []string
	}{
		"sums": {floatColumn, "--group-by k --sum v --mean v --min v --max v --count", []string{
			"a\t6.02e+23\t-1e+300\t1.204e+23\t1e+300\t5", "b\t0.6\t5e-324\t0.15\t0.3\t5",
		}},
		"variance":        {floatColumn, "--group-by k --variance v --stddev v --where k==\"b\"", []string{"b\t0.012499999999999999\t0.11180339887498948"}},
		"of a sample":     {floatColumn, "--group-by k --variance v --stddev v --sample --where k==\"b\"", []string{"b\t0.016666666666666666\t0.12909944487358055"}},
		"deviation":       {floatColumn, "--group-by k --stddev v", []string{"a\t" + text(6.324555320336759e299), "b\t0.11180339887498948"}},
		"over everything": {floatColumn, "--max v --count --distinct v", []string{"1e+300\t10\t9"}},
		"nothing":         {"v\n", "--sum v --count --max v --variance v --nan count", []string{"\t\t\t0\t0\t0\t0"}},
		"one":             {"v\n7\n", "--variance v --sample --mean v", []string{"7\t"}},
		"two columns":     {notFiniteColumn, "--group-by k --sum v,w --nan skip", []string{"a\t4\t3", "b\t\t8"}},
		"counted": {notFiniteColumn, "--group-by k --sum v --max v --min w --nan count", []string{
			// v: NaN, +Inf, -Inf; w: NaN, +Inf, -Inf
			"a\t4\t1\t2.5\t1\t0\t1\t1\t0\t1", "b\t\t3\t\t1\t1\t0\t0\t0\t0",
		}},
		"quantum":            {"v\n0.1\n0.25\n0.30000000001\n-7.77\n", "--sum v --mean v --quantum 0.125", []string{"-7.125\t-1.78125"}},
		"measured":           {"v\n0.1\n0.25\n0.30000000001\n-7.77\n", "--sum v --max v --quantum 0.125 --measure", []string{"-7.125\t0.30000000001\t-0.005000000010000422"}},
		"no rows of a group": {"k,v\na,\nb,1\n", "--group-by k --sum v --count", []string{"a\t\t1", "b\t1\t1"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, "a.csv", c.input)
			for _, w := range []way{usual, {split: 20, workers: 3, memory: 64 << 20, partitions: 2}} {
				args := strings.Fields(c.args)
				rows, res, err := run(t, w, "aggregate", append(args, "--floats", path)...)
				if err != nil {
					t.Fatal(err)
				}
				slices.Sort(rows)
				if !slices.Equal(rows, c.want) {
					t.Errorf("%+v: got %q, want %q", w, rows, c.want)
				}
				if name == "quantum" && (len(res.Notes) != 1 || !strings.Contains(res.Notes[0], "multiple of 0.125: before it is rounded to a 64-bit float, a sum of n values is off by at most n x 0.0625, a mean is off by at most 0.0625")) {
					t.Errorf("notes %q", res.Notes)
				}
			}
		})
	}
}

// text is how a float is written to a table.
func text(v float64) string {
	e, err := output.NewEncoder(output.TSV, output.Schema{Values: make([]output.Column, 1)})
	if err != nil {
		panic(err)
	}
	return strings.TrimSpace(string(e.AppendRow(nil, &output.Row{Values: []output.Value{{Kind: output.Float, F: v}}})))
}

// The same bits for any order of lines, any cutting and any memory, where plain addition gives others.
func TestAggregateFloatsDoNotDependOnOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var lines []string
	values := map[string][]float64{}
	for i := range 4000 {
		k, v := "k"+strconv.Itoa(i%7), math.Ldexp(r.NormFloat64(), r.IntN(120)-60)
		values[k] = append(values[k], v)
		lines = append(lines, fmt.Sprintf("%s,%g\n", k, v))
	}
	var want []string
	for k, vs := range values {
		n, sum, squares := big.NewRat(int64(len(vs)), 1), new(big.Rat), new(big.Rat)
		for _, v := range vs {
			x := new(big.Rat).SetFloat64(v)
			sum.Add(sum, x)
			squares.Add(squares, x.Mul(x, x))
		}
		s, _ := sum.Float64()
		mean := new(big.Rat).Quo(sum, n)
		m, _ := mean.Float64()
		variance := squares.Quo(squares, n)
		v, _ := variance.Sub(variance, mean.Mul(mean, mean)).Float64()
		want = append(want, fmt.Sprintf("%s\t%s\t%s\t%s", k, text(s), text(m), text(v)))
	}
	slices.Sort(want)
	plain := map[float64]bool{}
	for _, w := range []way{usual, {split: 4000, workers: 4, memory: 64 << 20, partitions: 3}, {split: 900, workers: 2, memory: 16 << 20, partitions: 1}} {
		sum := 0.0
		for _, l := range lines {
			k, text, _ := strings.Cut(strings.TrimSpace(l), ",")
			if v, _ := strconv.ParseFloat(text, 64); k == "k3" {
				sum += v
			}
		}
		plain[sum] = true
		rows, _, err := run(t, w, "aggregate", "--floats", "--group-by", "k", "--sum", "v", "--mean", "v", "--variance", "v", write(t, "a.csv", "k,v\n"+strings.Join(lines, "")))
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(rows)
		if !slices.Equal(rows, want) {
			t.Errorf("%+v: got %q, want %q", w, rows, want)
		}
		r.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
	}
	if len(plain) < 2 {
		t.Error("plain addition does not depend on these orders: the test proves nothing")
	}
}

func TestAggregateFloatsSkipped(t *testing.T) {
	_, res, err := run(t, usual, "aggregate", "--floats", "--nan", "skip", "--max", "v", "--mean", "w", write(t, "a.csv", notFiniteColumn+"c,,\n"))
	if err != nil || res.Counters["NaN values skipped"] != 3 || res.Counters["infinite values skipped"] != 3 || res.Counters[blankFields] != 2 {
		t.Errorf("%v, %v", res.Counters, err)
	}
}

// Rows of jsonl have floats of their own, and names for what is no number.
func TestAggregateFloatsOfJSON(t *testing.T) {
	path := write(t, "a.jsonl", `{"m":{"v":1e-7}}
{"m":{"v":"NaN"}}
{"m":{"v":null}}
{"m":{"v":123456789012345678901234567890}}
`)
	rows, _, err := run(t, usual, "aggregate", "--floats", "--nan", "count", "--sum", "m.v", "--min", "m.v", path)
	if err != nil || !slices.Equal(rows, []string{text(123456789012345678901234567890) + "\t1e-07\t1\t0\t0"}) {
		t.Errorf("got %q, %v", rows, err)
	}
}

func BenchmarkAggregateFloats(b *testing.B) {
	var text strings.Builder
	text.WriteString("k,v\n")
	r := rand.New(rand.NewPCG(1, 2))
	const n = 200_000
	for range n {
		fmt.Fprintf(&text, "k%d,%.2f\n", r.IntN(400), r.NormFloat64()*30)
	}
	path := write(b, "a.csv", text.String())
	for name, args := range map[string][]string{
		"decimals": {}, "floats": {"--floats"}, "quantum": {"--floats", "--quantum", "0.01"},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, _, err := run(b, way{workers: 2, memory: 64 << 20, partitions: 1}, "aggregate", append(args, "--group-by", "k", "--min", "v", "--mean", "v", "--max", "v", path)...); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/row")
		})
	}
}
