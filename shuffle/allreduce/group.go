// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"errors"
	"fmt"

	"github.com/quernmr/quern/shuffle/wire"
)

// Op is what is done with the values of all members, element by element.
type Op uint8

// The operations. A Sum wraps as Go's own addition does: who can't rule that out takes int64, or package quantise.
const (
	Sum Op = wire.OpSum
	Min Op = wire.OpMin
	Max Op = wire.OpMax
)

// Group is one member's end of a group, within this process or over a network.
type Group interface {
	// Rank is the member's number, from 0, and Size how many members there are.
	Rank() int
	Size() int
	// Reduce replaces v's values by the operation's result over those of all members. All call it in the same
	// order, with vectors of the same length, width and operation: else the group breaks, and all learn why. It
	// waits for as long as others take, until ctx ends. Any error breaks the group: what v holds then is not
	// to be used, nor is the group. It wraps ErrBroken.
	Reduce(ctx context.Context, v Vector) error
	// Close leaves the group; who still waits for this member finds it broken. It may be called more than once.
	Close() error
}

// Vector is what is reduced; one of the slices is set.
type Vector struct {
	Op    Op
	Int32 []int32
	Int64 []int64
}

// Len is the number of values.
func (v Vector) Len() int { return len(v.Int32) + len(v.Int64) }

// ErrBroken is wrapped by every error of a call: a member is gone or says so, members called with
// different vectors, or ctx ended. A new group may be formed of who is left.
var ErrBroken = errors.New("the group is broken")

// MemberError says that a member is the reason. It wraps ErrBroken.
type MemberError struct {
	Rank int
	Name string
	Err  error
}

func (e *MemberError) Error() string { return fmt.Sprintf("member %d (%s): %v", e.Rank, e.Name, e.Err) }

// Unwrap returns what it wraps.
func (e *MemberError) Unwrap() []error { return []error{ErrBroken, e.Err} }

// AllReduce replaces vec's values by the operation's result over those of all members of the group; see Group.Reduce.
func AllReduce[T int32 | int64](ctx context.Context, g Group, op Op, vec []T) error {
	v := Vector{Op: op}
	switch s := any(vec).(type) {
	case []int32:
		v.Int32 = s
	case []int64:
		v.Int64 = s
	}
	return g.Reduce(ctx, v)
}
