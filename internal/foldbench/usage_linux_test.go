// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"runtime"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	// user 1, nice 2, system 3, idle 400, iowait 50, irq 6, softirq 7, steal 8: 458 ticks of 10 ms.
	cpus, idle, err := parseStat("cpu  1 2 3 400 50 6 7 8 0 0\ncpu0 1 1 1 1\ncpu1 1\nintr 5\n")
	if err != nil || cpus != 2 || idle != 4580*time.Millisecond {
		t.Errorf("%d, %v, %v", cpus, idle, err)
	}
	for _, bad := range []string{"", "cpu0 1 2 3 4 5 6 7 8 9\n", "cpu 1 2 3\n", "cpu 1 2 3 x 5 6 7 8 9\n"} {
		if _, _, err := parseStat(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// The machine is busy at least as long as this process, and at most all processors
// are, all the time.
func TestMachineTime(t *testing.T) {
	take := func() (machine, process time.Duration) {
		machine, err := MachineTime()
		if err != nil {
			t.Fatal(err)
		}
		process, err = processTime()
		if err != nil {
			t.Fatal(err)
		}
		return machine, process
	}
	began := time.Now()
	m0, p0 := take()
	for x := uint64(0); time.Since(began) < 300*time.Millisecond; x = mix(x) {
	}
	m1, p1 := take()
	const unit = 20 * time.Millisecond
	if m1-m0 < p1-p0-unit || m1-m0 > time.Duration(runtime.NumCPU())*time.Since(began)+unit {
		t.Errorf("in %v this process used %v, the machine %v", time.Since(began), p1-p0, m1-m0)
	}
	if n, err := InterruptTime(); err != nil || n < 0 {
		t.Errorf("%v, %v", n, err)
	}
}
