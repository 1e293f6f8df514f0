// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/task"
)

// app is one run of the command: what it is given and what it must tell at its end.
type app struct {
	args    []string
	stdin   *os.File
	stdout  *os.File
	stderr  *os.File
	environ []string // as os.Environ has it

	job     string            // name of the job, for the summary; "" if none was reached
	origins map[string]origin // where the values of the command's options come from, once it was configured
	json    bool              // end with a JSON object on stderr
	place   places            // what the job reads and writes, to tell errors apart
	profile profilingFlag     // hidden flags
}

// run does what the arguments say and returns the exit code.
func (a *app) run() int {
	ctx, done := interruptible(context.Background())
	defer done()
	err := a.rootCommand().ExecuteContext(ctx)
	err = errors.Join(err, a.profile.stop())
	if err == nil {
		return exitOK
	}
	code := a.exitCode(ctx, err)
	if code == exitPipe {
		return code
	}
	message := oneLine(err)
	var left *leftError
	if interrupted(ctx) && !errors.As(err, &left) {
		message = interruption(ctx).Error()
	}
	fmt.Fprintln(a.stderr, "quern: "+message)
	if hint := hintFor(err); hint != "" {
		fmt.Fprintln(a.stderr, "hint: "+hint)
	}
	if a.wantsJSON() {
		a.printJSON(failure{Job: a.job, Error: message, Kind: string(task.KindOf(mapreduce.CauseOf(err))), ExitCode: code})
	}
	return code
}

// wantsJSON reports whether the caller expects a JSON object, even if the
// arguments are wrong in a place before --json.
func (a *app) wantsJSON() bool {
	args := a.args
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return a.json || slices.Contains(args, "--json") || slices.Contains(args, "--json=true")
}

// oneLine returns an error's text with its line ends made harmless, so that a
// file's name cannot forge messages.
func oneLine(err error) string {
	text := strings.TrimRight(err.Error(), "\n")
	return strings.NewReplacer("\r\n", "; ", "\n", "; ", "\r", " ", "\x1b", "").Replace(text)
}
