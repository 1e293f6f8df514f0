// SPDX-License-Identifier: Apache-2.0

// Command descent draws a state of numbers towards the numbers in its input, round by round. It is for tests: rounds
// may be slow, or fail.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"os"
	"strconv"
	"time"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	out := flag.String("o", "", "output folder")
	rounds := flag.Int("rounds", 100, "rounds")
	size := flag.Int("size", 500, "numbers of the state")
	nap := flag.Duration("nap", 0, "sleep of a round per split")
	fail := flag.Int("fail", 0, "the round in which split 1 fails")
	how := flag.String("how", "error", "error or panic")
	mark := flag.String("mark", "", "a file that is made when round 3 begins")
	flag.Parse()

	load := func(_ mapreduce.Split, records iter.Seq[mapreduce.Record]) (points []float64, err error) {
		for r := range records {
			v, err := strconv.ParseFloat(string(r.Value), 64)
			if err != nil {
				return nil, err
			}
			points = append(points, v)
		}
		return points, nil
	}
	it := &mapreduce.Iteration[[]float64]{
		Name: "descent",
		Load: load,
		Start: func() ([]float64, error) {
			state := make([]float64, *size)
			for i := range state {
				state[i] = float64(i)
			}
			return state, nil
		},
		Sums: *size + 1,
		Round: func(r mapreduce.Round, points, sums []float64) error {
			if *mark != "" && r.Number == 3 {
				_ = os.WriteFile(*mark, nil, 0o600) // the test says that it never came
			}
			time.Sleep(*nap)
			if r.Number == *fail && r.Split == 1 {
				if *how == "panic" {
					panic("round " + strconv.Itoa(r.Number))
				}
				return errors.New("that is enough")
			}
			for i, s := range r.State {
				p := points[(i*7+r.Number)%len(points)]
				sums[i] += (p - s) / (1 + p*p)
			}
			sums[*size] += float64(len(points))
			return nil
		},
		Update: func(_ mapreduce.Round, state, sums []float64) (bool, error) {
			for i := range state {
				state[i] += sums[i] / sums[*size] * 3
			}
			return false, nil
		},
		Rounds: *rounds,
	}
	opts := mapreduce.IterateOptions{Options: mapreduce.Options{Inputs: flag.Args(), Input: input.Options{SplitSize: 4 << 10}, Partitions: 3}}
	if *out != "" {
		opts.Output = output.Dir(*out, output.DirOptions{})
	}
	res, err := mapreduce.Iterate(context.Background(), it, opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintf(os.Stderr, "descent: together %d times, resumed at %d\n", res.Groups, res.Resumed)
	fmt.Printf("%d rounds, first %v, bound %g\n", res.Rounds, res.State[0], res.Bound)
}
