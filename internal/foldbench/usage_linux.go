// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// processTime returns the processor time of this process, user and system.
func processTime() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("processor time of this process: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// MachineTime returns how long all processors together were busy since some time
// in the past: all but idle, waiting for disks, and what a hypervisor took. What
// is busy is not read but what is idle: the kernel takes the time of that, while it
// only looks 100 to 1000 times a second at what is busy.
func MachineTime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("processor time of the machine: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("processor time of the machine: %w", err)
	}
	cpus, idle, err := parseStat(string(text))
	return time.Duration(cpus)*time.Duration(now.Nano()) - idle, err
}

// userHz is the unit of /proc/stat, the same on all of Go's architectures.
const userHz = 100

// parseStat returns the number of processors, and how long all together did not work.
func parseStat(text string) (cpus int, idle time.Duration, err error) {
	line, rest, _ := strings.Cut(text, "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return 0, 0, fmt.Errorf("processor time of the machine: /proc/stat begins with %q", line)
	}
	var ticks int64
	// Behind the name: user, nice, system, idle, iowait, irq, softirq, steal.
	for _, i := range []int{4, 5, 8} {
		n, err := strconv.ParseInt(f[i], 10, 48)
		if err != nil {
			return 0, 0, fmt.Errorf("processor time of the machine: /proc/stat: %w", err)
		}
		ticks += n
	}
	for line := range strings.Lines(rest) {
		if strings.HasPrefix(line, "cpu") {
			cpus++
		}
	}
	return cpus, time.Duration(ticks) * (time.Second / userHz), nil
}

// interruptThreads are the kernel's threads that go on with what interrupts began, when
// that is much: what they use is no process's.
var interruptThreads = sync.OnceValues(func() (list []string, err error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(text), "ksoftirqd/") {
			list = append(list, filepath.Dir(name))
		}
	}
	return list, err
})

// InterruptTime returns the processor time of the kernel's threads that go on with
// what interrupts began.
func InterruptTime() (sum time.Duration, err error) {
	list, err := interruptThreads()
	for _, dir := range list {
		text, err := os.ReadFile(dir + "/stat")
		if err != nil {
			return 0, fmt.Errorf("processor time of interrupts: %w", err)
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		f := strings.Fields(rest) // from the third field on
		if len(f) < 13 {
			return 0, fmt.Errorf("processor time of interrupts: %s/stat is %q", dir, text)
		}
		for _, i := range []int{11, 12} {
			n, err := strconv.ParseInt(f[i], 10, 48)
			if err != nil {
				return 0, fmt.Errorf("processor time of interrupts: %w", err)
			}
			sum += time.Duration(n) * (time.Second / userHz)
		}
	}
	return sum, err
}
