// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/quernmr/quern/mapreduce/output"
)

func TestExitCodeOfError(t *testing.T) {
	at := func(path string, err error) error {
		return fmt.Errorf("wrapped: %w", &fs.PathError{Op: "open", Path: path, Err: err})
	}
	toFolder := places{inputs: []string{"in", "dir/a.txt"}, output: "dir/out", spill: "spill"}
	toStdout := places{inputs: []string{"in"}}
	for _, c := range []struct {
		name  string
		place places
		err   error
		want  int
	}{
		{"data", toFolder, errors.New("bad data"), exitFailed},
		{"no match", toFolder, fmt.Errorf("*.log: %w", fs.ErrNotExist), exitInput},
		{"input missing", toFolder, at("in", fs.ErrNotExist), exitInput},
		{"input below a folder", toFolder, at("in/sub/file", syscall.EIO), exitInput},
		{"other file missing", toFolder, at("elsewhere", fs.ErrPermission), exitInput},
		{"input beside the output", toFolder, at("dir/a.txt", fs.ErrNotExist), exitInput},
		{"output", toFolder, at("dir/out", syscall.EROFS), exitOutput},
		{"in the output", toFolder, at("dir/out/part-00000", syscall.ENOSPC), exitOutput},
		{"folder of the output", toFolder, at("dir", fs.ErrPermission), exitOutput},
		{"beside the output", toFolder, at("dir/.out.quern-1x/part-00000", syscall.ENOSPC), exitOutput},
		{"rename", toFolder, &os.LinkError{Op: "rename", Old: "dir/.out.quern-1", New: "dir/out", Err: syscall.EXDEV}, exitOutput},
		{"bare number", toFolder, fmt.Errorf("output: %w", syscall.ENOTDIR), exitOutput},
		{"spill full", toFolder, at("spill/run-1", syscall.ENOSPC), exitFailed},
		{"temporary files full", toStdout, at(filepath.Join(os.TempDir(), "x"), syscall.ENOSPC), exitFailed},
		{"exists", toFolder, fmt.Errorf("output: %w", output.ErrExists), exitOutput},
		{"overlap", toFolder, fmt.Errorf("output: %w", output.ErrOverlap), exitOutput},
		{"target", toFolder, fmt.Errorf("output: %w", output.ErrTarget), exitOutput},
		{"unsupported", toFolder, fmt.Errorf("output: %w", output.ErrUnsupported), exitUsage},
		{"usage", toFolder, &usageError{err: fs.ErrNotExist}, exitUsage},
		{"reader gone", toStdout, at("/dev/stdout", syscall.EPIPE), exitPipe},
		{"standard output full", toStdout, at(os.Stdout.Name(), syscall.ENOSPC), exitOutput},
	} {
		a := &app{place: c.place}
		if got := a.exitCode(context.Background(), c.err); got != c.want {
			t.Errorf("%s: exit code %d, want %d", c.name, got, c.want)
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(signalError{syscall.SIGTERM})
	if got := new(app).exitCode(ctx, ctx.Err()); got != 143 {
		t.Errorf("SIGTERM: exit code %d, want 143", got)
	}
}
