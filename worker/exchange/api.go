// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
)

// Output is what a committed map attempt left.
type Output struct {
	Attempt   *api.Attempt
	Constants *api.JobConstants
	Path      string // of its run; "" if it has no pairs
	Scale     []uint8
	Parts     []task.Manifest
}

// Gather asks for the input of a reduce attempt.
type Gather struct {
	Attempt   *api.Attempt
	Constants *api.JobConstants
	Input     *api.ReduceInput
	Dir       string // where runs are written
	Memory    int64  // bytes for merging
	// Moved tells of map outputs that are elsewhere now.
	Moved <-chan *api.MapOutput
	// Lost is told what could not be had; the gathering goes on, and waits for Moved.
	Lost func(*api.OutputLost)
	// Progress is told how many pairs came by which path so far.
	Progress func(Counts)
}

// Counts are pairs by the path that they took.
type Counts struct{ Kernel, User, Pulled int64 }

// Gathered is the input of a reduce attempt, on this worker's disk.
type Gathered struct {
	Runs   []task.RunFile
	Folded bool // one run that has each key once
	// Pairs is how many there are in Runs: all that were fetched, or each key once if Folded.
	Pairs  int64
	Counts Counts
}
