// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/task"
)

func TestShareOut(t *testing.T) {
	for _, c := range []struct {
		bytes   []int64
		members int
		want    []int
	}{
		{nil, 3, []int{0}},
		{[]int64{5}, 3, []int{1}},
		{[]int64{5, 5, 5, 5}, 2, []int{2, 2}},
		{[]int64{5, 5, 5, 5}, 0, []int{4}},
		{[]int64{9, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 2, []int{3, 7}}, // what has to be opened counts, too
		{[]int64{1, 1, 1, 9}, 2, []int{3, 1}},
		{[]int64{0, 0, 0, 0}, 4, []int{1, 1, 1, 1}},
		{[]int64{-1, -1, -1}, 2, []int{2, 1}},
	} {
		var splits []input.Split
		for _, b := range c.bytes {
			splits = append(splits, input.Split{Bytes: b})
		}
		if g := shareOut(splits, c.members); !slices.Equal(g.Shares, c.want) {
			t.Errorf("%v for %d members: %v, want %v", c.bytes, c.members, g.Shares, c.want)
		}
	}
}

// Shares follow each other, none is empty, and none is larger than its part and a split.
func TestShareOutProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.SliceOfN(rapid.Int64Range(0, 1000), 1, 200).Draw(t, "bytes")
		members := rapid.IntRange(0, 50).Draw(t, "members")
		var splits []input.Split
		total, largest := int64(0), int64(0)
		for _, b := range bytes {
			splits = append(splits, input.Split{Bytes: b})
			total += b + 1
			largest = max(largest, b+1)
		}
		g := shareOut(splits, members)
		if err := g.Check(len(splits)); err != nil {
			t.Fatal(err)
		}
		if want := max(1, min(members, len(splits), task.MaxMembers)); len(g.Shares) != want {
			t.Fatalf("%d shares, want %d", len(g.Shares), want)
		}
		for m := range g.Shares {
			first, end := g.Share(m)
			size := int64(0)
			for _, b := range bytes[first:end] {
				size += b + 1
			}
			if end == first || size > total/int64(len(g.Shares))+2*largest {
				t.Fatalf("member %d has %d of %d bytes in %d splits: %v", m, size, total, end-first, g.Shares)
			}
		}
	})
}
