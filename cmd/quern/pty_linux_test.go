// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// pseudoTerminal returns a terminal for the program and the end at which what
// it writes can be read.
func pseudoTerminal(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120}); err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	return master, terminal
}

// screen gathers what is written to a terminal.
type screen struct {
	mu   sync.Mutex
	more *sync.Cond
	text strings.Builder
	done bool
}

// read reads a terminal until the program closes its end.
func (s *screen) read(master io.Reader) {
	buf := make([]byte, 4096)
	for {
		n, err := master.Read(buf) // ends with EIO
		s.mu.Lock()
		s.text.Write(buf[:n])
		s.done = err != nil
		s.more.Broadcast()
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// waitFor waits until the terminal has shown text or the program has ended,
// and returns all that it has shown.
func (s *screen) waitFor(text string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.done && (text == "" || !strings.Contains(s.text.String(), text)) {
		s.more.Wait()
	}
	return s.text.String()
}

// onTerminal runs the program with a terminal as standard error, and as
// standard output too if rows is nil, and returns what was written to it. during
// is called while it runs.
func onTerminal(t *testing.T, c call, rows io.Writer, during func(*screen)) string {
	t.Helper()
	master, terminal := pseudoTerminal(t)
	cmd := command(t, c)
	cmd.Stderr = terminal
	cmd.Stdout = rows
	if rows == nil {
		cmd.Stdout = terminal
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close()
	s := &screen{}
	s.more = sync.NewCond(&s.mu)
	go s.read(master)
	if during != nil {
		during(s)
	}
	text := s.waitFor("")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return text
}

// slowPipe is a named pipe whose writer writes text only when it may.
func slowPipe(t *testing.T, text string) (path string, write func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, func() {
		if err := os.WriteFile(path, []byte(text), 0); err != nil {
			t.Error(err)
		}
	}
}

func TestBarOnTerminal(t *testing.T) {
	for _, c := range []struct {
		name     string
		env      []string
		bar      bool
		coloured bool
	}{
		{"colours", []string{"TERM=xterm"}, true, true},
		{"no colours", []string{"TERM=xterm", "NO_COLOR=1"}, true, false},
		{"dumb", []string{"TERM=dumb"}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// One input of known size and one whose end comes when the test wants.
			pipe, write := slowPipe(t, words)
			var rows bytes.Buffer
			text := onTerminal(t, call{args: []string{"wordcount", file(t, "in", words), pipe}, env: c.env}, &rows, func(s *screen) {
				if c.bar {
					s.waitFor("wordcount: reading")
				}
				write()
			})
			if rows.String() != "a\t6\nb\t4\nc\t2\n" {
				t.Errorf("rows: %q", rows.String())
			}
			if shown := strings.Contains(text, "wordcount: reading"); shown != c.bar {
				t.Errorf("bar: %v, want %v: %q", shown, c.bar, text)
			}
			if coloured := strings.Contains(text, "\x1b[32m"); coloured && !c.coloured {
				t.Errorf("colours: %q", text)
			}
			lines := strings.Split(strings.TrimRight(text, "\r\n"), "\n")
			last := onScreen(lines[len(lines)-1])
			if !strings.HasPrefix(last, "quern wordcount: 2 files, 24 B, ") || !strings.Contains(last, "3 rows") {
				t.Errorf("the last line is %q, want a summary; all: %q", last, text)
			}
		})
	}
}

func TestRowsAndBarShareTerminal(t *testing.T) {
	text := onTerminal(t, call{args: []string{"wordcount", file(t, "in", words)}, env: []string{"TERM=xterm"}}, nil, nil)
	var lines []string
	for _, l := range strings.Split(strings.TrimRight(text, "\r\n"), "\n") {
		lines = append(lines, onScreen(strings.TrimRight(l, "\r")))
	}
	if len(lines) != 4 || lines[0] != "a\t3" || lines[1] != "b\t2" || lines[2] != "c\t1" || !strings.HasPrefix(lines[3], "quern wordcount: ") {
		t.Errorf("on the screen: %q", lines)
	}
}

func TestQuietOnTerminal(t *testing.T) {
	var rows bytes.Buffer
	if text := onTerminal(t, call{args: []string{"wordcount", "--quiet", file(t, "in", words)}}, &rows, nil); text != "" {
		t.Errorf("--quiet wrote %q", text)
	}
}

func TestTerminalIsNoInput(t *testing.T) {
	_, terminal := pseudoTerminal(t)
	defer terminal.Close()
	cmd := command(t, call{args: []string{"wordcount"}})
	cmd.Stdin = terminal
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	_ = cmd.Run()
	outcome{cmd.ProcessState.ExitCode(), "", stderr.String()}.failure(t, exitUsage, "no input", "quern wordcount --help")
}
