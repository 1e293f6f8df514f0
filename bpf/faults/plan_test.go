// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestDraw compares with the first outputs of splitmix64 for seed 1234567, as
// published with it.
func TestDraw(t *testing.T) {
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if got := mix(1234567 + uint64(i+1)*golden); got != want {
			t.Errorf("output %d is %d, want %d", i, got, want)
		}
		if got := draw(1234567, 0, uint64(i)); got != uint32(want>>32) {
			t.Errorf("draw %d is %d, want %d", i, got, want>>32)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		plan Plan
		ok   bool
	}{
		{Plan{}, true},
		{Plan{Loss: 1, Duplicate: 1, Corrupt: 1, Reorder: 1, Hold: MaxHold}, true},
		{Plan{Hold: 10 * time.Second, Delay: 10 * time.Second, Jitter: 10 * time.Second}, true},
		{Plan{Hold: 10 * time.Second, Delay: 10 * time.Second, Jitter: 10*time.Second + 1}, false},
		{Plan{Loss: math.NaN()}, false},
		{Plan{Duplicate: 1.1}, false},
		{Plan{Corrupt: -0.1}, false},
		{Plan{Reorder: 0.1}, false},
		{Plan{Delay: -1}, false},
	} {
		if err := c.plan.Check(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.plan, err)
		}
	}
}

// TestFate checks that chances are kept, and that the times are in range.
func TestFate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Plan{
			Seed:    rapid.Uint64().Draw(t, "seed"),
			Loss:    rapid.Float64Range(0, 1).Draw(t, "loss"),
			Corrupt: rapid.SampledFrom([]float64{0, 1}).Draw(t, "corrupt"),
			Reorder: rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "reorder"),
			Hold:    time.Duration(rapid.IntRange(1, 1e6).Draw(t, "hold")) * time.Microsecond,
			Delay:   time.Duration(rapid.IntRange(0, 1e6).Draw(t, "delay")) * time.Microsecond,
			Jitter:  time.Duration(rapid.IntRange(0, 1e6).Draw(t, "jitter")) * time.Microsecond,
		}
		const n = 2000
		lost := 0
		for i := range uint64(n) {
			f := p.Fate(i)
			if f.Lost {
				lost++
			}
			if f.Corrupted != (p.Corrupt == 1) || f.Duplicated || f.Reordered && p.Reorder == 0 || !f.Reordered && p.Reorder == 1 {
				t.Fatalf("%+v: %+v", p, f)
			}
			least, most := p.Delay, p.Delay
			if f.Reordered {
				least, most = least+time.Microsecond, most+p.Hold
			}
			if p.Jitter > 0 {
				most += p.Jitter - time.Microsecond
			}
			if f.Hold < least || f.Hold > most {
				t.Fatalf("%+v: %+v", p, f)
			}
		}
		if math.Abs(float64(lost)-n*p.Loss) > 6*math.Sqrt(n*p.Loss*(1-p.Loss))+1 {
			t.Fatalf("%d of %d lost, want %v", lost, n, p.Loss)
		}
	})
}

// TestSeedOf checks that no two wires of a lab draw the same.
func TestSeedOf(t *testing.T) {
	seen := map[uint64]bool{}
	for host := 1; host <= 200; host++ {
		for _, d := range []Direction{From, To} {
			seen[SeedOf(1, host, d)] = true
			seen[SeedOf(2, host, d)] = true
		}
	}
	if len(seen) != 800 {
		t.Errorf("%d seeds, want 800", len(seen))
	}
}
