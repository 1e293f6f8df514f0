// SPDX-License-Identifier: Apache-2.0

package mapreduce_test

import (
	"context"
	"fmt"
	"iter"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
)

// The centres of two clusters of numbers, by k-means: the state is the centres, and a round adds up, for each of them,
// the numbers that are nearest to it and how many they are.
func ExampleIterate() {
	kmeans := &mapreduce.Iteration[[]float64]{
		Name: "k-means",
		Load: func(_ mapreduce.Split, records iter.Seq[mapreduce.Record]) (points []float64, err error) {
			for rec := range records {
				x, err := strconv.ParseFloat(string(rec.Value), 64)
				if err != nil {
					return nil, err // the error names the file and the line
				}
				points = append(points, x)
			}
			return points, nil
		},
		Start: func() ([]float64, error) { return []float64{1, 2}, nil },
		Sums:  4, // of each centre, the sum of its points and their number
		Round: func(r mapreduce.Round, points, sums []float64) error {
			for _, x := range points {
				nearest := 0
				if math.Abs(x-r.State[1]) < math.Abs(x-r.State[0]) {
					nearest = 1
				}
				sums[2*nearest] += x
				sums[2*nearest+1]++
			}
			return nil
		},
		Update: func(r mapreduce.Round, state, sums []float64) (done bool, err error) {
			for i := range state {
				if n := sums[2*i+1]; n > 0 {
					state[i] = sums[2*i] / n
				}
			}
			return state[0] == r.State[0] && state[1] == r.State[1], nil
		},
		Rounds:    100, // at most
		Columns:   []string{"centre"},
		KeyColumn: "cluster",
	}
	res, err := mapreduce.Iterate(context.Background(), kmeans, mapreduce.IterateOptions{Options: mapreduce.Options{
		Inputs: []string{"-"}, // or names of files, folders, patterns
		Input:  input.Options{Stdin: strings.NewReader("1\n2\n3\n10\n11\n12\n")},
		Output: output.Stream(os.Stdout, output.StreamOptions{Format: output.CSV}),
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(res.Rounds, "rounds, converged:", res.Converged)
	// Output:
	// cluster,centre
	// 0,2
	// 1,11
	// 3 rounds, converged: true
}

// Rows of its own make of a state what people want to read.
func ExampleIteration_rows() {
	votes := &mapreduce.Iteration[[]string]{
		Name: "votes",
		Load: func(_ mapreduce.Split, records iter.Seq[mapreduce.Record]) (lines []string, err error) {
			for rec := range records {
				lines = append(lines, string(rec.Value)) // a copy: the record's bytes are there until the next one
			}
			return lines, nil
		},
		Start: func() ([]float64, error) { return make([]float64, 2), nil },
		Round: func(_ mapreduce.Round, lines []string, sums []float64) error {
			for _, line := range lines {
				if line == "yes" {
					sums[0]++
				} else {
					sums[1]++
				}
			}
			return nil
		},
		Update: func(_ mapreduce.Round, state, sums []float64) (done bool, err error) {
			copy(state, sums)
			return true, nil
		},
		Columns: []string{"count", "share"},
		Rows: func(state []float64, yield func(key string, values ...float64)) error {
			all := state[0] + state[1]
			yield("yes", state[0], state[0]/all)
			yield("no", state[1], state[1]/all)
			return nil
		},
	}
	_, err := votes.Run(context.Background(), mapreduce.Options{
		Inputs: []string{"-"},
		Input:  input.Options{Stdin: strings.NewReader("yes\nno\nyes\nyes\n")},
		Output: output.Stream(os.Stdout, output.StreamOptions{Format: output.JSONL}),
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// {"key":"no","value":{"count":1,"share":0.25}}
	// {"key":"yes","value":{"count":3,"share":0.75}}
}
