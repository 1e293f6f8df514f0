// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Qemu is the emulator's name.
const Qemu = "qemu-system-x86_64"

// ErrNoQemu is returned where the emulator is missing.
var ErrNoQemu = errors.New(Qemu + " is not installed: apt-get install qemu-system-x86")

// Machine says what an emulated machine is like.
type Machine struct {
	CPUs    int           // 0: 2
	Memory  int           // MiB; 0: 1536
	Timeout time.Duration // from power on to power off; 0: 5 minutes
}

func (m Machine) ensureDefaults() Machine {
	if m.CPUs <= 0 {
		m.CPUs = 2
	}
	if m.Memory <= 0 {
		m.Memory = 1536
	}
	if m.Timeout <= 0 {
		m.Timeout = 5 * time.Minute
	}
	return m
}

// Boot boots a kernel with an initramfs of WriteImage, waits until it powers
// off, and returns what it said. dir is for the machine's logs, kernel.log and
// tests.log. An error is of the machine; Result.Check tells of the tests. Both
// come if the machine broke off.
func Boot(ctx context.Context, k Kernel, initramfs string, m Machine, dir string) (Result, error) {
	m = m.ensureDefaults()
	qemu, err := exec.LookPath(Qemu)
	if err != nil {
		return Result{}, ErrNoQemu
	}
	kernelLog, testsLog := filepath.Join(dir, "kernel.log"), filepath.Join(dir, "tests.log")
	for _, name := range []string{kernelLog, testsLog} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return Result{}, fmt.Errorf("boot %s: %w", k.Release, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, m.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, qemu,
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-net", "none",
		"-machine", "pc,accel=tcg", "-cpu", "max", "-smp", strconv.Itoa(m.CPUs), "-m", strconv.Itoa(m.Memory),
		"-kernel", k.Image, "-initrd", initramfs,
		"-serial", "file:"+kernelLog, "-serial", "file:"+testsLog,
		// A panic reboots at once, which -no-reboot makes an end.
		// On a machine that is busy, timer interrupts come too late for the kernel's
		// check of them.
		"-append", "console=ttyS0 panic=-1 nokaslr no_timer_check mitigations=off random.trust_cpu=on",
	)
	// The emulator must not outlive this process, nor hear the terminal's Ctrl-C
	// before it.
	dieWithParent(cmd)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	// The signal of dieWithParent comes when the thread ends that started it.
	runtime.LockOSThread()
	err = cmd.Run()
	runtime.UnlockOSThread()
	log, readErr := os.ReadFile(testsLog)
	r := Parse(string(log))
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return r, fmt.Errorf("boot %s: not done after %v: %w; the kernel's last words:\n%s", k.Release, m.Timeout, ctx.Err(), tail(kernelLog))
	case ctx.Err() != nil:
		return r, fmt.Errorf("boot %s: %w", k.Release, ctx.Err())
	case err != nil:
		return r, fmt.Errorf("boot %s: %s: %w\n%s", k.Release, Qemu, err, said.String())
	case readErr != nil:
		return r, fmt.Errorf("boot %s: %w", k.Release, readErr)
	case !r.Done:
		return r, fmt.Errorf("boot %s: the machine broke off; the kernel's last words:\n%s", k.Release, tail(kernelLog))
	}
	return r, nil
}

// Began says whether the init ran. If it did not, the emulator or the kernel
// stumbled, which says nothing about the tests.
func (r *Result) Began() bool { return len(r.Notes)+len(r.Outcomes) > 0 }

// tail returns the last lines of a log.
func tail(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(string(text), "\r", "")), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}
