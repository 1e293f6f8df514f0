// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// oldest is the oldest Linux that the programs are tested with.
const oldest = "5.15"

// Examine looks at everything that the fold in the kernel needs: the kernel, the rights of this
// process, the interface if one is named (by attaching a program that passes everything, for a moment, if
// there is none), and whether the programs load and fold known frames right. It changes nothing that
// stays.
func Examine(o Options) *Report {
	r := examine(o.EnsureDefaults())
	r.programs()
	r.conclude()
	return r
}

// examine is Examine without the self-test.
func examine(o Options) *Report {
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
	r.feature(tcx, Warning)
	r.bpffs()
	if len(o.Interfaces) == 0 {
		r.add("interface", Warning, "none was named", "quern doctor --interface IF looks at one")
	} else {
		r.Interface = o.Interfaces[0]
		r.device(o)
	}
	r.conclude()
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
		c.State, c.Fix = Warning, "install Linux "+oldest+" or newer: older ones are not tested"
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
		r.add("user namespace", Missing, "rights in a user namespace of its own don't count for programs", "run quern outside of it (docker: --userns=host)")
	}
}

func (r *Report) jit() {
	const path = "/proc/sys/net/core/bpf_jit_enable"
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrPermission):
		r.add("compiler", Warning, "only root can see whether programs are compiled", "sudo quern doctor")
	case err != nil:
		r.add("compiler", Warning, "this kernel only interprets programs, which is several times slower", "use a kernel with CONFIG_BPF_JIT")
	case strings.TrimSpace(string(text)) == "0":
		r.add("compiler", Warning, "switched off: programs are interpreted, which is several times slower", "sudo sysctl net.core.bpf_jit_enable=1")
	default:
		r.add("compiler", OK, "programs are compiled", "")
	}
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
	case errors.Is(err, ErrRights):
		c.State, c.Found, c.Fix = Warning, "could not be tried without the rights above", "sudo quern doctor"
	default:
		c.State, c.Found = Warning, "could not be tried: "+oneLine(err)
	}
	r.Checks = append(r.Checks, c)
}

func (r *Report) bpffs() {
	text, err := os.ReadFile("/proc/filesystems")
	switch {
	case err == nil && !strings.Contains(string(text), "\tbpf\n"):
		r.add("bpffs", Warning, "this kernel has none, so state is lost at a restart", "use a kernel with CONFIG_BPF_SYSCALL and bpffs")
	case !hasRight("CAP_SYS_ADMIN"):
		r.add("bpffs", Warning, "can't be mounted without CAP_SYS_ADMIN, so state is lost at a restart", grantCommand())
	default:
		r.add("bpffs", OK, "can be mounted", "")
	}
}

func (r *Report) device(o Options) {
	d, err := findDevice(r.Interface)
	if err != nil {
		r.add("interface", Missing, oneLine(err), "ip link")
		return
	}
	kind := d.kind()
	if d.link.Attrs().Flags&net.FlagUp == 0 {
		r.add("interface", Warning, fmt.Sprintf("%s (%s) is down", d.Name, kind), "sudo ip link set "+d.Name+" up")
	} else {
		r.add("interface", OK, fmt.Sprintf("%s (%s) is up", d.Name, kind), "")
	}
	r.mtu(d, o.XDP)
	if f, err := d.foreign(); err != nil {
		r.add("other programs", Warning, oneLine(err), "")
	} else if f != nil && f.Program == dispatchProgram {
		r.add("other programs", Warning, fmt.Sprintf("a Quern process runs on %s (XDP program %d, %s mode), or one has left its programs", d.Name, f.ID, f.Mode), "sudo quern doctor --clean")
		return
	} else if f != nil {
		state := Missing
		if o.Replace {
			state = Warning
		}
		r.add("other programs", state, oneLine(f), "run quern with --"+ReplaceSetting)
		return // what is there keeps us from trying
	} else {
		r.add("other programs", OK, "no XDP program is on "+d.Name, "")
	}
	for _, mode := range []XDPMode{Native, Generic} {
		r.attach(d, mode, o.XDP)
	}
	r.farEnd(d)
}

func (r *Report) mtu(d *device, mode XDPMode) {
	// Frames are of one size; smaller interfaces get them over TCP.
	const least = 40 + 8 + 1440
	found := fmt.Sprintf("%d bytes", d.mtu)
	switch err := d.checkMTU(mode); {
	case err != nil:
		r.add("MTU", Missing, oneLine(err), fmt.Sprintf("sudo ip link set %s mtu %d", d.Name, vethMTU))
	case d.mtu < least:
		r.add("MTU", Warning, found+": frames don't fit and go over TCP", fmt.Sprintf("sudo ip link set %s mtu 1500", d.Name))
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
		r.add(name, lacks, fmt.Sprintf("the driver of %s (%s) has none", d.Name, d.kind()), "run quern with --"+XDPModeSetting+" generic")
	case errors.Is(err, ErrRights):
		r.add(name, Warning, "could not be tried without the rights above", "sudo quern doctor --interface "+d.Name)
	case errors.Is(err, ErrMTU):
		r.add(name, lacks, "the MTU is too large for it", "sudo ip link set "+d.Name+" mtu 1500 (at its other end, too)")
	default:
		r.add(name, lacks, oneLine(err), "")
	}
}

// farEnd says whether answers by XDP_TX arrive, where that can be seen from here.
func (r *Report) farEnd(d *device) {
	const name = "far end"
	if d.driver != "veth" {
		r.add(name, OK, "answers leave by the driver", "")
		return
	}
	p := d.peer()
	if p == nil {
		r.add(name, Warning, "out of sight: XDP_TX arrives only if there is an XDP program, else answers leave by tc; workers find out", "")
		return
	}
	if x := p.Attrs().Xdp; x == nil || !x.Attached {
		r.add(name, Warning, p.Attrs().Name+" has no XDP program, so XDP_TX is lost and answers leave by tc", "attach a program that passes everything to "+p.Attrs().Name)
		return
	}
	r.add(name, OK, p.Attrs().Name+" has an XDP program, so XDP_TX arrives", "")
}

func (r *Report) programs() {
	found, err := SelfTest()
	switch {
	case err == nil:
		r.add("programs", OK, found, "")
	case errors.Is(err, ErrRights):
		r.add("programs", Warning, "could not be loaded without the rights above", "sudo quern doctor")
	default:
		r.add("programs", Missing, oneLine(err), "report this with the output of quern doctor --json")
	}
}
