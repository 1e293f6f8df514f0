// SPDX-License-Identifier: Apache-2.0

//go:build unix

package task

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// roleEnv has the test binary be a task's program.
const roleEnv = "QUERN_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		hostedMain(role)
		return
	}
	goleak.VerifyTestMain(m)
}

func hostedMain(role string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(9)
		}
	}
	if role == "silent" {
		return
	}
	h, ok, err := Attach()
	if role == "report" { // what Attach thinks of the environment
		fmt.Printf("%v %v", ok, err)
		return
	}
	fail(err)
	if !ok {
		fail(errors.New("not hosted"))
	}
	r, err := h.Request()
	if role == "sides" && err != nil {
		fail(h.Reply(&Reply{Error: &Error{Message: err.Error(), Permanent: !errors.Is(err, ErrSideInput)}}))
		return
	}
	fail(err)
	switch role {
	case "sides": // tells what is in them, and which its own children would inherit
		var notes []string
		for _, s := range r.SideInputs {
			content, unmap, err := s.Map()
			fail(err)
			notes = append(notes, s.Name+"="+string(content))
			fail(unmap())
		}
		var list strings.Builder
		for _, s := range r.SideInputs {
			fmt.Fprintf(&list, "[ -e /dev/fd/%d ] && echo %[1]d;", s.Descriptor)
		}
		sh := exec.Command("/bin/sh", "-c", list.String()+"true")
		sh.Stdin = os.Stdin // so that 0 is there
		out, err := sh.Output()
		fail(err)
		fail(h.Reply(&Reply{Commit: &CommitResult{Notes: append(notes, string(out))}}))
	case "echo":
		if _, again, _ := Attach(); again || os.Getenv(Env) != "" {
			fail(errors.New("attached twice"))
		}
		// What this one starts must not hold the pipes open, or be taken for a task.
		out, err := exec.Command("/bin/sh", "-c", "echo \"$"+Env+"$(ls /dev/fd/3 /dev/fd/4 /proc/self/fd/5 /proc/self/fd/6 2>/dev/null | wc -l)\"").Output()
		fail(err)
		fail(h.Reply(&Reply{Hello: &Hello{Version: strings.TrimSpace(string(out)) + " " + r.Job}}))
		for i := 0; ; i++ {
			c, err := h.Answer()
			if errors.Is(err, io.EOF) {
				os.Exit(5)
			}
			fail(err)
			fail(h.Reply(&Reply{Call: &Call{Call: i, Job: c.Error}}))
		}
	case "noise":
		_, err := h.out.WriteString("what?\n")
		fail(err)
	}
}

// child starts the test binary as a program with a role.
func child(t *testing.T, role string, prepare func(*exec.Cmd)) (*Conn, *exec.Cmd) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleEnv+"="+role, Env+"=stale")
	cmd.Stderr = os.Stderr
	if prepare != nil {
		prepare(cmd)
	}
	c, err := Pipe(cmd)
	if err != nil {
		t.Fatal(err)
	}
	err = cmd.Start()
	c.Started()
	if err != nil {
		t.Fatal(err)
	}
	return c, cmd
}

func TestTalk(t *testing.T) {
	for name, prepare := range map[string]func(*exec.Cmd){
		"0 ab": nil,
		"1 ab": func(cmd *exec.Cmd) { // one that is passed on

			null, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { null.Close() })
			cmd.ExtraFiles = append(cmd.ExtraFiles, null)
		},
	} {
		c, cmd := child(t, "echo", prepare)
		if err := c.Send(&Request{Protocol: Protocol, Kind: Drive, Job: "ab"}); err != nil {
			t.Fatal(err)
		}
		m, err := c.Recv()
		if err != nil || m.Hello == nil {
			t.Fatal(name, m, err)
		}
		// What the program starts has neither the variable nor the pipes.
		if m.Hello.Version != name {
			t.Errorf("%q, want %q", m.Hello.Version, name)
		}
		for i := range 3 {
			if err := c.Send(&CallResult{Error: fmt.Sprint("e", i)}); err != nil {
				t.Fatal(err)
			}
			m, err := c.Recv()
			if err != nil || m.Call == nil || m.Call.Call != i || m.Call.Job != fmt.Sprint("e", i) {
				t.Errorf("%s: %+v, %v", name, m, err)
			}
		}
		// The program sees that its parent is gone.
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 5 {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.Send(&CallResult{}); err == nil {
			t.Error("sent after Close")
		}
	}
}

func TestProgramThatSaysNothing(t *testing.T) {
	c, cmd := child(t, "silent", nil)
	defer c.Close()
	if m, err := c.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("%+v, %v", m, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	// Nobody reads: a long message fails, it does not hang.
	if err := c.Send(&Request{Plan: make([]byte, 1<<20)}); err == nil {
		t.Error("sent to nobody")
	}
	c, cmd = child(t, "noise", nil)
	defer c.Close()
	if err := c.Send(&Request{Protocol: Protocol}); err != nil {
		t.Fatal(err)
	}
	if m, err := c.Recv(); !errors.Is(err, ErrMessage) {
		t.Errorf("%+v, %v", m, err)
	}
	_ = cmd.Wait()
}

// Close ends a Recv and a Send that wait.
func TestCloseEndsWaiting(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "exec sleep 600")
	c, err := Pipe(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.Started()
	got := make(chan error, 2)
	go func() { _, err := c.Recv(); got <- err }()
	go func() { got <- c.Send(&Request{Plan: make([]byte, 1<<20)}) }()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		select {
		case err := <-got:
			if err == nil {
				t.Error("no error")
			}
		case <-time.After(time.Minute):
			t.Fatal("still waiting")
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func TestAttachRefusesWhatIsNoTask(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for value, want := range map[string]string{
		"":          "true QUERN_TASK=\"\":",
		"3":         "true QUERN_TASK=\"3\":",
		"0,1":       "true QUERN_TASK=\"0,1\":",
		"3,3":       "true QUERN_TASK=\"3,3\":",
		"3,x":       "true QUERN_TASK=\"3,x\":",
		"-3,4":      "true QUERN_TASK=\"-3,4\":",
		"3,4":       "true QUERN_TASK=\"3,4\": descriptor 3 is no pipe",
		"900,901":   "true QUERN_TASK=\"900,901\": descriptor 900: bad file descriptor",
		"70000,4":   "true QUERN_TASK=\"70000,4\":",
		"(nothing)": "false <nil>",
	} {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), roleEnv+"=report")
		if value != "(nothing)" {
			cmd.Env = append(cmd.Env, Env+"="+value)
		}
		cmd.ExtraFiles = []*os.File{file, file}
		if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("%q: %s, %v", value, out, err)
		}
	}
}

func TestProtocolIsChecked(t *testing.T) {
	if err := (&Request{Protocol: Protocol}).Check(); err != nil {
		t.Error(err)
	}
	if err := (&Request{Protocol: Protocol + 1}).Check(); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Error(err)
	}
}
