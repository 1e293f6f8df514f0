// SPDX-License-Identifier: Apache-2.0

// Command temperatures prints the lowest, mean and highest temperature of every
// station in lines like "Abha;-23.0".
//
// It shows a Map that is fast because it does little, and a fold of one's own:
// numbers with one decimal are whole numbers of tenths, which four lanes of
// integers fold exactly.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strings"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	dir := flag.String("o", "", "write part files to this folder instead of one line to standard output")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, flag.Args(), *dir, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "temperatures:", err)
		os.Exit(1)
	}
}

// summary is a row of the result: degrees with one decimal.
type summary struct{ Min, Mean, Max string }

// temperatures makes the job.
func temperatures() *mapreduce.Job[[]byte, int64, summary] {
	return &mapreduce.Job[[]byte, int64, summary]{
		Name: "temperatures",
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
			station, tenths, ok := parse(rec.Value)
			if !ok {
				return fmt.Errorf("%q: want station;temperature, the temperature with one decimal", rec.Value)
			}
			emit.Emit(station, tenths)
			return nil
		},
		// As mapreduce.MinMaxMean does, but with a result in degrees.
		Fold: mapreduce.NewFold(
			[]mapreduce.Op{mapreduce.OpMin, mapreduce.OpMax, mapreduce.OpSum, mapreduce.OpSum},
			func(lanes []int64, tenths int64) {
				_ = lanes[3]
				lanes[0], lanes[1], lanes[2], lanes[3] = tenths, tenths, tenths, 1
			},
			func(l mapreduce.Lanes) (summary, error) {
				// Half a tenth is rounded up, to the warmer side.
				mean := math.Floor(l.Mean(2, 3) + 0.5)
				return summary{degrees(l.V[0]), degrees(int64(mean)), degrees(l.V[1])}, nil
			}),
		KeyColumns: []string{"station"},
	}
}

// maxDigits before the point leave room for the one after it in 64 bits.
const maxDigits = 17

// parse cuts "station;-12.3" in two and gives the number in tenths. It reads
// from the end, since numbers are short: the semicolon is found on the way.
func parse(line []byte) (station []byte, tenths int64, ok bool) {
	i := len(line) - 3
	if i < 1 || line[i+1] != '.' || line[i+2]-'0' > 9 {
		return nil, 0, false
	}
	tenths = int64(line[i+2] - '0')
	end := i
	for unit := int64(10); i >= 0 && line[i]-'0' <= 9 && end-i < maxDigits; i-- {
		tenths += unit * int64(line[i]-'0')
		unit *= 10
	}
	if i == end {
		return nil, 0, false // no digit before the point
	}
	if i >= 0 && line[i] == '-' {
		tenths = -tenths
		i--
	}
	if i < 0 || line[i] != ';' {
		return nil, 0, false
	}
	return line[:i], tenths, true
}

// degrees writes tenths with one decimal.
func degrees(tenths int64) string {
	sign := ""
	if tenths < 0 {
		sign, tenths = "-", -tenths
	}
	return fmt.Sprintf("%s%d.%d", sign, tenths/10, tenths%10)
}

// run writes rows to part files in dir or, without one, the whole result as
// {Abha=-23.0/18.0/59.2, ...} to stdout.
func run(ctx context.Context, inputs []string, dir string, stdout io.Writer) error {
	var line strings.Builder
	target := output.Func(func(_ int, r *output.Row) error {
		if line.Len() > 0 {
			line.WriteString(", ")
		}
		v := r.Values
		fmt.Fprintf(&line, "%s=%s/%s/%s", r.Keys[0].B, v[0].B, v[1].B, v[2].B)
		return nil
	})
	if dir != "" {
		target = output.Dir(dir, output.DirOptions{})
	}
	_, err := mapreduce.Run(ctx, temperatures(), mapreduce.Options{Inputs: inputs, Output: target})
	if err != nil || dir != "" {
		return err
	}
	_, err = fmt.Fprintf(stdout, "{%s}\n", line.String())
	return err
}
