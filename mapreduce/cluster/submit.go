// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/shuffle"
)

// SubmitOptions say how a cluster is to go about a job. The zero value is of use.
type SubmitOptions struct {
	Name        string        // for people; "": the job's or program's
	Priority    int           // jobs of higher priority go first
	MaxSlots    int           // attempts at once; 0: no limit
	TaskMemory  int64         // bytes that an attempt may take; 0: the worker's share of a slot
	Shuffle     shuffle.Mode  // who folds
	MaxAttempts int           // per task; 0: the master's
	TaskTimeout time.Duration // without progress; 0: the master's
	Environment []string      // NAME=value, for the program
	Uploads     []Upload      // local files that the job reads
	// Key makes a second submission with the same key the same job. "": a new one each time.
	Key string
}

// Upload is a file of this machine that a job reads.
type Upload struct {
	Local string // path here
	Name  string // as the job names it; "": Local
}

// Program is what workers run. Exactly one of JobFile and Path is set.
type Program struct {
	JobFile string   // the text of a job file, with paths that mean the same everywhere
	Path    string   // of a static executable, which is sent
	Args    []string // of that, without its name
	Dir     string   // working folder, used by workers that have it; "": this process's
	Call    int      // which of its calls of Run, counted from 0
	Earlier [][]byte // results of the calls before it: task.CallResult as JSON
}

// Submit has the cluster run a job that this program has made; see the package's documentation for what
// that asks of the program. Options.Output must be a folder or s3://bucket/prefix
// that all workers reach, and Options.Inputs must be the same for all of them.
//
// Calls of Submit and of Job.Run are counted, and workers come to this one by that count: they must
// come in the same order in every run.
func (c *Client) Submit(ctx context.Context, job mapreduce.Runnable, opts mapreduce.Options, so SubmitOptions) (*Handle, error) {
	if c.hosted {
		return runHere(ctx, job, opts), nil
	}
	if err := job.Validate(); err != nil {
		return nil, err
	}
	if slices.Contains(opts.Inputs, "-") || slices.Contains(opts.Inputs, "/dev/stdin") {
		return nil, errors.New("standard input can't be read by a cluster: name files that all workers see")
	}
	path, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("the running program's file: %w", err)
	}
	if so.Name == "" {
		so.Name = filepath.Base(path)
	}
	call, results, ended, err := mapreduce.CountCall()
	if err != nil {
		return nil, err
	}
	earlier := make([][]byte, len(results))
	for i := range results {
		if earlier[i], err = json.Marshal(&results[i]); err != nil {
			return nil, err
		}
	}
	h, err := c.SubmitProgram(ctx, Program{Path: path, Args: os.Args[1:], Call: call, Earlier: earlier}, so)
	if err != nil {
		ended(nil, err)
		return nil, err
	}
	h.ended = ended
	return h, nil
}

// SubmitProgram has the cluster run a program or a job file. A job file is refused with
// ErrVersion unless the cluster has our version.
func (c *Client) SubmitProgram(ctx context.Context, p Program, so SubmitOptions) (*Handle, error) {
	if (p.JobFile == "") == (p.Path == "") {
		return nil, errors.New("a program is a job file or an executable: give one of the two")
	}
	if so.Priority != int(int32(so.Priority)) || so.MaxSlots < 0 || so.MaxSlots != int(int32(so.MaxSlots)) || so.TaskMemory < 0 || so.MaxAttempts < 0 || so.MaxAttempts != int(int32(so.MaxAttempts)) || so.TaskTimeout < 0 {
		return nil, errors.New("numbers of a submission must not be negative, and fit in 31 bits")
	}
	if ours, theirs := c.options.Version, c.about.GetVersion(); c.about != nil && p.JobFile != "" && ours != theirs {
		return nil, fmt.Errorf("%w: the cluster at %s is quern %s, this program %s, and ready-made jobs are run by the workers' own quern: submit them with the same version", ErrVersion, c.address, theirs, ours)
	}
	program := &api.Program{
		JobFile: p.JobFile, Args: p.Args, Dir: p.Dir, Environment: so.Environment,
		Call: uint32(p.Call), Earlier: p.Earlier, Name: so.Name,
	}
	if program.Dir == "" {
		program.Dir, _ = os.Getwd() // it is a convenience
	}
	if p.Path != "" {
		var err error
		if program.Platform, err = Platform(p.Path); err != nil {
			return nil, err
		}
		if program.Blob, _, err = fileDigest(ctx, p.Path); err != nil {
			return nil, err
		}
		if err := c.store(ctx, []string{program.Blob}, map[string]string{program.Blob: p.Path}); err != nil {
			return nil, err
		}
	}
	uploads, err := c.upload(ctx, so.Uploads)
	if err != nil {
		return nil, err
	}
	key := so.Key
	if key == "" {
		var b [16]byte
		_, _ = rand.Read(b[:]) // it never fails
		key = hex.EncodeToString(b[:])
	}
	request := &api.SubmitRequest{
		Program: program, Key: key, Priority: int32(so.Priority), MaxSlots: uint32(so.MaxSlots), TaskMemory: so.TaskMemory,
		Shuffle: so.Shuffle.String(), Uploads: uploads, Version: c.options.Version, Protocol: api.Protocol,
		MaxAttempts: uint32(so.MaxAttempts), TaskTimeoutMs: so.TaskTimeout.Milliseconds(),
	}
	h := &Handle{client: c}
	// The key makes it safe to ask again when an answer was lost.
	err = c.try(ctx, nil, func(ctx context.Context) error {
		reply, err := c.rpc.Submit(ctx, request)
		h.job = reply.GetJob()
		return err
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

// runHere is Submit in a task: the job's own Run does the task and ends the program.
func runHere(ctx context.Context, job mapreduce.Runnable, opts mapreduce.Options) *Handle {
	h := &Handle{here: true}
	h.result, h.err = job.Run(ctx, opts)
	return h
}
