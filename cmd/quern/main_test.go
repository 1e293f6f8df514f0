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
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// binary is the program under test.
var binary string

// patience is how long a run may take before a test gives up on it.
const patience = time.Minute

func TestMain(m *testing.M) {
	os.Exit(func() int {
		folder, err := os.MkdirTemp("", "quern-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(folder)
		binary = filepath.Join(folder, "quern")
		if runtime.GOOS == "windows" {
			binary += ".exe"
		}
		build := exec.Command("go", "build", "-ldflags", "-X main.version=9.8.7", "-o", binary, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released, and as job programs are
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// call is one run of the program.
type call struct {
	args  []string
	stdin string // "": the null device
	env   []string
	dir   string
}

// outcome is what came of it.
type outcome struct {
	code           int
	stdout, stderr string
}

// command makes the program's process, with nothing of the tester's own
// configuration in its environment.
func command(t *testing.T, c call) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, binary, c.args...)
	cmd.Dir = c.dir
	cmd.Env = append([]string{"HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir(), "SYSTEMROOT=" + os.Getenv("SYSTEMROOT")}, c.env...)
	if c.stdin != "" {
		cmd.Stdin = strings.NewReader(c.stdin)
	}
	return cmd
}

func run(t *testing.T, c call) outcome {
	t.Helper()
	cmd := command(t, c)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func quern(t *testing.T, args ...string) outcome {
	t.Helper()
	return run(t, call{args: args})
}

// success fails the test if the run failed, and returns what it printed.
func (o outcome) success(t *testing.T) string {
	t.Helper()
	if o.code != 0 {
		t.Fatalf("exit code %d, stderr:\n%s", o.code, o.stderr)
	}
	return o.stdout
}

// failure fails the test unless the run ended with that code, said these things
// in its first line, and printed no rows.
func (o outcome) failure(t *testing.T, code int, says ...string) {
	t.Helper()
	if o.code != code {
		t.Errorf("exit code %d, want %d; stderr:\n%s", o.code, code, o.stderr)
	}
	if o.stdout != "" {
		t.Errorf("stdout is %q, want nothing", o.stdout)
	}
	first, rest, _ := strings.Cut(o.stderr, "\n")
	if !strings.HasPrefix(first, "quern: ") {
		t.Errorf("stderr begins with %q, want quern: ...", first)
	}
	if rest != "" && !strings.HasPrefix(rest, "hint: ") {
		t.Errorf("after the message comes %q, want nothing or a hint", rest)
	}
	for _, s := range says {
		if !strings.Contains(o.stderr, s) {
			t.Errorf("stderr does not say %q:\n%s", s, o.stderr)
		}
	}
}

// lastJSON decodes the last line of stderr.
func (o outcome) lastJSON(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(lastLine([]byte(o.stderr)), &v); err != nil {
		t.Fatalf("last line of stderr: %v\n%s", err, o.stderr)
	}
	return v
}

// file writes a file into a new folder and returns its path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// entries returns the names in a folder.
func entries(t *testing.T, folder string) []string {
	t.Helper()
	list, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}
