// SPDX-License-Identifier: Apache-2.0

// Command kmeans finds clusters of points in CSV files.
//
// It shows an iteration: the points are read once and stay in memory, cut in
// splits. In each round every split adds up its points by their nearest
// centroid, and the next centroids are made of the sums of all splits. Package
// lloyd beside it has the four functions that do that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"github.com/quernmr/quern/examples/kmeans/lloyd"
	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	var c command
	flag.IntVar(&c.clusters, "k", 8, "number of clusters, where -start does not give them")
	flag.StringVar(&c.fields, "fields", "1,2", "the fields of a line that are coordinates, from 1")
	flag.StringVar(&c.start, "start", "", "where centroids begin: x,y;x,y;... Without it at points of the input")
	flag.IntVar(&c.rounds, "rounds", 300, "end after so many rounds, though centroids still move; 0: as many as it takes")
	flag.Float64Var(&c.tolerance, "tolerance", 0, "how far all centroids together may move in a round that is the last one")
	flag.StringVar(&c.checkpoints, "checkpoints", "", "a folder for the state of a local run, which then goes on after it was stopped")
	flag.StringVar(&c.dir, "o", "", "write part files to this folder instead of standard output")
	points := flag.Int("make", 0, "write so many points with two coordinates around 8 centres to standard output, and do nothing else")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *points > 0 {
		err = lloyd.Mixture{Points: *points, Dims: 2, Clusters: 8, Spread: 6, Seed: 1}.Write(os.Stdout)
	} else {
		err = run(ctx, flag.Args(), c, os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kmeans:", err)
		os.Exit(1)
	}
}

// command is what flags say.
type command struct {
	clusters, rounds int
	fields, start    string
	tolerance        float64
	checkpoints, dir string
}

// settings are those of the algorithm.
func (c command) settings() (lloyd.Settings, error) {
	s := lloyd.Settings{K: c.clusters, Rounds: c.rounds, Tolerance: c.tolerance}
	for text := range strings.SplitSeq(c.fields, ",") {
		f, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return s, fmt.Errorf("fields %q: want numbers with commas between them", c.fields)
		}
		s.Fields = append(s.Fields, f)
	}
	if c.start == "" {
		return s, nil
	}
	s.K = 0
	for centroid := range strings.SplitSeq(c.start, ";") {
		s.K++
		for text := range strings.SplitSeq(centroid, ",") {
			x, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				return s, fmt.Errorf("centroid %q: %w", centroid, errors.Unwrap(err))
			}
			s.Centroids = append(s.Centroids, x)
		}
		if len(s.Centroids) != s.K*len(s.Fields) {
			return s, fmt.Errorf("centroid %q: want %d coordinates", centroid, len(s.Fields))
		}
	}
	return s, nil
}

// run writes a row for each cluster: its number, the coordinates of its centroid, its points and
// their inertia.
func run(ctx context.Context, inputs []string, c command, stdout, stderr io.Writer) error {
	s, err := c.settings()
	if err != nil {
		return err
	}
	it, err := lloyd.Iteration(s)
	if err != nil {
		return err
	}
	target := output.Stream(stdout, output.StreamOptions{})
	if c.dir != "" {
		target = output.Dir(c.dir, output.DirOptions{})
	}
	res, err := mapreduce.Iterate(ctx, it, mapreduce.IterateOptions{
		Options: mapreduce.Options{
			Inputs: inputs,
			// Rounds are short, so many small splits keep all cores busy to their end.
			Input:  input.Options{SplitSize: 1 << 20},
			Output: target,
		},
		Checkpoints: c.checkpoints,
	})
	if err != nil {
		return err
	}
	inertia := lloyd.Inertia(lloyd.Clusters(res.State, len(s.Fields)))
	end := "ended by their number"
	if res.Converged {
		end = "converged"
	}
	if res.Resumed > 0 {
		end += fmt.Sprintf(" (%d of them before)", res.Resumed)
	}
	fmt.Fprintf(stderr, "kmeans: %d rounds, %s; inertia %.6g; sums are off by %.2g at most; %v in rounds\n",
		res.Rounds, end, inertia, res.Bound, res.Working)
	return nil
}
