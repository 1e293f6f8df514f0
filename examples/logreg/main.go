// SPDX-License-Identifier: Apache-2.0

// Command logreg learns from rows of numbers how likely a label is: logistic
// regression by stochastic gradient descent over mini-batches.
//
// It shows an iteration with two kinds of rounds, steps and evaluations, in which every
// split knows by itself which of its rows are in the batch of a round.
// What a split adds to a gradient is rounded to integers, so that the sums are
// the same to the last bit however rows are spread; the loss that is reached is that of floats.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	var c command
	flag.IntVar(&c.label, "label", 1, "the field of a line that is the label, 0 or 1; the first field is 1")
	flag.StringVar(&c.names, "fields", "2,3,4,5,6", "the fields that it is told from")
	flag.IntVar(&c.batches, "batches", 20, "steps of an epoch; each is made of that part of the rows")
	flag.IntVar(&c.epochs, "epochs", 50, "how often all rows are gone through, at most")
	flag.Float64Var(&c.rate, "rate", 2, "how far steps go along the mean gradient")
	flag.Float64Var(&c.decay, "decay", 1, "in epoch e, from 0, they go rate / (1 + decay x e)")
	flag.Float64Var(&c.ridge, "ridge", 0.001, "weight of half the square of the weights in the loss")
	flag.Float64Var(&c.enough, "enough", -1, "end when an epoch makes the loss less by no more than this; below 0: after all epochs")
	flag.Float64Var(&c.quantum, "quantum", 0, "round gradients to multiples of this; 0: as fine as they can be")
	flag.StringVar(&c.dir, "o", "", "write part files to this folder instead of standard output")
	n := flag.Int("make", 0, "write so many rows with a label and five features to standard output, and do nothing else")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *n > 0 {
		err = generate(os.Stdout, *n)
	} else {
		err = run(ctx, flag.Args(), c, os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "logreg:", err)
		os.Exit(1)
	}
}

// command is what flags say.
type command struct {
	settings
	names string // the fields
	dir   string
}

// run writes the bias, the weights, the loss and the share of rows that the model is right about.
func run(ctx context.Context, inputs []string, c command, stdout, stderr io.Writer) error {
	for text := range strings.SplitSeq(c.names, ",") {
		f, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("fields %q: want numbers with commas between them", c.names)
		}
		c.fields = append(c.fields, f)
	}
	it, err := iteration(c.settings)
	if err != nil {
		return err
	}
	target := output.Stream(stdout, output.StreamOptions{})
	if c.dir != "" {
		target = output.Dir(c.dir, output.DirOptions{})
	}
	res, err := mapreduce.Iterate(ctx, it, mapreduce.IterateOptions{Options: mapreduce.Options{
		Inputs: inputs,
		// Rounds are short, so many small splits keep all cores busy to their end.
		Input:  input.Options{SplitSize: 1 << 20},
		Output: target,
	}})
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "logreg: %d epochs; sums are off by %.2g at most; %v in rounds\n",
		res.Rounds/(c.batches+1), res.Bound, res.Working)
	return nil
}
