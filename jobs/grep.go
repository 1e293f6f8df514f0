// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"errors"
	"fmt"
	"iter"
	"regexp"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
)

var grepDefinition = Definition{
	Name:  "grep",
	Short: "find the lines that match a regular expression",
	Long: `The pattern is an RE2 regular expression (the syntax of Go's regexp package);
with --fixed it is plain text. Rows are the matching lines, ordered by the path
of their file and their place in it. --with-filename and --with-offset add where
a line stands (in bytes from the start of the decompressed file). With --count, a
row is a file and its number of matching lines.`,
	Example: `  quern grep 'ERROR|FATAL' 'logs/**/*.log.gz'
  quern grep --fixed --ignore-case --count 'out of memory' /var/log`,
	New: func() Options { return &grepOptions{} },
}

type grepOptions struct {
	Pattern      string `name:"pattern" arg:"1" short:"e" help:"what to look for"`
	IgnoreCase   bool   `name:"ignore-case" short:"i" help:"let upper and lower case be the same"`
	Invert       bool   `name:"invert" short:"v" help:"the lines that do not match"`
	Fixed        bool   `name:"fixed" short:"F" help:"the pattern is plain text"`
	Count        bool   `name:"count" short:"c" help:"only how many lines match, per file"`
	WithFilename bool   `name:"with-filename" short:"H" help:"add the file's path to each line"`
	WithOffset   bool   `name:"with-offset" short:"b" help:"add the line's offset in bytes to each line"`
}

// grepKey orders matching lines.
type grepKey struct {
	File   string
	Offset int64
}

func (o *grepOptions) Build(in *input.Options, _ []string) (mapreduce.Runnable, error) {
	if err := linesOnly("grep", in); err != nil {
		return nil, err
	}
	if o.Count && (o.WithFilename || o.WithOffset) {
		return nil, errors.New("--count has the file in each row already: leave out --with-filename and --with-offset")
	}
	finder, err := o.finder(recordCutter{in.Delimiter})
	if err != nil {
		return nil, err
	}
	if o.Count {
		return grepCount(finder), nil
	}
	return o.grepLines(finder), nil
}

func (o *grepOptions) finder(cut recordCutter) (*lineFinder, error) {
	pattern := o.Pattern
	if o.Fixed {
		pattern = regexp.QuoteMeta(pattern)
	}
	if o.IgnoreCase {
		pattern = "(?i:" + pattern + ")"
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		// Name the pattern as it was given.
		if _, plain := regexp.Compile(o.Pattern); plain != nil {
			err = plain
		}
		return nil, fmt.Errorf("--pattern: %w", err)
	}
	return newLineFinder(re, o.Invert, cut), nil
}

func grepCount(finder *lineFinder) mapreduce.Runnable {
	return &mapreduce.Job[string, int64, int64]{
		Name: "grep",
		NewBlockMap: func() func(mapreduce.Block, *mapreduce.Emitter[string, int64]) error {
			return func(b mapreduce.Block, emit *mapreduce.Emitter[string, int64]) error {
				n := int64(0)
				finder.find(b.Data, func(int, int) { n++ })
				// Files without a match get a row too.
				emit.Emit(b.File.Path, n)
				return nil
			}
		},
		Fold:       mapreduce.Sum[int64](),
		KeyColumns: []string{"file"},
		Columns:    []string{"count"},
	}
}

func (o *grepOptions) grepLines(finder *lineFinder) mapreduce.Runnable {
	newMap := func() func(mapreduce.Block, *mapreduce.Emitter[grepKey, []byte]) error {
		return func(b mapreduce.Block, emit *mapreduce.Emitter[grepKey, []byte]) error {
			finder.find(b.Data, func(start, end int) {
				emit.Emit(grepKey{b.File.Path, b.Offset + int64(start)}, b.Data[start:end])
			})
			return nil
		}
	}
	if o.WithFilename != o.WithOffset {
		columns, kinds := []string{"offset", "line"}, []output.Kind{output.Int, output.Bytes}
		if o.WithFilename {
			columns[0], kinds[0] = "file", output.Bytes
		}
		return inOrder{&mapreduce.Job[grepKey, []byte, []output.Value]{
			Name:        "grep",
			NewBlockMap: newMap,
			Reduce: func(key grepKey, lines iter.Seq[[]byte], yield func([]output.Value)) error {
				where := output.Value{Kind: output.Int, I: key.Offset}
				if o.WithFilename {
					where = output.Value{Kind: output.Bytes, B: []byte(key.File)}
				}
				for line := range lines {
					yield([]output.Value{where, {Kind: output.Bytes, B: line}})
				}
				return nil
			},
			Columns:     columns,
			ColumnKinds: kinds,
			HideKey:     true,
		}}
	}
	return inOrder{&mapreduce.Job[grepKey, []byte, []byte]{
		Name:        "grep",
		NewBlockMap: newMap,
		Reduce: func(_ grepKey, lines iter.Seq[[]byte], yield func([]byte)) error {
			for line := range lines {
				yield(line)
			}
			return nil
		},
		KeyColumns: []string{"file", "offset"},
		Columns:    []string{"line"},
		HideKey:    !o.WithFilename,
	}}
}

// givesLines says whether rows are lines of the input and nothing else.
func (o *grepOptions) givesLines() bool { return !o.Count && !o.WithFilename && !o.WithOffset }
