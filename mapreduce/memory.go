// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"fmt"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/quernmr/quern/shuffle/pairs"
)

// memoryPlan divides a job's memory budget.
type memoryPlan struct {
	budget int64
	arena  int64 // records, and later the list of keys to be sorted
	share  int64 // of records, per mapper
	// buffer is how much of a range may be encoded before it waits for its turn
	// to be written; ranges of merges are cut to about that.
	buffer int64
	// workers is how many the memory is enough for.
	workers int
}

// MinMemory is the least memory budget in bytes.
const MinMemory = 16 << 20

const (
	// perWorker is what a worker takes beside the arena: its front table, its
	// input buffer, the buffers of a merge and of the rows it encodes.
	perWorker = 8 << 20
	// minShare is what a mapper needs for its chunks not to be mostly empty.
	minShare = 1 << 20
)

// planMemory divides budget, or half of what the machine or cgroup grants if it is 0.
//
// Keys to be sorted take 16 bytes beside a record of at least 24, so records
// get six tenths of the arena.
func planMemory(budget int64, workers int) (memoryPlan, error) {
	if budget == 0 {
		budget = grantedMemory() / 2
	}
	if budget < MinMemory {
		return memoryPlan{}, fmt.Errorf("a memory budget of %d bytes: %d are the least", budget, MinMemory)
	}
	m := memoryPlan{budget: budget}
	m.arena = max(budget-int64(workers)*perWorker, budget/2)
	m.arena = min(m.arena, pairs.MaxArena)
	m.workers = int(min(int64(workers), max(1, m.arena*6/10/minShare)))
	m.share = m.arena * 6 / 10 / int64(m.workers)
	m.buffer = min(max(budget/64, 256<<10), 8<<20)
	return m, nil
}

// grantedMemory is the cgroup's limit or the machine's memory, whichever is less.
func grantedMemory() int64 {
	total, err := memlimit.FromSystem()
	if err != nil || total == 0 {
		total = 2 << 30
	}
	if limit, err := memlimit.FromCgroup(); err == nil && limit > 0 && limit < total {
		total = limit
	}
	return int64(total)
}
