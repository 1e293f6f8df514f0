// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
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

// MachineTime returns how long all processors together were busy since the
// machine started: all but idle and waiting for disks. Its unit is 10 ms.
func MachineTime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("processor time of the machine: %w", err)
	}
	return parseStat(string(text))
}

// userHz is the unit of /proc/stat, the same on all of Go's architectures.
const userHz = 100

func parseStat(text string) (time.Duration, error) {
	line, _, _ := strings.Cut(text, "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return 0, fmt.Errorf("processor time of the machine: /proc/stat begins with %q", line)
	}
	var ticks int64
	// user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user.
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseInt(f[i], 10, 48)
		if err != nil {
			return 0, fmt.Errorf("processor time of the machine: /proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / userHz), nil
}
