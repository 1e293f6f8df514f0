// SPDX-License-Identifier: Apache-2.0

package benchlab

import (
	"time"

	"github.com/quernmr/quern/internal/foldbench"
)

// AtRest is how many processors a machine may use that counts as idle.
const AtRest = 0.2

// Rest finds out how many processors the machine uses while nothing is measured. It takes
// more than a second.
func Rest() (float64, error) {
	time.Sleep(300 * time.Millisecond)
	before, err := foldbench.MachineTime()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	time.Sleep(time.Second)
	after, err := foldbench.MachineTime()
	return float64(after-before) / float64(time.Since(began)), err
}

// Usage is what was used of the processors up to some time.
type Usage struct {
	own, machine time.Duration
	at           time.Time
}

// Used returns what processes, and the kernel's threads for interrupts, have used up to now, and what the
// whole machine has.
func Used(processes ...*foldbench.Process) (u Usage, err error) {
	if u.own, err = foldbench.InterruptTime(); err != nil {
		return u, err
	}
	for _, p := range processes {
		t, err := ProcessTime(p.ID())
		if err != nil {
			return u, err
		}
		u.own += t
	}
	u.at = time.Now()
	u.machine, err = foldbench.MachineTime()
	return u, err
}

// Own is what the processes and the threads for interrupts have used since before.
func (u Usage) Own(before Usage) time.Duration { return u.own - before.own }

// Machine is what the whole machine has used since before, less so many processors all the time.
func (u Usage) Machine(before Usage, background float64) time.Duration {
	return u.machine - before.machine - time.Duration(background*float64(u.at.Sub(before.at)))
}
