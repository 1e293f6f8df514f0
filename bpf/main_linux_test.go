// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
)

// childVar makes the test binary be one of the processes in children instead.
const childVar = "QUERN_BPF_CHILD"

// children are what the test binary does as a process of its own.
var children = map[string]func() error{
	"hold":    childHold,
	"examine": childExamine,
	"read":    childRead,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(childVar); name != "" {
		if err := children[name](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	before := openFiles()
	code := m.Run()
	if code == 0 {
		runtime.GC()
		for name, n := range openFiles() {
			if n > before[name] {
				fmt.Fprintf(os.Stderr, "leak: %d descriptors of %s more than at the start\n", n-before[name], name)
				code = 1
			}
		}
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		heldMu.Lock()
		if n := len(held); n > 0 {
			fmt.Fprintf(os.Stderr, "leak: %d hosts were not closed\n", n)
			code = 1
		}
		heldMu.Unlock()
	}
	os.Exit(code)
}

// openFiles counts this process's descriptors by what they are of, where that is ours to close.
func openFiles() map[string]int {
	n := map[string]int{}
	list, _ := os.ReadDir("/proc/self/fd")
	for _, e := range list {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			continue
		}
		if strings.HasPrefix(to, "anon_inode:bpf") || strings.HasPrefix(to, "anon_inode:[bpf") || strings.HasSuffix(to, lockFile) || strings.HasPrefix(to, "net:") {
			n[to]++
		}
		if strings.HasPrefix(to, "socket:") {
			n["sockets"]++
		}
	}
	return n
}

func sh(t testing.TB, command string, args ...any) string {
	t.Helper()
	words := strings.Fields(fmt.Sprintf(command, args...))
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(words, " "), err, out)
	}
	return string(out)
}

var labs atomic.Int32

// lab is two network namespaces with a veth between them: a0 here, b0 there.
type lab struct {
	t            testing.TB
	here, there  netns.NsHandle
	hereN, farN  string
	addrA, addrB string
	sixA, sixB   string
}

// newLab makes a lab and puts the test's thread, which ends with the test, into the namespace of a0.
func newLab(t testing.TB) *lab {
	t.Helper()
	needRoot(t)
	for _, tool := range []string{"ip", "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: apt-get install iproute2 mount", tool)
		}
	}
	n := labs.Add(1)
	l := &lab{
		t:     t,
		hereN: fmt.Sprintf("qn-go-%d-%da", os.Getpid(), n),
		farN:  fmt.Sprintf("qn-go-%d-%db", os.Getpid(), n),
		addrA: "10.77.0.1", addrB: "10.77.0.2",
		sixA: "fd77::1", sixB: "fd77::2",
	}
	for _, ns := range []string{l.hereN, l.farN} {
		sh(t, "ip netns add %s", ns)
		t.Cleanup(func() { sh(t, "ip netns del %s", ns) })
	}
	sh(t, "ip -n %s link add a0 type veth peer name b0 netns %s", l.hereN, l.farN)
	l.configure()
	var err error
	if l.here, err = netns.GetFromName(l.hereN); err != nil {
		t.Fatal(err)
	}
	if l.there, err = netns.GetFromName(l.farN); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.here.Close(); l.there.Close() })
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	l.enter(l.here)
	return l
}

func (l *lab) configure() {
	l.t.Helper()
	for _, c := range []struct{ ns, dev, addr, six string }{{l.hereN, "a0", l.addrA, l.sixA}, {l.farN, "b0", l.addrB, l.sixB}} {
		sh(l.t, "ip -n %s addr add %s/24 dev %s", c.ns, c.addr, c.dev)
		sh(l.t, "ip -n %s addr add %s/64 dev %s nodad", c.ns, c.six, c.dev)
		sh(l.t, "ip -n %s link set %s up", c.ns, c.dev)
		sh(l.t, "ip -n %s link set lo up", c.ns)
	}
}

func (l *lab) enter(ns netns.NsHandle) {
	l.t.Helper()
	if err := netns.Set(ns); err != nil {
		l.t.Fatal(err)
	}
}

// far runs f in the namespace of b0.
func (l *lab) far(f func()) {
	l.t.Helper()
	l.enter(l.there)
	defer l.enter(l.here)
	f()
}

// onDevice returns the number and name of the XDP program on a device; 0 if there is none.
func onDevice(t testing.TB, name string) (id uint32, program string) {
	t.Helper()
	d, err := findDevice(name)
	if err != nil {
		t.Fatal(err)
	}
	f, err := d.foreign()
	if err != nil {
		t.Fatal(err)
	}
	if f == nil {
		return 0, ""
	}
	return f.ID, f.Program
}

// root returns a folder for instances, and sees to it at the end that nothing is mounted there.
func instances(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	t.Cleanup(func() {
		if _, err := CleanAll(root); err != nil {
			t.Errorf("clean up: %v", err)
		}
		list, _ := os.ReadDir(root)
		for _, e := range list {
			t.Errorf("%s is left", filepath.Join(root, e.Name()))
		}
	})
	return root
}

// open opens a Host that is closed at the end of the test, if it is not before.
func open(t testing.TB, o Options) *Host {
	t.Helper()
	h, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return h
}
