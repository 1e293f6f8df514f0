// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"

	"github.com/quernmr/quern/shuffle"
)

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
	Mode       string  `json:"shuffle"`     // what was asked for: auto, kernel or user
	Folds      string  `json:"folds"`       // who folds then: kernel or user; "": nobody, that is an error
	Why        string  `json:"why"`         // in one line
}

func (r *Report) add(name string, state State, found, fix string) {
	r.Checks = append(r.Checks, Check{Name: name, State: state, Found: found, Fix: fix})
}

// conclude fills in what follows from the checks: what [Choose] would do, which is not
// called, since it would displace programs where that is allowed.
func (r *Report) conclude(mode shuffle.Mode) {
	r.Mode, r.KernelFold = mode.String(), true
	reason := noInterface
	for _, c := range r.Checks {
		if c.State == Missing {
			r.KernelFold, reason = false, c.Name+": "+c.Found
			break
		}
	}
	switch {
	case mode == shuffle.UserOnly:
		r.Folds, r.Why = "user", "user space folds, as asked"
	case r.KernelFold && r.Interface != "":
		r.Folds, r.Why = "kernel", fmt.Sprintf("the kernel folds on %s (%s XDP): nothing that it needs is missing", r.Interface, r.XDPMode)
	case mode == shuffle.KernelOnly:
		r.Folds, r.Why = "", "nobody folds, since the kernel shall and can't: "+reason
	default:
		r.Folds, r.Why = "user", "user space folds: "+reason
	}
}
