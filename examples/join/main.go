// SPDX-License-Identifier: Apache-2.0

// Command join joins orders with the customers who placed them.
//
// It shows a secondary sort: customers come before orders within a key, so
// that Reduce need hold only the (usually single) customer of a number, and
// however many orders there are pass by one at a time.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"os/signal"
	"strings"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	dir := flag.String("o", "", "write part files to this folder instead of standard output")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: join [-o DIR] CUSTOMERS ORDERS...")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, flag.Args(), *dir, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "join:", err)
		os.Exit(1)
	}
}

// The sides of the join, in the order in which Reduce is to see them.
const (
	customerSide byte = iota
	orderSide
)

// side is a row of either file: a customer's name, or an order's number and amount.
type side struct {
	Side   byte
	Text   string
	Amount string
}

// joined is a row of the result; its key is the customer's number.
type joined struct {
	Name   string
	Order  string
	Amount string
}

// join makes the job. customers is the path of the file with lines
// "customer;name"; all other files have lines "order;customer;amount".
func join(customers string) *mapreduce.Job[string, side, joined] {
	return &mapreduce.Job[string, side, joined]{
		Name: "join",
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, side]) error {
			fields := strings.Split(string(rec.Value), ";")
			switch {
			case rec.File == customers && len(fields) == 2:
				emit.Emit(fields[0], side{Side: customerSide, Text: fields[1]})
			case rec.File != customers && len(fields) == 3:
				emit.Emit(fields[1], side{Side: orderSide, Text: fields[0], Amount: fields[2]})
			default:
				return fmt.Errorf("%d fields in %q: want customer;name or order;customer;amount", len(fields), rec.Value)
			}
			return nil
		},
		ValueOrder: func(dst []byte, s side) []byte { return append(dst, s.Side) },
		Reduce: func(number string, sides iter.Seq[side], yield func(joined)) error {
			var names []string
			for s := range sides {
				if s.Side == customerSide {
					names = append(names, s.Text)
					continue
				}
				if len(names) == 0 {
					return nil // orders of nobody we know: an inner join leaves them out
				}
				for _, name := range names {
					yield(joined{Name: name, Order: s.Text, Amount: s.Amount})
				}
			}
			return nil
		},
		KeyColumns: []string{"customer"},
	}
}

func run(ctx context.Context, inputs []string, dir string, stdout io.Writer) error {
	if len(inputs) < 2 {
		return fmt.Errorf("%d files: name the customers' file and at least one of orders", len(inputs))
	}
	target := output.Stream(stdout, output.StreamOptions{})
	if dir != "" {
		target = output.Dir(dir, output.DirOptions{})
	}
	_, err := mapreduce.Run(ctx, join(inputs[0]), mapreduce.Options{Inputs: inputs, Output: target})
	return err
}
