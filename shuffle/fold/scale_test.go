// SPDX-License-Identifier: Apache-2.0

package fold

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"testing"
)

// run writes a run of one part by hand.
func (s *setup) run(t *testing.T, scale []uint8, keys map[string][]int64) Run {
	t.Helper()
	c := NewCombiner(s.cfg)
	for i, n := range scale {
		c.SetScale(i, n)
	}
	for k, v := range keys {
		c.addString(k, v)
	}
	c.Flush()
	r, _, err := c.WriteRun(filepath.Join(t.TempDir(), "run"), nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Reset()
	t.Cleanup(func() { _ = r.Remove() })
	return r
}

// TestDrainScale has a drain bring what it holds to more digits than anybody has, in
// memory and from runs.
func TestDrainScale(t *testing.T) {
	ops := []Op{Sum, Max}
	values := map[string][]int64{"a": {12, 5}, "b": {-3, Max.Identity()}}
	want := map[string]string{"a": "[1200 50]", "b": fmt.Sprint([]int64{-300, Max.Identity()})}
	for _, runs := range []bool{false, true} {
		s := newSetup(t, ops, 1, 1, 0, 1, 1<<30)
		var list []Run
		if runs {
			list = append(list, s.run(t, []uint8{1, 0}, map[string][]int64{"a": {120, 5}}), s.run(t, nil, map[string][]int64{"b": values["b"]}))
		} else {
			for k, v := range values {
				s.cs[0].addString(k, v)
			}
			s.cs[0].Flush()
		}
		d, err := NewDrain(context.Background(), s.cfg, s.cs, list, Options{Workers: 1, Scale: []uint8{2, 1}})
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(d.Scale()) != "[2 1]" {
			t.Errorf("scale %v", d.Scale())
		}
		got := map[string]string{}
		w := d.Walker()
		for r := range d.Ranges(0) {
			err := w.Each(context.Background(), 0, r, func(key []byte, lanes, _ []int64) error {
				got[string(key)] = fmt.Sprint(lanes)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("runs %v: got %v, want %v", runs, got, want)
		}
		d.Close()
		for _, bad := range [][]uint8{{1}, {1, MaxScale + 1}} {
			if _, err := NewDrain(context.Background(), s.cfg, s.cs, list, Options{Workers: 1, Scale: bad}); err == nil {
				t.Errorf("scale %v was taken", bad)
			}
		}
	}
}

// TestCursorAt reads a run at other scales.
func TestCursorAt(t *testing.T) {
	ops := []Op{Sum, Min}
	s := newSetup(t, ops, 1, 1, 0, 1, 1<<30)
	r := s.run(t, []uint8{1, 0}, map[string][]int64{"a": {math.MaxInt64, 3}, "b": {7, Min.Identity()}, "c": {1, 1}})
	for _, c := range []struct {
		scale  []uint8
		lo, hi string
		want   string
	}{
		{[]uint8{1, 0}, "", "", fmt.Sprint([]int64{math.MaxInt64, 3}, []int64{0, 0}, []int64{7, Min.Identity()}, []int64{0, 0}, []int64{1, 1}, []int64{0, 0})},
		// 10 x (2^63 - 1) is 5 x 2^64 - 10.
		{[]uint8{2, 1}, "", "c", fmt.Sprint([]int64{-10, 30}, []int64{5, 0}, []int64{70, Min.Identity()}, []int64{0, 0})},
		{[]uint8{3, 0}, "b", "", fmt.Sprint([]int64{700, Min.Identity()}, []int64{0, 0}, []int64{100, 1}, []int64{0, 0})},
	} {
		bound := func(s string) []byte {
			if s == "" {
				return nil
			}
			return []byte(s)
		}
		cur, err := r.CursorAt(ops, c.scale, 0, bound(c.lo), bound(c.hi))
		if err != nil {
			t.Fatal(err)
		}
		var got []any
		for cur.Next() {
			lanes, carry := make([]int64, 2), make([]int64, 2)
			if _, err := DecodeValue(cur.Payload(), lanes, carry); err != nil {
				t.Fatal(err)
			}
			got = append(got, lanes, carry)
		}
		if cur.Err() != nil || fmt.Sprint(got...) != c.want {
			t.Errorf("%v: got %v, want %v (%v)", c.scale, fmt.Sprint(got...), c.want, cur.Err())
		}
		cur.Close()
	}
	for _, bad := range [][]uint8{{0, 0}, {1}, {1, MaxScale + 1}, nil} {
		if _, err := r.CursorAt(ops, bad, 0, nil, nil); err == nil {
			t.Errorf("scale %v was taken", bad)
		}
	}
	small := s.run(t, nil, map[string][]int64{"a": {1, math.MaxInt64 / 5}})
	cur, err := small.CursorAt(ops, []uint8{0, 1}, 0, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cur.Close()
	if cur.Next() || !errors.Is(cur.Err(), ErrScale) {
		t.Errorf("a value out of range: %v", cur.Err())
	}
}
