// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"
)

// usage is what a process and those it waited for needed.
type usage struct {
	Wall    time.Duration `json:"wall"`
	PeakRSS int64         `json:"peak_rss"` // bytes, the largest single process; 0: not known on this system
}

// measureArg makes this command a small process that starts another and
// reports on it. A child's peak begins at its parent's, since that is whose
// memory it has until it executes something; so the parent has to be small.
const measureArg = "measure"

// stderrShown is how much of a failed command's messages is told.
const stderrShown = 2000

// measure runs a command, its standard output going to a file.
func measure(ctx context.Context, argv []string, stdout string) (usage, error) {
	self, err := os.Executable()
	if err != nil {
		return usage{}, err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{measureArg, stdout}, argv...)...)
	// The small process ends with what it started, which hears the same interrupt.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var report, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &report, &messages
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(messages.String())
		if len(text) > stderrShown {
			text = text[:stderrShown] + " ..."
		}
		return usage{}, fmt.Errorf("%s: %w: %s", argv[0], err, text)
	}
	var u usage
	if err := json.Unmarshal(report.Bytes(), &u); err != nil {
		return usage{}, fmt.Errorf("report of %s: %w", argv[0], err)
	}
	return u, nil
}

// measureMain is the small process: args are the file for standard output and
// the command. It prints a usage and returns the exit code.
func measureMain(args []string) int {
	if len(args) < 2 {
		fmt.Fprintln(os.Stderr, "bench measure: want a file and a command")
		return 2
	}
	out, err := os.Create(args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench measure:", err)
		return 2
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(args[1], args[2:]...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	start := time.Now()
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "bench measure:", err)
		return 2
	}
	forwardInterrupts(cmd.Process)
	err = cmd.Wait()
	u := usage{Wall: time.Since(start)}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench measure:", err)
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
			return exit.ExitCode()
		}
		return 1
	}
	u.PeakRSS = peakRSS(cmd.ProcessState)
	if err := json.NewEncoder(os.Stdout).Encode(u); err != nil {
		fmt.Fprintln(os.Stderr, "bench measure:", err)
		return 2
	}
	return 0
}

// forwardInterrupts hands interrupts on to the command.
func forwardInterrupts(p *os.Process) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, os.Interrupt)
	go func() {
		for range ch {
			if err := p.Signal(os.Interrupt); err != nil {
				return
			}
		}
	}()
}
