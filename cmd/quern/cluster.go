// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"time"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/cluster/identity"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/spf13/cobra"
)

// clusterCommands is the group of commands that are about a cluster, accessGroup
// that of the flags of clusterSettings.
const (
	clusterCommands = "cluster"
	accessGroup     = "access"
)

// clusterSettings say how the master of a cluster is reached. They belong to no job.
type clusterSettings struct {
	Master string `name:"master" help:"the cluster's master, as host or host:port"`
	Certs  string `name:"certs" help:"folder with certificates (see 'quern certs'); without, the cluster is on this machine alone"`
	Token  string `name:"token" help:"what the master knows you by; others can see it on a command line, and not in QUERN_TOKEN or a configuration file"`
}

func newClusterSettings() *clusterSettings { return &clusterSettings{Master: "localhost"} }

// add makes flags of the settings.
func (s *clusterSettings) add(cmd *cobra.Command) {
	addFlags(cmd.Flags(), accessGroup, s)
	_ = cmd.MarkFlagDirname("certs")
	_ = cmd.RegisterFlagCompletionFunc("master", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("token", cobra.NoFileCompletions)
}

// dial connects to the master. told is called with what the user is to know meanwhile; nil: nobody
// is told.
func (s *clusterSettings) dial(ctx context.Context, told func(string)) (*cluster.Client, error) {
	if s.Certs != "" {
		if _, _, err := identity.Load(s.Certs, identity.Client); err != nil {
			return nil, &usageError{err, "'quern certs --help' says how certificates are made"}
		}
	}
	if s.Token == "" && s.Certs != "" {
		var err error
		if s.Token, err = ownToken(s.Certs); err != nil {
			return nil, err
		}
	}
	o := cluster.DialOptions{Certs: s.Certs, Token: s.Token, Version: thisBuild().Version}
	if told != nil {
		o.Away = func(err error) { told(oneLine(err) + "; the master is away, and we try again for a while") }
		o.Lost = func(err error) { told(oneLine(err) + "; the job goes on without us, and we try again") }
	}
	return cluster.Dial(ctx, s.Master, o)
}

// clusterAction is what a command asks of a cluster.
type clusterAction func(cmd *cobra.Command, client *cluster.Client, args []string) error

// clusterCommand completes a command that asks something of a cluster.
func (a *app) clusterCommand(cmd *cobra.Command, act clusterAction) *cobra.Command {
	settings := newClusterSettings()
	cmd.GroupID = clusterCommands
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := a.configure(cmd, ""); err != nil {
			return err
		}
		client, err := settings.dial(cmd.Context(), a.tell)
		if err != nil {
			return err
		}
		defer client.Close()
		return act(cmd, client, args)
	}
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	settings.add(cmd)
	return cmd
}

// tell says something on standard error in between.
func (a *app) tell(text string) { fmt.Fprintln(a.stderr, "quern: "+text) }

// leftError says that we stopped looking at something that goes on.
type leftError struct {
	cause error
	text  string
	next  string // what to do; "": nothing
}

func (e *leftError) Error() string { return fmt.Sprintf("%v; %s", e.cause, e.text) }
func (e *leftError) Unwrap() error { return e.cause }

// leftJob is the leftError of a job.
func leftJob(cause error, id string) *leftError {
	id = shortID(id)
	return &leftError{cause, "job " + id + " goes on", fmt.Sprintf("'quern status --follow %s' follows it, 'quern cancel %s' ends it", id, id)}
}

// followed is what a job that was followed came to.
type followed struct {
	status *api.JobStatus // the last one
	result *mapreduce.Result
}

// follow waits for a job and shows how far it is. It returns the last status, too.
func follow(ctx context.Context, h *cluster.Handle, d display) (followed, error) {
	var o followed
	var err error
	o.result, err = h.Wait(ctx, func(s *api.JobStatus) {
		o.status = s
		d.showJob(s)
	})
	d.hide()
	if stopped := interruption(ctx); stopped != nil && err != nil {
		return o, leftJob(stopped, h.ID())
	}
	return o, err
}

// shortID is how a job's id is shown: the beginning of it that tells jobs apart.
func shortID(id string) string {
	const shown = 12
	if _, err := hex.DecodeString(id); err == nil && len(id) > shown {
		return id[:shown]
	}
	return id
}

// stateText is a state in words.
func stateText(s api.JobState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "JOB_"))
}

// jobError makes an error of a job that ended badly into one with our exit codes.
type jobError struct {
	err    *cluster.JobError
	places places
}

func (e *jobError) Error() string {
	id := e.err.Status.GetJob()
	return strings.TrimSuffix(e.err.Error(), "(job "+id+")") + "(job " + shortID(id) + ")"
}

func (e *jobError) Unwrap() error { return e.err }

// code is the exit code of a job that failed on a cluster: that of the same job here.
func (e *jobError) code() int {
	if errors.Is(e.err, cluster.ErrCancelled) {
		return exitCancelled
	}
	cause := e.err.Cause()
	switch task.KindOf(cause) {
	case task.KindInput:
		if cause.Path != nil || errors.Is(e.err, fs.ErrNotExist) { // else it is there, and can't be decompressed, say
			return exitInput
		}
	case task.KindOutput:
		if !errors.Is(e.err, output.ErrUnsupported) {
			return exitOutput
		}
	}
	return e.places.exitCode(e.err)
}

// byProgram is in the error of a job a task of which failed as often as it may. Of errors that would come
// again, such as a malformed line, the master says what they are, and not how often they came.
var byProgram = regexp.MustCompile(`^(?:\w+ task \d+|the \w+ task) failed (?:once|\d+ times), at last at worker `)

// hint says where to look for more about the job; "": nowhere.
func (e *jobError) hint() string {
	if errors.Is(e.err, cluster.ErrCancelled) || !byProgram.MatchString(e.err.Status.GetError()) {
		return hintForResult(e.err)
	}
	return "'quern logs --failed " + shortID(e.err.Status.GetJob()) + "' prints what its programs wrote"
}

// ms returns a time of the control plane.
func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// namesOf returns a function that gives a worker's name for its id.
func namesOf(ctx context.Context, client *cluster.Client) func(id string) string {
	names := map[string]string{}
	list, err := client.Workers(ctx)
	if err != nil {
		list = nil // ids will do
	}
	for _, w := range list {
		names[w.GetWorker()] = w.GetName()
	}
	return func(id string) string {
		if name := names[id]; name != "" {
			return printable(name)
		}
		return printable(shortID(id))
	}
}
