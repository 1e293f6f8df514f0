// SPDX-License-Identifier: Apache-2.0

//go:build unix

package task

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestShare(t *testing.T) {
	s, err := ParsePlan(json.RawMessage(`{"total":3,"files":[{"p":"a"},{"p":"b"},{"p":"c"}],"splits":[{"files":[0],"end":9},{"files":[0]},{"files":[2,0]},{"files":[]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		first, end int
		want       string
	}{
		{0, 2, `{"total":3,"files":[{"p":"a"}],"splits":[{"files":[0],"end":9},{"files":[0]}]}`},
		{1, 4, `{"total":3,"files":[{"p":"a"},{"p":"c"}],"splits":[{"files":[0]},{"files":[2,0]},{"files":[]}]}`},
		{2, 3, `{"total":3,"files":[{"p":"c"},{"p":"a"}],"splits":[{"files":[2,0]}]}`},
		{4, 4, `{"total":3,"files":null,"splits":[]}`},
		{-1, 1, ""},
		{3, 2, ""},
		{0, 5, ""},
	} {
		got, err := s.Share(c.first, c.end)
		if string(got) != c.want || (err == nil) != (c.want != "") {
			t.Errorf("splits %d to %d: %s, %v; want %s", c.first, c.end, got, err, c.want)
		}
	}
}

func TestGangCheck(t *testing.T) {
	for _, c := range []struct {
		shares []int
		splits int
		want   string
	}{
		{[]int{1}, 1, ""},
		{[]int{0}, 0, ""},
		{[]int{2, 0, 3}, 5, ""},
		{make([]int, 32), 0, ""},
		{nil, 0, "a gang of 0 members"},
		{make([]int, 33), 0, "a gang of 33 members"},
		{[]int{1, -1}, 1, "member 1 of a gang has -1 splits"},
		{[]int{1, 2}, 2, "member 1 of a gang has 2 splits, and 1 of 2 are left"},
		{[]int{1, 2}, 4, "have 3 of 4 splits"},
		{[]int{1 << 30, 1 << 30}, 7, "member 0"},
	} {
		err := (&Gang{Shares: c.shares}).Check(c.splits)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v of %d: %v, want %q", c.shares, c.splits, err, c.want)
		}
	}
	g := &Gang{Shares: []int{2, 0, 3}}
	for m, want := range [][2]int{{0, 2}, {2, 2}, {2, 5}} {
		if first, end := g.Share(m); first != want[0] || end != want[1] {
			t.Errorf("member %d has %d to %d, want %v", m, first, end, want)
		}
	}
}

// Two who map the same memory see each other's values, however it grows.
func TestVector(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "vector"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a, b := OpenVector(int(f.Fd())), OpenVector(int(f.Fd()))
	if _, err := b.Int32(1, false); err == nil || !strings.Contains(err.Error(), "its memory has 0") {
		t.Errorf("what is not there: %v", err)
	}
	for _, n := range []int{1, 8192, 8193, 100_000, 3, 0} {
		x, err := a.Int64(n, true)
		if err != nil || len(x) != n {
			t.Fatal(n, err)
		}
		for i := range x {
			x[i] = int64(i)<<40 + int64(n)
		}
		y, err := b.Int64(n, false)
		if err != nil || len(y) != n {
			t.Fatal(n, err)
		}
		for i := range y {
			if y[i] != int64(i)<<40+int64(n) {
				t.Fatalf("%d of %d is %#x", i, n, y[i])
			}
		}
	}
	z, err := b.Int32(7, true)
	if err != nil || len(z) != 7 {
		t.Fatal(err)
	}
	z[6] = 5
	if again, err := a.Int32(7, false); err != nil || again[6] != 5 {
		t.Error(again, err)
	}
	for _, n := range []int{-1, math.MinInt, MaxVector / 8, MaxVector, math.MaxInt} {
		if _, err := a.Int64(n, true); err == nil {
			t.Errorf("%d values", n)
		}
	}
	for range 2 {
		if a.Close() != nil || b.Close() != nil {
			t.Error("Close")
		}
	}
	if x, err := a.Int64(100_000, false); err != nil || x[9] == 0 {
		t.Error("it can't be used again", err)
	}
	if a.Close() != nil {
		t.Error("Close")
	}
}
