// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"fmt"
	"io"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
)

// Prepare builds a job from its options and the common ones: what to run, and
// how. Rows go to stdout unless the common options name a folder. Errors name
// the option that is wrong, as a flag.
func Prepare(def Definition, o Options, c Common, inputs []string, stdout io.Writer) (mapreduce.Runnable, mapreduce.Options, error) {
	if c.Format == "" {
		c.Format = string(output.TSV)
		if l, ok := o.(lineJob); ok && l.givesLines() {
			c.Format = string(output.Plain)
		}
	}
	opts, err := c.engineOptions(inputs, stdout)
	if err != nil {
		return nil, opts, err
	}
	job, err := o.Build(&opts.Input, inputs)
	if err != nil {
		return nil, opts, fmt.Errorf("%s: %w", def.Name, err)
	}
	return job, opts, nil
}

// lineJob is what options implement whose rows can be lines of the input, which
// are to come out as they went in.
type lineJob interface{ givesLines() bool }

func (c Common) engineOptions(inputs []string, stdout io.Writer) (mapreduce.Options, error) {
	opts := mapreduce.Options{
		Inputs:     inputs,
		Partitions: c.Partitions,
		TotalOrder: c.TotalOrder,
		Workers:    c.Workers,
		SpillDir:   c.SpillDir,
	}
	if c.Partitions < 0 || c.Partitions > mapreduce.MaxPartitions {
		return opts, fmt.Errorf("--partitions %d: give a number from 1 to %d", c.Partitions, mapreduce.MaxPartitions)
	}
	if c.Workers < 0 {
		return opts, fmt.Errorf("--workers %d: must not be negative", c.Workers)
	}
	var err error
	if opts.Input, err = c.inputOptions(); err != nil {
		return opts, err
	}
	if opts.Memory, err = parseSize("memory", c.Memory); err != nil {
		return opts, err
	}
	if c.Memory != "" && opts.Memory < mapreduce.MinMemory {
		return opts, fmt.Errorf("--memory %s: must be at least %dMiB", c.Memory, mapreduce.MinMemory>>20)
	}
	if opts.Output, err = c.target(stdout, opts.Memory); err != nil {
		return opts, err
	}
	return opts, nil
}

func (c Common) inputOptions() (in input.Options, err error) {
	in.AllowEmpty, in.Encoding = c.AllowEmpty, c.Encoding
	if in.MaxLine, err = parseSize("max-line", c.MaxLine); err != nil {
		return in, err
	}
	if in.SplitSize, err = parseSize("split-size", c.SplitSize); err != nil {
		return in, err
	}
	if in.Delimiter, err = parseDelimiter(c.Delimiter); err != nil {
		return in, err
	}
	switch c.LongLines {
	case "", "error":
	case "skip":
		in.LongLines = input.LongLinesSkip
	case "truncate":
		in.LongLines = input.LongLinesTruncate
	default:
		return in, fmt.Errorf("--long-lines %q: say error, skip or truncate", c.LongLines)
	}
	return in, nil
}

// target is where rows go. With a memory budget, rows that are kept back take
// an eighth of it at most.
func (c Common) target(stdout io.Writer, memory int64) (output.Target, error) {
	format := output.TSV
	if c.Format != "" {
		var err error
		if format, err = output.ParseFormat(c.Format); err != nil {
			return nil, fmt.Errorf("--format: %w", err)
		}
	}
	switch c.Compress {
	case "", output.Gzip, output.Zstd:
	default:
		return nil, fmt.Errorf("--compress %q: say gzip or zstd", c.Compress)
	}
	if c.Output == "" {
		if c.Overwrite {
			return nil, fmt.Errorf("--overwrite is for --output")
		}
		return output.Stream(stdout, output.StreamOptions{Format: format, Compression: c.Compress, SpoolDir: c.SpillDir, SpoolMemory: min(memory/8, output.DefaultSpoolMemory), ParquetBinary: c.ParquetBinary}), nil
	}
	return output.Dir(c.Output, output.DirOptions{Format: format, Compression: c.Compress, Overwrite: c.Overwrite, ParquetBinary: c.ParquetBinary}), nil
}
