// SPDX-License-Identifier: Apache-2.0

package bpf

import "fmt"

// State is what came of a check.
type State string

// The states.
const (
	OK      State = "ok"
	Warning State = "warning" // works without, or could not be found out
	Missing State = "missing" // the kernel can't fold without it
)

// Check is one thing that was looked at.
type Check struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	Found string `json:"found"`           // what is there, in a few words
	Since string `json:"since,omitempty"` // the first Linux that should have it
	Fix   string `json:"fix,omitempty"`   // the one command or right that mends it
}

// Report says what a machine can do for the fold in the kernel, and what it lacks.
type Report struct {
	Interface  string  `json:"interface,omitempty"`
	XDPMode    string  `json:"xdp_mode"`
	Checks     []Check `json:"checks"`
	KernelFold bool    `json:"kernel_fold"` // nothing that it needs is missing
	Auto       string  `json:"auto"`        // what the mode auto chooses: kernel or user
	Why        string  `json:"why"`         // in one line
}

func (r *Report) add(name string, state State, found, fix string) {
	r.Checks = append(r.Checks, Check{Name: name, State: state, Found: found, Fix: fix})
}

// conclude fills in what follows from the checks.
func (r *Report) conclude() {
	where := "an interface that is named"
	if r.Interface != "" {
		where = fmt.Sprintf("%s (%s XDP)", r.Interface, r.XDPMode)
	}
	r.KernelFold, r.Auto, r.Why = true, "kernel", "the kernel folds on "+where+": nothing that it needs is missing"
	for _, c := range r.Checks {
		if c.State == Missing {
			r.KernelFold, r.Auto, r.Why = false, "user", fmt.Sprintf("user space folds: %s: %s", c.Name, c.Found)
			return
		}
	}
}
