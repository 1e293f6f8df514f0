// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/internal/vmtest"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: this is the first process of an emulated machine; see package vmtest")
		os.Exit(2)
	}
	// Whatever happens, the machine must not stand still.
	defer off()
	defer func() {
		if p := recover(); p != nil {
			fmt.Println("init: panic:", p)
		}
	}()
	fail := func(err error) {
		if err != nil {
			fmt.Println("init:", err)
		}
	}
	for _, m := range []struct{ kind, at, options string }{
		{"devtmpfs", "/dev", ""},
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"tmpfs", "/tmp", "mode=1777"},
		{"tmpfs", "/run", "mode=755"},
		{"bpf", "/sys/fs/bpf", ""},
		{"tracefs", "/sys/kernel/tracing", ""},
		{"cgroup2", "/sys/fs/cgroup", ""},
	} {
		fail(mount(m.kind, m.at, m.options))
	}
	out, err := os.OpenFile(vmtest.Console, os.O_WRONLY, 0)
	if err != nil {
		fail(err)
		return
	}
	fail(raw(out))
	note := func(format string, args ...any) { vmtest.Note(out, format, args...) }
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		note("kernel %s", unix.ByteSliceToString(u.Release[:]))
	}
	for name, value := range map[string]string{
		"/proc/sys/net/core/bpf_jit_enable":      "1",
		"/proc/sys/kernel/printk":                "4",
		"/proc/sys/net/ipv6/conf/all/accept_dad": "0",
	} {
		if err := os.WriteFile(name, []byte(value), 0); err != nil {
			note("%v", err)
		}
	}
	fail(unix.Sethostname([]byte("vmtest")))
	if err := loopbackUp(); err != nil {
		note("loopback: %v", err)
	}
	plan, err := vmtest.ReadPlan(vmtest.PlanFile)
	if err != nil {
		note("%v", err)
		return
	}
	for _, w := range plan.Without {
		note("without %s", w)
	}
	for _, name := range plan.Modules {
		if err := load(name); err != nil {
			note("module %s: %v", filepath.Base(name), err)
		}
	}
	plan.Run(out)
}

func mount(kind, at, options string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(kind, at, kind, 0, options); err != nil {
		return &os.PathError{Op: "mount", Path: at, Err: err}
	}
	return nil
}

// raw keeps the terminal from changing what is written.
func raw(f *os.File) error {
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return err
	}
	t.Oflag &^= unix.OPOST
	t.Cflag = t.Cflag&^unix.CBAUD | unix.B115200
	return unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
}

func load(name string) error {
	image, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return unix.InitModule(image, "")
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, r); err != nil {
		return err
	}
	r.SetUint16(r.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r)
}

// off powers off, or restarts where that is not possible, which the emulator
// takes for the same.
func off() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}
