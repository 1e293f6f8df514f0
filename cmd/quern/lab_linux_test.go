// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quernmr/quern/internal/netlab"
)

func needLab(t *testing.T) {
	t.Helper()
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
}

// lab is a call of lab run with something of an environment, and without a cluster.
func lab(args ...string) call { return labWithCluster(append([]string{"--no-cluster"}, args...)...) }

// labWithCluster is the same with a cluster.
func labWithCluster(args ...string) call {
	return call{args: append([]string{"lab", "run"}, args...), env: []string{"PATH=" + os.Getenv("PATH")}}
}

// TestLabExitCodes checks that lab run ends as its command does.
func TestLabExitCodes(t *testing.T) {
	needLab(t)
	text := file(t, "text", "no program")
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"success", []string{"--", "true"}, 0, ""},
		{"failure", []string{"--", "sh", "-c", "exit 7"}, 7, ""},
		{"flags without dashes before", []string{"--hosts", "1", "sh", "-c", "exit 8"}, 8, ""},
		{"killed", []string{"--", "sh", "-c", "kill -TERM $$"}, 143, ""},
		{"not found", []string{"--", "no-such-program"}, exitNotFound, "no-such-program"},
		{"not executable", []string{"--", text}, exitNotExecutable, "permission denied"},
		{"no command", nil, exitUsage, "COMMAND"},
		{"no host", []string{"--hosts", "0", "--", "true"}, exitUsage, "0 hosts"},
		{"too bad", []string{"--loss", "150%", "--", "true"}, exitUsage, "--loss"},
		{"not a number", []string{"--corrupt", "much", "--", "true"}, exitUsage, "--corrupt"},
		{"a name with a path", []string{"--name", "../x", "--", "true"}, exitUsage, "../x"},
		{"no hold", []string{"--reorder", "1%", "--hold", "0s", "--", "true"}, exitUsage, "--hold 0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := run(t, lab(c.args...))
			if got.code != c.code || !strings.Contains(got.stderr, c.says) || got.stdout != "" {
				t.Errorf("exit code %d, want %d; %q, %q", got.code, c.code, got.stdout, got.stderr)
			}
			if ours := c.says != ""; ours != strings.Contains(got.stderr, "quern: ") {
				t.Errorf("stderr: %q", got.stderr)
			}
		})
	}
}

// TestLabRefuses says which rights are missing.
func TestLabRefuses(t *testing.T) {
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip(err)
	}
	cmd := exec.Command("setpriv", "--bounding-set=-all", binary, "lab", "run", "--json", "--", "true")
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	out, _ := cmd.CombinedOutput()
	first, rest, _ := strings.Cut(string(out), "\n")
	if cmd.ProcessState.ExitCode() != exitLab || !strings.HasPrefix(first, "quern: ") || !strings.Contains(first, "CAP_NET_ADMIN") || !strings.Contains(first, "root") {
		t.Errorf("exit code %d, %q", cmd.ProcessState.ExitCode(), out)
	}
	var report labReport
	if err := json.Unmarshal([]byte(rest), &report); err != nil || report.ExitCode != exitLab || report.Error == "" {
		t.Errorf("%q, %v", rest, err)
	}
}

// TestLabEnvironment runs a command on host 1, with the caller's input and output.
func TestLabEnvironment(t *testing.T) {
	needLab(t)
	c := lab("--hosts", "3", "--name", "qn-cmd-"+filepath.Base(t.TempDir())+pidText(), "--", "sh", "-c", `
		cat
		echo "$QUERN_LAB_HOSTS $QUERN_LAB_HOSTS_IPV6"
		ip -brief address show dev eth0
		ip netns exec "${QUERN_LAB_NAMES##*,}" ip -brief address show dev eth0
		echo for you >&2`)
	c.stdin = "from the caller\n"
	got := run(t, c)
	lines := strings.Split(got.success(t), "\n")
	if lines[0] != "from the caller" || lines[1] != "10.71.17.1,10.71.17.2,10.71.17.3 fd71:17::1,fd71:17::2,fd71:17::3" ||
		!strings.Contains(lines[2], " 10.71.17.1/24 fd71:17::1/64 ") || !strings.Contains(lines[3], " 10.71.17.3/24 fd71:17::3/64 ") {
		t.Errorf("%q", lines)
	}
	said := strings.Split(got.stderr, "\n")
	if len(said) != 4 || !strings.HasPrefix(said[0], "lab: ") || !strings.Contains(said[0], "3 hosts") || said[1] != "for you" || said[2] != "lab: there were no faults" {
		t.Errorf("stderr: %q", said)
	}
}

func pidText() string { return "-" + time.Now().Format("150405.000000") }

// TestLabInside runs quern in a lab: the lab's variables are none of its options.
func TestLabInside(t *testing.T) {
	needLab(t)
	got := run(t, lab("--quiet", "--hosts", "1", "--", binary, "wordcount", file(t, "in", "one two one")))
	if out := got.success(t); !strings.Contains(out, "one\t2") || got.stderr != "" {
		t.Errorf("%q, %q", out, got.stderr)
	}
}

// TestLabFaults loses what it is asked to lose, and says so.
func TestLabFaults(t *testing.T) {
	needLab(t)
	const n = 200
	packets := []string{"bash", "-c", `for i in {1..200}; do echo x >/dev/udp/10.71.17.2/9; done`}
	got := run(t, lab(append([]string{"--json", "--udp-only", "--loss", "100%", "--static-neighbours", "--seed", "5", "--"}, packets...)...))
	got.success(t)
	v := got.lastJSON(t)
	if v["packets"] != float64(n) || v["lost"] != float64(n) || v["seed"] != 5.0 || v["exit_code"] != 0.0 || v["command"] != "bash" {
		t.Errorf("%v", v)
	}
	if !strings.Contains(got.stderr, "loss 100%; seed 5") || !strings.Contains(got.stderr, "lab: of 200 packets 200 lost\n") {
		t.Errorf("stderr: %s", got.stderr)
	}
	got = run(t, lab(append([]string{"--quiet", "--udp-only", "--duplicate", "0.5", "--json", "--static-neighbours", "--"}, packets...)...))
	got.success(t)
	if v := got.lastJSON(t); v["packets"] != float64(n) || v["duplicated"].(float64) < 50 || v["duplicated"].(float64) > 150 || v["lost"] != 0.0 {
		t.Errorf("%v", v)
	}
	if strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("stderr with --quiet: %q", got.stderr)
	}
}

// startLab starts lab run with a script that says its process id and waits.
func startLab(t *testing.T, name, script string) (*exec.Cmd, *bufio.Reader, *bytes.Buffer) {
	t.Helper()
	cmd := command(t, lab("--name", name, "--", "sh", "-c", script))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	reader := bufio.NewReader(out)
	if line, err := reader.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q, %v; %s", line, err, stderr.String())
	}
	return cmd, reader, &stderr
}

func leftOfLab(t *testing.T, name string) (found []string) {
	t.Helper()
	for _, pattern := range []string{"/run/netns/" + name + "*", "/run/quern-lab/" + name + "*"} {
		some, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, some...)
	}
	return found
}

// TestLabSignals hands signals on and leaves it to the command what it does.
func TestLabSignals(t *testing.T) {
	needLab(t)
	// Under nohup this process ignores SIGHUP, and so would what it starts; what a
	// process handles is at its default in its children.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangups) })
	for _, c := range []struct {
		name   string
		signal syscall.Signal
	}{{"INT", syscall.SIGINT}, {"TERM", syscall.SIGTERM}, {"HUP", syscall.SIGHUP}, {"USR1", syscall.SIGUSR1}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			name := "qn-cmd-" + c.name + pidText()
			cmd, out, stderr := startLab(t, name, `trap "echo got it" `+c.name+`; trap "echo again; exit 9" USR2; echo ready; while :; do sleep 0.02; done`)
			for i, want := range []string{"got it\n", "got it\n", "again\n"} {
				s := c.signal
				if i == 2 {
					s = syscall.SIGUSR2
				}
				if err := cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
				if line, err := out.ReadString('\n'); err != nil || line != want {
					t.Fatalf("%q, %v, want %q", line, err, want)
				}
			}
			_, _ = io.Copy(io.Discard, out)
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 9 || strings.Contains(stderr.String(), "quern: ") {
				t.Errorf("exit code %d, %q", code, stderr.String())
			}
			if found := leftOfLab(t, name); len(found) > 0 {
				t.Errorf("left: %q", found)
			}
		})
	}
}

// TestLabKilled kills quern: its command goes with it, and lab clean removes the rest.
func TestLabKilled(t *testing.T) {
	needLab(t)
	name := "qn-cmd-killed" + pidText()
	cmd, out, _ := startLab(t, name, `trap "" TERM INT HUP; echo ready; sleep 1000 & wait`)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The namespace is gone with its process, though its name is not. What the
	// command has started keeps host 1, until it is swept.
	_, _ = cmd.Process.Wait()
	if found := leftOfLab(t, name); len(found) == 0 {
		t.Error("nothing to sweep")
	}
	text := ""
	for begin := time.Now(); len(leftOfLab(t, name)) > 0 && time.Since(begin) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
		text += quern(t, "lab", "clean").success(t)
	}
	if found := leftOfLab(t, name); len(found) > 0 {
		t.Errorf("left: %q; %s", found, text)
	}
	// All that held the pipe has ended.
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, out)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("what the command has started is still there")
	}
}
