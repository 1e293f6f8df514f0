// SPDX-License-Identifier: Apache-2.0

// Command countries adds up the requests and bytes of a web server's log by the
// country that the client's address belongs to.
//
// It shows a side input that is used where it lies: a sorted table of ranges of
// addresses, in which every record is looked up by binary search. Nothing is
// made of the table, so it may be large: all tasks of a machine share its memory.
package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"sort"
	"strconv"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	dir := flag.String("o", "", "write part files to this folder instead of standard output")
	ranges := flag.String("ranges", "examples/countries/testdata/ranges.txt", "the table of ranges of addresses, see README.md")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, flag.Args(), *ranges, *dir, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "countries:", err)
		os.Exit(1)
	}
}

// table is lines like "c0000200 c00002ff XA": the first and the last IPv4 address of a
// range in hex, and its country. They are sorted, so the lines are, too.
type table []byte

const width = len("c0000200 c00002ff XA\n")

func (t table) first(i int) []byte   { return t[i*width:][:8] }
func (t table) last(i int) []byte    { return t[i*width+9:][:8] }
func (t table) country(i int) []byte { return t[i*width+18:][:2] }

// check looks once at the whole table, so that find can trust it.
func check(text []byte) (table, error) {
	if len(text)%width != 0 {
		return nil, fmt.Errorf("its %d bytes are no lines of %d", len(text), width)
	}
	t := table(text)
	for i := range len(t) / width {
		switch line := t[i*width:][:width]; {
		case line[8] != ' ' || line[17] != ' ' || line[width-1] != '\n':
			return nil, fmt.Errorf("line %d: %q: want FIRST LAST COUNTRY", i+1, line)
		case bytes.Compare(t.first(i), t.last(i)) > 0:
			return nil, fmt.Errorf("line %d: %q: the last address comes before the first", i+1, line)
		case i > 0 && bytes.Compare(t.last(i-1), t.first(i)) >= 0:
			return nil, fmt.Errorf("line %d: %q: it does not follow line %d; sort the table", i+1, line, i)
		}
	}
	return t, nil
}

var unknown = []byte("??")

// find returns the country of an address. It points into the table.
func (t table) find(address netip.Addr) []byte {
	if !address.Is4() {
		return unknown
	}
	var key [8]byte
	ip := address.As4()
	hex.Encode(key[:], ip[:])
	i := sort.Search(len(t)/width, func(i int) bool { return bytes.Compare(t.last(i), key[:]) >= 0 })
	if i == len(t)/width || bytes.Compare(t.first(i), key[:]) > 0 {
		return unknown
	}
	return t.country(i)
}

// traffic is a row of the result; its key is the country.
type traffic struct{ Requests, Bytes int64 }

func countries(ranges string) *mapreduce.Job[[]byte, int64, traffic] {
	job := &mapreduce.Job[[]byte, int64, traffic]{
		Name: "countries",
		Fold: mapreduce.NewFold([]mapreduce.Op{mapreduce.OpSum, mapreduce.OpSum},
			func(lanes []int64, size int64) { lanes[0], lanes[1] = 1, size },
			func(l mapreduce.Lanes) (traffic, error) { return traffic{l.V[0], l.V[1]}, nil }),
		KeyColumns: []string{"country"},
	}
	checked := mapreduce.Parse(job.SideInput("ranges", mapreduce.FileSource(ranges)), check)
	job.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
		t, err := checked()
		if err != nil {
			return err
		}
		address, size, err := parse(rec.Value)
		if err != nil {
			return err
		}
		emit.Emit(t.find(address), size)
		return nil
	}
	return job
}

// parse reads a line of the log, "address path bytes".
func parse(line []byte) (address netip.Addr, size int64, err error) {
	fields := bytes.Fields(line)
	if len(fields) != 3 {
		return address, 0, fmt.Errorf("%d fields in %q: want address, path and bytes", len(fields), line)
	}
	if address, err = netip.ParseAddr(string(fields[0])); err != nil {
		return address, 0, err
	}
	if size, err = strconv.ParseInt(string(fields[2]), 10, 64); err == nil && size < 0 {
		err = errors.New("a negative number of bytes")
	}
	return address.Unmap(), size, err
}

func run(ctx context.Context, inputs []string, ranges, dir string, stdout io.Writer) error {
	target := output.Stream(stdout, output.StreamOptions{})
	if dir != "" {
		target = output.Dir(dir, output.DirOptions{})
	}
	_, err := mapreduce.Run(ctx, countries(ranges), mapreduce.Options{Inputs: inputs, Output: target})
	return err
}
