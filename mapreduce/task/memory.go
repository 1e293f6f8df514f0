// SPDX-License-Identifier: Apache-2.0

package task

// LeastBudget is the least memory, in bytes, that the engine of a task works with.
const LeastBudget = 16 << 20

// beside is how many bytes a program takes beside its engine's budget where there is plenty: its code, its buffers, and
// what the collector has not freed yet.
const beside = 96 << 20

// Budget is how much of the memory of an attempt, in bytes, the engine is to use (Request.Memory): the rest is for the
// program itself, its buffers, what the collector has not freed yet, and what the user's code holds.
func Budget(memory int64) int64 {
	return max(min(memory/8*5, memory-beside), memory/4, LeastBudget)
}

// MemoryFor is how much memory, in bytes, an attempt is to be given so that its engine may use budget, and the program has
// some room beside it. What is below LeastBudget counts as that.
func MemoryFor(budget int64) int64 {
	budget = max(budget, LeastBudget)
	if budget > maxBudget {
		return maxMemory
	}
	return min(4*budget, max((budget+4)/5*8, budget+beside))
}

// No machine has as much, and nothing overflows below it.
const (
	maxMemory = 1 << 60
	maxBudget = maxMemory / 8 * 5
)
