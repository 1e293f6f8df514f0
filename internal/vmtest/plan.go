// SPDX-License-Identifier: Apache-2.0

package vmtest

import "time"

// PlanFile is where the init finds its plan in the initramfs.
const PlanFile = "/vmtest.json"

// Console is the serial port that init writes results to. The kernel's messages
// go to the first one, so that the two never mix.
const Console = "/dev/ttyS1"

// Plan is what the init does.
type Plan struct {
	Modules []string // kernel modules to load, in order
	Without []string // programs that are not there, and why
	Steps   []Step
}

// Step is a program that is run to its end.
type Step struct {
	Name    string
	Path    string
	Args    []string // without the program's name
	Env     []string
	Dir     string
	Timeout time.Duration
}

// Marks that the init puts around the output of steps. Each stands in a line of
// its own, which begins with mark.
const (
	mark      = "@@vmtest "
	markBegin = mark + "begin " // name
	markEnd   = mark + "end "   // name, exit code, milliseconds
	markNote  = mark + "note "  // text
	markDone  = mark + "done"
)
