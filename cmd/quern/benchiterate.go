// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/examples/kmeans/lloyd"
	"github.com/quernmr/quern/internal/foldbench"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/spf13/cobra"
)

// iterateProgramCommand is the hidden command that is the program of the iteration, here and on a cluster.
const iterateProgramCommand = "iterate-program"

// Engines of the iteration.
const (
	localEngine   = "local"
	clusterEngine = "cluster"
)

// iterateResult is what an engine did.
type iterateResult struct {
	Engine string `json:"engine"`
	Hosts  int    `json:"hosts"`
	Rounds int    `json:"rounds"` // of a run
	Points int    `json:"points"`
	// P50us and P99us are of the rounds of all runs, as one member saw them.
	P50us float64 `json:"round_p50_us"`
	P99us float64 `json:"round_p99_us"`
	// WaitShare is how much of the rounds passed in all-reduces, waiting for others and the network: 0 to 1.
	WaitShare float64 `json:"wait_share"`
	// TotalMs is the median of runs from the program's call to its result: planning, reading, rounds and output.
	TotalMs float64 `json:"total_ms"`
}

type iterateReport struct {
	Results []iterateResult `json:"results"`
	// Identical says that the centroids of all runs are equal to the last bit.
	Identical bool `json:"identical"`
}

// iterateRun is what the program prints.
type iterateRun struct {
	Rounds  int      `json:"rounds"`
	Took    []int64  `json:"took_ns"` // by round
	Waited  []int64  `json:"waited_ns"`
	TotalNs int64    `json:"total_ns"`
	State   []string `json:"state"` // bits, in hexadecimal
}

type iterateFlags struct {
	hosts, points, dims, clusters int
	rounds, turns                 int
	shuffle                       string
	json, quiet, quick            bool
}

func (a *app) benchIterateCommand() *cobra.Command {
	f := iterateFlags{hosts: 4, points: 1_000_000, dims: 2, clusters: 8, rounds: 100, turns: 3, shuffle: "auto"}
	cmd := &cobra.Command{
		Use:   "iterate [flags]",
		Short: "measure an iteration: k-means in this process and on a cluster",
		Long: `Finds clusters of points by k-means (examples/kmeans), in one process and on a
cluster whose hosts are those of a lab (see 'quern lab'): a master, and a worker on
each host. Both get the same file, made for it, and the same program, which on the
cluster is submitted as any other. They take turns.

Measured are the time of a round as one of its members sees it, how much of that
passes in all-reduces, waiting for other members and the network, and the time from the
program's call to its result. The centroids of all runs must be equal to the last bit.
The cluster needs Linux and root's rights. Neither the configuration file nor the
environment counts.`,
		Example: `  quern bench iterate --json
  quern bench iterate --quick
  quern bench iterate --hosts 8 --points 10000000`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
	}
	flags := cmd.Flags()
	flags.IntVar(&f.hosts, "hosts", f.hosts, "hosts of the cluster, 1 to 32")
	flags.IntVar(&f.points, "points", f.points, "points, 1,000 to 1,000,000,000")
	flags.IntVar(&f.dims, "dimensions", f.dims, "coordinates of a point, 1 to 1,000")
	flags.IntVar(&f.clusters, "clusters", f.clusters, "clusters, 1 to 1,000")
	flags.IntVar(&f.rounds, "rounds", f.rounds, "rounds of a run, 1 to 4,000")
	flags.IntVar(&f.turns, "turns", f.turns, "runs of each engine")
	flags.StringVar(&f.shuffle, "shuffle", f.shuffle, "who adds up on the cluster's hosts: kernel, user (space), auto")
	flags.BoolVar(&f.json, "json", false, "print a JSON object instead of a table")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "say nothing but the result")
	flags.BoolVar(&f.quick, "quick", false, "a look in half a minute: 2 hosts, 100,000 points, 20 rounds, one run")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.flagsAlone(cmd); err != nil {
			return err
		}
		if err := f.check(cmd); err != nil {
			return err
		}
		report, err := a.benchIterate(cmd.Context(), &f)
		if err != nil {
			return err
		}
		if f.json {
			err = writeJSON(cmd.OutOrStdout(), report)
		} else {
			err = report.print(cmd.OutOrStdout())
		}
		if err == nil && !report.Identical {
			err = errors.New("the engines came to different centroids")
		}
		return err
	}
	return cmd
}

// check fills in what --quick says and returns an error that names what is out of range.
func (f *iterateFlags) check(cmd *cobra.Command) error {
	if f.quick {
		for name, set := range map[string]func(){
			"hosts":  func() { f.hosts = 2 },
			"points": func() { f.points = 100_000 },
			"rounds": func() { f.rounds = 20 },
			"turns":  func() { f.turns = 1 },
		} {
			if !cmd.Flags().Changed(name) {
				set()
			}
		}
	}
	for _, n := range []struct {
		name            string
		is, least, most int
	}{
		{"hosts", f.hosts, 1, 32},
		{"points", f.points, 1000, 1e9},
		{"dimensions", f.dims, 1, 1000},
		{"clusters", f.clusters, 1, 1000},
		{"rounds", f.rounds, 1, 4000}, // as many as a result tells the times of
		{"turns", f.turns, 1, 1000},
	} {
		if n.is < n.least || n.is > n.most {
			return usageErrorf(cmd, "--%s %d: %s to %s are possible", n.name, n.is, humanize.Comma(int64(n.least)), humanize.Comma(int64(n.most)))
		}
	}
	if !slices.Contains([]string{"auto", "kernel", "user"}, f.shuffle) {
		return usageErrorf(cmd, "--shuffle %q: kernel, user or auto is possible", f.shuffle)
	}
	return netlab.Available()
}

// benchIterate runs both engines.
func (a *app) benchIterate(ctx context.Context, f *iterateFlags) (report *iterateReport, err error) {
	say := func(format string, args ...any) {
		if !f.quiet {
			fmt.Fprintf(a.stderr, format+"\n", args...)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := submittable(self); err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "quern-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	points := filepath.Join(folder, "points.csv")
	say("making %s points", humanize.Comma(int64(f.points)))
	if err := f.makePoints(ctx, points); err != nil {
		return nil, err
	}
	var runs [2][]iterateRun
	engines := []string{localEngine, clusterEngine}
	for turn := range f.turns {
		for i, engine := range engines {
			once, err := a.iterateOnce(ctx, engine, f, self, points, filepath.Join(folder, "out"))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", engine, err)
			}
			r := f.result(engine, []iterateRun{*once})
			say("%s, run %d of %d: %.0f us a round, %.1f %% of it waiting; %.0f ms in all", engine, turn+1, f.turns, r.P50us, 100*r.WaitShare, r.TotalMs)
			runs[i] = append(runs[i], *once)
		}
	}
	report = &iterateReport{Identical: true}
	for i, engine := range engines {
		report.Results = append(report.Results, f.result(engine, runs[i]))
		for _, r := range runs[i] {
			report.Identical = report.Identical && slices.Equal(r.State, runs[0][0].State)
		}
	}
	return report, nil
}

// submittable says before anything is begun if the executable at path, this one, can't be sent to a cluster as the program that it is
// there: "go run" and a plain "go build" make one that needs libraries of this machine.
func submittable(path string) error {
	if _, err := cluster.Platform(path); err != nil {
		return &usageError{fmt.Errorf("bench iterate has a cluster run this very executable, which it can't: %w", err), "build it by CGO_ENABLED=0 go build -o bin/quern ./cmd/quern"}
	}
	return nil
}

// makePoints writes the file of points: the same bytes every time.
func (f *iterateFlags) makePoints(ctx context.Context, path string) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return lloyd.Mixture{Points: f.points, Dims: f.dims, Clusters: f.clusters, Spread: 6, Seed: benchSeed}.Write(untilCancelled{ctx, file})
}

// iterateOnce runs the program once, in a process of its own.
func (a *app) iterateOnce(ctx context.Context, engine string, f *iterateFlags, self, points, out string) (_ *iterateRun, err error) {
	program := []string{
		"bench", iterateProgramCommand, "--rounds", strconv.Itoa(f.rounds), "--clusters", strconv.Itoa(f.clusters),
		"--dimensions", strconv.Itoa(f.dims), "--output", out, points,
	}
	args := program
	if engine == clusterEngine {
		args = append([]string{
			"lab", "run", "--quiet", "--hosts", strconv.Itoa(f.hosts), "--static-neighbours", "--shuffle", f.shuffle, "--",
			self, "submit", "--quiet", self, "--",
		}, program...)
	}
	child := exec.CommandContext(ctx, self, args...)
	child.Env = withoutOurs(a.environ)
	child.Cancel = func() error { return child.Process.Signal(os.Interrupt) }
	child.WaitDelay = 3 * killAfter // a lab has more to clean up
	var printed, said bytes.Buffer
	child.Stdout, child.Stderr = &printed, &said
	if err := child.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	r := &iterateRun{}
	if err := json.Unmarshal(lastLine(printed.Bytes()), r); err != nil {
		return nil, fmt.Errorf("what the program printed cannot be read: %w", err)
	}
	if r.Rounds != f.rounds || len(r.Took) != f.rounds || len(r.Waited) != f.rounds {
		return nil, fmt.Errorf("the program tells of %d rounds and the times of %d, and not of %d", r.Rounds, len(r.Took), f.rounds)
	}
	return r, os.RemoveAll(out)
}

// result makes figures of an engine's runs.
func (f *iterateFlags) result(engine string, runs []iterateRun) iterateResult {
	r := iterateResult{Engine: engine, Hosts: 1, Rounds: f.rounds, Points: f.points}
	if engine == clusterEngine {
		r.Hosts = f.hosts
	}
	var times []time.Duration
	var took, waited int64
	var totals []float64
	for _, run := range runs {
		for i, ns := range run.Took {
			times = append(times, time.Duration(ns))
			took += ns
			waited += run.Waited[i]
		}
		totals = append(totals, float64(run.TotalNs)/1e6)
	}
	r.P50us = float64(foldbench.Quantile(times, 0.50)) / 1e3
	r.P99us = float64(foldbench.Quantile(times, 0.99)) / 1e3
	if took > 0 {
		r.WaitShare = float64(waited) / float64(took)
	}
	r.TotalMs = median(totals)
	return r
}

// print writes a table.
func (r *iterateReport) print(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "engine\thosts\tpoints\trounds\tround p50 us\tp99 us\twaiting\ttotal ms\t\n")
	for _, x := range r.Results {
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%.0f\t%.0f\t%.1f %%\t%.0f\t\n",
			x.Engine, x.Hosts, humanize.Comma(int64(x.Points)), x.Rounds, x.P50us, x.P99us, 100*x.WaitShare, x.TotalMs)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	words := "the centroids of all runs are equal to the last bit"
	if !r.Identical {
		words = "the centroids of the runs DIFFER"
	}
	_, err := fmt.Fprintln(w, words)
	return err
}

// benchIterateProgramCommand is what a job's program would be: it runs up to Iterate on the workers, and to its end here.
func (a *app) benchIterateProgramCommand() *cobra.Command {
	var dims, clusters, rounds int
	var out string
	cmd := &cobra.Command{Use: iterateProgramCommand + " POINTS", Hidden: true, Args: cobra.ExactArgs(1)}
	cmd.Flags().IntVar(&dims, "dimensions", 2, "")
	cmd.Flags().IntVar(&clusters, "clusters", 8, "")
	cmd.Flags().IntVar(&rounds, "rounds", 100, "")
	cmd.Flags().StringVar(&out, "output", "", "")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s := lloyd.Settings{K: clusters, Rounds: rounds, Tolerance: -1}
		for i := range dims {
			s.Fields = append(s.Fields, i+1)
		}
		it, err := lloyd.Iteration(s)
		if err != nil {
			return err
		}
		begin := time.Now()
		res, err := mapreduce.Iterate(cmd.Context(), it, mapreduce.IterateOptions{Options: mapreduce.Options{
			Inputs: args, Input: input.Options{SplitSize: 1 << 20}, Output: output.Dir(out, output.DirOptions{}),
		}})
		if err != nil {
			return err
		}
		r := iterateRun{Rounds: res.Rounds, TotalNs: int64(time.Since(begin))}
		for _, t := range res.Times {
			r.Took, r.Waited = append(r.Took, int64(t.Took)), append(r.Waited, int64(t.Waiting))
		}
		for _, x := range res.State {
			r.State = append(r.State, strconv.FormatUint(math.Float64bits(x), 16))
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
	}
	return cmd
}
