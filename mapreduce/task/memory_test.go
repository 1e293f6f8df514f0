// SPDX-License-Identifier: Apache-2.0

package task

import (
	"testing"

	"pgregory.net/rapid"
)

func TestBudget(t *testing.T) {
	for memory, want := range map[int64]int64{
		0: 16 << 20, 32 << 20: 16 << 20, 128 << 20: 32 << 20, 256 << 20: 160 << 20, 1 << 30: 640 << 20, 1 << 60: 5 << 57,
	} {
		if got := Budget(memory); got != want {
			t.Errorf("of %d MiB %d are the engine's, want %d", memory>>20, got>>20, want>>20)
		}
	}
}

// TestMemoryFor: a budget gets the memory that it takes, and not a word more.
func TestMemoryFor(t *testing.T) {
	for budget, want := range map[int64]int64{
		0: 64 << 20, 16 << 20: 64 << 20, 32 << 20: 128 << 20, 160 << 20: 256 << 20, 640 << 20: 1 << 30, 1 << 62: 1 << 60,
	} {
		if got := MemoryFor(budget); got != want {
			t.Errorf("a budget of %d MiB takes %d MiB, want %d", budget>>20, got>>20, want>>20)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.Int64Range(LeastBudget+1, maxBudget).Draw(t, "budget")
		memory := MemoryFor(budget)
		if got := Budget(memory); got < budget {
			t.Fatalf("a budget of %d gets %d, of which %d are the engine's", budget, memory, got)
		}
		if got := Budget(memory - 8); got >= budget {
			t.Fatalf("a budget of %d gets %d, and would do with 8 less", budget, memory)
		}
	})
}
