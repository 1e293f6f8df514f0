// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/jobs"
	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle"
	"github.com/spf13/cobra"
)

// submitGroup is where help shows the flags of a submission.
const submitGroup = "submission"

// submission is one "quern submit".
type submission struct {
	app    *app
	access *clusterSettings

	priority, maxSlots, maxAttempts int
	taskMemory, shuffle             string
	taskTimeout                     time.Duration
	upload                          bool
	uploadFiles, environment        []string
	detach, explain                 bool
}

func (a *app) newSubmission() *submission {
	return &submission{app: a, access: newClusterSettings(), shuffle: shuffle.Auto.String()}
}

// add makes the flags of a submission.
func (s *submission) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&s.priority, "priority", 0, "jobs of higher priority go first")
	flags.IntVar(&s.maxSlots, "max-slots", 0, "most attempts at once; default: no limit")
	flags.StringVar(&s.taskMemory, "task-memory", "", "memory that an attempt may take of a worker, such as 512MiB, at least 32MiB; default: the worker's share of a slot")
	flags.IntVar(&s.maxAttempts, "max-attempts", 0, "failed attempts of a task after which the job fails; default: as the master says")
	flags.DurationVar(&s.taskTimeout, "task-timeout", 0, "`time` without progress after which an attempt is ended, at least 1s; default: as the master says")
	flags.StringVar(&s.shuffle, "shuffle", s.shuffle, "who folds pairs: kernel, user (space), or auto: the kernel where it can")
	flags.BoolVar(&s.upload, "upload", false, "ship the inputs, which are files of this machine")
	flags.StringArrayVar(&s.uploadFiles, "upload-file", nil, "ship a `file` that a Go program opens under this name; may be given several times")
	flags.StringArrayVar(&s.environment, "env", nil, "environment variable that a Go program finds at workers, as `NAME=value`, or NAME for the value here")
	flags.BoolVar(&s.detach, "detach", false, "print the job's id and do not wait for its end")
	flags.BoolVar(&s.explain, "explain", false, "say how the job would be run and what would travel how, and do not run it")
	for _, name := range []string{"priority", "max-slots", "task-memory", "max-attempts", "task-timeout", "shuffle", "upload", "upload-file", "env", "detach", "explain"} {
		// SetAnnotation fails only for a flag that does not exist.
		_ = flags.SetAnnotation(name, titleKey, []string{submitGroup})
	}
	_ = cmd.RegisterFlagCompletionFunc("shuffle", cobra.FixedCompletions([]string{"auto", "kernel", "user"}, cobra.ShellCompDirectiveNoFileComp))
	s.access.add(cmd)
}

func (a *app) submitCommand() *cobra.Command {
	s := a.newSubmission()
	cmd := a.fileCommand(s.submitFile)
	cmd.Use = "submit JOB ... | submit JOBFILE | submit PACKAGE [-- ARGUMENT...]"
	cmd.Short = "have a cluster run a job, a job file or a Go program"
	cmd.Long = `Submit has a cluster run a job and follows it to its end. The result is byte for
byte that of a local run.

A job is named with its own arguments and flags, as without submit; -o must name a
folder that all workers see at the same path (or s3://bucket/prefix), and so must
the inputs. --upload ships inputs that are files of this machine.

A PACKAGE is the folder of a Go program (package main) that makes a job and runs it
by the library; it is built as a static file. A program that is built already, by
CGO_ENABLED=0 go build, is taken, too. What comes behind -- are its arguments. It
runs here, and each job that it runs is done by the cluster.

Interrupted, submit ends and the job goes on: 'quern status --follow JOB' follows it
again, 'quern cancel JOB' ends it. With --detach submit does not wait at all.`
	cmd.Example = `  quern submit wordcount --lower /data/books -o /data/counts
  quern submit nightly.yaml --priority 5
  quern submit ./examples/temperatures -- -o /data/result /data/measurements.txt
  quern submit --explain sort /data/names -o /data/sorted`
	cmd.GroupID = clusterCommands
	for _, d := range jobs.All() {
		one := a.newSubmission()
		sub := a.jobCommand(d, one.submitFile)
		sub.GroupID = ""
		sub.Example = "" // those are of the job itself
		if slices.Contains(a.args, d.Name) {
			one.add(sub)
		}
		cmd.AddCommand(sub)
	}
	s.add(cmd)
	cmd.ValidArgsFunction = nil // folders, too
	ofFile := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usageErrorf(cmd, "nothing to submit: name a job, a job file or the folder of a Go program")
		}
		kind, err := kindOf(args[0])
		switch {
		case errors.Is(err, fs.ErrNotExist) && args[0] != "-" && !strings.ContainsAny(args[0], `/\.`):
			return usageErrorf(cmd, "%w; a program is named by its path, such as ./%s", unknownJob(cmd, args[0]), args[0])
		case err != nil:
			return &usageError{err: fmt.Errorf("%s: %w", args[0], err)}
		case kind == aJobFile:
			return ofFile(cmd, args)
		}
		return s.submitProgram(cmd, kind, args[0], args[1:])
	}
	return cmd
}

// What can be submitted beside a job's name.
type submitted int

const (
	aJobFile submitted = iota
	aPackage
	aProgram
)

// kindOf looks what a path is.
func kindOf(path string) (submitted, error) {
	if path == "-" {
		return aJobFile, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if info.IsDir() {
		return aPackage, nil
	}
	if strings.HasSuffix(path, ".go") {
		return 0, errors.New("name the folder of the Go program, not a file of it")
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	magic := make([]byte, 4)
	n, err := io.ReadFull(f, magic)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, err
	}
	for _, m := range []string{"\x7fELF", "MZ", "\xcf\xfa\xed\xfe", "\xca\xfe\xba\xbe", "#!"} {
		if bytes.HasPrefix(magic[:n], []byte(m)) {
			return aProgram, nil // cluster.Platform says what is wrong with others than the first
		}
	}
	return aJobFile, nil
}

// What is less than this helps no job.
const (
	leastTaskMemory  = 32 << 20
	leastTaskTimeout = time.Second
)

// options returns what the flags say.
func (s *submission) options(cmd *cobra.Command) (cluster.SubmitOptions, error) {
	o := cluster.SubmitOptions{Priority: s.priority, MaxSlots: s.maxSlots, MaxAttempts: s.maxAttempts, TaskTimeout: s.taskTimeout}
	var err error
	if o.Shuffle, err = shuffle.ParseMode(s.shuffle); err != nil {
		return o, usageErrorf(cmd, "--shuffle: %w", err)
	}
	for _, n := range []struct {
		name  string
		value int
		least int
	}{{"priority", s.priority, math.MinInt32}, {"max-slots", s.maxSlots, 0}, {"max-attempts", s.maxAttempts, 0}} {
		if n.value < n.least || n.value > math.MaxInt32 {
			return o, usageErrorf(cmd, "--%s %d: a number from %d to %d is wanted", n.name, n.value, n.least, math.MaxInt32)
		}
	}
	if s.taskTimeout != 0 && s.taskTimeout < leastTaskTimeout {
		return o, usageErrorf(cmd, "--task-timeout %v: at least %v", s.taskTimeout, leastTaskTimeout)
	}
	if s.taskMemory != "" {
		n, err := humanize.ParseBytes(s.taskMemory)
		if err != nil || n == 0 || n > math.MaxInt64 {
			return o, usageErrorf(cmd, "--task-memory %q: give bytes such as 67108864, 512MiB or 2GB", s.taskMemory)
		}
		if n < leastTaskMemory {
			return o, usageErrorf(cmd, "--task-memory %s: at least %s", s.taskMemory, humanize.IBytes(leastTaskMemory))
		}
		o.TaskMemory = int64(n)
	}
	if s.detach && s.explain {
		return o, usageErrorf(cmd, "--explain runs nothing, so there is nothing to detach from")
	}
	return o, nil
}

// submitFile submits a ready-made job.
func (s *submission) submitFile(cmd *cobra.Command, f jobs.File, said report) error {
	a := s.app
	a.json = said.JSON
	o, err := s.options(cmd)
	if err != nil {
		return err
	}
	if len(s.environment) > 0 || len(s.uploadFiles) > 0 {
		return usageErrorf(cmd, "--env and --upload-file are for Go programs; --upload ships the inputs of a job")
	}
	s.forgetHabits(&f.Common)
	if o.TaskMemory, err = s.taskMemoryFor(cmd, f.Common, o.TaskMemory); err != nil {
		return err
	}
	whole, err := f.Portable()
	switch {
	case errors.Is(err, jobs.ErrStandardInput):
		return &usageError{err, "put it into a file, and have that shipped by --upload"}
	case errors.Is(err, jobs.ErrNoOutput):
		return &usageError{err, "name a folder that all workers see with -o, or s3://bucket/prefix"}
	case err != nil:
		return err
	}
	a.place = places{inputs: whole.Inputs, output: whole.Common.Output, spill: whole.Common.SpillDir}
	// What is wrong with the options is said at once. Files may be there for the workers alone.
	runnable, options, err := whole.Prepare(io.Discard)
	if err != nil && !aboutFiles(err) {
		return usageErrorf(cmd, "%w", err)
	}
	if s.upload {
		if o.Uploads, err = s.inputFiles(cmd, whole, options.Input); err != nil {
			return err
		}
	}
	text, err := whole.Marshal()
	if err != nil {
		return usageErrorf(cmd, "%w", err)
	}
	o.Name = whole.Definition.Name
	client, err := s.access.dial(cmd.Context(), a.tellUnless(said.Quiet))
	if err != nil {
		return err
	}
	defer client.Close()
	if s.explain {
		if runnable == nil {
			if runnable, options, err = whole.Prepare(io.Discard); err != nil {
				return err
			}
		}
		e, err := runnable.Explain(cmd.Context(), options)
		if err != nil {
			return err
		}
		return a.explainOnCluster(cmd, client, e, 0, o.Shuffle, s.maxSlots, said.JSON)
	}
	h, err := client.SubmitProgram(cmd.Context(), cluster.Program{JobFile: string(text)}, o)
	if err != nil {
		return err
	}
	if s.detach {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), h.ID())
		return err
	}
	a.tellSubmitted(h, whole.Definition.Name, said)
	return a.followToEnd(cmd.Context(), h, whole.Definition.Name, said)
}

// forgetHabits drops options that the configuration file has and that are about this host: other hosts run the tasks.
func (s *submission) forgetHabits(c *jobs.Common) {
	for _, setting := range jobs.Settings(c) {
		switch setting.Name {
		case "memory", "workers", "spill-dir":
			if s.app.origins[setting.Name] == fromConfig {
				setting.Value.SetZero()
			}
		}
	}
}

// taskMemoryFor returns what an attempt of a ready-made job is to be given so that its engine may use what --memory says.
// taskMemory is what --task-memory says; 0: nothing.
func (s *submission) taskMemoryFor(cmd *cobra.Command, c jobs.Common, taskMemory int64) (int64, error) {
	if c.Memory == "" {
		return taskMemory, nil
	}
	n, err := humanize.ParseBytes(c.Memory)
	if err != nil || n < mapreduce.MinMemory || n > math.MaxInt64 {
		return taskMemory, nil // Prepare says what is wrong with it
	}
	if taskMemory == 0 {
		return task.MemoryFor(int64(n)), nil
	}
	if most := task.Budget(taskMemory); int64(n) > most {
		return 0, usageErrorf(cmd, "--memory %s does not fit in --task-memory %s: of that the engine of a task may use %s, and the program needs the rest; leave one of the two out",
			c.Memory, s.taskMemory, humanize.IBytes(uint64(most)))
	}
	return taskMemory, nil
}

// tellSubmitted tells whoever watches how the job can be found again.
func (a *app) tellSubmitted(h *cluster.Handle, name string, said report) {
	if !said.Quiet && (said.Verbose || a.watched()) {
		a.tell("job " + shortID(h.ID()) + " is submitted: " + name)
	}
}

// aboutFiles says whether an error is about a file that is not there or can't be read.
func aboutFiles(err error) bool {
	_, onFile := failedPath(err)
	return onFile || errors.Is(err, fs.ErrNotExist)
}

// tellUnless returns the function that says something in between.
func (a *app) tellUnless(quiet bool) func(string) {
	if quiet {
		return nil
	}
	return a.tell
}

// followToEnd follows a job and says how it went.
func (a *app) followToEnd(ctx context.Context, h *cluster.Handle, name string, said report) error {
	done, err := follow(ctx, h, a.newDisplay(name, said))
	var failed *cluster.JobError
	if errors.As(err, &failed) {
		return &jobError{failed, a.place}
	}
	if err != nil {
		return err
	}
	a.finishJob(name, done, said)
	return nil
}

// inputFiles replaces the inputs of a job by the files that they are here, and returns these.
func (s *submission) inputFiles(cmd *cobra.Command, f *jobs.File, options input.Options) ([]cluster.Upload, error) {
	var uploads []cluster.Upload
	var inputs []string
	for _, pattern := range f.Inputs {
		if jobs.IsObject(pattern) {
			inputs = append(inputs, pattern)
			continue
		}
		plan, err := input.Discover(cmd.Context(), []string{pattern}, input.Options{AllowEmpty: options.AllowEmpty})
		if err != nil {
			return nil, err
		}
		for _, file := range plan.Files {
			inputs = append(inputs, file.Path)
			uploads = append(uploads, cluster.Upload{Local: file.Path, Name: file.Path})
		}
	}
	if f.Definition.Name == "join" && len(inputs) != len(f.Inputs) {
		return nil, usageErrorf(cmd, "--upload: each side of a join must be one file, these are %d in all; put them where all workers see them", len(inputs))
	}
	f.Inputs = inputs
	return uploads, nil
}
