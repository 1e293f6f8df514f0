// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quernmr/quern/bpf"
)

// forAll returns a copy of the program that every user may run.
func forAll(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "quern-doctor-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(dir, "quern"), os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Name()
}

func TestDoctorWithoutRights(t *testing.T) {
	cmd := exec.Command(forAll(t), "doctor", "--json")
	cmd.Env, cmd.Dir = []string{"HOME=/nonexistent"}, "/"
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	r := doctorJSON(t, outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()})
	if r.KernelFold || !strings.Contains(r.Why, "CAP_BPF") {
		t.Errorf("report: %+v", r.Report)
	}
	for _, c := range r.Checks {
		if c.Name == "CAP_NET_ADMIN" && (c.State != bpf.Missing || !strings.Contains(c.Fix, "setcap") || !strings.HasSuffix(c.Fix, "/quern")) {
			t.Errorf("check: %+v", c)
		}
	}
}

// A configuration that may not be looked at is no riddle.
func TestDoctorInAnothersHome(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("running as another user needs root")
	}
	program := forAll(t)
	closed := t.TempDir() // of root
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ env, args, says string }{
		{"HOME=" + closed, "doctor", "HOME may be that of another user: unset it, or name a file by --config"},
		{"XDG_CONFIG_HOME=" + closed, "doctor", "XDG_CONFIG_HOME may be that of another user"},
		{"HOME=" + closed, "doctor --config " + filepath.Join(closed, "c.yaml"), "name a file that you may read by --config"},
		{"HOME=" + closed, "doctor --config /dev/null", ""},
	} {
		cmd := exec.Command(program, strings.Fields(c.args)...)
		cmd.Env, cmd.Dir = []string{c.env}, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		var stderr strings.Builder
		cmd.Stderr = &stderr
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); (code == exitUsage) != (c.says != "") || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%s quern %s: exit code %d, stderr:\n%s", c.env, c.args, code, stderr.String())
		}
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip: apt-get install iproute2")
	}
}

func TestDoctorInterface(t *testing.T) {
	needRoot(t)
	ns := fmt.Sprintf("qn-doctor-%d", os.Getpid())
	for _, c := range []string{"netns add " + ns, "-n " + ns + " link add a0 type veth peer name a1", "-n " + ns + " link set a0 up"} {
		if out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", c, err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() })
	cmd := command(t, call{})
	cmd.Path, cmd.Args = "/usr/bin/env", []string{"env", "ip", "netns", "exec", ns, binary, "doctor", "--interface", "a0", "--json"}
	cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"))
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	r := doctorJSON(t, outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()})
	if !r.KernelFold || r.Folds != "kernel" || r.Interface != "a0" || !strings.Contains(r.Why, "a0 (native XDP)") {
		t.Errorf("report: %+v", r.Report)
	}
}

// What may not be looked into is not called clean.
func TestDoctorCleanWithoutRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("running as another user needs root")
	}
	program := forAll(t)
	root := filepath.Join(filepath.Dir(program), "run")
	if err := os.MkdirAll(filepath.Join(root, "closed"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(root, "closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "doctor", "--clean", "--run-dir", root)
	cmd.Env, cmd.Dir = []string{"HOME=/nonexistent"}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	_ = cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(stderr.String(), "closed: run this as root") {
		t.Errorf("exit code %d, stderr:\n%s", code, stderr.String())
	}
}

func TestDoctorClean(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	left, err := bpf.Open(bpf.Options{Dir: filepath.Join(root, "left")})
	if err != nil {
		t.Fatal(err)
	}
	if err := left.Release(); err != nil {
		t.Fatal(err)
	}
	lives, err := bpf.Open(bpf.Options{Dir: filepath.Join(root, "lives")})
	if err != nil {
		t.Fatal(err)
	}
	defer lives.Close()

	r := doctorJSON(t, quern(t, "doctor", "--json", "--run-dir", root))
	if len(r.Leftovers) != 1 || filepath.Base(r.Leftovers[0]) != "left" || len(r.Removed) != 0 {
		t.Errorf("leftovers %v, removed %v", r.Leftovers, r.Removed)
	}
	if o := quern(t, "doctor", "--run-dir", root); !strings.Contains(o.stdout, filepath.Join(root, "left")) || !strings.Contains(o.stdout, "--clean") {
		t.Errorf("table:\n%s", o.stdout)
	}
	r = doctorJSON(t, quern(t, "doctor", "--json", "--clean", "--run-dir", root))
	if len(r.Removed) == 0 || len(r.Leftovers) != 0 {
		t.Errorf("leftovers %v, removed %v", r.Leftovers, r.Removed)
	}
	if got := entries(t, root); len(got) != 1 || got[0] != "lives" {
		t.Errorf("left are %v", got)
	}
	if err := lives.Quiesce(); err != nil {
		t.Errorf("the one that lives: %v", err)
	}
}
