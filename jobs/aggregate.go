// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/rows"
)

var aggregateDefinition = Definition{
	Name:  "aggregate",
	Short: "group rows and compute sums, minima, maxima, means, counts",
	Long: `Reads rows of csv, tsv, jsonl or parquet, or takes log lines apart by a regular
expression with named groups, groups them by columns and computes everything
asked for in one pass. Fields of jsonl and parquet may be paths: a.b is the
member b of a.

Numbers are exact decimals of up to 18 digits after the point and 64 bits in
all; a sum beyond that is an error, never a rounded number. A mean is the exact
sum divided by the number of values, rounded once. --distinct estimates the
number of different values (as written) by HyperLogLog, with a standard error of
0.81 %. Blank and null fields are no values (--empty error refuses them), but
their rows do count for --count; a group without any value has an empty cell
(null in JSON). Rows whose grouping field is not there or null group under the
empty text.

--floats is for columns of floats, such as 6.02e23, that exact decimals refuse:
each is read as the nearest 64-bit float. Sums, means and, by --variance and
--stddev, how far values lie from their mean (--sample: of a sample) are those of
exact arithmetic, rounded once at the end, and so the same for any order of rows
and any number of workers. A value that is NaN or infinite is an error; with
--nan skip it is left out, with --nan count counted in nan_F, pos_inf_F and
neg_inf_F. --quantum Q rounds values to the nearest multiple of Q before they are
added up, which is cheaper; the bound on the error, beside the last rounding of
a result to 64 bits, is told at the end, and with --measure error_F is the error
that the multiples' sum really has.

--where takes an expression over the columns, such as
  status >= 500 and method in ["GET", "HEAD"]
(language: github.com/expr-lang/expr). Fields that are written as numbers are
numbers in it, all others strings (in jsonl and parquet: what they are); columns
with other names than letters and digits are $env["the name"].

A row has the group's columns and then sum_F, min_F, mean_F, max_F, variance_F,
stddev_F, count, distinct_F, error_F, nan_F, pos_inf_F and neg_inf_F, as far as
they are asked for, in this order. In JSON lines a single one is just the "value".`,
	Example: `  quern aggregate --group-by station --min t --mean t --max t weather.csv
  quern aggregate --group-by method,status --count --where 'ms > 100' logs/*.jsonl.gz
  quern aggregate --floats --group-by host --mean latency --stddev latency m.jsonl
  quern aggregate --pattern '^(?P<ip>\S+) .* (?P<bytes>\d+)$' --group-by ip --sum bytes access.log`,
	New: func() Options { return &aggregateOptions{Decimals: -1} },
}

type aggregateOptions struct {
	GroupBy  []string `name:"group-by" short:"g" help:"columns to group by; without them there is one row over everything"`
	Sum      []string `name:"sum" help:"columns to sum"`
	Min      []string `name:"min" help:"columns whose minimum is wanted"`
	Mean     []string `name:"mean" help:"columns whose mean is wanted"`
	Max      []string `name:"max" help:"columns whose maximum is wanted"`
	Variance []string `name:"variance" help:"with --floats: columns whose variance is wanted"`
	StdDev   []string `name:"stddev" help:"with --floats: columns whose standard deviation is wanted"`
	Count    bool     `name:"count" help:"number of rows"`
	Distinct []string `name:"distinct" help:"columns whose number of different values is wanted (estimate, standard error 0.81 %)"`
	Where    string   `name:"where" help:"only rows for which the expression is true"`
	Decimals int      `name:"decimals" help:"round each number, as it is read, to that many digits after the point, half to even; -1: exact"`
	Floats   bool     `name:"floats" help:"numbers are floats, such as 6.02e23, not exact decimals; results are exact all the same, and rounded once"`
	Sample   bool     `name:"sample" help:"with --floats: variance and deviation are those of a sample, divided by n - 1"`
	NaN      string   `name:"nan" help:"with --floats: values that are NaN or infinite: error, skip or count; default error"`
	Quantum  float64  `name:"quantum" help:"with --floats: sums and means add multiples of that number, to the nearest of which values are rounded; 0: exact"`
	Measure  bool     `name:"measure" help:"with --quantum: also tell the error of each sum that was made"`
	Empty    string   `name:"empty" help:"blank and null fields: skip or error"`
	RowFormat
}

func (o *aggregateOptions) Build(in *input.Options, inputs []string) (mapreduce.Runnable, error) {
	plan, err := o.plan()
	if err != nil {
		return nil, err
	}
	src, err := o.RowFormat.open(in, inputs, plan.wanted)
	if err != nil {
		return nil, err
	}
	return plan.job(src), nil
}

func (o *aggregateOptions) plan() (*aggregatePlan, error) {
	p := newAggregatePlan(splitList(o.GroupBy))
	for _, list := range []struct {
		fields []string
		what   measure
	}{{o.Sum, measureSum}, {o.Min, measureMin}, {o.Mean, measureMean}, {o.Max, measureMax}, {o.Variance, measureVariance}, {o.StdDev, measureStdDev}} {
		for _, f := range splitList(list.fields) {
			p.measure(list.what, f)
		}
	}
	if o.Count {
		p.measure(measureCount, "")
	}
	for _, f := range splitList(o.Distinct) {
		p.measure(measureDistinct, f)
	}
	if len(p.outputs) == 0 {
		return nil, errors.New("nothing to compute: say --count, --sum F, --min F, --max F, --mean F or --distinct F (with --floats --variance F or --stddev F, too)")
	}
	if o.Floats {
		floats, err := o.floats(p)
		if err != nil {
			return nil, err
		}
		p.floats = floats
	} else if err := o.onlyFloats(); err != nil {
		return nil, err
	} else if err := p.layLanes(); err != nil {
		return nil, err
	}
	if o.Decimals > rows.MaxScale {
		return nil, fmt.Errorf("--decimals %d: must not exceed %d", o.Decimals, rows.MaxScale)
	}
	p.decimals = o.Decimals
	switch o.Empty {
	case "", "skip":
	case "error":
		p.refuseEmpty = true
	default:
		return nil, fmt.Errorf("--empty %q: say skip or error", o.Empty)
	}
	if o.Where != "" {
		where, err := parseCondition(o.Where)
		if err != nil {
			return nil, err
		}
		p.where = where
		p.whereFirst = len(p.wanted)
		p.wanted = append(p.wanted, where.columns...)
	}
	return p, nil
}

// splitList takes comma-separated lists apart and drops repetitions.
func splitList(lists []string) []string {
	var items []string
	seen := map[string]bool{}
	for _, list := range lists {
		for item := range strings.SplitSeq(list, ",") {
			if item = strings.TrimSpace(item); item != "" && !seen[item] {
				seen[item] = true
				items = append(items, item)
			}
		}
	}
	return items
}
