// SPDX-License-Identifier: Apache-2.0

// Command pagerank ranks the nodes of a graph by the links to them: how often a walk
// is at a node that follows links, and now and then goes on somewhere else.
//
// It shows an iteration whose state is a dense vector with a place for each node, and
// whose splits keep parts of the graph.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	var s settings
	flag.IntVar(&s.nodes, "nodes", 0, "how many nodes there are; they are numbered from 0")
	flag.Float64Var(&s.damping, "damping", 0.85, "how likely it is that a walk goes on by a link")
	flag.Float64Var(&s.tolerance, "tolerance", 1e-10, "end when a round changes all ranks together by no more than this")
	flag.IntVar(&s.rounds, "rounds", 0, "end after so many rounds; 0: as many as it takes")
	dir := flag.String("o", "", "write part files to this folder instead of standard output")
	n := flag.Int("make", 0, "write the links of a graph of so many nodes to standard output, and do nothing else")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *n > 0 {
		err = generate(os.Stdout, *n)
	} else {
		err = run(ctx, flag.Args(), s, *dir, os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pagerank:", err)
		os.Exit(1)
	}
}

// run writes the rank and the number of links of every node.
func run(ctx context.Context, inputs []string, s settings, dir string, stdout, stderr io.Writer) error {
	it, err := iteration(s)
	if err != nil {
		return err
	}
	target := output.Stream(stdout, output.StreamOptions{})
	if dir != "" {
		target = output.Dir(dir, output.DirOptions{})
	}
	res, err := mapreduce.Iterate(ctx, it, mapreduce.IterateOptions{Options: mapreduce.Options{
		Inputs: inputs,
		// A split has a place for every node beside its links, so it should have some.
		Input:  input.Options{SplitSize: 4 << 20},
		Output: target,
	}})
	if err != nil {
		return err
	}
	end := "ended by their number"
	if res.Converged {
		end = "converged"
	}
	fmt.Fprintf(stderr, "pagerank: %d rounds, %s; sums are off by %.2g at most; %v in rounds\n",
		res.Rounds-1, end, res.Bound, res.Working)
	return nil
}
