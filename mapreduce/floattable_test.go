// SPDX-License-Identifier: Apache-2.0

package mapreduce_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
)

// tableResult is all that a table tells of its columns.
type tableResult struct {
	Rows     int64
	Columns  []columnResult
	Distinct []int64
}

type columnResult struct {
	Count, NaN, Plus, Minus                         int64
	Sum, Mean, Min, Max, Variance, SampleDev, Error float64
	Errors                                          string
}

func readTable(t *mapreduce.FloatTotals, columns, sketches int) *tableResult {
	r := &tableResult{Rows: t.Rows}
	for i := range columns {
		c := columnResult{Count: t.Count(i), Mean: t.Mean(i), Min: t.Min(i), Max: t.Max(i), Error: t.Error(i)}
		c.NaN, c.Plus, c.Minus = t.NonFinite(i)
		var errs [3]error
		c.Sum, errs[0] = t.Sum(i)
		c.Variance, errs[1] = t.Variance(i, false)
		c.SampleDev, errs[2] = t.StdDev(i, true)
		for k, err := range errs {
			if err != nil {
				c.Errors += fmt.Sprint(k, errors.Is(err, mapreduce.ErrFloatOverflow))
			}
		}
		r.Columns = append(r.Columns, c)
	}
	for i := range sketches {
		r.Distinct = append(r.Distinct, t.Distinct(i))
	}
	return r
}

// MarshalJSON is there because JSON has no NaN.
func (r *tableResult) MarshalJSON() ([]byte, error) { return json.Marshal(fmt.Sprint(*r)) }

// tableJob makes a job of lines of a key and a cell for each column, "-" if it is blank.
func tableJob(columns []mapreduce.FloatColumn, quantum float64, measure bool) *mapreduce.Job[string, mapreduce.FloatRow, *tableResult] {
	return &mapreduce.Job[string, mapreduce.FloatRow, *tableResult]{
		Name: "table",
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, mapreduce.FloatRow]) error {
			fields := strings.Fields(string(rec.Value))
			row := mapreduce.FloatRow{Sketches: [][]byte{[]byte(fields[1]), nil}}
			for _, f := range fields[1:] {
				v, err := strconv.ParseFloat(f, 64)
				row.Values, row.Blank = append(row.Values, v), append(row.Blank, f == "-")
				if err != nil && f != "-" {
					return err
				}
			}
			if !slices.Contains(row.Blank, true) {
				row.Blank = nil
			}
			emit.Emit(fields[0], row)
			return nil
		},
		Fold: mapreduce.FloatTable(columns, 2, quantum, measure, func(t *mapreduce.FloatTotals) (*tableResult, error) {
			return readTable(t, len(columns), 2), nil
		}),
	}
}

var allOfIt = mapreduce.FloatColumn{Sum: true, Extremes: true, Moments: true}

// Everything of every column is exact, rounded once, with and without a quantum.
func TestFloatTableAgainstBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		quantum := rapid.SampledFrom([]float64{0, quantumOfTests}).Draw(t, "quantum")
		first, second := hardFloats(t), hardFloats(t)
		columns := [2][]float64{}
		var text strings.Builder
		rows := max(len(first), len(second))
		for i := range rows {
			text.WriteString("k")
			for j, vs := range [][]float64{first, second} {
				if i >= len(vs) {
					text.WriteString(" -")
					continue
				}
				if quantum != 0 {
					vs[i] = math.Mod(vs[i], 1<<50)
				}
				columns[j] = append(columns[j], vs[i])
				fmt.Fprintf(&text, " %x", vs[i])
			}
			text.WriteString("\n")
		}
		got, _, err := mapreduce.Collect(t.Context(), tableJob([]mapreduce.FloatColumn{allOfIt, allOfIt}, quantum, true), stdin(text.String()))
		if err != nil || len(got) != 1 || got[0].Result.Rows != int64(rows) {
			t.Fatal(got, err)
		}
		for j, vs := range columns {
			sum, summed := ratSum(vs), vs
			if quantum != 0 {
				summed = rounded(vs)
			}
			want := columnResult{
				Count: int64(len(vs)), Sum: near(ratSum(summed)), Mean: near(over(ratSum(summed), len(vs))), Min: slices.Min(vs), Max: slices.Max(vs),
				Variance: near(ratVariance(vs, 0)), SampleDev: nearRoot(ratVariance(vs, 1)),
			}
			if quantum != 0 {
				want.Error = near(new(big.Rat).Sub(ratSum(summed), sum))
			}
			for k, v := range []*float64{&want.Sum, &want.Variance, &want.SampleDev} {
				if math.IsInf(*v, 0) {
					*v, want.Errors = 0, want.Errors+fmt.Sprint(k, true)
				}
			}
			if c := got[0].Result.Columns[j]; fmt.Sprintf("%x", c) != fmt.Sprintf("%x", want) {
				t.Fatalf("column %d: got %+v, want %+v", j, c, want)
			}
		}
	})
}

func TestFloatTable(t *testing.T) {
	const lines = "a 1 NaN\na 2 7\nb - Inf\na 4 -Inf\nb - -\na 1 +Inf\nc NaN NaN\n"
	for _, split := range []int64{0, 8} {
		rows, _, err := mapreduce.Collect(t.Context(), tableJob([]mapreduce.FloatColumn{{Sum: true}, {Extremes: true}}, 0, false), mapreduce.Options{
			Inputs: []string{text(t, lines)}, Memory: 32 << 20, Workers: 2, Input: input.Options{SplitSize: split},
		})
		got := ""
		for _, r := range rows {
			got += fmt.Sprintf("%s: %d rows, %v different\n", r.Key, r.Result.Rows, r.Result.Distinct)
			for _, c := range r.Result.Columns {
				got += fmt.Sprintf(" %d (%d %d %d) sum %v mean %v from %v to %v\n", c.Count, c.NaN, c.Plus, c.Minus, c.Sum, c.Mean, c.Min, c.Max)
			}
		}
		// A column tells what it was asked for.
		const want = `a: 4 rows, [3 0] different
 4 (0 0 0) sum 8 mean 2 from NaN to NaN
 1 (1 1 1) sum NaN mean NaN from 7 to 7
b: 2 rows, [1 0] different
 0 (0 0 0) sum 0 mean NaN from NaN to NaN
 0 (0 1 0) sum NaN mean NaN from NaN to NaN
c: 1 rows, [1 0] different
 0 (1 0 0) sum 0 mean NaN from NaN to NaN
 0 (1 0 0) sum NaN mean NaN from NaN to NaN
`
		if err != nil || got != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
	for _, c := range []struct {
		text string
		is   error
		want string
	}{
		{"k 1\n", mapreduce.ErrVector, `key "k": the vector has another length than the fold: a row of 1 values`},
		{"k 1 2 3\n", mapreduce.ErrVector, "a row of 3 values"},
		{"k 1 1e19\n", mapreduce.ErrQuantum, `key "k": column 1: value 1e+19`},
	} {
		_, _, err := mapreduce.Collect(t.Context(), tableJob([]mapreduce.FloatColumn{allOfIt, allOfIt}, 1, false), stdin(c.text))
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %s", err, c.want)
		}
	}
	noAllocs(t, "FloatTable", mapreduce.FloatTable([]mapreduce.FloatColumn{allOfIt, allOfIt}, 1, 0.5, true, func(*mapreduce.FloatTotals) (*tableResult, error) { return &tableResult{}, nil }),
		mapreduce.FloatRow{Values: []float64{1.25, 1e9}, Sketches: [][]byte{[]byte("x")}})
}
