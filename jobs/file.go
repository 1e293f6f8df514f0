// SPDX-License-Identifier: Apache-2.0

package jobs

// Common are the settings that every job has, on the command line and in a job
// file alike (tags as in Options).
type Common struct {
	Output     string `name:"output" short:"o" help:"folder for the result; without it rows go to standard output"`
	Format     string `name:"format" help:"tsv, csv, jsonl or parquet"`
	Compress   string `name:"compress" help:"compress the output: gzip or zstd"`
	Overwrite  bool   `name:"overwrite" help:"replace an output that exists, once the job has succeeded"`
	Partitions int    `name:"partitions" help:"number of parts of the result"`
	TotalOrder bool   `name:"total-order" help:"parts follow each other in key order"`
	Memory     string `name:"memory" help:"memory budget such as 512MiB; default: half of what the machine grants"`
	Workers    int    `name:"workers" help:"goroutines that map and reduce; default: the CPUs granted"`
	SpillDir   string `name:"spill-dir" help:"folder for what does not fit in memory"`
	AllowEmpty bool   `name:"allow-empty" help:"an input that matches nothing is no error"`
	MaxLine    string `name:"max-line" help:"longest record, such as 64MiB"`
	LongLines  string `name:"long-lines" help:"records over that: error, skip or truncate"`
	Delimiter  string `name:"delimiter" help:"what ends a record (escapes as in Go: \\0 \\t \\x1e); default: newline"`
	Encoding   string `name:"encoding" help:"transcode the input: utf-16, utf-16le, utf-16be, latin1, windows-1252"`
	SplitSize  string `name:"split-size" help:"bytes of a split, such as 16MiB"`
}
