// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
)

// oldest is the oldest Linux that the programs are made for.
const oldest = "5.15"

// Examine looks at everything that the fold in the kernel needs: the kernel, the rights of this
// process, the interface if one is named (by attaching a program that passes everything, for a moment, if
// there is none), and whether the programs load and fold known frames right; and what the mode would
// choose. Whose programs are on the interface is looked up below root ([Root], usually). It changes
// nothing that stays.
func Examine(mode shuffle.Mode, o Options, root string) *Report {
	r := examine(o.EnsureDefaults(), root)
	r.programs()
	r.conclude(mode)
	return r
}

// examine is Examine without the self-test.
func examine(o Options, root string) *Report {
	r := &Report{XDPMode: o.XDP.String()}
	release := kernelRelease()
	r.kernel(release)
	r.rights()
	r.jit()
	r.btf()
	r.memlock(release)
	for _, f := range []*feature{mappedArrays, boundedLoops, fetchOr, xdpLinks} {
		r.feature(f, Missing)
	}
	for _, f := range []*feature{ringBuffers, sizedArrays, tcx} {
		r.feature(f, Warning)
	}
	r.bpffs()
	r.tables(o)
	if len(o.Interfaces) == 0 {
		r.add("interface", Warning, "none was named", again("--interface IF looks at one"))
	} else {
		r.Interface = o.Interfaces[0]
		r.device(o, root)
	}
	r.conclude(shuffle.Auto)
	return r
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// older says whether a release is before a version; known is false for releases that can't be read.
func older(release, version string) (is, known bool) {
	var a, b [2]int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a[0], &a[1]); n != 2 {
		return false, false
	}
	_, _ = fmt.Sscanf(version, "%d.%d", &b[0], &b[1])
	return a[0] < b[0] || a[0] == b[0] && a[1] < b[1], true
}

func (r *Report) kernel(release string) {
	c := Check{Name: "kernel", State: OK, Found: "Linux " + release, Since: oldest}
	if old, known := older(release, oldest); old || !known {
		c.State, c.Fix = Warning, "install Linux "+oldest+" or newer, which the programs are made for"
	}
	r.Checks = append(r.Checks, c)
}

func (r *Report) rights() {
	for _, right := range []struct {
		name, use string
		lacks     State
	}{
		{"CAP_BPF", "loading programs", Missing},
		{"CAP_NET_ADMIN", "attaching them", Missing},
		{"CAP_PERFMON", "loading programs that compute with addresses", Missing},
		{"CAP_SYS_ADMIN", "taking up state after a restart, displacing programs, removing leftovers", Warning},
	} {
		if hasRight(right.name) {
			r.add(right.name, OK, "held", "")
		} else {
			r.add(right.name, right.lacks, "not held: "+right.use, grantCommand())
		}
	}
	if ownNamespace() {
		r.add("user namespace", Missing, "rights in a user namespace of its own don't count for programs", outside)
	}
}

// again is the command that examines with root's rights. sudo has a search path of its own, so
// the program is named in full.
func again(flags string) string {
	return strings.TrimSpace("sudo " + executable() + " doctor " + flags)
}

// outside mends what a user namespace keeps from us.
const outside = "run quern outside of the user namespace (docker: --userns=host)"

// untried says why something could not be tried, and what mends that. Root's rights are of no use in
// a user namespace.
func untried(flags string) (found, fix string) {
	if ownNamespace() {
		return "could not be tried in a user namespace of its own, where rights don't count for programs", outside
	}
	return "could not be tried without the rights above", again(flags)
}

// untriedFor says whether an error comes of want of rights, and is none that tells about the kernel.
func untriedFor(err error) bool {
	return errors.Is(err, ErrRights) && len(missingRights()) > 0 || errors.Is(err, unix.EPERM) && ownNamespace()
}

// jit loads a program and asks what became of it: the setting in /proc can be seen in the
// first network namespace only.
func (r *Report) jit() {
	const name = "compiler"
	if len(missingRights()) > 0 {
		found, fix := untried("")
		r.add(name, Warning, found, fix)
		return
	}
	p, err := smallProgram(ebpf.XDP)
	if err != nil && untriedFor(err) {
		found, fix := untried("")
		r.add(name, Warning, found, fix)
		return
	}
	if err != nil {
		r.add(name, Warning, "could not be tried: "+why(err), "")
		return
	}
	defer p.Close()
	info, err := p.Info()
	if err == nil {
		_, err = info.JitedSize()
	}
	switch {
	case err == nil:
		r.add(name, OK, "programs are compiled", "")
	case errors.Is(err, ebpf.ErrNotSupported):
		r.add(name, Warning, "programs are interpreted, which is slower", "sudo sysctl net.core.bpf_jit_enable=1 (it needs a kernel with CONFIG_BPF_JIT)")
	default:
		r.add(name, Warning, "could not be found out: "+oneLine(err), "")
	}
}

// why is an error for people: what the kernel refuses needs no names of system calls.
func why(err error) string {
	if errors.Is(err, unix.EPERM) {
		return "the kernel refuses it to this process, though the rights above are held"
	}
	return oneLine(err)
}

// tables says how much memory tables may take.
func (r *Report) tables(o Options) {
	all := int64(machineMemory())
	found := fmt.Sprintf("up to %s of the machine's %s", mib(o.TableMemory), mib(all))
	if o.TableMemory > all {
		r.add("table memory", Warning, found, fmt.Sprintf("run quern with a smaller --%s", TableMemorySetting))
		return
	}
	r.add("table memory", OK, found, "")
}

func (r *Report) btf() {
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		r.add("BTF", Warning, "the kernel does not describe its types; only messages of the verifier are poorer for it", "use a kernel with CONFIG_DEBUG_INFO_BTF")
		return
	}
	r.add("BTF", OK, "/sys/kernel/btf/vmlinux", "")
}

func (r *Report) memlock(release string) {
	const since = "5.11"
	c := Check{Name: "locked memory", State: OK, Found: "maps are not counted against the limit", Since: since}
	if old, _ := older(release, since); old {
		var l unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil || l.Cur < 1<<30 {
			c.State, c.Found = Warning, fmt.Sprintf("maps are counted against a limit of %s", mib(int64(min(l.Cur, 1<<62))))
			c.Fix = "ulimit -l unlimited"
		} else {
			c.Found = "the limit is high enough"
		}
	}
	r.Checks = append(r.Checks, c)
}

func (r *Report) feature(f *feature, lacks State) {
	c := Check{Name: f.name, Since: f.since}
	err := f.Have()
	switch {
	case err == nil:
		c.State, c.Found = OK, "there"
	case errors.Is(err, ebpf.ErrNotSupported):
		c.State, c.Found, c.Fix = lacks, "not there: "+f.adds, "install Linux "+f.since+" or newer"
	case untriedFor(err):
		c.State = Warning
		c.Found, c.Fix = untried("")
	default:
		c.State, c.Found = Warning, "could not be tried: "+why(err)
	}
	r.Checks = append(r.Checks, c)
}

func (r *Report) bpffs() {
	text, err := os.ReadFile("/proc/filesystems")
	switch {
	case err == nil && !strings.Contains(string(text), "\tbpf\n"):
		r.add("bpffs", Warning, "this kernel has none, so state is lost at a restart", "use a kernel with CONFIG_BPF_SYSCALL and bpffs")
	case ownNamespace():
		r.add("bpffs", Warning, "can't be mounted from here, so state is lost at a restart", outside)
	case !hasRight("CAP_SYS_ADMIN"):
		r.add("bpffs", Warning, "can't be mounted without CAP_SYS_ADMIN, so state is lost at a restart", grantCommand())
	default:
		r.add("bpffs", OK, "can be mounted", "")
	}
}

func (r *Report) device(o Options, root string) {
	d, err := findDevice(r.Interface)
	if err != nil {
		r.add("interface", Missing, strings.TrimSuffix(oneLine(err), listHint), strings.TrimPrefix(listHint, "; "))
		return
	}
	r.up(d)
	r.mtu(d, o.XDP)
	if f, err := d.foreign(); err != nil {
		r.add("other programs", Warning, oneLine(err), "")
	} else if f != nil && f.Program == dispatchProgram {
		r.quern(f, o, root)
		return // what is there keeps us from trying
	} else if f != nil {
		if o.Replace {
			r.add("other programs", Warning, fmt.Sprintf("%s; --%s would displace it", f.found(), ReplaceSetting), "")
		} else {
			r.add("other programs", Missing, f.found(), "run quern with --"+ReplaceSetting+", which displaces it")
		}
		return // what is there keeps us from trying
	} else {
		r.add("other programs", OK, "no XDP program is on "+d.Name, "")
	}
	for _, mode := range []XDPMode{Native, Generic} {
		r.attach(d, mode, o.XDP)
	}
	if o.XDP == Native {
		r.farEnd(d)
	}
}

// up says whether packets come and go by a device.
func (r *Report) up(d *device) {
	a, name := d.link.Attrs(), fmt.Sprintf("%s (%s)", d.Name, d.kind())
	if a.Flags&net.FlagUp == 0 {
		r.add("interface", Warning, name+" is down", "sudo ip link set "+d.Name+" up")
		return
	}
	switch a.OperState { // drivers that do not know it say nothing
	case netlink.OperDown, netlink.OperLowerLayerDown, netlink.OperNotPresent, netlink.OperDormant:
	default:
		r.add("interface", OK, name+" is up", "")
		return
	}
	fix := "connect " + d.Name + " to what it should reach"
	if p := d.peer(); p != nil {
		fix = "sudo ip link set " + p.Attrs().Name + " up"
		name += ", whose other end is " + p.Attrs().Name + ","
	} else if d.driver == "veth" {
		fix = "set its other end up, in the network namespace that has it"
	}
	r.add("interface", Warning, name+" has no carrier: nothing comes in until there is one", fix)
}

// quern says whose programs of ours are on the interface, and what Open does about them.
func (r *Report) quern(f *ForeignError, o Options, root string) {
	dir, lock := instanceOn(root, f.ID)
	live := errors.Is(lock, ErrInUse)
	state, found, fix := Missing, f.found(), ""
	switch {
	case dir == "":
		// What is pinned nowhere is gone with its process.
		found += ", of another Quern process, or of one whose state is in another folder than " + root
		fix = "stop that process, or name another interface; if there is none: " + again("--clean --run-dir FOLDER")
	case live:
		found += ", of another Quern process, which uses it: " + dir
		fix = "stop that process, or name another interface"
	case dir == o.Dir:
		r.add("other programs", OK, found+", of an earlier process of this instance, which goes on from there", "")
		return
	case lock != nil:
		found += ", of the Quern instance in " + dir + ": " + oneLine(lock)
		fix = again("")
	default:
		found += ", left by a Quern process that is gone: " + dir
		fix = again("--clean")
		if root != Root {
			fix = again("--clean --run-dir " + root)
		}
	}
	if o.Replace {
		state = Warning
		found += fmt.Sprintf("; --%s would displace it", ReplaceSetting)
		if dir == "" || live {
			found += ", and that process would fold nothing more"
		}
	}
	r.add("other programs", state, found, fix)
}

func (r *Report) mtu(d *device, mode XDPMode) {
	found := fmt.Sprintf("%d bytes", d.mtu)
	var large *mtuError
	switch err := d.checkMTU(mode); {
	case errors.As(err, &large):
		r.add("MTU", Missing, large.found(), "sudo "+large.fix())
	case d.mtu < leastMTU:
		r.add("MTU", Missing, fmt.Sprintf("%s, and frames take %d: none would come this way", found, leastMTU), fmt.Sprintf("sudo ip link set dev %s mtu 1500, if the whole path to the other hosts carries packets of that size", d.Name))
	default:
		r.add("MTU", OK, found, "")
	}
}

// attach tries a mode, for a moment. The one that is not wanted can't be missing.
func (r *Report) attach(d *device, mode, wanted XDPMode) {
	name, lacks := mode.String()+" XDP", Missing
	if mode != wanted {
		lacks = Warning
	}
	p, err := loadPass()
	if err == nil {
		l, aerr := d.attach(p, mode, false)
		if aerr == nil {
			aerr = l.Close()
		}
		err = errors.Join(aerr, p.Close())
	}
	switch {
	case err == nil:
		r.add(name, OK, "works on "+d.Name, "")
	case errors.Is(err, ErrUnsupported) && mode == Native:
		fix := ""
		if wanted == Native {
			fix = "run quern with --" + XDPModeSetting + " generic"
		}
		r.add(name, lacks, fmt.Sprintf("the driver of %s (%s) has none", d.Name, d.kind()), fix)
	case errors.Is(err, ErrRights), untriedFor(err):
		found, fix := untried("--interface " + d.Name)
		r.add(name, Warning, found, fix)
	case errors.Is(err, ErrMTU):
		var large *mtuError
		fix := "sudo ip link set dev " + d.Name + " mtu 1500, and at its other end, too"
		if errors.As(err, &large) {
			fix = "sudo " + large.fix()
		}
		r.add(name, lacks, "the MTU is too large for it", fix)
	default:
		r.add(name, lacks, oneLine(err), "")
	}
}

// farEnd says whether answers by XDP_TX arrive, where that can be seen from here.
func (r *Report) farEnd(d *device) {
	const name = "far end"
	if d.driver != "veth" {
		r.add(name, OK, "no veth, so answers leave by the driver", "")
		return
	}
	p := d.peer()
	if p == nil {
		r.add(name, Warning, "out of sight: answers leave by XDP_TX if it has an XDP program, else by tc", "")
		return
	}
	if x := p.Attrs().Xdp; x == nil || !x.Attached {
		r.add(name, Warning, p.Attrs().Name+" has no XDP program, so XDP_TX would be lost; answers leave by tc instead", "")
		return
	}
	r.add(name, OK, p.Attrs().Name+" has an XDP program, so XDP_TX arrives", "")
}

func (r *Report) programs() {
	found, err := SelfTest()
	switch {
	case err == nil:
		r.add("programs", OK, found, "")
	case errors.Is(err, ErrRights) && len(missingRights()) > 0:
		found, fix := untried("")
		r.add("programs", Warning, found, fix)
	case errors.Is(err, unix.EPERM) && ownNamespace():
		r.add("programs", Missing, "could not be loaded in a user namespace of its own, where rights don't count for programs", outside)
	case errors.Is(err, unix.EPERM):
		r.add("programs", Missing, "could not be loaded: "+why(err), "run quern where bpf() is not barred: outside of the user namespace, seccomp filter or security module that does it")
	default:
		r.add("programs", Missing, oneLine(err), "report this with the output of quern doctor --json")
	}
}
