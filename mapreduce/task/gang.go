// SPDX-License-Identifier: Apache-2.0

package task

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// MaxMembers is how many map tasks a gang may have.
const MaxMembers = 32

// Gang says that all map tasks of a job run at once: they are the members of a gang, who reduce vectors with
// each other while they run.
type Gang struct {
	Rounds int   `json:"rounds"` // at most, for people
	Shares []int `json:"shares"` // how many splits of Plan each map task has: the first ones the first task, and so on
}

// Check says what is wrong with a gang of a plan with so many splits, or nil.
func (g *Gang) Check(splits int) error {
	if n := len(g.Shares); n < 1 || n > MaxMembers {
		return fmt.Errorf("a gang of %d members: 1 to %d are possible", n, MaxMembers)
	}
	sum := 0
	for i, n := range g.Shares {
		if n < 0 || n > splits-sum {
			return fmt.Errorf("member %d of a gang has %d splits, and %d of %d are left", i, n, splits-sum, splits)
		}
		sum += n
	}
	if sum != splits {
		return fmt.Errorf("the members of a gang have %d of %d splits", sum, splits)
	}
	return nil
}

// Share returns the splits of a member: from first on, and before end.
func (g *Gang) Share(member int) (first, end int) {
	for _, n := range g.Shares[:member] {
		first += n
	}
	return first, first + g.Shares[member]
}

// GangRequest tells a map task that it is a member of a gang, whose number is that of its split.
type GangRequest struct {
	Size   int `json:"size"`   // members
	First  int `json:"first"`  // of its splits, among those of the job
	Splits int `json:"splits"` // of the job
	// Vector is a descriptor that the program inherits: memory that it and its parent map. A Sum's values are at its
	// beginning; the program makes it as large as they are, and never smaller.
	Vector int `json:"vector"`
	// State is one that was kept before, nil: none was. With Final there is nothing left to be done but
	// to emit it.
	State *State `json:"state,omitempty"`
}

// State is what members of a gang have kept.
type State struct {
	Rounds int    `json:"rounds"` // that it comes after
	Final  bool   `json:"final,omitempty"`
	Path   string `json:"path"` // of a file with it
}

// Ready says that a member has loaded its share and waits for a group. It is answered by Group or Over.
type Ready struct {
	Rounds int `json:"rounds"` // that its state has done, -1: it has none
	// Broken is why the group that it was in is none any more, "" if it was in none.
	Broken string `json:"broken,omitempty"`
}

// Group says that all members are there.
type Group struct {
	Rank int `json:"rank"` // the member's number
	Size int `json:"size"`
}

// AllReduce has the values at the beginning of the shared memory replaced by those of an operation over the values of
// all members. It is answered by Reduced.
type AllReduce struct {
	Op    uint8 `json:"op"`    // allreduce.Op
	Width uint8 `json:"width"` // of a value in bytes: 4 or 8
	Count int   `json:"count"` // values
}

// Reduced says that it is done; or, with an error, that the group is broken and what the values are is not to be
// looked at.
type Reduced struct {
	Error string `json:"error,omitempty"`
}

// Keep has a state kept beyond this process. It is answered by Kept.
type Keep struct {
	Rounds int    `json:"rounds"`
	Final  bool   `json:"final,omitempty"` // nothing follows it
	File   string `json:"file"`            // its name in Request.Dir; it is the parent's from now on
}

// Kept says that a state is kept, or why not.
type Kept struct {
	Error string `json:"error,omitempty"`
}

// ErrVector is what an error is about a request whose shared memory this process can't have. It is the
// parent's fault.
var ErrVector = errors.New("a request with memory that can't be shared")

// HandOnVector has a command that is not started yet inherit memory that it is to share with this process, and
// returns where the program finds it, for GangRequest.Vector. f is the caller's, and to be open until the command has started.
func HandOnVector(cmd *exec.Cmd, f *os.File) int {
	cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	return 2 + len(cmd.ExtraFiles)
}

// takeVector takes the descriptor of shared memory, so that processes which this one starts do not inherit it.
func (h *Hosted) takeVector(r *Request) error {
	if r.Gang == nil {
		return nil
	}
	d := r.Gang.Vector
	if d < 3 || d == h.fds[0] || d == h.fds[1] {
		return fmt.Errorf("%w: descriptor %d", ErrVector, d)
	}
	if err := closeOnExec(d); err != nil {
		return fmt.Errorf("%w: descriptor %d: %w", ErrVector, d, err)
	}
	return nil
}
