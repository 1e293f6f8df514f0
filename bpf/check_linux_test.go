// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// childExamine prints a report.
func childExamine() error {
	return json.NewEncoder(os.Stdout).Encode(Examine(shuffle.Auto, Options{Interfaces: []string{"a0"}}, Root))
}

func (r *Report) find(t *testing.T, name string) Check {
	t.Helper()
	for _, c := range r.Checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("nothing was found out about %q", name)
	return Check{}
}

func TestSelfTest(t *testing.T) {
	needRoot(t)
	if said, err := SelfTest(); err != nil || !strings.Contains(said, "6 known frames") || !strings.Contains(said, "2 known chunks") || !strings.Contains(said, "a known block") {
		t.Fatalf("%q, %v", said, err)
	}
	// It must not be content with anything else.
	for what, spoil := range map[string]func(h *Host) error{
		"answers that user space gives": func(h *Host) error { return h.SetAnswer(wire.AnswerUser) },
		"no programs":                   func(h *Host) error { return h.loader.shared["chain"].Delete(uint32(chainChunk)) },
		"another's token":               func(h *Host) error { return h.SetToken(0xfedcba9876543210, 3) },
		"no room":                       func(h *Host) error { _, err := h.NewContent(999); return err },
	} {
		h := openCasting(t, Options{})
		if err := spoil(h); err != nil {
			t.Fatal(err)
		}
		if err := h.selfBroadcast(); err == nil {
			t.Errorf("it is content with %s", what)
		}
	}
	for what, spoil := range map[string]func(h *Host) error{
		"results that user space sends": func(h *Host) error { return h.SetAnswer(wire.AnswerUser) },
		"no adding up":                  func(h *Host) error { return h.loader.shared["chain"].Delete(uint32(chainPart)) },
		"no completing":                 func(h *Host) error { return h.loader.shared["chain"].Delete(uint32(chainPart + 1)) },
		"no storing":                    func(h *Host) error { return h.loader.shared["chain"].Delete(uint32(chainPart + 2)) },
		"another's token":               func(h *Host) error { return h.SetToken(0x0fedcba987654321, 2) },
	} {
		h := openReducing(t, Options{})
		if err := spoil(h); err != nil {
			t.Fatal(err)
		}
		if err := h.selfReduce(); err == nil {
			t.Errorf("it is content with %s", what)
		}
	}
	h := open(t, Options{Limits: shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1, Jobs: 1}})
	if _, err := h.selfTest(); err != nil {
		t.Fatal(err)
	}
	var table *shuffle.Table
	for _, table = range h.tables {
	}
	size := wire.SlotSize(0, 2)
	for slot := table.Memory[wire.TableHead:]; len(slot) >= size; slot = slot[size:] {
		if slot[0]|slot[1]|slot[2]|slot[3] == 0 {
			continue
		}
		for _, at := range []int{4, 8, 15, 16, size - 8} { // mark, sum, maximum, key
			slot[at] ^= 1
			if checkSums(table) == nil {
				t.Errorf("a slot whose byte %d is wrong passes", at)
			}
			slot[at] ^= 1
		}
	}
	clear(table.Memory)
	if checkSums(table) == nil {
		t.Error("an empty table passes")
	}
	if _, err := h.selfTest(); err == nil {
		t.Error("frames that came before pass")
	}
}

func TestExamine(t *testing.T) {
	newLab(t)
	sh(t, "ip link add c0 type veth peer name c1")
	sh(t, "ip link set c0 up")
	sh(t, "ip link set c1 up")
	sh(t, "ip link add d0 type bridge")

	r := Examine(shuffle.Auto, Options{Interfaces: []string{"c0"}}, Root)
	if !r.KernelFold || r.Folds != "kernel" || !strings.Contains(r.Why, "c0 (native XDP)") {
		t.Errorf("it says %q: %+v", r.Why, r)
	}
	for _, name := range []string{
		"kernel", "CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON", "CAP_SYS_ADMIN", "locked memory", "interface", "MTU",
		"other programs", "native XDP", "generic XDP", "programs", mappedArrays.name, boundedLoops.name, fetchOr.name, xdpLinks.name,
	} {
		if c := r.find(t, name); c.State != OK || c.Found == "" || c.Fix != "" {
			t.Errorf("%+v", c)
		}
	}
	if c := r.find(t, "far end"); c.State != Warning || !strings.Contains(c.Found, "c1") {
		t.Errorf("%+v", c)
	}
	if id, _ := onDevice(t, "c0"); id != 0 {
		t.Error("a program was left on c0")
	}
	if c := examine(Options{Interfaces: []string{"a0"}}, Root).find(t, "far end"); c.State != Warning || !strings.Contains(c.Found, "out of sight") {
		t.Errorf("%+v", c)
	}

	p, err := AttachPass("c1")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if c := examine(Options{Interfaces: []string{"c0"}}, Root).find(t, "far end"); c.State != OK {
		t.Errorf("%+v", c)
	}
	// Somebody else's program.
	r = examine(Options{Interfaces: []string{"c1"}}, Root)
	c := r.find(t, "other programs")
	if r.KernelFold || r.Folds != "user" || c.State != Missing || !strings.Contains(c.Found, passProgram) || !strings.Contains(c.Fix, ReplaceSetting) {
		t.Errorf("%q, %+v", r.Why, c)
	}
	if r = examine(Options{Interfaces: []string{"c1"}, Replace: true}, Root); !r.KernelFold {
		t.Errorf("it may be displaced, and %q", r.Why)
	}
	// A driver without native XDP.
	r = examine(Options{Interfaces: []string{"d0"}}, Root)
	if c := r.find(t, "native XDP"); r.KernelFold || c.State != Missing || !strings.Contains(c.Fix, "generic") {
		t.Errorf("%q, %+v", r.Why, c)
	}
	if r = examine(Options{Interfaces: []string{"d0"}, XDP: Generic}, Root); !r.KernelFold {
		t.Errorf("generic: %q", r.Why)
	}
	sh(t, "ip link set c1 mtu 1400")
	sh(t, "ip link set c0 mtu 1400")
	if c := examine(Options{Interfaces: []string{"c0"}}, Root).find(t, "MTU"); c.State != Missing || c.Fix == "" {
		t.Errorf("%+v", c)
	}
	// The command that mends it is about the end whose MTU it is.
	sh(t, "ip link set c1 mtu 9000")
	r = examine(Options{Interfaces: []string{"c0"}}, Root)
	for _, name := range []string{"MTU", "native XDP"} {
		if c := r.find(t, name); c.State != Missing || c.Fix != "sudo ip link set dev c1 mtu 3506" {
			t.Errorf("%+v", c)
		}
	}
	sh(t, "ip link set c0 mtu 1500")
	sh(t, "%s", strings.TrimPrefix(r.find(t, "MTU").Fix, "sudo "))
	if r = examine(Options{Interfaces: []string{"c0"}}, Root); !r.KernelFold {
		t.Errorf("after what mends it: %q", r.Why)
	}
	if r = examine(Options{Interfaces: []string{"nope"}}, Root); r.KernelFold || r.find(t, "interface").State != Missing {
		t.Errorf("%q", r.Why)
	}
}

func TestExamineUnprivileged(t *testing.T) {
	newLab(t)
	cmd := child(t, "examine")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if r.KernelFold || r.Folds != "user" || !strings.Contains(r.Why, "CAP_BPF") || r.Interface != "a0" || r.XDPMode != "native" {
		t.Errorf("%+v", r)
	}
	for _, name := range []string{"CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"} {
		if c := r.find(t, name); c.State != Missing || !strings.HasPrefix(c.Fix, "sudo setcap cap_bpf,") {
			t.Errorf("%+v", c)
		}
	}
	// What can't be tried is not called missing.
	for _, name := range []string{boundedLoops.name, fetchOr.name, xdpLinks.name, ringBuffers.name, sizedArrays.name, tcx.name, "native XDP", "programs"} {
		if c := r.find(t, name); c.State != Warning {
			t.Errorf("%+v", c)
		}
	}
}

// Where programs of ours are on the interface already, doctor says what Choose does, and what mends it.
func TestExamineOurs(t *testing.T) {
	newLab(t)
	root, elsewhere := instances(t), t.TempDir()
	dir := filepath.Join(root, "one")
	look := func(what, root string, o Options, fold bool, says, fix string) {
		t.Helper()
		o.Interfaces, o.Limits = []string{"a0"}, small()
		o = o.EnsureDefaults()
		r := examine(o, root)
		c := r.find(t, "other programs")
		if r.KernelFold != fold || (r.Folds == "kernel") != fold || !strings.Contains(c.Found, says) || !strings.Contains(c.Fix, fix) || (fix == "") != (c.Fix == "") {
			t.Errorf("%s: folds %q: %q, %+v", what, r.Folds, r.Why, c)
		}
		if !fold && (!strings.Contains(r.Why, says) || c.State != Missing) {
			t.Errorf("%s: it says %q, %+v", what, r.Why, c)
		}
		k, why, err := Choose(shuffle.Auto, o)
		if err != nil || (k != nil) != fold {
			t.Errorf("%s: doctor says it is %v that the kernel folds, and Choose says %q, %v", what, fold, why, err)
		}
		if k != nil {
			if err := k.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	kill := startHold(t, dir)
	look("it lives", root, Options{}, false, "another Quern process, which uses it: "+dir, "stop that process")
	look("it lives, folder elsewhere", elsewhere, Options{}, false, "in another folder than "+elsewhere, "--clean --run-dir FOLDER")
	kill()
	clean := "sudo " + executable() + " doctor --clean --run-dir " + root
	look("it is gone", root, Options{}, false, "left by a Quern process that is gone: "+dir, clean)
	look("it is this instance's", root, Options{Dir: dir, Port: holdPort}, true, "goes on", "")

	kill = startHold(t, dir)
	kill()
	if _, err := CleanAll(root); err != nil {
		t.Fatal(err)
	}
	look("what mends it was done", root, Options{}, true, "no XDP program", "")

	kill = startHold(t, dir)
	look("displaced while it lives", root, Options{Replace: true}, true, "that process would fold nothing more", "stop that process")
	kill()
	if _, err := CleanAll(root); err != nil {
		t.Fatal(err)
	}
	h := open(t, Options{Interfaces: []string{"a0"}, Limits: small()}) // pinned nowhere
	look("it has no folder", root, Options{}, false, "of another Quern process", "stop that process")
	if _, name := onDevice(t, "a0"); name != dispatchProgram {
		t.Errorf("on a0 is %q, and %s is there", name, h)
	}
}

func TestExamineCarrier(t *testing.T) {
	newLab(t)
	sh(t, "ip link add c0 type veth peer name c1")
	look := func(state State, says, fix string) {
		t.Helper()
		// The kernel works the operational state out a while after the change.
		var c Check
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			c = examine(Options{Interfaces: []string{"c0"}}, Root).find(t, "interface")
			if c.State == state && strings.Contains(c.Found, says) && c.Fix == fix {
				return
			}
		}
		t.Errorf("%+v, want %v, %q, %q", c, state, says, fix)
	}
	look(Warning, "c0 (veth) is down", "sudo ip link set c0 up")
	sh(t, "ip link set c0 up")
	look(Warning, "whose other end is c1, has no carrier", "sudo ip link set c1 up")
	sh(t, "ip link set c1 up")
	look(OK, "c0 (veth) is up", "")
	sh(t, "ip link set lo up") // of which the kernel knows no state
	if c := examine(Options{Interfaces: []string{"lo"}}, Root).find(t, "interface"); c.State != OK {
		t.Errorf("%+v", c)
	}
}

// In a user namespace no right helps, so none is asked for where XDP is tried.
func TestExamineUserNamespace(t *testing.T) {
	newLab(t)
	cmd := child(t, "examine")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("user namespaces can't be made here: %v", err)
	}
	var r Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if r.KernelFold || r.Folds != "user" || !strings.Contains(r.Why, "user namespace") {
		t.Errorf("%q", r.Why)
	}
	for _, name := range []string{"native XDP", "generic XDP", "compiler", xdpLinks.name, "programs"} {
		if c := r.find(t, name); c.State == OK || !strings.Contains(c.Found, "user namespace") || c.Fix != outside {
			t.Errorf("%+v", c)
		}
	}
}

// What doctor says for a mode is what Choose does.
func TestConclude(t *testing.T) {
	fine, bad := []Check{{Name: "x", State: OK}, {Name: "y", State: Warning}}, []Check{{Name: "x", State: Missing, Found: "none"}}
	for _, c := range []struct {
		mode   shuffle.Mode
		device string
		checks []Check
		can    bool
		folds  string
		why    string
	}{
		{shuffle.Auto, "a0", fine, true, "kernel", "the kernel folds on a0 (native XDP): "},
		{shuffle.KernelOnly, "a0", fine, true, "kernel", "the kernel folds on a0 (native XDP): "},
		{shuffle.UserOnly, "a0", fine, true, "user", "user space folds, as asked"},
		{shuffle.Auto, "", fine, true, "user", "user space folds: no network interface was named"},
		{shuffle.KernelOnly, "", fine, true, "", "no network interface was named"},
		{shuffle.Auto, "a0", bad, false, "user", "user space folds: x: none"},
		{shuffle.KernelOnly, "a0", bad, false, "", "nobody folds, since the kernel shall and can't: x: none"},
		{shuffle.UserOnly, "a0", bad, false, "user", "user space folds, as asked"},
	} {
		r := Report{Interface: c.device, XDPMode: "native", Checks: c.checks}
		r.conclude(c.mode)
		if r.KernelFold != c.can || r.Folds != c.folds || !strings.Contains(r.Why, c.why) || r.Mode != c.mode.String() {
			t.Errorf("%s on %q: %+v", c.mode, c.device, r)
		}
	}
}

// dropRights takes capabilities from the calling thread, which ends with the test.
func dropRights(t *testing.T, names ...string) {
	t.Helper()
	needRoot(t)
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		n := capabilities[name]
		data[n/32].Effective &^= 1 << (n % 32)
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
}

func TestRights(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		dropRights(t, Rights...)
		_, err := Open(Options{Limits: small()})
		if !errors.Is(err, ErrRights) {
			t.Fatalf("error is %v", err)
		}
		for _, s := range []string{"CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON", "root", "setcap"} {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%q does not name %s", err, s)
			}
		}
		k, why, err := Choose(shuffle.Auto, Options{Interfaces: []string{"lo"}})
		if k != nil || err != nil || !strings.HasPrefix(why, "user space folds: ") || !strings.Contains(why, "CAP_BPF") || strings.Contains(why, "\n") {
			t.Errorf("auto: %v, %q, %v", k, why, err)
		}
		if k, _, err := Choose(shuffle.KernelOnly, Options{Interfaces: []string{"lo"}}); k != nil || !errors.Is(err, ErrRights) {
			t.Errorf("kernel: %v, %v", k, err)
		}
	})
	// Every right that is called needed is.
	for _, name := range loadRights {
		t.Run("without "+name, func(t *testing.T) {
			dropRights(t, name, "CAP_SYS_ADMIN")
			_, err := Open(Options{Limits: small()})
			if !errors.Is(err, ErrRights) || !strings.Contains(err.Error(), name) {
				t.Errorf("error is %v", err)
			}
			l := &loader{cpus: 1, limits: small(), shared: map[string]*ebpf.Map{}}
			defer l.close()
			programs := map[string]*ebpf.Program{}
			if err := l.base(programs); err == nil && name != "CAP_NET_ADMIN" {
				t.Errorf("the programs load without %s", name)
			}
			for _, p := range programs {
				_ = p.Close()
			}
		})
	}
	// And no other is.
	t.Run("no more than needed", func(t *testing.T) {
		newLab(t)
		var others []string
		for name := range capabilities {
			if name != "CAP_BPF" && name != "CAP_NET_ADMIN" && name != "CAP_PERFMON" {
				others = append(others, name)
			}
		}
		dir := filepath.Join(t.TempDir(), "one")
		dropRights(t, others...)
		o := Options{Interfaces: []string{"a0"}, Limits: small(), Dir: dir}
		if _, err := Open(o); !errors.Is(err, ErrRights) || !strings.Contains(err.Error(), "mount") {
			t.Errorf("a directory without the right to mount: %v", err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the directory was left: %v", err)
		}
		k, why, err := Choose(shuffle.KernelOnly, o)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(why, "CAP_SYS_ADMIN") {
			t.Errorf("it says %q", why)
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestChoose(t *testing.T) {
	newLab(t)
	sh(t, "ip link add d0 type bridge")
	sh(t, "ip link add e0 type veth peer name e1")
	sh(t, "ip link set e0 mtu 1480")
	on := func(name string) Options { return Options{Interfaces: []string{name}, Limits: small()} }
	for _, c := range []struct {
		mode   shuffle.Mode
		o      Options
		kernel bool
		why    string
		err    string
	}{
		{shuffle.Auto, on("a0"), true, "the kernel folds on a0 (native XDP): it can", ""},
		{shuffle.KernelOnly, on("a0"), true, "the kernel folds on a0 (native XDP): as asked", ""},
		{shuffle.UserOnly, on("a0"), false, "user space folds, as asked", ""},
		{shuffle.Auto, on("d0"), false, "--xdp-mode generic", ""},
		{shuffle.KernelOnly, on("d0"), false, "", "--xdp-mode generic"},
		{shuffle.Auto, on("e0"), false, "the MTU of e0 (native XDP) is 1480, and frames take 1488", ""},
		{shuffle.KernelOnly, on("e0"), false, "", "the MTU of e0"},
		{shuffle.Auto, Options{}, false, "no network interface was named", ""},
		{shuffle.KernelOnly, Options{}, false, "", "--interface names one"},
		{shuffle.Auto, Options{Port: -1}, false, "", "port"},
	} {
		k, why, err := Choose(c.mode, c.o)
		if (k != nil) != c.kernel || !strings.Contains(why, c.why) || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s on %s: %v, %q, %v", c.mode, c.o, k, why, err)
		}
		if k != nil {
			if err := k.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// What cannot be found out is not remembered as a fact.
func TestFeatures(t *testing.T) {
	needRoot(t)
	answers := []error{errors.New("no descriptors left"), ebpf.ErrNotSupported, nil}
	f := &feature{name: "x", since: "9.9", try: func() error {
		err := answers[0]
		answers = answers[1:]
		return err
	}}
	if err := f.Have(); err == nil || errors.Is(err, ebpf.ErrNotSupported) {
		t.Errorf("first: %v", err)
	}
	for range 2 {
		if err := f.Have(); !errors.Is(err, ebpf.ErrNotSupported) || !strings.Contains(err.Error(), "9.9") {
			t.Errorf("then: %v", err)
		}
	}
	if len(answers) != 1 {
		t.Error("a fact was asked for again")
	}
	release := kernelRelease()
	for _, f := range []*feature{mappedArrays, boundedLoops, xdpLinks, fetchOr, ringBuffers, sizedArrays, tcx} {
		old, known := older(release, f.since)
		if !known {
			t.Fatalf("release %q can't be read", release)
		}
		if err := f.Have(); (err == nil) == old {
			t.Errorf("Linux %s, and %s: %v", release, f.name, err)
		}
	}
	for _, c := range []struct {
		release, version string
		is, known        bool
	}{
		{"5.10.0-28-amd64", "5.15", true, true},
		{"5.15.0", "5.15", false, true},
		{"6.1.0", "5.15", false, true},
		{"4.19-rc1", "5.11", true, true},
		{"banana", "5.11", false, false},
	} {
		if is, known := older(c.release, c.version); is != c.is || known != c.known {
			t.Errorf("%s before %s: %v, %v", c.release, c.version, is, known)
		}
	}
}
