// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/quernmr/quern/jobs"
	"github.com/quernmr/quern/mapreduce"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	"golang.org/x/term"
)

// request is a job that the user asked for, ready to run.
type request struct {
	name     string
	runnable mapreduce.Runnable
	options  mapreduce.Options
	said     report
	display  display
}

// report says what is said on standard error.
type report struct {
	Quiet   bool `name:"quiet" short:"q" help:"say nothing but errors"`
	Verbose bool `name:"verbose" help:"always end with a summary"`
	JSON    bool `name:"json" help:"end with a summary as a JSON object on the last line"`
}

// action is what is done with a job: run or explain it.
type action func(cmd *cobra.Command, r request) error

// fileAction is what is done with a job as the user described it.
type fileAction func(cmd *cobra.Command, f jobs.File, said report) error

// prepared is an action on the job that a description is made into.
func (a *app) prepared(act action) fileAction {
	return func(cmd *cobra.Command, f jobs.File, said report) error { return a.prepare(cmd, f, said, act) }
}

// jobCommand makes the command for a job; act does the work. If the arguments
// do not hold the job's name the command is only there to be listed: making all
// flags of all jobs would be half of the time that quern takes to start.
func (a *app) jobCommand(d jobs.Definition, act fileAction) *cobra.Command {
	if !slices.Contains(a.args, d.Name) {
		return &cobra.Command{Use: d.Name, Short: d.Short, GroupID: jobGroup, RunE: func(cmd *cobra.Command, _ []string) error {
			return unknownCommand(cmd.Root(), d.Name) // never called
		}}
	}
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
	addFlags(cmd.Flags(), ownGroup, own)
	addFlags(cmd.Flags(), commonGroup, &common)
	addFlags(cmd.Flags(), reportGroup, &said)
	completeValues(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a.job = d.Name
		origins, err := a.configure(cmd, d.Name)
		if err != nil {
			return err
		}
		if argument != "" && origins[argument] != fromFlag {
			if len(args) == 0 {
				return usageErrorf(cmd, "%s is missing", placeholder(argument))
			}
			if err := setFlag(cmd.Flags().Lookup(argument), args[:1]); err != nil {
				return usageErrorf(cmd, "%s: %w", placeholder(argument), err)
			}
			args = args[1:]
		}
		inputs, err := a.inputs(cmd, args)
		if err != nil {
			return err
		}
		if origins["overwrite"] != fromFlag && common.Output == "" {
			common.Overwrite = false // as a habit it is harmless where there is no folder
		}
		return act(cmd, jobs.File{Definition: d, Options: own, Common: common, Inputs: inputs}, said)
	}
	return cmd
}

// fileCommand makes the command for job files; act does the work.
func (a *app) fileCommand(act fileAction) *cobra.Command {
	var common jobs.Common
	var said report
	cmd := &cobra.Command{
		Args:                  cobra.ArbitraryArgs,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt),
	}
	addFlags(cmd.Flags(), commonGroup, &common)
	addFlags(cmd.Flags(), reportGroup, &said)
	completeValues(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageErrorf(cmd, "one JOBFILE is wanted, not %d", len(args))
		}
		file, keys, err := a.readJobFile(args[0])
		if err != nil {
			return err
		}
		a.job = file.Definition.Name
		origins, err := a.configure(cmd, file.Definition.Name)
		if err != nil {
			return err
		}
		given := jobs.Settings(&common)
		for i, setting := range jobs.Settings(&file.Common) {
			switch origins[setting.Name] {
			case fromFlag, fromEnvironment:
				setting.Value.Set(given[i].Value)
			default:
				if slices.Contains(keys, setting.Name) {
					origins[setting.Name] = fromJobFile
				} else if origins[setting.Name] == fromConfig {
					setting.Value.Set(given[i].Value)
				}
			}
		}
		if file.Common.Output == "" && origins["overwrite"] != fromFlag {
			file.Common.Overwrite = false
		}
		return act(cmd, *file, said)
	}
	return cmd
}

// maxJobFile bounds the bytes of a job file: whoever mistakes an input for one
// shall hear of it soon.
const maxJobFile = 1_000_000

// readJobFile reads a job file ("-" is standard input) and returns its keys, too.
func (a *app) readJobFile(path string) (*jobs.File, []string, error) {
	source, name := a.stdin, "standard input"
	if path != "-" {
		opened, err := os.Open(path)
		if err != nil {
			return nil, nil, &usageError{err: fmt.Errorf("job file: %w", err)}
		}
		defer opened.Close()
		source, name = opened, path
	}
	text, err := io.ReadAll(io.LimitReader(source, maxJobFile+1))
	if err != nil {
		return nil, nil, &usageError{err: fmt.Errorf("job file: %w", err)}
	}
	if len(text) > maxJobFile {
		return nil, nil, &usageError{err: fmt.Errorf("%s is larger than %s: is it an input and no job file?", name, size(maxJobFile))}
	}
	file, err := jobs.ParseFile(name, text)
	if err != nil {
		return nil, nil, &usageError{err: err}
	}
	var keys map[string]yaml.Node
	if err := yaml.Unmarshal(text, &keys); err != nil {
		return nil, nil, &usageError{err: fmt.Errorf("%s: %w", name, err)}
	}
	return file, slices.Collect(maps.Keys(keys)), nil
}

func (a *app) runCommand() *cobra.Command {
	cmd := a.fileCommand(a.prepared(a.runJob))
	cmd.Use = "run JOBFILE [flags]"
	cmd.Short = "run the job that a YAML file describes"
	cmd.Long = `Run does what a job file says. The flags override the file. A job file looks like
this; options are those of the job's own command, and every option that all jobs
have may stand beside them:

  job: wordcount
  inputs: [books/]
  options: {lower: true, top: 20}
  output: counts
  format: jsonl`
	cmd.Example = `  quern run nightly.yaml --overwrite
  quern run - < nightly.yaml`
	cmd.GroupID = otherGroup
	return cmd
}

// prepare builds a job and hands it to act.
func (a *app) prepare(cmd *cobra.Command, f jobs.File, said report, act action) error {
	a.json = said.JSON
	a.place = places{inputs: f.Inputs, output: f.Common.Output, spill: f.Common.SpillDir}
	r := request{name: f.Definition.Name, said: said, display: a.newDisplay(f.Definition.Name, said)}
	var err error
	r.runnable, r.options, err = f.Prepare(&hiding{Writer: a.stdout, display: r.display})
	if err != nil {
		if _, onFile := failedPath(err); onFile || errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return usageErrorf(cmd, "%w", err)
	}
	r.options.Input.Stdin = a.stdin
	return act(cmd, r)
}

// runJob runs a job and says how it went.
func (a *app) runJob(cmd *cobra.Command, r request) error {
	r.options.Progress = r.display.show
	result, err := r.runnable.Run(cmd.Context(), r.options)
	r.display.hide()
	if err != nil {
		return err
	}
	a.finish(r.name, result, r.said)
	return nil
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
		"strategy":   {"auto", "broadcast", "repartition"},
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
