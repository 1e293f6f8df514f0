// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/internal/benchdata"
	"github.com/quernmr/quern/jobs"
	"github.com/spf13/cobra"
)

// benchSeed makes the data the same every time.
const benchSeed = 1

// killAfter is how long a job may take to clean up once it was interrupted.
const killAfter = 10 * time.Second

// benchmark is a job with the data that it is measured on.
type benchmark struct {
	name string   // of the job
	args []string // its options
	data data
}

// data is a file that can be made again byte for byte.
type data struct {
	name  string
	write func(w io.Writer, size int64) error
}

var (
	wordData = data{"words.txt", func(w io.Writer, size int64) error {
		return writeWords(w, size, benchSeed)
	}}
	keyData = data{"keys.txt", func(w io.Writer, size int64) error {
		lines := size/12 + 1 // a line has twelve bytes
		return benchdata.Keys(w, lines, int(min(lines*4/5+1, 10_000_000)), benchSeed)
	}}
	stationData = data{"stations.csv", func(w io.Writer, size int64) error {
		if _, err := io.WriteString(w, "station;temperature\n"); err != nil {
			return err
		}
		return benchdata.Temperatures(w, size/15+1, 413, benchSeed) // about 15 bytes a row
	}}
)

// benchmarks are those that bench has data for, in the order of the table.
var benchmarks = []benchmark{
	{"wordcount", nil, wordData},
	{"grep", []string{"--count", "--pattern", "(ba|do)[k-t]ux"}, wordData},
	{"count", nil, keyData},
	{"distinct", nil, keyData},
	{"sort", nil, keyData},
	{"aggregate", []string{"--comma", ";", "--group-by", "station", "--min", "temperature", "--mean", "temperature", "--max", "temperature"}, stationData},
}

// benchResult is a line of the table.
type benchResult struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"` // median
	Rate    float64 `json:"bytes_per_second"`
	PeakRSS int64   `json:"peak_rss_bytes"` // the greatest of all runs
	bytes   int64
}

type benchFlags struct {
	size  string
	runs  int
	json  bool
	quiet bool
}

func (a *app) benchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench [JOB [INPUT...]] [flags] [-- JOB'S FLAGS]",
		Short: "measure jobs on this machine",
		Long: `Bench runs jobs as processes of their own and measures the time from start to
end, the output's writing to disk included, and the most memory that was resident.
Without INPUT it makes data in the folder for temporary files and removes them at
the end; the same size makes the same bytes. Without JOB it runs all it has data
for: ` + strings.Join(benchNames(), ", ") + `.

What follows -- goes to the job in place of the options that bench uses. Neither
the configuration file nor the environment count.`,
		Example: `  quern bench wordcount --json
  quern bench aggregate sales.csv -- --group-by city --sum amount`,
		GroupID:               otherGroup,
		Args:                  cobra.ArbitraryArgs,
		DisableFlagsInUseLine: true,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return benchNames(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().StringVar(&f.size, "size", "100MB", "bytes of the data made for each job")
	cmd.Flags().IntVar(&f.runs, "runs", 3, "runs of each job; the median counts")
	cmd.Flags().BoolVar(&f.json, "json", false, "print a JSON object instead of a table")
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "say nothing but the result")
	var handedOn jobs.Common
	addFlags(cmd.Flags(), commonGroup, &handedOn)
	for _, key := range keysOf(&handedOn) {
		cmd.Flags().Lookup(key).Hidden = !slices.Contains(handOn, key)
	}
	completeValues(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.flagsAlone(cmd); err != nil {
			return err
		}
		return a.bench(cmd, f, args)
	}
	cmd.AddCommand(
		a.benchFoldCommand(), a.benchContentionCommand(), a.benchBroadcastCommand(), a.benchAllReduceCommand(), a.benchIterateCommand(),
		a.benchRoleCommand(), a.benchCastRoleCommand(), a.benchReduceRoleCommand(), a.benchIterateProgramCommand(),
	)
	return cmd
}

// handOn are the common flags that bench takes for the jobs.
var handOn = []string{"partitions", "total-order", "memory", "workers", "spill-dir", "split-size"}

func benchNames() []string {
	var names []string
	for _, b := range benchmarks {
		names = append(names, b.name)
	}
	return names
}

func (a *app) bench(cmd *cobra.Command, f benchFlags, args []string) error {
	bytesWanted, err := humanize.ParseBytes(f.size)
	if err != nil || bytesWanted == 0 || bytesWanted > 1<<50 {
		return usageErrorf(cmd, "--size: %q is no size such as 100MB", f.size)
	}
	if f.runs < 1 {
		return usageErrorf(cmd, "--runs %d: must be at least 1", f.runs)
	}
	var own []string // after --
	if at := cmd.ArgsLenAtDash(); at >= 0 {
		args, own = args[:at], args[at:]
	}
	var inputs []string
	chosen := benchmarks
	if len(args) > 0 {
		if _, ok := jobs.Lookup(args[0]); !ok {
			return unknownJob(cmd, args[0])
		}
		inputs = args[1:]
		chosen = []benchmark{{name: args[0]}}
		if i := slices.Index(benchNames(), args[0]); i >= 0 {
			chosen[0] = benchmarks[i]
		} else if len(inputs) == 0 {
			return usageErrorf(cmd, "bench has no data for %s: name an input", args[0])
		}
		if own != nil {
			chosen[0].args = own
		}
	} else if own != nil {
		return usageErrorf(cmd, "name the job that %s is for", own[0])
	}
	common := []string{"--config", os.DevNull}
	for _, key := range keysOf(new(jobs.Common)) {
		if flag := cmd.Flags().Lookup(key); flag.Changed {
			if flag.Hidden {
				return usageErrorf(cmd, "bench does not take --%s", key)
			}
			common = append(common, "--"+key+"="+flag.Value.String())
		}
	}

	results, err := a.measureAll(cmd.Context(), chosen, inputs, common, int64(bytesWanted), f)
	if err != nil {
		return err
	}
	if f.json {
		return writeJSON(cmd.OutOrStdout(), map[string][]benchResult{"results": results})
	}
	return printBench(cmd.OutOrStdout(), results)
}

// unknownJob makes the error for a job that does not exist.
func unknownJob(cmd *cobra.Command, name string) error {
	var names []string
	for _, d := range jobs.All() {
		names = append(names, d.Name)
	}
	if near := nearest(name, names); near != "" {
		return usageErrorf(cmd, "unknown job %q, did you mean %q?", name, near)
	}
	return usageErrorf(cmd, "unknown job %q", name)
}

// measureAll runs the benchmarks in a folder for temporary files.
func (a *app) measureAll(ctx context.Context, chosen []benchmark, inputs, common []string, bytes int64, f benchFlags) (results []benchResult, err error) {
	folder, err := os.MkdirTemp("", "quern-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	say := func(format string, args ...any) {
		if !f.quiet {
			fmt.Fprintf(a.stderr, format+"\n", args...)
		}
	}
	for i, b := range chosen {
		paths := inputs
		if len(inputs) == 0 {
			path := filepath.Join(folder, b.data.name)
			if !fileExists(path) {
				say("making %s of data for %s", size(bytes), b.name)
				if err := b.data.makeFile(ctx, path, bytes); err != nil {
					return nil, err
				}
			}
			paths = []string{path}
		}
		r := benchResult{Name: b.name}
		var seconds []float64
		for run := range f.runs {
			once, err := a.measure(ctx, b, paths, common, filepath.Join(folder, "out"))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", b.name, err)
			}
			say("%s: run %d of %d took %.2f s", b.name, run+1, f.runs, once.Seconds)
			seconds = append(seconds, once.Seconds)
			r.PeakRSS = max(r.PeakRSS, once.PeakRSS)
			r.bytes = once.bytes
		}
		r.Seconds = median(seconds)
		r.Rate = float64(r.bytes) / r.Seconds
		results = append(results, r)
		// The next one may need other data, and the disk may be small.
		if len(inputs) == 0 && (i+1 == len(chosen) || chosen[i+1].data.name != b.data.name) {
			if err := os.Remove(paths[0]); err != nil {
				return nil, err
			}
		}
	}
	return results, nil
}

// makeFile writes the data to a new file.
func (d data) makeFile(ctx context.Context, path string, bytes int64) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := bufio.NewWriterSize(untilCancelled{ctx, file}, 1<<18)
	if err := d.write(w, bytes); err != nil {
		return err
	}
	return w.Flush()
}

// untilCancelled is a writer that fails once its context is cancelled.
type untilCancelled struct {
	ctx context.Context
	io.Writer
}

func (u untilCancelled) Write(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.Writer.Write(p)
}

// measure runs a benchmark once, in a process of its own.
func (a *app) measure(ctx context.Context, b benchmark, inputs, common []string, out string) (benchResult, error) {
	self, err := os.Executable()
	if err != nil {
		return benchResult{}, err
	}
	args := append([]string{b.name, "--json", "--quiet", "--output", out}, common...)
	args = append(append(append(args, b.args...), "--"), inputs...)
	child := exec.CommandContext(ctx, self, args...)
	child.Env = withoutOurs(a.environ)
	child.Cancel = func() error { return child.Process.Signal(os.Interrupt) }
	child.WaitDelay = killAfter
	var said bytes.Buffer
	child.Stderr = &said
	start := time.Now()
	err = child.Run()
	seconds := time.Since(start).Seconds()
	if err != nil {
		if ctx.Err() != nil {
			return benchResult{}, ctx.Err()
		}
		var f failure
		if json.Unmarshal(lastLine(said.Bytes()), &f) == nil && f.Error != "" {
			err = errors.New(f.Error)
			if f.ExitCode == exitUsage {
				err = &usageError{err: err}
			}
		}
		return benchResult{}, err
	}
	var s summary
	if err := json.Unmarshal(lastLine(said.Bytes()), &s); err != nil {
		return benchResult{}, fmt.Errorf("its summary cannot be read: %w", err)
	}
	if err := os.RemoveAll(out); err != nil {
		return benchResult{}, err
	}
	return benchResult{Seconds: seconds, PeakRSS: childRSS(child.ProcessState), bytes: s.Bytes}, nil
}

// withoutOurs returns the environment without our variables.
func withoutOurs(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(e string) bool { return strings.HasPrefix(e, envPrefix) })
}

func lastLine(text []byte) []byte {
	text = bytes.TrimRight(text, "\n")
	return text[bytes.LastIndexByte(text, '\n')+1:]
}

// median returns the middle of some numbers (of two middle ones, the mean).
func median(numbers []float64) float64 {
	sorted := slices.Sorted(slices.Values(numbers))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func printBench(w io.Writer, results []benchResult) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "job\tinput\tseconds\tbytes/s\tpeak memory\t\n")
	for _, r := range results {
		fmt.Fprintf(table, "%s\t%s\t%.3f\t%s\t%s\t\n", r.Name, size(r.bytes), r.Seconds, size(int64(r.Rate)), size(r.PeakRSS))
	}
	return table.Flush()
}
