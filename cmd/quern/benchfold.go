// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/internal/foldbench"
	"github.com/spf13/cobra"
)

// roleCommand is the hidden command that is an end of what is measured.
const roleCommand = "role"

type foldFlags struct {
	keys, conditions, paths []string
	runs, trips             int
	pairs                   string
	json, quiet, quick      bool
}

func (a *app) benchFoldCommand() *cobra.Command {
	f := foldFlags{keys: []string{"1K", "100K", "1M", "10M"}, conditions: []string{foldbench.Idle, foldbench.Busy}, trips: 2000, pairs: "30M"}
	cmd := &cobra.Command{
		Use:   "fold [flags]",
		Short: "measure the fold of pairs that another host sends: by the kernel, by a socket, over TCP",
		Long: `Sends pairs from one host to another and folds them there, each end a process of
its own, on hosts of a lab (see 'quern lab') that a veth joins. The paths:

  kernel  our protocol, folded and answered by programs at the interface
  socket  our protocol, folded and answered by the receiving process
  tcp     one TCP connection and a table in Go, pairs in random order and in the
          order of hashes, which our protocol has

Keys have 16 bytes, values 4. Keys are in the tables before times are taken.
"busy" is with two processes per processor that do nothing but use it. All
folded sums are checked. It needs Linux and root's rights. Neither the
configuration file nor the environment counts.`,
		Example: `  quern bench fold --json
  quern bench fold --keys 1M --conditions idle --runs 5`,
	}
	return a.foldCommand(cmd, &f, foldbench.Fold)
}

func (a *app) benchContentionCommand() *cobra.Command {
	f := foldFlags{keys: []string{"100K"}, conditions: []string{foldbench.Idle, foldbench.Busy}, trips: 4096, pairs: "1"}
	cmd := &cobra.Command{
		Use:   "contention [flags]",
		Short: "measure round trips while other processes use all processors",
		Long: `Sends a frame of pairs that asks for an answer, waits for that, and so on, while two
processes per processor do nothing but use it: what the answer waits for. The
paths are those of 'quern bench fold'. Neither the configuration file nor the
environment counts.`,
		Example: `  quern bench contention --json`,
	}
	return a.foldCommand(cmd, &f, foldbench.Contention)
}

func (a *app) foldCommand(cmd *cobra.Command, f *foldFlags, measure func(context.Context, foldbench.Options) (*foldbench.Report, error)) *cobra.Command {
	cmd.Args = noArgs
	cmd.DisableFlagsInUseLine = true
	least := 1
	if cmd.Name() == "fold" {
		least = foldbench.MinKeys
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.keys, "keys", f.keys, fmt.Sprintf("numbers of distinct keys, each %d to %d", least, foldbench.MaxKeys))
	flags.StringSliceVar(&f.conditions, "conditions", f.conditions, "idle, busy")
	flags.StringSliceVar(&f.paths, "paths", foldbench.Paths, "kernel, socket, tcp")
	flags.IntVar(&f.runs, "runs", 3, "runs of each; medians count")
	if cmd.Name() == "fold" {
		flags.StringVar(&f.pairs, "pairs", f.pairs, "pairs that a run sends at least")
	}
	flags.IntVar(&f.trips, "trips", f.trips, "round trips of a run")
	flags.BoolVar(&f.json, "json", false, "print a JSON object instead of a table")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "say nothing but the result")
	flags.BoolVar(&f.quick, "quick", false, "for tests: do not wait until the machine is at rest")
	flags.Lookup("quick").Hidden = true
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.flagsAlone(cmd); err != nil {
			return err
		}
		o := foldbench.Options{Conditions: f.conditions, Paths: f.paths, Runs: f.runs, Trips: f.trips, Quick: f.quick}
		for _, k := range f.keys {
			n, err := parseCount(k)
			if err != nil || n < least || n > foldbench.MaxKeys {
				return usageErrorf(cmd, "--keys: %q is no number from %d to %d", k, least, foldbench.MaxKeys)
			}
			o.Keys = append(o.Keys, n)
		}
		var err error
		if o.Pairs, err = parseCount(f.pairs); err != nil {
			return usageErrorf(cmd, "--pairs: %q is no number such as 30M", f.pairs)
		}
		for _, c := range f.conditions {
			if c != foldbench.Idle && c != foldbench.Busy {
				return usageErrorf(cmd, "--conditions: %q is neither idle nor busy", c)
			}
		}
		for _, p := range f.paths {
			if !slices.Contains(foldbench.Paths, p) {
				return usageErrorf(cmd, "--paths: %q is none of %s", p, strings.Join(foldbench.Paths, ", "))
			}
		}
		if f.runs < 1 {
			return usageErrorf(cmd, "--runs %d: must be at least 1", f.runs)
		}
		if f.trips < 1 || f.trips > foldbench.MaxTrips {
			return usageErrorf(cmd, "--trips %d: must be 1 to %d", f.trips, foldbench.MaxTrips)
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		o.Place.Command = []string{self, "bench", roleCommand}
		o.Log = a.stderr
		if f.quiet {
			o.Log = io.Discard
		}
		report, err := measure(cmd.Context(), o)
		if err != nil {
			return err
		}
		if f.json {
			if err := report.WriteRatios(o.Log); err != nil {
				return err
			}
			return writeJSON(cmd.OutOrStdout(), report)
		}
		return report.WriteTable(cmd.OutOrStdout())
	}
	return cmd
}

// parseCount reads a number such as 100K.
func parseCount(text string) (int, error) {
	n, unit, err := humanize.ParseSI(strings.Replace(text, "K", "k", 1))
	if err != nil || unit != "" || n < 1 || n > 1e12 {
		return 0, fmt.Errorf("%s is no number", strconv.Quote(text))
	}
	return int(n), nil
}

func (a *app) benchRoleCommand() *cobra.Command {
	return &cobra.Command{
		Use: roleCommand + " NAME", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return foldbench.ServeRole(args[0], a.stdin, a.stdout) },
	}
}
