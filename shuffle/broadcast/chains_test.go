// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle/wire"
)

func TestChunksOf(t *testing.T) {
	// A message begins with 32 bytes; a chunk has 1344.
	for size, want := range map[int64]int{0: 1, 1: 1, 1312: 1, 1313: 2, 1344: 2, 2656: 2, 2657: 3, 64 << 20: 49933} {
		if got := ChunksOf(size); got != want {
			t.Errorf("%d bytes take %d chunks, want %d", size, got, want)
		}
	}
}

func TestChainsFor(t *testing.T) {
	for _, tc := range []struct{ members, chunks, want int }{
		{0, 1, 0},
		{1, 1, 1},
		{8, 1, 8},
		{8, starChunks, 8},
		{64, 1, 64},
		{100, 1, 64},
		{8, starChunks + 1, 1},
		{9, someChunks, 2},
		{1, someChunks, 1},
		{8, someChunks + 1, 1},
		{64, 1 << 20, 1},
		{65, 1 << 20, 2},
		{4096, 1 << 20, 64},
	} {
		if got := chainsFor(tc.members, tc.chunks); got != tc.want {
			t.Errorf("%d members, %d chunks: %d chains, want %d", tc.members, tc.chunks, got, tc.want)
		}
	}
	for _, tc := range []struct{ k, members, want int }{{5, 3, 3}, {1, 65, 2}, {200, 4000, 64}, {1, 1, 1}, {3, 0, 0}} {
		if got := clampChains(tc.k, tc.members); got != tc.want {
			t.Errorf("%d chains of %d members become %d, want %d", tc.k, tc.members, got, tc.want)
		}
	}
}

// Every member is in one chain at one place, and all of a host's chunks in flight fit.
func TestPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "members")
		g := &Group{node: &Node{}, spec: GroupSpec{Chunks: rapid.IntRange(1, 5000).Draw(t, "chunks"), Chains: rapid.IntRange(0, 100).Draw(t, "chains")}, cast: &cast{shared: &wire.Cast{}}}
		for i := range n {
			g.members = append(g.members, &member{index: i, alive: true})
		}
		g.plan()
		if len(g.chains) > wire.MaxChains {
			t.Fatalf("%d chains", len(g.chains))
		}
		next, least, most := 0, n, 0
		for c, ch := range g.chains {
			least, most = min(least, len(ch.members)), max(most, len(ch.members))
			var bits uint64
			for i, m := range ch.members {
				if m.index != next || m.chain != ch || int(m.bit) != i {
					t.Fatalf("chain %d, place %d: member %d, bit %d", c, i, m.index, m.bit)
				}
				next++
				bits |= 1 << m.bit
			}
			if g.cast.shared.Want[c] != bits {
				t.Fatalf("chain %d waits for %b, want %b", c, g.cast.shared.Want[c], bits)
			}
		}
		if next != n || most-least > 1 || most > wire.MaxChains || least == 0 {
			t.Fatalf("%d of %d members, chains of %d to %d", next, n, least, most)
		}
		if k := len(g.chains); k > 1 && g.window*k > maxFlight && g.window > 2 {
			t.Fatalf("%d chains with %d chunks in flight", k, g.window)
		}
	})
}

// A session's chains are those of its usual messages, or of small ones, however much room it has.
func TestChainsOfSession(t *testing.T) {
	l := newLab(t, 1, faults{})
	source := l.host(virtualSetting{})
	_, members := l.hosts(6, virtualSetting{}, func(int) bool { return false })
	for _, tc := range []struct {
		usual int64
		want  int
	}{{0, 6}, {1400, 6}, {starChunks * wire.ChunkSize, 1}, {64 << 20, 1}} {
		g := openGroup(t, source, members, GroupSpec{Chunks: 3000, Usual: tc.usual})
		if rep := send(t, g, noise(1, 100)); rep.Chains != tc.want {
			t.Errorf("usually %d bytes: %d chains, want %d", tc.usual, rep.Chains, tc.want)
		}
		if err := g.Close(testContext(t)); err != nil {
			t.Error(err)
		}
	}
}
