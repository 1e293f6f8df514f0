// SPDX-License-Identifier: Apache-2.0

// Command sessions cuts the log of a web site into sessions: the hits of a user
// with never more than 30 minutes from one to the next.
//
// It shows a secondary sort by time: Reduce sees the hits of a user in the order
// in which they happened, wherever they stood in whichever files, and holds
// nothing but the session in hand.
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	dir := flag.String("o", "", "write part files to this folder instead of standard output")
	gap := flag.Duration("gap", 30*time.Minute, "a longer time without a hit ends a session")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, flag.Args(), *gap, *dir, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sessions:", err)
		os.Exit(1)
	}
}

// hit is one request.
type hit struct {
	Page string
	Time int64 // nanoseconds since 1970
}

// session is a row of the result; its key is the user.
type session struct {
	Start string
	End   string
	Hits  int64
	Entry string // the page that it began with
}

// sessions makes the job. Lines are "time user page", the time as in RFC 3339.
func sessions(gap time.Duration) *mapreduce.Job[string, hit, session] {
	return &mapreduce.Job[string, hit, session]{
		Name: "sessions",
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, hit]) error {
			fields := strings.Fields(string(rec.Value))
			if len(fields) != 3 {
				return fmt.Errorf("%d fields in %q: want time, user and page", len(fields), rec.Value)
			}
			at, err := time.Parse(time.RFC3339Nano, fields[0])
			if err != nil {
				return err
			}
			emit.Emit(fields[1], hit{Page: fields[2], Time: at.UnixNano()})
			return nil
		},
		// Big-endian with the sign flipped, times before 1970 come first.
		ValueOrder: func(dst []byte, h hit) []byte {
			return binary.BigEndian.AppendUint64(dst, uint64(h.Time)^1<<63)
		},
		Reduce: func(user string, hits iter.Seq[hit], yield func(session)) error {
			var first, last hit
			n := int64(0)
			end := func() {
				if n > 0 {
					yield(session{Start: clock(first), End: clock(last), Hits: n, Entry: first.Page})
				}
			}
			for h := range hits {
				if n == 0 || h.Time-last.Time > int64(gap) {
					end()
					first, n = h, 0
				}
				last = h
				n++
			}
			end()
			return nil
		},
		KeyColumns: []string{"user"},
	}
}

func clock(h hit) string { return time.Unix(0, h.Time).UTC().Format(time.RFC3339Nano) }

func run(ctx context.Context, inputs []string, gap time.Duration, dir string, stdout io.Writer) error {
	target := output.Stream(stdout, output.StreamOptions{})
	if dir != "" {
		target = output.Dir(dir, output.DirOptions{})
	}
	_, err := mapreduce.Run(ctx, sessions(gap), mapreduce.Options{Inputs: inputs, Output: target})
	return err
}
