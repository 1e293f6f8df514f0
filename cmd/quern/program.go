// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/quernmr/quern/jobs"
	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/scratch"
	"github.com/spf13/cobra"
)

// programError is the end of a Go program that has its own exit code.
type programError struct {
	name string
	code int
	err  error
}

func (e *programError) Error() string { return fmt.Sprintf("%s: %v", e.name, e.err) }
func (e *programError) Unwrap() error { return e.err }

// submitProgram runs a Go program here and has the cluster run its jobs.
func (s *submission) submitProgram(cmd *cobra.Command, kind submitted, path string, args []string) error {
	a := s.app
	origins, err := a.configure(cmd, "")
	if err != nil {
		return err
	}
	said, err := programFlags(cmd, origins)
	if err != nil {
		return err
	}
	a.json = said.JSON
	o, err := s.options(cmd)
	if err != nil {
		return err
	}
	if s.upload {
		return usageErrorf(cmd, "--upload ships the inputs of a job; name the files that a program opens by --upload-file")
	}
	if o.Environment, err = s.programEnvironment(cmd); err != nil {
		return err
	}
	for _, file := range s.uploadFiles {
		o.Uploads = append(o.Uploads, cluster.Upload{Local: file, Name: file})
	}
	name := filepath.Base(absolute(path))
	a.job = name
	if kind == aPackage {
		folder, err := scratch.New("", "quern-submit-")
		if err != nil {
			return err
		}
		defer folder.Close()
		if path, err = buildProgram(cmd.Context(), path, filepath.Join(folder.Path(), "program")); err != nil {
			return err
		}
	}
	platform, err := cluster.Platform(path)
	if err != nil {
		return err
	}
	if here := runtime.GOOS + "/" + runtime.GOARCH; platform != here {
		return usageErrorf(cmd, "%s is built for %s and this machine is %s: submit runs a program here, too, to learn its jobs; build it for this machine and the workers'", name, platform, here)
	}
	client, err := s.access.dial(cmd.Context(), a.tellUnless(said.Quiet))
	if err != nil {
		return err
	}
	defer client.Close()
	if s.explain {
		return s.explainProgram(cmd, client, absolute(path), name, args, o.Shuffle, said)
	}
	return s.drive(cmd.Context(), client, absolute(path), name, args, o, said)
}

// explainProgram says how the cluster would run the first job of a program. The program is run here up to it.
func (s *submission) explainProgram(cmd *cobra.Command, client *cluster.Client, path, name string, args []string, mode shuffle.Mode, said report) error {
	a := s.app
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	program := a.programCommand(path, name, args)
	if said.JSON || !said.Verbose {
		program.Stdout = nil // what is asked for is the explanation
	}
	e, err := cluster.Explain(cmd.Context(), program)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return &programError{name, exitCodeOf(exit), err}
	case err != nil:
		return err
	}
	return a.explainOnCluster(cmd, client, e, info.Size(), mode, s.maxSlots, said.JSON)
}

// programCommand is a program as it runs here: with our own files, and none of our variables.
func (a *app) programCommand(path, name string, args []string) *exec.Cmd {
	program := exec.Command(path, args...)
	program.Args[0] = name
	program.Stdin, program.Stdout, program.Stderr = a.stdin, a.stdout, a.stderr
	program.Env = withoutOurs(a.environ)
	return program
}

// errDetached ends a program whose job was submitted and is not waited for.
var errDetached = errors.New("detached")

// drive runs a program and submits what it wants to run.
func (s *submission) drive(ctx context.Context, client *cluster.Client, path, name string, args []string, o cluster.SubmitOptions, said report) error {
	a := s.app
	program := a.programCommand(path, name, args)
	var failed *jobError // the last one that failed
	err := cluster.Drive(ctx, program, func(ctx context.Context, call *task.Call, earlier [][]byte) (task.CallResult, error) {
		if call.Err != "" {
			return task.CallResult{Error: call.Err}, nil
		}
		one := o
		one.Name = call.Job
		if one.Name == "" {
			one.Name = name
		}
		h, err := client.SubmitProgram(ctx, cluster.Program{Path: path, Args: args, Call: call.Call, Earlier: earlier}, one)
		if err != nil {
			return task.CallResult{}, err
		}
		if s.detach {
			if _, err := fmt.Fprintln(a.stdout, h.ID()); err != nil {
				return task.CallResult{}, err
			}
			return task.CallResult{}, errDetached
		}
		a.tellSubmitted(h, one.Name, said)
		done, err := follow(ctx, h, a.newDisplay(one.Name, said))
		var ended *cluster.JobError
		switch {
		case errors.As(err, &ended):
			failed = &jobError{ended, places{}}
			// The program decides what that means to it.
			return mapreduce.CallResult(nil, err), nil
		case err != nil:
			return task.CallResult{}, err
		}
		failed = nil
		a.finishJob(one.Name, done, said)
		return mapreduce.CallResult(done.result, nil), nil
	})
	var exit *exec.ExitError
	switch {
	case errors.Is(err, errDetached):
		return nil
	case interrupted(ctx) && err != nil:
		return err
	case errors.As(err, &exit):
		if failed != nil {
			return failed
		}
		return &programError{name, exitCodeOf(exit), err}
	}
	return err
}

// exitCodeOf is the code that a shell would give a program.
func exitCodeOf(exit *exec.ExitError) int {
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignal + int(status.Signal())
	}
	return max(exitFailed, exit.ExitCode())
}

// programFlags reads what is said on standard error, and refuses flags that are of jobs.
func programFlags(cmd *cobra.Command, origins map[string]origin) (said report, err error) {
	for name, value := range map[string]*bool{"quiet": &said.Quiet, "verbose": &said.Verbose, "json": &said.JSON} {
		if *value, err = cmd.Flags().GetBool(name); err != nil {
			return said, err
		}
	}
	for _, name := range keysOf(new(jobs.Common)) {
		if origins[name] == fromFlag {
			return said, usageErrorf(cmd, "--%s is an option of jobs, and not of submit; arguments of the program come behind --", name)
		}
	}
	return said, nil
}

// programEnvironment returns the variables that --env names.
func (s *submission) programEnvironment(cmd *cobra.Command) (list []string, err error) {
	for _, e := range s.environment {
		name, _, given := strings.Cut(e, "=")
		if name == "" || strings.HasPrefix(name, envPrefix) {
			return nil, usageErrorf(cmd, "--env %q: NAME=value is wanted, and no name that begins with %s", e, envPrefix)
		}
		if !given {
			value, ok := os.LookupEnv(name)
			if !ok {
				return nil, usageErrorf(cmd, "--env %s: it is not set here", name)
			}
			e = name + "=" + value
		}
		list = append(list, e)
	}
	return list, nil
}

// buildProgram builds the Go program in a folder as one static file.
func buildProgram(ctx context.Context, folder, out string) (string, error) {
	c := exec.CommandContext(ctx, "go", "build", "-C", folder, "-trimpath", "-buildvcs=false", "-o", out, ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	err := c.Run()
	if stopped := context.Cause(ctx); stopped != nil {
		return "", stopped
	}
	var exit *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", &usageError{fmt.Errorf("there is no go command to build %s with", folder), "build it elsewhere by CGO_ENABLED=0 go build, and submit the file"}
	case errors.As(err, &exit):
		return "", &usageError{err: fmt.Errorf("go build %s: %s", folder, strings.TrimSpace(said.String()))}
	case err != nil:
		return "", err
	}
	if info, err := os.Stat(out); err != nil || info.Mode()&0o111 == 0 {
		return "", &usageError{fmt.Errorf("%s is no Go program: package main is wanted", folder), "name the folder of the program itself"}
	}
	return out, nil
}
