// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/quernmr/quern/jobs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The groups in which help lists commands.
const (
	jobGroup   = "jobs"
	otherGroup = "other"
)

func (a *app) rootCommand() *cobra.Command {
	cobra.EnableCommandSorting = false
	root := &cobra.Command{
		Use:   "quern",
		Short: "count, aggregate, sort and join files on all cores",
		Long: `Quern counts, aggregates, sorts and joins files on all cores of one machine,
within a memory budget, and gives the same result every time. On a cluster it does the
same on all cores of several.

  quern wordcount --lower --top 10 books/       words of the files in a folder
  quern COMMAND --help                          what a command takes`,
		Args:          cobra.ArbitraryArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       thisBuild().String(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.profile.start() },
	}
	root.SetArgs(a.args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(a.flagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printHelp(cmd.OutOrStdout(), cmd) })
	root.SetUsageFunc(func(cmd *cobra.Command) error { printHelp(cmd.OutOrStderr(), cmd); return nil })
	root.PersistentFlags().String("config", "", "configuration `file` (see 'quern help configuration')")
	a.profile.add(root.PersistentFlags())

	root.AddGroup(&cobra.Group{ID: jobGroup, Title: "Jobs"}, &cobra.Group{ID: clusterCommands, Title: "Clusters"}, &cobra.Group{ID: otherGroup, Title: "Other commands"})
	for _, d := range jobs.All() {
		root.AddCommand(a.jobCommand(d, a.prepared(a.runJob)))
	}
	root.AddCommand(a.submitCommand())
	root.AddCommand(a.jobsCommands()...)
	root.AddCommand(a.masterCommand(), a.workerCommand(), a.certsCommand())
	root.AddCommand(a.runCommand(), a.explainCommand(), a.benchCommand(), a.labCommand(), a.doctorCommand(), a.versionCommand())
	root.AddCommand(
		&cobra.Command{Use: "configuration", Short: "where options come from", Long: configurationHelp},
		&cobra.Command{Use: "exit-codes", Short: "what the exit code says", Long: exitCodesHelp},
	)
	root.SetHelpCommandGroupID(otherGroup)
	root.SetCompletionCommandGroupID(otherGroup)
	root.SetHelpCommand(helpCommand())
	a.tidyCompletion(root)
	return root
}

// tidyCompletion makes the command that the library adds behave as ours do.
func (a *app) tidyCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd(a.args...)
	completion, _, err := root.Find([]string{"completion"})
	if err != nil || completion == root {
		return
	}
	completion.Short = "print a completion script for bash, zsh, fish or powershell"
	completion.Args = cobra.ArbitraryArgs
	completion.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageErrorf(cmd, "no completion for %q: say bash, zsh, fish or powershell", args[0])
		}
		return cmd.Help()
	}
	for _, shell := range completion.Commands() {
		shell.Args = noArgs
	}
}

func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND or topic]",
		Short: "explain a command or a topic",
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(cmd.Root(), strings.Join(args, " "))
			}
			return found.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			if len(args) == 0 {
				for _, c := range cmd.Root().Commands() {
					names = append(names, c.Name()+"\t"+c.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// unknownCommand makes the error for a command that does not exist.
func unknownCommand(root *cobra.Command, name string) error {
	var names []string
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	if near := nearest(name, names); near != "" {
		return usageErrorf(root, "unknown command %q, did you mean %q?", name, near)
	}
	return usageErrorf(root, "unknown command %q", name)
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageErrorf(cmd, "%s takes no argument, not %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// printHelp writes a command's help, flags by their groups.
func printHelp(w io.Writer, cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	cmd.InheritedFlags() // merges them into Flags
	cmd.Flags().SortFlags = false
	text := cmd.Long
	if text == "" {
		text = cmd.Short
	}
	fmt.Fprintln(w, strings.TrimSpace(text))
	if !cmd.Runnable() && !cmd.HasAvailableSubCommands() {
		return // a topic
	}
	fmt.Fprintf(w, "\nUsage:\n  %s\n", cmd.UseLine())
	if !cmd.HasParent() {
		fmt.Fprintf(w, "  %s COMMAND [arguments]\n", cmd.CommandPath())
	}
	if cmd.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", strings.Trim(cmd.Example, "\n"))
	}
	printCommands(w, cmd)
	for _, g := range []struct{ id, title string }{
		{ownGroup, "Options"},
		{commonGroup, "Options that all jobs have"},
		{reportGroup, "What is said on standard error"},
		{daemonGroup, "Options"},
		{submitGroup, "How the cluster goes about it"},
		{accessGroup, "Settings of how the cluster is reached"},
		{shuffleGroup, "Settings of this host's part in the shuffle"},
		{"", "Flags"},
	} {
		set := pflag.NewFlagSet(g.title, pflag.ContinueOnError)
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			group := ""
			for _, key := range []string{groupKey, titleKey} {
				if a := f.Annotations[key]; len(a) == 1 {
					group = a[0]
				}
			}
			if group == g.id {
				set.AddFlag(f)
			}
		})
		set.SortFlags = false
		if set.HasAvailableFlags() {
			fmt.Fprintf(w, "\n%s:\n%s", g.title, set.FlagUsages())
		}
	}
}

func printCommands(w io.Writer, cmd *cobra.Command) {
	width := 0
	for _, c := range cmd.Commands() {
		width = max(width, len(c.Name()))
	}
	list := func(title string, wanted func(*cobra.Command) bool) {
		for _, c := range cmd.Commands() {
			if wanted(c) {
				if title != "" {
					fmt.Fprintf(w, "\n%s:\n", title)
					title = ""
				}
				fmt.Fprintf(w, "  %-*s  %s\n", width, c.Name(), c.Short)
			}
		}
	}
	for _, g := range cmd.Groups() {
		list(g.Title, func(c *cobra.Command) bool { return c.GroupID == g.ID && c.IsAvailableCommand() })
	}
	list("Commands", func(c *cobra.Command) bool { return c.GroupID == "" && c.IsAvailableCommand() })
	list("Topics", func(c *cobra.Command) bool { return c.IsAdditionalHelpTopicCommand() })
}
