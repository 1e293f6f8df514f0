// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/mapreduce/cluster"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/spf13/cobra"
)

// jobsCommands are those that ask a cluster for its jobs and workers.
func (a *app) jobsCommands() []*cobra.Command {
	return []*cobra.Command{
		a.jobsCommand(), a.statusCommand(), a.logsCommand(), a.cancelCommand(), a.historyCommand(), a.workersCommand(),
	}
}

func (a *app) jobsCommand() *cobra.Command {
	var asJSON bool
	cmd := a.clusterCommand(&cobra.Command{
		Use:   "jobs",
		Short: "list the jobs that a cluster runs",
		Long: `Lists the jobs that run or wait, the newest first. 'quern history' lists those that
have ended, too.`,
		Args: noArgs,
	}, func(cmd *cobra.Command, client *cluster.Client, _ []string) error {
		list, err := client.Jobs(cmd.Context(), 0, true, "")
		if err != nil {
			return err
		}
		if len(list) == 0 && !asJSON {
			a.tell("no job is running; 'quern history' lists those that ended")
			return nil
		}
		return writeJobs(cmd.OutOrStdout(), list, asJSON)
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func (a *app) historyCommand() *cobra.Command {
	var asJSON bool
	var limit int
	var before string
	cmd := a.clusterCommand(&cobra.Command{
		Use:   "history",
		Short: "list the jobs that a cluster has run",
		Long:  `Lists all jobs that the master remembers, the newest first.`,
		Args:  noArgs,
	}, func(cmd *cobra.Command, client *cluster.Client, _ []string) error {
		if limit < 1 {
			return usageErrorf(cmd, "--limit %d: at least 1", limit)
		}
		list, err := client.Jobs(cmd.Context(), limit, false, before)
		if err != nil {
			return err
		}
		return writeJobs(cmd.OutOrStdout(), list, asJSON)
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	cmd.Flags().IntVarP(&limit, "limit", "n", 20, "most jobs that are listed")
	cmd.Flags().StringVar(&before, "before", "", "list those that are older than this `job`")
	return cmd
}

func writeJobs(w io.Writer, list []*api.JobStatus, asJSON bool) error {
	if !asJSON {
		return printJobs(w, list, time.Now())
	}
	all := []jobJSON{}
	for _, s := range list {
		all = append(all, newJobJSON(s))
	}
	return writeJSON(w, struct {
		Jobs []jobJSON `json:"jobs"`
	}{all})
}

// oneJob is the Args of commands that take a job's id.
func oneJob(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return usageErrorf(cmd, "one JOB is wanted, by its id or the beginning of it; 'quern jobs' lists them")
	}
	return nil
}

func (a *app) statusCommand() *cobra.Command {
	var asJSON, following, tasks, quiet bool
	cmd := a.clusterCommand(&cobra.Command{
		Use:   "status JOB",
		Short: "say how far a job of a cluster is",
		Long: `Says how far a job is. JOB is its id, or the beginning of one that no other job has.

With --follow it shows progress until the job has ended, and ends with the exit code
that submit would have ended with.`,
		Args: oneJob,
	}, func(cmd *cobra.Command, client *cluster.Client, args []string) error {
		h := client.Job(args[0])
		s, err := h.Status(cmd.Context())
		if err != nil {
			return err
		}
		switch {
		case following:
			a.json = asJSON
			return a.followToEnd(cmd.Context(), client.Job(s.GetJob()), s.GetName(), report{JSON: asJSON, Verbose: true, Quiet: quiet})
		case tasks:
			return writeTasks(cmd, client.Job(s.GetJob()), asJSON, namesOf(cmd.Context(), client))
		case asJSON:
			return writeJSON(cmd.OutOrStdout(), newJobJSON(s))
		}
		return printJob(cmd.OutOrStdout(), s)
	})
	cmd.Flags().BoolVar(&following, "follow", false, "show progress until the job has ended")
	cmd.Flags().BoolVar(&tasks, "tasks", false, "list all attempts of its tasks")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "with --follow: say nothing but errors")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object (with --follow: at the end, on standard error; with --tasks: one a line)")
	return cmd
}

// attemptJSON is an attempt as --json prints it.
type attemptJSON struct {
	Stage       string  `json:"stage"`
	Task        uint32  `json:"task"`
	Number      uint32  `json:"attempt"`
	Worker      string  `json:"worker"`
	State       string  `json:"state"`
	Error       string  `json:"error,omitempty"`
	Seconds     float64 `json:"seconds"`
	Done        float64 `json:"done"`
	Speculative bool    `json:"speculative,omitempty"`
}

func writeTasks(cmd *cobra.Command, h *cluster.Handle, asJSON bool, nameOf func(string) string) error {
	w := cmd.OutOrStdout()
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if !asJSON {
		fmt.Fprintln(table, "TASK\tATTEMPT\tWORKER\tSTATE\tTIME\tERROR")
	}
	err := h.Tasks(cmd.Context(), false, func(page *api.TasksPage) error {
		for _, t := range page.GetAttempts() {
			at := t.GetAttempt()
			if asJSON {
				if err := writeJSON(w, attemptJSON{at.GetStage(), at.GetTask(), at.GetNumber(), nameOf(t.GetWorker()), t.GetState(), t.GetError(), ms(t.GetElapsedMs()).Seconds(), t.GetDone(), t.GetSpeculative()}); err != nil {
					return err
				}
				continue
			}
			state := t.GetState()
			if state == "running" && t.GetDone() > 0 {
				state += fmt.Sprintf(" (%d %%)", int(t.GetDone()*100))
			}
			if t.GetSpeculative() {
				state += ", a copy"
			}
			fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%s\n", taskName(at), at.GetNumber(), nameOf(t.GetWorker()), state,
				ms(t.GetElapsedMs()).Round(time.Second/100), firstLine(t.GetError()))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return table.Flush()
}

// taskName is how a task is called: map 3.
func taskName(at *api.Attempt) string { return fmt.Sprintf("%s %d", at.GetStage(), at.GetTask()) }

func (a *app) logsCommand() *cobra.Command {
	var asJSON, failedOnly bool
	cmd := a.clusterCommand(&cobra.Command{
		Use:   "logs JOB [TASK]",
		Short: "print what the tasks of a job wrote to standard output and error",
		Long: `Prints what the attempts of a job wrote to standard output and error, each behind a
line that names it, as far as their workers are still there. TASK is the name of a
task as 'quern status --tasks' lists it, such as "map 3" (or map-3).`,
		Example: `  quern logs 3f2a map 3
  quern logs --failed 3f2a`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 3 || args[0] == "" {
				return usageErrorf(cmd, "a JOB is wanted, and perhaps a TASK of it, such as map 3")
			}
			return nil
		},
	}, func(cmd *cobra.Command, client *cluster.Client, args []string) error {
		task, err := parseTask(args[1:])
		if err != nil {
			return usageErrorf(cmd, "%w", err)
		}
		h := client.Job(args[0])
		if task != "" {
			s, err := h.Status(cmd.Context())
			if err != nil {
				return err
			}
			if err := hasTask(s, task); err != nil {
				return usageErrorf(cmd, "%w", err)
			}
		}
		last, silent := "", true
		w := cmd.OutOrStdout()
		nameOf := namesOf(cmd.Context(), client)
		err = h.Logs(cmd.Context(), task, failedOnly, func(l *api.LogChunk) error {
			at := l.GetAttempt()
			silent = silent && len(l.GetText()) == 0
			if asJSON {
				return writeJSON(w, struct {
					Stage  string `json:"stage"`
					Task   uint32 `json:"task"`
					Number uint32 `json:"attempt"`
					Worker string `json:"worker"`
					Text   string `json:"text"`
				}{at.GetStage(), at.GetTask(), at.GetNumber(), nameOf(l.GetWorker()), string(l.GetText())})
			}
			if len(l.GetText()) == 0 {
				return nil
			}
			head := fmt.Sprintf("== %s, attempt %d, on %s ==", taskName(at), at.GetNumber(), nameOf(l.GetWorker()))
			if head != last {
				if _, err := fmt.Fprintln(w, head); err != nil {
					return err
				}
				last = head
			}
			_, err := w.Write(l.GetText())
			return err
		})
		if err == nil && silent {
			a.tell("nothing was written, or the workers that had it are gone")
		}
		return err
	})
	cmd.Flags().BoolVar(&failedOnly, "failed", false, "only of attempts that failed")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object a line")
	return cmd
}

var taskPattern = regexp.MustCompile(`^(plan|map|reduce|commit|abort)[ -](\d+)$`)

// parseTask reads a task's name: "map 3", map-3, or two arguments.
func parseTask(args []string) (string, error) {
	if len(args) == 0 {
		return "", nil
	}
	text := strings.Join(args, " ")
	if m := taskPattern.FindStringSubmatch(text); m != nil {
		return m[1] + " " + m[2], nil
	}
	switch text {
	case "plan", "commit", "abort":
		return text + " 0", nil
	}
	return "", fmt.Errorf("%q is no task: write plan, map N, reduce N or commit", text)
}

// hasTask says what is wrong with a task, as parseTask returns it, that a job does not have.
func hasTask(s *api.JobStatus, task string) error {
	stage, text, _ := strings.Cut(task, " ")
	number, err := strconv.ParseUint(text, 10, 64)
	n := uint64(1)
	switch stage {
	case "map":
		n = uint64(s.GetMap().GetTasks())
	case "reduce":
		n = uint64(s.GetReduce().GetTasks())
	}
	switch id := shortID(s.GetJob()); {
	case err == nil && number < n:
		return nil
	case n == 0:
		return fmt.Errorf("job %s (%s) has no %s tasks", id, stateText(s.GetState()), stage)
	case n == 1:
		return fmt.Errorf("job %s has no task %q: of that stage it has %s 0 alone", id, task, stage)
	default:
		return fmt.Errorf("job %s has no task %q: of that stage it has %s 0 to %s %d", id, task, stage, stage, n-1)
	}
}

func (a *app) cancelCommand() *cobra.Command {
	var asJSON bool
	var reason string
	cmd := a.clusterCommand(&cobra.Command{
		Use:   "cancel JOB",
		Short: "end a job of a cluster",
		Long: `Ends a job. What it has written so far is removed; a folder that it was to replace
stays as it is. A job that has ended stays as it is, too.`,
		Args: oneJob,
	}, func(cmd *cobra.Command, client *cluster.Client, args []string) error {
		s, err := client.Job(args[0]).Cancel(cmd.Context(), reason)
		if err != nil {
			return err
		}
		if asJSON {
			return writeJSON(cmd.OutOrStdout(), newJobJSON(s))
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "job %s: %s\n", shortID(s.GetJob()), stateText(s.GetState()))
		return err
	})
	cmd.Flags().StringVar(&reason, "reason", "", "`text` that is told whoever follows the job")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// workerJSON is a worker as --json prints it.
type workerJSON struct {
	ID      string   `json:"id"`
	Name    string   `json:"name"`
	Address string   `json:"address"`
	State   string   `json:"state"`
	Slots   uint32   `json:"slots"`
	Running uint32   `json:"running"`
	Memory  int64    `json:"memory_bytes"`
	Shuffle string   `json:"shuffle"`
	Version string   `json:"version"`
	Local   []string `json:"local"`
}

func workersJSON(list []*api.WorkerStatus) []workerJSON {
	all := []workerJSON{}
	for _, w := range list {
		local := w.GetLocal()
		if local == nil {
			local = []string{}
		}
		all = append(all, workerJSON{w.GetWorker(), w.GetName(), w.GetAddress(), w.GetState(), w.GetSlots(), w.GetRunning(), w.GetMemory(), w.GetShuffle(), w.GetVersion(), local})
	}
	return all
}

func (a *app) workersCommand() *cobra.Command {
	var asJSON, all bool
	cmd := a.clusterCommand(&cobra.Command{
		Use:   "workers",
		Short: "list the workers of a cluster",
		Long: `Lists the workers that the master knows. A state is live; suspect (not heard of for a
moment); draining (it finishes what it does and leaves); aside (too much failed
there, so it gets nothing for a while); gone, which --all shows.`,
		Args: noArgs,
	}, func(cmd *cobra.Command, client *cluster.Client, _ []string) error {
		list, err := client.Workers(cmd.Context())
		if err != nil {
			return err
		}
		if !all {
			list = slices.DeleteFunc(list, func(w *api.WorkerStatus) bool { return w.GetState() == "gone" })
		}
		w := cmd.OutOrStdout()
		if asJSON {
			return writeJSON(w, struct {
				Workers []workerJSON `json:"workers"`
			}{workersJSON(list)})
		}
		if len(list) == 0 {
			a.tell("no worker is there; 'quern workers --all' lists those that are gone, too")
			return nil
		}
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "NAME\tADDRESS\tSTATE\tRUNNING\tMEMORY\tSHUFFLE\tVERSION")
		for _, one := range list {
			memory := ""
			if one.GetMemory() > 0 {
				memory = humanize.IBytes(uint64(one.GetMemory()))
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%d of %d\t%s\t%s\t%s\n", printable(one.GetName()), printable(one.GetAddress()), one.GetState(),
				one.GetRunning(), one.GetSlots(), memory, printable(one.GetShuffle()), printable(one.GetVersion()))
		}
		return table.Flush()
	})
	cmd.Flags().BoolVar(&all, "all", false, "list those that are gone, too")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}
