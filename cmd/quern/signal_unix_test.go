// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bytes"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestInterrupt sends signals to jobs that wait for input and checks that they
// leave nothing behind.
func TestInterrupt(t *testing.T) {
	// Under nohup this process ignores SIGHUP, and so would what it starts; what a
	// process handles is at its default in its children.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangups) })
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		code   int
		says   string
	}{
		{"interrupt", syscall.SIGINT, exitInterrupted, "interrupted"},
		{"terminate", syscall.SIGTERM, 143, "terminated"},
		{"hang up", syscall.SIGHUP, 129, "hangup"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			pipe, target := filepath.Join(folder, "pipe"), filepath.Join(folder, "out")
			if err := syscall.Mkfifo(pipe, 0o600); err != nil {
				t.Fatal(err)
			}
			quern(t, "wordcount", file(t, "in", "before"), "-o", target).success(t)
			temp := t.TempDir()
			cmd := command(t, call{args: []string{"wordcount", "--json", "--overwrite", "-o", target, pipe}, env: []string{"TMPDIR=" + temp}})
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// Opening it returns once the job reads it.
			writer, err := os.OpenFile(pipe, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer writer.Close()
			if _, err := io.WriteString(writer, "some words\nand then nothing for long"); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("exit code %d, want %d; stderr: %s", code, c.code, stderr.String())
			}
			if !strings.HasPrefix(stderr.String(), "quern: ") || !strings.Contains(stderr.String(), c.says) {
				t.Errorf("stderr: %q, want something about %q", stderr.String(), c.says)
			}
			if got := (outcome{stderr: stderr.String()}).lastJSON(t); got["ok"] != false || got["exit_code"] != float64(c.code) || got["job"] != "wordcount" {
				t.Errorf("JSON: %v", got)
			}
			if names := entries(t, folder); !slices.Equal(names, []string{"out", "pipe"}) {
				t.Errorf("in the target's folder: %q", names)
			}
			part, err := os.ReadFile(filepath.Join(target, "part-00000"))
			if err != nil || string(part) != "before\t1\n" {
				t.Errorf("the target was changed: %q, %v", part, err)
			}
			if names := entries(t, temp); len(names) > 0 {
				t.Errorf("temporary files: %q", names)
			}
		})
	}
}

// TestInterruptBeforeWriter interrupts a job whose named pipe nobody has opened.
func TestInterruptBeforeWriter(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	pipe := filepath.Join(folder, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, call{args: []string{"wordcount", "-o", filepath.Join(folder, "out"), file(t, "in", words), pipe}})
	progress, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The first line of progress comes after two seconds: by then it reads.
	first := make([]byte, 1)
	if _, err := progress.Read(first); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(progress)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || !strings.HasSuffix(string(rest), "quern: interrupted\n") {
		t.Errorf("exit code %d; stderr: %q", code, rest)
	}
	if names := entries(t, folder); !slices.Equal(names, []string{"pipe"}) {
		t.Errorf("left behind: %q", names)
	}
}

// TestReaderGoesAway closes standard output after a few bytes, as head does.
func TestReaderGoesAway(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	if err := writeWords(&text, 2_000_000, 1); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, call{args: []string{"sort", file(t, "in", text.String())}})
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	rows, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := rows.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	rows.Close()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitPipe || stderr.Len() > 0 {
		t.Errorf("exit code %d, want %d; stderr: %q", code, exitPipe, stderr.String())
	}
}
