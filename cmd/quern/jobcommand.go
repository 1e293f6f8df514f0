// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"

	"github.com/quernmr/quern/jobs"
	"github.com/quernmr/quern/mapreduce"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// request is a job that the user asked for, ready to run.
type request struct {
	name     string
	runnable mapreduce.Runnable
	options  mapreduce.Options
	common   jobs.Common
	report   report
}

// report says what is said on standard error.
type report struct {
	Quiet   bool `name:"quiet" short:"q" help:"say nothing but errors"`
	Verbose bool `name:"verbose" short:"v" help:"always end with a summary"`
	JSON    bool `name:"json" help:"end with a summary as a JSON object on the last line"`
}

// action is what is done with a job: run or explain it.
type action func(ctx context.Context, cmd *cobra.Command, r request) error

// jobCommand makes the command for a job; act does the work.
func (a *app) jobCommand(d jobs.Definition, act action) *cobra.Command {
	own := d.New()
	var common jobs.Common
	var said report
	argument := positional(own)
	use := d.Name
	if argument != "" {
		use += " " + placeholder(argument)
	}
	cmd := &cobra.Command{
		Use:                   use + " INPUT... [-o DIR] [flags]",
		Short:                 d.Short,
		Long:                  d.Long,
		Example:               d.Example,
		GroupID:               jobGroup,
		Args:                  cobra.ArbitraryArgs,
		DisableFlagsInUseLine: true,
	}
	addStructFlags(cmd.Flags(), ownGroup, own)
	addStructFlags(cmd.Flags(), commonGroup, &common)
	addStructFlags(cmd.Flags(), reportGroup, &said)
	completeValues(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a.job = d.Name
		origins, err := a.configure(cmd, d.Name)
		if err != nil {
			return err
		}
		a.json = said.JSON
		if argument != "" && origins[argument] != fromFlag && len(args) > 0 {
			if err := setFlag(cmd.Flags().Lookup(argument), args[:1]); err != nil {
				return usageErrorf(cmd, "%s: %w", placeholder(argument), err)
			}
			args = args[1:]
		} else if argument != "" && origins[argument] == fromDefault {
			return usageErrorf(cmd, "%s is missing", placeholder(argument))
		}
		inputs, err := a.inputs(cmd, args)
		if err != nil {
			return err
		}
		return act(cmd.Context(), cmd, request{name: d.Name, common: common, report: said, prepare: nil})
	}
	return cmd
}

// inputs returns the paths to read: the arguments, or standard input if there
// are none and something is connected to it.
func (a *app) inputs(cmd *cobra.Command, args []string) ([]string, error) {
	if len(args) > 0 {
		return args, nil
	}
	if term.IsTerminal(int(a.stdin.Fd())) {
		return nil, usageErrorf(cmd, "no input: name files or folders, or - for standard input")
	}
	info, err := a.stdin.Stat()
	if err != nil {
		return nil, usageErrorf(cmd, "no input, and standard input is closed")
	}
	// Programs started by a service manager get the null device: that nobody
	// named an input there is a mistake, not an empty input.
	if null, err := os.Stat(os.DevNull); err == nil && os.SameFile(info, null) {
		return nil, usageErrorf(cmd, "no input: name files or folders, or - for standard input")
	}
	return []string{"-"}, nil
}

// completeValues lets the shell complete the values of flags that know theirs.
func completeValues(cmd *cobra.Command) {
	for name, values := range map[string][]string{
		"format":     {"tsv", "csv", "jsonl", "parquet"},
		"compress":   {"gzip", "zstd"},
		"long-lines": {"error", "skip", "truncate"},
		"encoding":   {"utf-16", "utf-16le", "utf-16be", "latin1", "windows-1252"},
	} {
		if cmd.Flags().Lookup(name) != nil {
			_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		}
	}
	for _, name := range []string{"output", "spill-dir"} {
		if cmd.Flags().Lookup(name) != nil {
			_ = cmd.MarkFlagDirname(name)
		}
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch f.Value.Type() {
		case "int", "int64", "float64":
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions)
		}
	})
}
