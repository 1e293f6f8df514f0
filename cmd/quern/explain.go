// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/jobs"
	"github.com/quernmr/quern/mapreduce"
	"github.com/spf13/cobra"
)

func (a *app) explainCommand() *cobra.Command {
	cmd := a.fileCommand(a.prepared(a.explainJob))
	cmd.Use = "explain COMMAND ... | explain JOBFILE"
	cmd.Short = "say how a job would be run: splits, parts, memory, fold or grouped"
	cmd.Long = `Explain looks at the input and says how the job would be run, without running
it. It takes the same arguments as the job's own command, or a job file.`
	cmd.Example = `  quern explain wordcount --top 10 books/
  quern explain --json nightly.yaml`
	for _, d := range jobs.All() {
		sub := a.jobCommand(d, a.prepared(a.explainJob))
		sub.GroupID = ""
		sub.Use = strings.Replace(sub.Use, " [-o DIR]", "", 1)
		sub.Example = "" // those are of the job itself
		explains(sub)
		cmd.AddCommand(sub)
	}
	explains(cmd)
	cmd.GroupID = otherGroup
	readFile := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && args[0] != "-" && !fileExists(args[0]) {
			return unknownJob(cmd, args[0])
		}
		return readFile(cmd, args)
	}
	return cmd
}

// explains makes the flags of a command that runs jobs those of one that explains.
func explains(cmd *cobra.Command) {
	for _, name := range []string{"quiet", "verbose"} {
		if f := cmd.Flags().Lookup(name); f != nil {
			f.Hidden = true
		}
	}
	if f := cmd.Flags().Lookup("json"); f != nil {
		f.Usage = "print a JSON object"
	}
}

func (a *app) explainJob(cmd *cobra.Command, r request) error {
	e, err := r.runnable.Explain(cmd.Context(), r.options)
	if err != nil {
		return err
	}
	if r.said.JSON {
		return writeJSON(cmd.OutOrStdout(), e)
	}
	return printExplanation(cmd.OutOrStdout(), e)
}

func printExplanation(w io.Writer, e *mapreduce.Explanation) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, value string) { fmt.Fprintf(table, "%s\t%s\n", name, value) }
	row("job", e.Job)
	row("input", fmt.Sprintf("%s, %s", count(int64(e.Files), "file"), size(e.Bytes)))
	row("splits", humanize.Comma(int64(e.Splits)))
	row("parts", humanize.Comma(int64(e.Partitions)))
	reduce := e.Reduce
	if len(e.Lanes) > 0 {
		reduce += " (" + strings.Join(e.Lanes, ", ") + ")"
	}
	row("reduce", reduce)
	if e.Workers > 0 { // 0: it is not this machine that will run it
		row("workers", humanize.Comma(int64(e.Workers)))
		row("memory", humanize.IBytes(uint64(max(0, e.Memory))))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return printLists(w, e.Why, e.Notes)
}

// fileExists tells a job file from a mistyped command.
func fileExists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
