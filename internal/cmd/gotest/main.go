// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"

	"github.com/quernmr/quern/internal/testsummary"
)

func main() {
	code, err := run(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
	}
	os.Exit(code)
}

// run returns the exit code; an error is of the tool itself.
func run(args []string, out io.Writer) (int, error) {
	flags := flag.NewFlagSet("gotest", flag.ContinueOnError)
	expectedFile := flags.String("expected", "", "file with a list of skips that are meant")
	strict := flags.Bool("strict", os.Getenv("CI") != "", "fail if a test is skipped that is not listed")
	report := flags.String("report", "", "file that the list of skips is added to")
	goCommand := flags.String("go", "go", "the go command")
	if err := flags.Parse(args); err != nil {
		return 2, nil // flag has said why
	}
	var expected testsummary.Expected
	if *expectedFile != "" {
		text, err := os.ReadFile(*expectedFile)
		if err != nil {
			return 2, err
		}
		if expected, err = testsummary.ParseExpected(string(text)); err != nil {
			return 2, fmt.Errorf("%s: %w", *expectedFile, err)
		}
	}
	cmd := exec.Command(*goCommand, append([]string{"test", "-json"}, flags.Args()...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 2, err
	}
	if err := cmd.Start(); err != nil {
		return 2, fmt.Errorf("run %s: %w", cmd, err)
	}
	r := &testsummary.Reader{Out: out, Verbose: slices.Contains(flags.Args(), "-v")}
	readErr := r.Read(events)
	if readErr != nil {
		_, _ = io.Copy(io.Discard, events) // or go test would wait for ever
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1), finish(r.Summary(), expected, *report, out)
	case err != nil:
		return 2, err
	case readErr != nil:
		return 2, readErr
	}
	sum := r.Summary()
	if err := finish(sum, expected, *report, out); err != nil {
		return 2, err
	}
	if n := len(expected.Unexpected(sum.Skipped)); *strict && n > 0 {
		return 1, fmt.Errorf("%d tests were skipped that the file of --expected (%q) does not list; install what they need (scripts/setup-test-deps), or list them there with the reason",
			n, *expectedFile)
	}
	if !sum.OK() {
		return 1, fmt.Errorf("go test ended well, but %v and %v failed", sum.Failed, sum.Broken)
	}
	return 0, nil
}

// finish prints skips, those that were not expected last.
func finish(s *testsummary.Summary, expected testsummary.Expected, report string, out io.Writer) error {
	text := fmt.Sprintf("%d tests passed, %d failed, %d skipped\n", s.Passed, len(s.Failed), len(s.Skipped))
	unexpected := expected.Unexpected(s.Skipped)
	for _, skip := range s.Skipped {
		if !slices.Contains(unexpected, skip) {
			text += "skipped, as is to be: " + skip.String() + "\n"
		}
	}
	for _, skip := range unexpected {
		text += "SKIPPED: " + skip.String() + "\n"
	}
	if _, err := io.WriteString(out, text); err != nil {
		return err
	}
	if report == "" {
		return nil
	}
	f, err := os.OpenFile(report, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(f, text); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
