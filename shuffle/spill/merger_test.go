// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// someCursor makes a cursor of one of all kinds over sorted pairs.
func someCursor(t *rapid.T, dir string, i int, pairs []pair, byKey bool, depth int) Cursor {
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		return SliceCursor(pairSource(pairs), nil, nil)
	case 1:
		return &plainCursor{pairs: pairs}
	case 2:
		if depth > 0 {
			// A merger of the first and second half, which keeps the order.
			cut := rapid.IntRange(0, len(pairs)).Draw(t, "cut")
			cs := []Cursor{someCursor(t, dir, i, pairs[:cut], byKey, 0), someCursor(t, dir, i+1000, pairs[cut:], byKey, 0)}
			return newMerger(cs, byKey)
		}
	}
	opt := someOptions().Draw(t, "options")
	opt.ByKey = byKey
	r := writeRun(t, runPath(dir, fmt.Sprint("run", i)), opt, pairs)
	t.Cleanup(func() { r.Remove() })
	return r.Cursor(0, nil, nil)
}

func TestMergeEqualsSort(t *testing.T) {
	dir := t.TempDir()
	for name, byKey := range map[string]bool{"pairs": false, "keys": true} {
		t.Run(name, func(t *testing.T) {
			order := comparePairs
			if byKey {
				order = compareKeys
			}
			rapid.Check(t, func(t *rapid.T) {
				dir := freshDir(t, dir)
				var cs []Cursor
				var want []pair
				for i := range rapid.IntRange(0, 9).Draw(t, "cursors") {
					pairs := somePairs(1).Draw(t, "pairs")
					slices.SortStableFunc(pairs, order)
					want = append(want, pairs...)
					cs = append(cs, someCursor(t, dir, i, pairs, byKey, 1))
				}
				slices.SortStableFunc(want, order)
				m := newMerger(cs, byKey)
				defer m.Close()
				var got []pair
				for m.Next() {
					p := pair{0, string(m.Key()), string(m.Payload())}
					if same := len(got) > 0 && got[len(got)-1].key == p.key; same != m.SameKey() {
						t.Fatalf("pair %d: SameKey is %v", len(got), m.SameKey())
					}
					got = append(got, p)
				}
				if m.Err() != nil {
					t.Fatalf("%v", m.Err())
				}
				mustEqual(t, "merge", got, want)
			})
		})
	}
}

func TestHugeKeysMerge(t *testing.T) {
	// Longer than the columns of a code reach (393,198 bytes), and around that.
	base := strings.Repeat("x", 393_190)
	var pairs []pair
	for _, n := range []int{0, 2, 7, 8, 9, 14, 2000, 6000} {
		for _, tail := range []string{"", "a", "b", "\x00", "y"} {
			pairs = append(pairs, pair{0, base + strings.Repeat("x", n) + tail, tail})
		}
	}
	slices.SortFunc(pairs, comparePairs)
	parts := make([][]pair, 3)
	for i, p := range pairs {
		parts[i*i%3] = append(parts[i*i%3], p)
		parts[i%3] = append(parts[i%3], p)
	}
	var cs []Cursor
	var want []pair
	for _, p := range parts {
		cs = append(cs, SliceCursor(pairSource(p), nil, nil))
		want = append(want, p...)
	}
	slices.SortStableFunc(want, comparePairs)
	mustEqual(t, "merge", mustDrain(t, NewMerger(cs), 0), want)
}

func TestCodesDecide(t *testing.T) {
	// All keys of up to 4 columns' worth of boundary lengths over two letters,
	// against all bases that are no larger.
	var all []string
	for _, n := range []int{0, 1, 2, 5, 6, 7, 8, 11, 12, 13} {
		for bitmap := range 8 {
			k := bytes.Repeat([]byte{0}, n)
			for i := range k {
				k[i] = byte(bitmap >> (i * 3 / max(n, 1)) & 1)
			}
			all = append(all, string(k))
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	code := func(base, key string) uint64 { return codeAfter([]byte(base), []byte(key), true) }
	for b, base := range all {
		for i := b; i < len(all); i++ {
			for j := i; j < len(all); j++ {
				ci, cj := code(base, all[i]), code(base, all[j])
				if ci > cj {
					t.Fatalf("base %q: %q has code %x, %q %x", base, all[i], ci, all[j], cj)
				}
				if ci < cj && code(all[i], all[j]) != cj {
					t.Fatalf("base %q: code of %q against the smaller %q is %x, not %x", base, all[j], all[i], code(all[i], all[j]), cj)
				}
				if start := codeStart(ci); ci == cj && ci != codeSame && commonPrefix([]byte(all[i]), []byte(all[j])) < start {
					t.Fatalf("base %q: %q and %q differ before %d", base, all[i], all[j], start)
				}
			}
			n := commonPrefix([]byte(base), []byte(all[i]))
			junk := "\xEE\xEE\xEE\xEE\xEE\xEE\xEE\xEE"
			if i > b && codeOfJoined([]byte(base+junk), []byte(all[i][n:]+junk), len(all[i]), n) != code(base, all[i]) {
				t.Fatalf("code of %q joined after %d bytes differs", all[i], n)
			}
		}
	}
}

func TestSliceCursorRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pairs := somePairs(1).Draw(t, "pairs")
		slices.SortFunc(pairs, comparePairs)
		lo, hi := someBound(t, "lo"), someBound(t, "hi")
		mustEqual(t, "range", mustDrain(t, SliceCursor(pairSource(pairs), lo, hi), 0), pairSource(pairs).rangeOf(lo, hi))
	})
}

func TestMergeStopsAtErrors(t *testing.T) {
	boom := errors.New("boom")
	for _, n := range []int{0, 1, 3} {
		good := []pair{{0, "a", ""}, {0, "b", ""}, {0, "c", ""}, {0, "d", ""}}
		bad := &plainCursor{pairs: good[:n], err: boom}
		m := NewMerger([]Cursor{&plainCursor{pairs: good}, bad, &plainCursor{pairs: good}})
		if _, err := drain(m, 0); !errors.Is(err, boom) {
			t.Errorf("after %d pairs: %v", n, err)
		}
		if !bad.closed {
			t.Error("cursor is not closed")
		}
	}
	m := NewMerger([]Cursor{&plainCursor{pairs: []pair{{0, "b", ""}, {0, "a", ""}}}})
	if _, err := drain(m, 0); !errors.Is(err, errUnsorted) {
		t.Errorf("unsorted cursor: %v", err)
	}
}

func TestMergerWithNothing(t *testing.T) {
	for _, m := range []*Merger{NewMerger(nil), NewKeyMerger([]Cursor{&plainCursor{}, &plainCursor{}}), NewMerger([]Cursor{&plainCursor{}})} {
		if m.Key() != nil || m.Payload() != nil {
			t.Error("a key before Next")
		}
		if first, second := m.Next(), m.Next(); first || second || m.Err() != nil || m.Key() != nil {
			t.Errorf("%v %q", m.Err(), m.Key())
		}
		m.Close()
		m.Close()
	}
	m := NewMerger([]Cursor{&plainCursor{pairs: []pair{{0, "a", ""}}}})
	m.Close()
	if m.Next() {
		t.Error("Next after Close")
	}
}

func TestCompact(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir := freshDir(t, dir)
		byKey := rapid.Bool().Draw(t, "by key")
		combine := rapid.Bool().Draw(t, "combine")
		fanIn := rapid.IntRange(2, 5).Draw(t, "fan-in")
		opt := CompactOptions{Write: someOptions().Draw(t, "options"), FanIn: fanIn}
		opt.Write.ByKey = byKey
		if combine {
			opt.Combine = func(_, acc, payload []byte) ([]byte, error) { return append(append(acc, ','), payload...), nil }
		}
		n := 0
		opt.NewPath = func() string { n++; return runPath(dir, fmt.Sprint("new", n)) }
		var runs []*Run
		var all []pair
		for i := range rapid.IntRange(0, 12).Draw(t, "runs") {
			pairs := somePairs(3).Draw(t, "pairs")
			slices.SortStableFunc(pairs, comparePairs)
			if byKey {
				slices.SortStableFunc(pairs, compareKeys)
			}
			all = append(all, pairs...)
			runs = append(runs, writeRun(t, runPath(dir, fmt.Sprint("old", i)), Options{ByKey: true}, pairs))
		}
		before := len(runs)
		runs, err := Compact(context.Background(), runs, opt)
		if err != nil {
			t.Fatalf("compact: %v", err)
		}
		if len(runs) > fanIn || before > fanIn && len(runs) != fanIn || before <= fanIn && len(runs) != before {
			t.Fatalf("%d runs of %d", len(runs), before)
		}
		if files, _ := os.ReadDir(dir); len(files) != len(runs) {
			t.Fatalf("%d files for %d runs", len(files), len(runs))
		}
		order := comparePairs
		if byKey {
			order = compareKeys
		}
		slices.SortStableFunc(all, order)
		for part := range 3 {
			var cs []Cursor
			for _, r := range runs {
				cs = append(cs, r.Cursor(part, nil, nil))
			}
			got := mustDrain(t, newMerger(cs, byKey), part)
			want := inRange(all, part, nil, nil)
			if combine {
				// Payloads contain no comma; what was combined and what was not is
				// then the same list, in an order that depends on which runs met.
				got, want = joinPayloads(got, byKey), joinPayloads(want, byKey)
			}
			mustEqual(t, "compacted", got, want)
		}
		for _, r := range runs {
			r.Remove()
		}
	})
}

// joinPayloads makes one pair of those with equal keys. If order does not
// matter, the parts are sorted.
func joinPayloads(pairs []pair, keepOrder bool) []pair {
	var out []pair
	for _, p := range pairs {
		if n := len(out); n > 0 && out[n-1].key == p.key {
			out[n-1].payload += "," + p.payload
			continue
		}
		out = append(out, p)
	}
	if !keepOrder {
		for i := range out {
			s := strings.Split(out[i].payload, ",")
			slices.Sort(s)
			out[i].payload = strings.Join(s, ",")
		}
	}
	return out
}

func TestCompactFailsCleanly(t *testing.T) {
	fds := openFiles(t)
	dir := t.TempDir()
	var runs []*Run
	for i := range 6 {
		runs = append(runs, writeRun(t, runPath(dir, fmt.Sprint(i)), Options{}, []pair{{0, "k", "v"}, {1, "k", "v"}}))
	}
	n := 0
	opt := CompactOptions{FanIn: 2, NewPath: func() string { n++; return runPath(dir, fmt.Sprint("new", n)) }}
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(stopped)
	for name, try := range map[string]func() ([]*Run, error){
		"stopped": func() ([]*Run, error) { return Compact(ctx, runs, opt) },
		"fan-in 1": func() ([]*Run, error) {
			o := opt
			o.FanIn = 1
			return Compact(context.Background(), runs, o)
		},
		"combine": func() ([]*Run, error) {
			o := opt
			o.Combine = func(_, _, _ []byte) ([]byte, error) { return nil, stopped }
			return Compact(context.Background(), runs, o)
		},
		"no folder": func() ([]*Run, error) {
			o := opt
			o.NewPath = func() string { return runPath(dir, "none/run") }
			return Compact(context.Background(), runs, o)
		},
	} {
		left, err := try()
		if err == nil || !slices.Equal(left, runs) {
			t.Errorf("%s: %v, %d runs left", name, err, len(left))
		}
		if files, _ := os.ReadDir(dir); len(files) != len(runs) {
			t.Errorf("%s: %d files", name, len(files))
		}
	}
	for _, r := range runs {
		r.Remove()
	}
	if now := openFiles(t); now != fds {
		t.Errorf("%d files open, before %d", now, fds)
	}
}

func TestMemoryFiguresHold(t *testing.T) {
	for size, want := range map[int]int{0: 0, 1: 1, 2: 2, 3: 4, 1000: 1024, 1 << 17: 1 << 17, 1<<17 + 1: 1 << 18, 1<<20 + 1: 1<<20 + 1} {
		b := takeBuffer(size)
		if len(b) != size || cap(b) != want || bufferSize(size) != want {
			t.Errorf("a buffer of %d has length %d, capacity %d; bufferSize says %d", size, len(b), cap(b), bufferSize(size))
		}
		giveBuffer(b)
	}
	if got := CursorMemory(0); got != 2<<17+4<<10 {
		t.Errorf("cursor: %d", got)
	}
	if got := WriterMemory(0); got > 1<<20 {
		t.Errorf("writer: %d", got)
	}
}
