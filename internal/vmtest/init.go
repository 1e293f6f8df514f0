// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// ReadPlan reads the plan from a file.
func ReadPlan(name string) (*Plan, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the plan: %w", err)
	}
	p := new(Plan)
	if err := json.Unmarshal(text, p); err != nil {
		return nil, fmt.Errorf("read the plan %s: %w", name, err)
	}
	return p, nil
}

// Note writes a line that is kept with the results.
func Note(out io.Writer, format string, args ...any) {
	fmt.Fprintf(out, "\n"+markNote+format+"\n", args...)
}

// Run runs the steps of a plan, with their output and marks on out. It is what
// the init does after it has set up the machine.
func (p *Plan) Run(out io.Writer) {
	for _, s := range p.Steps {
		fmt.Fprintf(out, "\n%s%s\n", markBegin, s.Name)
		began := time.Now()
		code := s.run(out)
		fmt.Fprintf(out, "\n%s%s %d %d\n", markEnd, s.Name, code, time.Since(began).Milliseconds())
	}
	fmt.Fprintf(out, "\n%s\n", markDone)
}

// run returns the exit code: that of the program, or -1 if it was killed or
// could not be started.
func (s *Step) run(out io.Writer) int {
	ctx, cancel := context.WithCancel(context.Background())
	if s.Timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, s.Timeout)
	}
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Path, s.Args...)
	cmd.Env, cmd.Dir = s.Env, s.Dir
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		fmt.Fprintf(out, "\nkilled after %v\n", s.Timeout)
		return -1
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintf(out, "\n%v\n", err)
		return -1
	}
	return 0
}
