// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// resultKind says what rows mean.
type resultKind int

const (
	// lineCounts are keys with counts.
	lineCounts resultKind = iota
	// wordCounts are the same, but tools may disagree on what separates words:
	// a key is cut at all white space that Unicode knows before it is compared.
	wordCounts
	// minMeanMax are stations with three temperatures.
	minMeanMax
)

// form is how a tool writes rows.
type form int

const (
	// plainTab is key, tab, values.
	plainTab form = iota
	// escapedTab is the same with tab, newline, CR and backslash in keys
	// escaped by a backslash, and with each key once and in ascending order.
	escapedTab
	// uniqCount is what uniq -c prints: spaces, count, space, key.
	uniqCount
)

// digest stands for a whole result. Counts are folded into sums of count times
// hash(key), so that neither the order of rows nor the memory to hold them is
// needed; two different results have equal sums with a chance of about 2^-128.
type digest struct {
	total int64 // sum of the counts
	rows  int64
	sums  [2]uint64
	temps map[string][3]float64 // minMeanMax only
}

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func (d *digest) add(key []byte, count int64) {
	d.total += count
	for i, s := range seeds {
		d.sums[i] += uint64(count) * maphash.Bytes(s, key)
	}
}

// meanSlack is how far two tools' means may be apart: they print different
// numbers of digits.
const meanSlack = 1e-6

// differs says in what; "" if in nothing. The number of rows is not compared,
// since words that only some tools cut apart are rows of their own there.
func (d digest) differs(o digest) string {
	if d.temps != nil || o.temps != nil {
		if len(d.temps) != len(o.temps) {
			return fmt.Sprintf("%d stations and %d", len(d.temps), len(o.temps))
		}
		for k, a := range d.temps {
			b, ok := o.temps[k]
			if !ok || a[0] != b[0] || a[2] != b[2] || math.Abs(a[1]-b[1]) > meanSlack {
				return fmt.Sprintf("station %q: %v and %v", k, a, b)
			}
		}
		return ""
	}
	switch {
	case d.total != o.total:
		return fmt.Sprintf("%d pairs and %d", d.total, o.total)
	case d.sums != o.sums:
		return "the same number of pairs, but not the same count for every key"
	}
	return ""
}

func (d digest) summary() string {
	if d.temps != nil {
		return fmt.Sprintf("%d stations", len(d.temps))
	}
	return fmt.Sprintf("%d pairs, %d keys", d.total, d.rows)
}

// readResult reads what a tool wrote.
func readResult(name string, kind resultKind, f form) (digest, error) {
	file, err := os.Open(name)
	if err != nil {
		return digest{}, err
	}
	defer func() { _ = file.Close() }()
	d, err := digestRows(file, kind, f)
	if err != nil {
		return digest{}, fmt.Errorf("%s: %w", name, err)
	}
	return d, nil
}

// errRow is a row that does not look like one.
var errRow = errors.New("no row as expected")

func digestRows(r io.Reader, kind resultKind, f form) (digest, error) {
	var d digest
	if kind == minMeanMax {
		d.temps = map[string][3]float64{}
	}
	br := bufio.NewReaderSize(r, 1<<20)
	var long, before, key []byte
	for n := 1; ; n++ {
		row, err := br.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long[:0], row...)
			var rest []byte
			rest, err = br.ReadBytes('\n')
			long = append(long, rest...)
			row = long
		}
		if len(row) == 0 && errors.Is(err, io.EOF) {
			return d, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return d, err
		}
		row = bytes.TrimSuffix(row, []byte("\n"))
		var values []byte
		var ok bool
		if key, values, ok = f.cut(key[:0], row); !ok {
			return d, fmt.Errorf("line %d: %w: %.80q", n, errRow, row)
		}
		if f == escapedTab && n > 1 && bytes.Compare(before, key) >= 0 {
			return d, fmt.Errorf("line %d: key %.80q does not come after %.80q", n, key, before)
		}
		before = append(before[:0], key...)
		if err := d.row(kind, key, values); err != nil {
			return d, fmt.Errorf("line %d: %w", n, err)
		}
	}
}

// cut appends the key to dst and returns it with the rest of the row.
func (f form) cut(dst, row []byte) (key, values []byte, ok bool) {
	if f == uniqCount {
		count, k, ok := bytes.Cut(bytes.TrimLeft(row, " "), []byte(" "))
		return append(dst, k...), count, ok
	}
	k, values, ok := bytes.Cut(row, []byte("\t"))
	if f != escapedTab {
		return append(dst, k...), values, ok
	}
	for {
		i := bytes.IndexByte(k, '\\')
		if i < 0 || i+1 == len(k) {
			return append(dst, k...), values, ok && i < 0
		}
		dst = append(dst, k[:i]...)
		switch k[i+1] {
		case 't':
			dst = append(dst, '\t')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case '\\':
			dst = append(dst, '\\')
		default:
			return dst, values, false
		}
		k = k[i+2:]
	}
}

func (d *digest) row(kind resultKind, key, values []byte) error {
	d.rows++
	if kind == minMeanMax {
		fields := strings.Split(string(values), "\t")
		if len(fields) != 3 {
			return fmt.Errorf("%w: %d values, want 3", errRow, len(fields))
		}
		var t [3]float64
		for i, s := range fields {
			v, err := strconv.ParseFloat(s, 64)
			if err != nil {
				return fmt.Errorf("%w: %w", errRow, err)
			}
			t[i] = v
		}
		slices.Sort(t[:]) // whatever the order of columns, min <= mean <= max
		if _, twice := d.temps[string(key)]; twice {
			return fmt.Errorf("station %q comes twice", key)
		}
		d.temps[string(key)] = t
		return nil
	}
	count, err := strconv.ParseInt(string(values), 10, 64)
	if err != nil {
		return fmt.Errorf("%w: %w", errRow, err)
	}
	if kind == lineCounts {
		d.add(key, count)
		return nil
	}
	for _, word := range bytes.Fields(key) {
		d.add(word, count)
	}
	return nil
}
