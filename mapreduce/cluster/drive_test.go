// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/task"
)

// programVariable has the test's executable be a program in place of a test.
const programVariable = "CLUSTER_TEST_PROGRAM"

// programs are what a user might write.
var programs = map[string]func(context.Context) error{
	"two": func(ctx context.Context) error {
		for _, name := range []string{"first", "second"} {
			result, err := mapreduce.Run(ctx, count(name), mapreduce.Options{Inputs: []string{"/in"}, Output: output.Dir("/out", output.DirOptions{})})
			if err != nil {
				fmt.Println(name, "failed:", err)
				continue
			}
			fmt.Println(name, result.Records)
		}
		return nil
	},
	"submits": func(ctx context.Context) error {
		// Nobody is at this address, and there are no such certificates.
		client, err := Dial(ctx, "192.0.2.1", DialOptions{Certs: "/nowhere"})
		if err != nil {
			return err
		}
		h, err := client.Submit(ctx, count("first"), mapreduce.Options{Inputs: []string{"/in"}, Output: output.Dir("/out", output.DirOptions{})}, SubmitOptions{})
		if err != nil {
			return err
		}
		result, err := h.Wait(ctx, nil)
		if err != nil {
			return err
		}
		fmt.Println(result.Records)
		return client.Close()
	},
	"to the terminal": func(ctx context.Context) error {
		_, err := mapreduce.Run(ctx, count("first"), mapreduce.Options{Inputs: []string{"/in"}, Output: output.Stream(os.Stdout, output.StreamOptions{})})
		return err
	},
	"none":   func(context.Context) error { return nil },
	"fails":  func(context.Context) error { return errors.New("no good") },
	"sleeps": func(ctx context.Context) error { time.Sleep(time.Hour); return nil },
}

func count(name string) *mapreduce.Job[string, int64, int64] {
	return &mapreduce.Job[string, int64, int64]{
		Name: name,
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
			emit.Emit(string(rec.Value), 1)
			return nil
		},
		Fold: mapreduce.Sum[int64](),
	}
}

// runProgram is main for a program.
func runProgram(name string) int {
	if err := programs[name](context.Background()); err != nil {
		fmt.Println(err)
		return 9
	}
	return 0
}

// program is a command that runs one, and what it prints.
func program(t *testing.T, name string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), programVariable+"="+name)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

func TestDrive(t *testing.T) {
	t.Parallel()
	type told struct {
		call    int
		job     string
		err     string
		earlier int
	}
	answer := func(n int64) task.CallResult {
		return mapreduce.CallResult(&mapreduce.Result{Records: n}, nil)
	}
	for _, c := range []struct {
		program string
		answers []task.CallResult
		told    []told
		prints  string
		code    int
		err     error
	}{
		{"two", []task.CallResult{answer(7), answer(8)}, []told{{0, "first", "", 0}, {1, "second", "", 1}}, "first 7\nsecond 8\n", 0, nil},
		{"two", []task.CallResult{{Error: "the job failed"}, answer(8)}, []told{{0, "first", "", 0}, {1, "second", "", 1}}, "first failed: the job failed\nsecond 8\n", 0, nil},
		{"submits", []task.CallResult{answer(5)}, []told{{0, "first", "", 0}}, "5\n", 0, nil},
		{"to the terminal", []task.CallResult{{Error: "as you say"}}, []told{{0, "first", "standard output", 0}}, "as you say\n", 9, nil},
		{"none", nil, nil, "", 0, ErrNoCall},
		{"fails", nil, nil, "no good\n", 9, nil},
	} {
		cmd, out := program(t, c.program)
		var got []told
		err := Drive(t.Context(), cmd, func(_ context.Context, call *task.Call, earlier [][]byte) (task.CallResult, error) {
			got = append(got, told{call.Call, call.Job, call.Err, len(earlier)})
			return c.answers[len(got)-1], nil
		})
		var exit *exec.ExitError
		code := 0
		if errors.As(err, &exit) {
			code, err = exit.ExitCode(), nil
		}
		if code != c.code || !errors.Is(err, c.err) || out.String() != c.prints {
			t.Errorf("%s: code %d, %v, prints %q; want %d, %v, %q", c.program, code, err, out, c.code, c.err, c.prints)
		}
		if len(got) != len(c.told) {
			t.Errorf("%s: told %+v, want %+v", c.program, got, c.told)
			continue
		}
		for i, w := range c.told {
			g := got[i]
			if g.call != w.call || g.job != w.job || g.earlier != w.earlier || !strings.Contains(g.err, w.err) || (g.err == "") != (w.err == "") {
				t.Errorf("%s: told %+v, want %+v", c.program, g, w)
			}
		}
	}
}

// The program ends with whoever drives it.
func TestDriveEnds(t *testing.T) {
	t.Parallel()
	why := errors.New("enough")
	cmd, _ := program(t, "two")
	err := Drive(t.Context(), cmd, func(context.Context, *task.Call, [][]byte) (task.CallResult, error) { return task.CallResult{}, why })
	if !errors.Is(err, why) || cmd.ProcessState == nil {
		t.Errorf("refused: %v, state %v", err, cmd.ProcessState)
	}
	for _, name := range []string{"sleeps", "two"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cmd, _ = program(t, name)
		if name == "sleeps" {
			time.AfterFunc(100*time.Millisecond, func() { cancel(why) })
		}
		err = Drive(ctx, cmd, func(ctx context.Context, _ *task.Call, _ [][]byte) (task.CallResult, error) {
			cancel(why)
			<-ctx.Done()
			return task.CallResult{}, fmt.Errorf("the job goes on: %w", context.Cause(ctx))
		})
		if !errors.Is(err, why) || cmd.ProcessState == nil {
			t.Errorf("%s, ended: %v, state %v", name, err, cmd.ProcessState)
		}
		if name == "two" && err.Error() != "the job goes on: enough" {
			t.Errorf("what run says is lost: %v", err)
		}
	}
	if err := Drive(t.Context(), exec.Command("/nowhere/program"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
}

// Submit counts, and hands on what earlier calls have returned.
func TestSubmitCountsCalls(t *testing.T) {
	first, earlier, done, err := mapreduce.CountCall()
	if err != nil {
		t.Fatal(err)
	}
	done(&mapreduce.Result{Records: 3}, nil)
	second, earlier2, done2, err := mapreduce.CountCall()
	if err != nil || second != first+1 || len(earlier2) != len(earlier)+1 || !strings.Contains(string(earlier2[first].Result), `"Records":3`) {
		t.Errorf("%v: calls %d and %d, %d and %d before", err, first, second, len(earlier), len(earlier2))
	}
	if _, third, _, err := mapreduce.CountCall(); err != nil || !strings.Contains(third[second].Error, "not ended") {
		t.Errorf("%v: a call that has not ended: %+v", err, third[second])
	}
	done2(nil, errors.New("bad"))
	if _, err := mapreduce.Run(t.Context(), count("x"), mapreduce.Options{}); err == nil {
		t.Error("no inputs are taken")
	}
	call, last, _, err := mapreduce.CountCall()
	if err != nil || call != first+4 || last[second].Error != "bad" || last[first+3].Error == "" {
		t.Errorf("%v: call %d after %d: %+v", err, call, first, last)
	}
}
