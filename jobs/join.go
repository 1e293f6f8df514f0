// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/rows"
)

var joinDefinition = Definition{
	Name:  "join",
	Short: "join the rows of two inputs that agree in a column",
	Long: `Takes two inputs, LEFT and RIGHT (each a file, glob or directory; both written in
the same format), and finds for each row of the one the rows of the other with the
same value in the column --on (or --left-on and --right-on). Values are compared as
written. A row of the result has the key, the other columns of LEFT and those of
RIGHT; a name that both have gets _right added on the right. Of jsonl and parquet,
name the columns with --left-columns and --right-columns; otherwise each side is one
column with the whole record.

--type inner gives pairs only; left, right and full add the rows of that side (or
both) that found no partner, the other side being empty (null in JSON). A key that
is missing or null has no partner. Rows are in order of the key.

The rows with one key of the smaller input are held in memory: at most --max-group
bytes of them, per worker.

There are two ways to the same rows. A repartition join brings the rows of both
sides together by their keys. A broadcast join gives the smaller side, as a table, to
all who map the larger one, so that rows without a partner go no further and the
smaller side does not travel by key at all. It is possible where the smaller side is a
file that can be read again and its rows without a partner are not asked for.
--strategy auto takes it if that side has at most --broadcast-limit bytes
(decompressed); 'quern explain join ...' says what is taken and why.`,
	Example: `  quern join --on user_id users.csv visits.csv -o visits_by_user
  quern join --left-on id --right-on user.id --type left users.jsonl events.jsonl
  quern join --on sku prices.csv sales/ --strategy broadcast -o priced`,
	New: func() Options {
		return &joinOptions{Type: "inner", MaxGroup: "256MiB", Strategy: strategyAuto, BroadcastLimit: "64MiB"}
	},
}

type joinOptions struct {
	On           string   `name:"on" help:"column that both sides have"`
	LeftOn       string   `name:"left-on" help:"column of the left side, if it has another name there"`
	RightOn      string   `name:"right-on" help:"column of the right side"`
	Type         string   `name:"type" help:"inner, left, right or full"`
	LeftColumns  []string `name:"left-columns" help:"columns of the left side in the result; default: all but the key"`
	RightColumns []string `name:"right-columns" help:"columns of the right side in the result; default: all but the key"`
	MaxGroup     string   `name:"max-group" help:"most memory for the rows with one key of the smaller side"`
	Strategy     string   `name:"strategy" help:"auto, broadcast (the smaller side goes to all mappers) or repartition (both sides are shuffled)"`

	BroadcastLimit string `name:"broadcast-limit" help:"auto broadcasts a side of at most so many bytes, decompressed"`
	RowFormat
}

func (o *joinOptions) Build(in *input.Options, inputs []string) (mapreduce.Runnable, error) {
	if len(inputs) != 2 {
		return nil, fmt.Errorf("join takes two inputs, the left and the right one, not %d", len(inputs))
	}
	j := &joiner{}
	var err error
	if j.maxGroup, err = parseSize("max-group", o.MaxGroup); err != nil {
		return nil, err
	}
	limit, err := parseSize("broadcast-limit", o.BroadcastLimit)
	if err != nil {
		return nil, err
	}
	switch o.Strategy {
	case strategyAuto, strategyBroadcast, strategyRepartition:
	default:
		return nil, fmt.Errorf("--strategy %q: say auto, broadcast or repartition", o.Strategy)
	}
	switch o.Type {
	case "inner":
	case "left":
		j.outer[left] = true
	case "right":
		j.outer[right] = true
	case "full":
		j.outer = [2]bool{true, true}
	default:
		return nil, fmt.Errorf("--type %q: say inner, left, right or full", o.Type)
	}
	on := [2]string{o.LeftOn, o.RightOn}
	for side := range on {
		if on[side] == "" {
			on[side] = o.On
		}
		if on[side] == "" {
			return nil, errors.New("say which column the sides agree in: --on, or --left-on and --right-on")
		}
	}
	var kinds [2]string
	for side := range inputs {
		if kinds[side], err = o.RowFormat.kind(in, inputs[side:side+1]); err != nil {
			return nil, err
		}
	}
	if (kinds[left] == "parquet") != (kinds[right] == "parquet") {
		return nil, errors.New("one side is Parquet and the other is not: bring both to one format first")
	}
	if kinds[left] == "parquet" {
		in.Format = input.Parquet
	}
	var size [2]int64
	var packed [2]bool  // size is not that of its content
	var first [2]string // a file of each side
	var pipe [2]bool    // it can be read only once
	for side := range inputs {
		plan, err := input.Discover(context.Background(), inputs[side:side+1], *in)
		if err != nil {
			return nil, err
		}
		if side == left {
			j.leftFiles = len(plan.Files)
		}
		for _, f := range plan.Files {
			if first[side] == "" && f.Size != 0 { // an empty one can't tell the columns
				first[side] = f.Path
			}
			pipe[side] = pipe[side] || f.Size < 0
			packed[side] = packed[side] || f.Compression != "" || kinds[side] == "parquet"
			size[side] += max(f.Size, 0)
			if f.Size < 0 {
				size[side] += 1 << 40 // a pipe: likely the long side
			}
		}
	}
	if size[right] < size[left] {
		j.small = right
	}
	var read [2][]string // of Parquet: the columns that are to be read
	for side, columns := range [2][]string{splitList(o.LeftColumns), splitList(o.RightColumns)} {
		if columns == nil {
			if columns, err = o.otherColumns(in, inputs[side:side+1], first[side], pipe[side], on[side]); err != nil {
				return nil, err
			}
		}
		if j.sides[side].source, err = o.RowFormat.open(in, inputs[side:side+1], append([]string{on[side]}, columns...)); err != nil {
			return nil, err
		}
		j.sides[side].whole = columns == nil
		j.sides[side].columns = columns
		read[side] = in.Columns
	}
	in.Columns = nil // the sides want different ones
	j.strategy, j.why, err = choose(choice{
		strategy: o.Strategy, limit: limit, small: j.small, outer: j.outer,
		size: size[j.small], packed: packed[j.small], once: pipe[j.small],
	})
	if err != nil {
		return nil, err
	}
	if j.strategy == strategyBroadcast {
		j.spread = &spreadSide{
			inputs: inputs[j.small : j.small+1], options: *in,
			limit: limit, must: o.Strategy == strategyBroadcast,
			fingerprint: j.fingerprint(on, inputs),
		}
		j.spread.options.Columns = read[j.small]
	}
	return j.job(on[left]), nil
}

// otherColumns returns the columns of an input that are not the key; nil if
// records have no list of columns.
func (o *joinOptions) otherColumns(in *input.Options, inputs []string, file string, pipe bool, key string) ([]string, error) {
	kind, err := o.RowFormat.kind(in, inputs)
	if err != nil {
		return nil, err
	}
	if kind == "" {
		kind = "csv"
	}
	format, err := o.RowFormat.rowsFormat(kind)
	if err != nil {
		return nil, err
	}
	var names []string
	switch {
	case format.Kind == rows.JSONL:
		return nil, nil
	case format.Kind == rows.Regexp:
		for i, name := range format.Pattern.SubexpNames()[1:] {
			if name == "" {
				name = fmt.Sprint(i + 1)
			}
			names = append(names, name)
		}
	case len(format.Columns) > 0:
		names = format.Columns
	case file == "":
		return []string{}, nil // nothing to join
	case pipe:
		return nil, errors.New("the columns of standard input or a pipe are not known beforehand: name them with --columns, or say --left-columns or --right-columns")
	default:
		if names, err = headerOf(file, format, *in); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == key }), nil
}

// headerOf returns the names of a file's columns.
func headerOf(file string, format *rows.Format, options input.Options) ([]string, error) {
	options.Format = format.Input()
	head, err := readHead(file, options)
	if err != nil {
		return nil, err
	}
	var names []string
	if format.Kind == rows.TSV {
		line, _, _ := bytes.Cut(head, []byte{'\n'})
		names = strings.Split(strings.TrimSuffix(string(line), "\r"), "\t")
	} else {
		r := csv.NewReader(bytes.NewReader(head))
		r.LazyQuotes = format.LazyQuotes
		if format.Comma != 0 {
			r.Comma = rune(format.Comma)
		}
		if names, err = r.Read(); errors.Is(err, io.EOF) {
			return nil, errors.New("is empty, but its first line should tell the columns")
		} else if err != nil {
			return nil, err
		}
	}
	if !format.Header {
		for i := range names {
			names[i] = strconv.Itoa(i + 1)
		}
	}
	return names, nil
}

const (
	left = iota
	right
)

// joiner joins the rows of two sides.
type joiner struct {
	sides     [2]joinSide
	outer     [2]bool // rows without a partner are kept
	leftFiles int     // the first so many files of the plan are the left side
	small     int     // the side whose rows come first and are held
	maxGroup  int64   // bytes

	strategy string
	why      string
	spread   *spreadSide // the small side, if it may be broadcast; nil: it is not
}

type joinSide struct {
	source  *source
	columns []string
	whole   bool // one column: the record as it stands
}

// width is the number of cells that a side has in a row of the result.
func (s *joinSide) width() int {
	if s.whole {
		return 1
	}
	return len(s.columns)
}

func (j *joiner) side(file *input.File) int {
	if file.Index < j.leftFiles {
		return left
	}
	return right
}

func (j *joiner) job(key string) mapreduce.Runnable {
	names := j.names(key)
	kinds := make([]output.Kind, len(names))
	for i := range kinds {
		kinds[i] = output.Bytes
	}
	job := &mapreduce.Job[[]byte, []byte, []output.Value]{
		Name:        "join",
		NewBlockMap: j.newMap,
		FirstBlock:  func(b mapreduce.Block) error { return j.sides[j.side(b.File)].source.learn(b) },
		Reduce:      j.reduce,
		ValueOrder:  func(dst []byte, v []byte) []byte { return append(dst, v[0]) },
		Columns:     names,
		ColumnKinds: kinds,
		HideKey:     true, // the first column
		KeyText:     keyText,
		Why:         []string{j.why},
	}
	if s := j.spread; s != nil {
		s.open = mapreduce.Parse(job.SideInput(sideNames[j.small]+" side", j.source()), func(content []byte) (*joinTable, error) {
			return openTable(content, s.fingerprint)
		})
	}
	return inOrder{job}
}

func (j *joiner) names(key string) []string {
	names := []string{key}
	for side, whole := range [...]string{"left", "right"} {
		columns := j.sides[side].columns
		if j.sides[side].whole {
			columns = []string{whole}
		}
		for _, name := range columns {
			for slices.Contains(names, name) {
				name += "_" + whole
			}
			names = append(names, name)
		}
	}
	return names
}
