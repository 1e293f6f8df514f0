// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// ownerVariable makes the test's program be the owner of a lab of that name.
const ownerVariable = "NETLAB_TEST_OWNER"

func TestMain(m *testing.M) {
	if name := os.Getenv(ownerVariable); name != "" {
		own(name)
	}
	goleak.VerifyTestMain(m)
}

// own builds a lab with a process in it that ignores SIGTERM and has a child of
// its own, says so, and waits to be killed.
func own(name string) {
	l, err := New(Options{Hosts: 2, Name: name, Faults: Faults{Delay: time.Millisecond}})
	if err == nil {
		c := l.Host(2).Command(context.Background(), "sh", "-c", `trap "" TERM; sleep 1000 & echo $$ $!; wait; wait`)
		c.Stdout = os.Stdout
		err = c.Run()
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

var made int

// uniqueName returns a name for a lab.
func uniqueName() string {
	made++
	return fmt.Sprintf("qn-netlab-%d-%d", os.Getpid(), made)
}

// left returns what is left of a lab.
func left(t *testing.T, name string) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{filepath.Join(namesFolder, name+"*"), filepath.Join(recordsFolder, name+"*")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// alive says whether there is a process that has not ended.
func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(text, []byte(") "))
	return len(rest) > 0 && rest[0] != 'Z' && rest[0] != 'X'
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// TestNames finds namespaces by their names, and nothing after Close.
func TestNames(t *testing.T) {
	needLab(t)
	name := uniqueName()
	l, err := New(Options{Hosts: 2, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if len(left(t, name)) != 4 {
		t.Errorf("names and record: %q", left(t, name))
	}
	out, err := exec.Command("ip", "netns", "exec", l.Host(2).Name(), "ip", "-brief", "address", "show", "dev", InterfaceName).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "10.71.17.2/24 fd71:17::2/64") {
		t.Errorf("%s, %v", out, err)
	}
	if _, err := New(Options{Hosts: 1, Name: name}); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("a second lab of the same name: %v", err)
	}
	if swept, err := Sweep(); err != nil || slices.ContainsFunc(swept, func(s Swept) bool { return s.Lab == name }) {
		t.Errorf("a lab that lives was swept: %v, %v", swept, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if found := left(t, name); len(found) > 0 {
		t.Errorf("left: %q", found)
	}
	if err := l.Close(); err != nil {
		t.Error("second Close:", err)
	}
	if err := l.Host(1).Do(func() error { return nil }); !errors.Is(err, errClosed) {
		t.Errorf("Do after Close: %v", err)
	}
	if err := l.Host(1).Command(context.Background(), "true").Run(); !errors.Is(err, errClosed) {
		t.Errorf("Command after Close: %v", err)
	}
	if err := l.SetFaults(Faults{Loss: 1}); !errors.Is(err, errClosed) {
		t.Errorf("SetFaults after Close: %v", err)
	}
	if _, err := l.Counters(); !errors.Is(err, errClosed) {
		t.Errorf("Counters after Close: %v", err)
	}
}

// TestKilled kills a lab's process. Its namespaces and direct children go with
// it; the next sweep finds the rest.
func TestKilled(t *testing.T) {
	needLab(t)
	name := uniqueName()
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), ownerVariable+"="+name)
	owner.Stderr = os.Stderr
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	defer owner.Wait()
	defer owner.Process.Kill()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var child, grandchild int
	if _, err := fmt.Sscan(line, &child, &grandchild); err != nil {
		t.Fatal(err)
	}
	if swept, err := Sweep(); err != nil || slices.ContainsFunc(swept, func(s Swept) bool { return s.Lab == name }) {
		t.Errorf("a lab that lives was swept: %v, %v", swept, err)
	}
	if len(left(t, name)) != 4 || !alive(child) || !alive(grandchild) {
		t.Fatalf("the lab is not there: %q", left(t, name))
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	eventually(t, "the child ends with its parent", func() bool { return !alive(child) })
	if !alive(grandchild) {
		t.Fatal("the grandchild has ended, so the test shows nothing")
	}
	if _, err := os.Stat(filepath.Join(namesFolder, name+"-h1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the namespace of a killed lab is there: %v", err)
	}
	swept, err := Sweep()
	if err != nil {
		t.Error(err)
	}
	i := slices.IndexFunc(swept, func(s Swept) bool { return s.Lab == name })
	if i < 0 || swept[i] != (Swept{Lab: name, Processes: 1, Names: 3}) {
		t.Errorf("swept %v, want one process and three names of %s", swept, name)
	}
	eventually(t, "the grandchild ends", func() bool { return !alive(grandchild) })
	if found := left(t, name); len(found) > 0 {
		t.Errorf("left: %q", found)
	}
}

// TestSweepSpares keeps a sweep from what only looks like a lab's.
func TestSweepSpares(t *testing.T) {
	l := build(t, Options{Hosts: 1})
	name := uniqueName()
	// A record as of a killed lab, whose namespace's inode has been given to this one's.
	record, link := filepath.Join(recordsFolder, name+recordSuffix), filepath.Join(namesFolder, name+"-h1")
	mark := l.Host(1).namespace
	text := fmt.Sprintf(`{"pid":1,"namespaces":[{"inode":%d,"cookie":%d},{"inode":%d}]}`, mark.inode, mark.cookie+1, mark.inode)
	if err := os.MkdirAll(recordsFolder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(record, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	others := []string{filepath.Join(namesFolder, name+"-other"), filepath.Join(namesFolder, name+"-h2")}
	for path, target := range map[string]string{link: "/proc/1/fd/1000", others[0]: "/proc/1/fd/1000", others[1]: "/elsewhere"} {
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(path)
	}
	bystander := l.Host(1).Command(context.Background(), "sleep", "1000")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer bystander.Wait()
	defer bystander.Process.Kill()
	swept, err := Sweep()
	if err != nil || !slices.Contains(swept, Swept{Lab: name, Names: 1}) {
		t.Errorf("swept %v, %v", swept, err)
	}
	if found := left(t, name); len(found) != 2 || !slices.Contains(found, others[0]) || !slices.Contains(found, others[1]) {
		t.Errorf("left: %q, want %q", found, others)
	}
	if !alive(bystander.Process.Pid) {
		t.Error("a process of a lab that lives was killed")
	}
}

// TestCommand runs processes in hosts.
func TestCommand(t *testing.T) {
	l := build(t, Options{Hosts: 2})
	for _, h := range l.Hosts() {
		out, err := h.Command(context.Background(), "ip", "-brief", "address", "show", "dev", InterfaceName).Output()
		if err != nil || !strings.Contains(string(out), h.IPv4().String()+"/") || !strings.Contains(string(out), h.IPv6().String()+"/") {
			t.Errorf("%v: %s, %v", h, out, err)
		}
	}
	var exit *exec.ExitError
	if out, err := l.Host(1).Command(context.Background(), "sh", "-c", "echo out; echo bad >&2; exit 3").Output(); !errors.As(err, &exit) ||
		exit.ExitCode() != 3 || string(exit.Stderr) != "bad\n" || string(out) != "out\n" {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := l.Host(1).Command(context.Background(), "sh", "-c", "echo out; echo bad >&2").CombinedOutput(); err != nil || string(out) != "out\nbad\n" {
		t.Errorf("%q, %v", out, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := l.Host(1).Command(ctx, "sleep", "1000").Run(); err == nil {
		t.Error("a process outlives its context")
	}
	if err := l.Host(1).Command(context.Background(), "/no/such/program").Run(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestCloseEndsProcesses closes a lab in which processes run: they are asked to
// end, and killed if they do not.
func TestCloseEndsProcesses(t *testing.T) {
	needLab(t)
	l, err := New(Options{Hosts: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	polite := l.Host(1).Command(context.Background(), "sh", "-c", `trap "echo bye; exit 0" TERM; echo ready; while :; do sleep 0.01; done`)
	stubborn := l.Host(1).Command(context.Background(), "sh", "-c", `trap "" TERM; echo ready; while :; do sleep 0.01; done`)
	// One that nobody waits for, in a session of its own.
	daemon, err := l.Host(1).Command(context.Background(), "sh", "-c", `setsid sleep 1000 >/dev/null 2>&1 & echo $!`).Output()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(daemon)))
	if err != nil || !alive(pid) {
		t.Fatalf("no daemon: %q, %v", daemon, err)
	}
	outputs := map[*Command]*bytes.Buffer{}
	var wait sync.WaitGroup
	for _, c := range []*Command{polite, stubborn} {
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReaderSize(out, 16).ReadString('\n'); err != nil || line != "ready\n" {
			t.Fatalf("%q, %v", line, err)
		}
		buffer := &bytes.Buffer{}
		outputs[c] = buffer
		wait.Go(func() {
			_, _ = io.Copy(buffer, out)
			_ = c.Wait()
		})
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	wait.Wait()
	if polite.ProcessState.ExitCode() != 0 || outputs[polite].String() != "bye\n" {
		t.Errorf("the polite one: %v, %q", polite.ProcessState, outputs[polite])
	}
	if s := stubborn.ProcessState.Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != syscall.SIGKILL {
		t.Errorf("the stubborn one: %v", stubborn.ProcessState)
	}
	if alive(pid) {
		t.Error("the daemon is still there")
	}
}

// TestDo checks that threads come back from where they were.
func TestDo(t *testing.T) {
	l := build(t, Options{Hosts: 2})
	addresses := func() string {
		i, err := net.InterfaceByName(InterfaceName)
		if err != nil {
			return err.Error()
		}
		all, err := i.Addrs()
		return fmt.Sprint(all, err)
	}
	home := addresses()
	failure := errors.New("failed")
	err := l.Host(1).Do(func() error {
		if a := addresses(); !strings.Contains(a, "10.71.17.1/24") {
			t.Errorf("on host 1: %s", a)
		}
		if err := l.Host(2).Do(func() error {
			if a := addresses(); !strings.Contains(a, "10.71.17.2/24") {
				t.Errorf("on host 2: %s", a)
			}
			return failure
		}); !errors.Is(err, failure) {
			t.Errorf("%v", err)
		}
		if a := addresses(); !strings.Contains(a, "10.71.17.1/24") {
			t.Errorf("back on host 1: %s", a)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	var wait sync.WaitGroup
	for i := range 20 {
		wait.Go(func() {
			h := l.Host(1 + i%2)
			for range 20 {
				err := h.Do(func() error {
					if a := addresses(); !strings.Contains(a, h.IPv4().String()+"/24") {
						t.Errorf("on host %d: %s", h.Number(), a)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				if a := addresses(); a != home {
					t.Errorf("at home: %s, want %s", a, home)
				}
			}
		})
	}
	wait.Wait()
}

// TestSeveral has labs at the same time, with the same addresses.
func TestSeveral(t *testing.T) {
	needLab(t)
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			l, err := New(Options{Hosts: 2, StaticNeighbours: true, Faults: Faults{Jitter: time.Millisecond}})
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Close()
			server, client := listen(t, l.Host(2), IPv4(2), 7000), listen(t, l.Host(1), IPv4(1), 0)
			if _, err := client.WriteToUDPAddrPort([]byte(l.Name()), netip.AddrPortFrom(IPv4(2), 7000)); err != nil {
				t.Error(err)
			}
			buffer := make([]byte, 100)
			_ = server.SetReadDeadline(time.Now().Add(time.Minute))
			if n, err := server.Read(buffer); err != nil || string(buffer[:n]) != l.Name() {
				t.Errorf("%q arrived in lab %s, %v", buffer[:n], l.Name(), err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if found := left(t, l.Name()+"-"); len(found) > 0 {
				t.Errorf("left: %q", found)
			}
		})
	}
	wait.Wait()
}

// TestMTU sends the largest packets there are, and no larger ones.
func TestMTU(t *testing.T) {
	for _, mtu := range []int{MinMTU, 3498, 3499, MaxMTU} {
		l := build(t, Options{Hosts: 2, MTU: mtu, StaticNeighbours: true, Faults: Faults{Delay: time.Millisecond}})
		for _, ip6 := range []bool{false, true} {
			source, target, headers, option, level := IPv4(1), IPv4(2), 28, unix.IP_MTU_DISCOVER, unix.IPPROTO_IP
			if ip6 {
				source, target, headers, option, level = IPv6(1), IPv6(2), 48, unix.IPV6_MTU_DISCOVER, unix.IPPROTO_IPV6
			}
			server, client := listen(t, l.Host(2), target, 7000), listen(t, l.Host(1), source, 0)
			raw, err := client.SyscallConn()
			if err == nil {
				err = raw.Control(func(fd uintptr) {
					err := unix.SetsockoptInt(int(fd), level, option, unix.IP_PMTUDISC_DO) // no fragments
					if err != nil {
						t.Error(err)
					}
				})
			}
			if err != nil {
				t.Fatal(err)
			}
			most := bytes.Repeat([]byte("x"), mtu-headers)
			if _, err := client.WriteToUDPAddrPort(most, netip.AddrPortFrom(target, 7000)); err != nil {
				t.Errorf("MTU %d: %v", mtu, err)
			}
			_ = server.SetReadDeadline(time.Now().Add(time.Minute))
			buffer := make([]byte, MaxMTU)
			if n, err := server.Read(buffer); err != nil || !bytes.Equal(buffer[:n], most) {
				t.Errorf("MTU %d: %d bytes arrived, want %d; %v", mtu, n, len(most), err)
			}
			if _, err := client.WriteToUDPAddrPort(append(most, 'x'), netip.AddrPortFrom(target, 7000)); !errors.Is(err, unix.EMSGSIZE) {
				t.Errorf("MTU %d, a byte more: %v", mtu, err)
			}
		}
	}
}

// TestQueues has links with several queues.
func TestQueues(t *testing.T) {
	l := build(t, Options{Hosts: 2, Queues: 3, StaticNeighbours: true, Faults: Faults{Duplicate: 1}})
	if got := stream(t, l, 1000, false); len(got) != 2000 {
		t.Errorf("%d packets arrived, want 2000", len(got))
	}
	out, err := l.Host(1).Command(context.Background(), "ip", "-details", "link", "show", "dev", InterfaceName).Output()
	if err != nil || !strings.Contains(string(out), "numtxqueues 3 numrxqueues 3") {
		t.Errorf("%s, %v", out, err)
	}
}

// descriptors returns the number of open files.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func threads(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestLeaks builds labs and closes them: files and threads go.
func TestLeaks(t *testing.T) {
	needLab(t)
	var files, tasks int
	for i := range 8 {
		l, err := New(Options{Hosts: 3, Faults: Faults{Delay: time.Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Host(2).Command(context.Background(), "true").Run(); err != nil {
			t.Error(err)
		}
		if err := l.Cut(3); err != nil {
			t.Error(err)
		}
		if _, err := l.Counters(); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if i == 2 { // by now all that stays has been made
			files, tasks = descriptors(t), threads(t)
		}
	}
	if now := descriptors(t); now > files {
		t.Errorf("%d open files, %d before", now, files)
	}
	if now := threads(t); now > tasks+4 {
		t.Errorf("%d threads, %d before", now, tasks)
	}
}

// TestFailedBuild gives up half way: nothing is left.
func TestFailedBuild(t *testing.T) {
	needLab(t)
	name := uniqueName()
	// The name of the second host is taken.
	taken := filepath.Join(namesFolder, name+"-h2")
	if err := os.MkdirAll(namesFolder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/elsewhere", taken); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(taken)
	before := descriptors(t)
	if _, err := New(Options{Hosts: 3, Name: name}); err == nil || !strings.Contains(err.Error(), "host 2") {
		t.Errorf("%v", err)
	}
	if found := left(t, name); !slices.Equal(found, []string{taken}) {
		t.Errorf("left: %q", found)
	}
	if now := descriptors(t); now > before {
		t.Errorf("%d open files, %d before", now, before)
	}
}

// TestMissing names the rights that are not there.
func TestMissing(t *testing.T) {
	for _, c := range []struct {
		effective uint64
		says      []string
		not       string
	}{
		{0, []string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_NET_RAW", "root"}, ""},
		{1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_RAW, []string{"CAP_NET_ADMIN"}, "CAP_SYS_ADMIN"},
	} {
		err := missing(c.effective)
		if !errors.Is(err, ErrUnavailable) {
			t.Fatalf("%v", err)
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%q does not say %q", err, s)
			}
		}
		if c.not != "" && strings.Contains(err.Error(), c.not) {
			t.Errorf("%q says %q", err, c.not)
		}
	}
	if err := missing(1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW); err != nil {
		t.Error(err)
	}
}
