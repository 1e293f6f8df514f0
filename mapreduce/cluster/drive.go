// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/task"
)

// ErrNoCall is returned by Drive for a program that ended well and has run no job.
var ErrNoCall = errors.New("the program ended without running a job: it is to call mapreduce.Run, or Job.Run")

// Drive runs a program that has not been started yet, and has run do its jobs: run is called for
// each call of Run that the program makes, one after the other, and what it returns is
// what that call returns there. earlier has the results of the calls before, as Program.Earlier
// wants them.
//
// The program is ended when ctx ends, or run returns an error, which is then Drive's. Errors
// of the program itself are *exec.ExitError.
func Drive(ctx context.Context, cmd *exec.Cmd, run func(ctx context.Context, call *task.Call, earlier [][]byte) (task.CallResult, error)) (err error) {
	return drive(ctx, cmd, false, run)
}

// ErrOldProgram is returned by Explain for a program whose library does not explain.
var ErrOldProgram = errors.New("the program says nothing of how its job would be run: build it anew with this version of the library")

// Explain runs a program that has not been started yet up to its first call of Run, and returns how that would be run, by what
// the input is here. The program is then ended. An error of the job's is what [mapreduce.Explain] would return there.
func Explain(ctx context.Context, cmd *exec.Cmd) (x *mapreduce.Explanation, err error) {
	explained := errors.New("explained")
	err = drive(ctx, cmd, true, func(_ context.Context, call *task.Call, _ [][]byte) (task.CallResult, error) {
		switch {
		case call.Err != "":
			return task.CallResult{}, mapreduce.ErrorOf(call.Err, call.Cause)
		case call.Explanation == nil:
			return task.CallResult{}, fmt.Errorf("%w: %w", ErrProgram, ErrOldProgram)
		}
		x = &mapreduce.Explanation{}
		if err := json.Unmarshal(call.Explanation, x); err != nil {
			return task.CallResult{}, fmt.Errorf("%w: %w: %w", ErrProgram, ErrOldProgram, err)
		}
		return task.CallResult{}, explained
	})
	if errors.Is(err, explained) {
		return x, nil
	}
	return nil, err
}

func drive(ctx context.Context, cmd *exec.Cmd, explain bool, run func(ctx context.Context, call *task.Call, earlier [][]byte) (task.CallResult, error)) (err error) {
	conn, err := task.Pipe(cmd)
	if err != nil {
		return err
	}
	err = cmd.Start()
	conn.Started()
	if err != nil {
		return errors.Join(fmt.Errorf("start the program: %w", err), conn.Close())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	hangUp := sync.OnceFunc(func() { _ = conn.Close() }) // the program ends then, if it has not ended
	stop := context.AfterFunc(ctx, hangUp)
	served := make(chan error, 1)
	calls := 0
	var refused error // by run
	go func() {
		served <- serve(conn, explain, func(call *task.Call, earlier [][]byte) (result task.CallResult, err error) {
			calls++
			result, refused = run(ctx, call, earlier)
			return result, refused
		})
	}()

	failed := <-served
	if failed != nil {
		cancel(failed)
		_ = cmd.Process.Kill() // it may have ended
	}
	waited := cmd.Wait()
	stop()
	hangUp()
	ended := context.Cause(ctx)
	cancel(nil)
	switch {
	case refused != nil:
		return refused
	case ended != nil:
		return ended
	case failed != nil:
		return failed
	case waited != nil:
		return waited
	case calls == 0:
		return ErrNoCall
	}
	return nil
}

// serve answers a program's calls until it closes the connection.
func serve(conn *task.Conn, explain bool, run func(*task.Call, [][]byte) (task.CallResult, error)) error {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	var earlier [][]byte
	// It fits into the pipe, whether the program ever reads it or not; if the program has ended, Recv tells.
	_ = conn.Send(&task.Request{Protocol: task.Protocol, Kind: task.Drive, Job: hex.EncodeToString(id[:]), Explain: explain})
	for {
		reply, err := conn.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("the program: %w", err)
		case reply.Error != nil:
			return reply.Error
		case reply.Call == nil:
			continue
		}
		if reply.Call.Call != len(earlier) {
			return fmt.Errorf("the program's call %d of Run came as number %d", reply.Call.Call, len(earlier))
		}
		result, err := run(reply.Call, earlier)
		if err != nil {
			return err
		}
		b, err := json.Marshal(result)
		if err != nil {
			return fmt.Errorf("the result of call %d: %w", reply.Call.Call, err)
		}
		earlier = append(earlier, b)
		if err := conn.Send(&result); err != nil {
			return err // it ended meanwhile
		}
	}
}
