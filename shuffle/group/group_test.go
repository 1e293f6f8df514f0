// SPDX-License-Identifier: Apache-2.0

package group

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/spill"
)

type pair struct{ key, payload string }

func byKeyAndPayload(a, b pair) int {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.payload, b.payload))
}

// collect adds pairs to collectors in turn and returns what each part gives back.
func collect(t testing.TB, in []pair, partitions, collectors int, share int64, combine func([]byte, spill.Cursor, func([]byte)) error) (parts [][]pair, runs int) {
	t.Helper()
	a, err := pairs.NewArena(256 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	dir := t.TempDir()
	var written []*spill.Run
	cfg := Config{Arena: a, Partitions: partitions, Share: share, Combine: combine}
	cfg.Spill = func(c *Collector) error {
		r, err := c.WriteRun(filepath.Join(dir, fmt.Sprint(len(written))), nil)
		if err == nil {
			written = append(written, r)
		}
		return err
	}
	defer func() {
		for _, r := range written {
			r.Remove()
		}
	}()
	var cs []*Collector
	for range collectors {
		cs = append(cs, NewCollector(cfg))
	}
	for i, p := range in {
		cs[i%collectors].Add([]byte(p.key), []byte(p.payload))
	}
	for _, c := range cs {
		if c.Err() != nil {
			t.Fatal(c.Err())
		}
		if len(written) > 0 && c.Records() > 0 {
			if err := cfg.Spill(c); err != nil {
				t.Fatal(err)
			}
			c.Reset()
		}
	}
	d, err := NewDrain(context.Background(), cfg, cs, written, Options{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	parts = make([][]pair, partitions)
	for part := range partitions {
		for r := range d.Ranges(part) {
			c := d.Cursor(part, r)
			for c.Next() {
				parts[part] = append(parts[part], pair{string(c.Key()), string(c.Payload())})
			}
			if err := c.Err(); err != nil {
				t.Fatal(err)
			}
			c.Close()
		}
	}
	return parts, len(written)
}

func TestPairsComeBackSorted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.OneOf(rapid.StringMatching(`[ab]{0,4}`), rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 30), func(b []byte) string { return string(b) }))
		in := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) pair {
			return pair{text.Draw(t, "key"), text.Draw(t, "payload")}
		}), 0, 200).Draw(rt, "pairs")
		share := rapid.SampledFrom([]int64{1, 1 << 30}).Draw(rt, "share")
		partitions := rapid.SampledFrom([]int{1, 3}).Draw(rt, "partitions")
		parts, _ := collect(t, in, partitions, 2, share, nil)
		var got []pair
		for p, l := range parts {
			if !slices.IsSortedFunc(l, byKeyAndPayload) {
				rt.Fatalf("part %d is not sorted", p)
			}
			for _, x := range l {
				if partitions > 1 && pairs.Partition(pairs.FixedSeed.HashBytes([]byte(x.key)), partitions) != p {
					rt.Fatalf("%q in part %d", x.key, p)
				}
			}
			got = append(got, l...)
		}
		slices.SortFunc(got, byKeyAndPayload)
		slices.SortFunc(in, byKeyAndPayload)
		if !slices.Equal(got, in) {
			rt.Fatalf("got %q, want %q", got, in)
		}
	})
}

// Enough pairs for several ranges and runs; a combiner that keeps the longest value.
func TestManyPairsAndCombiner(t *testing.T) {
	var in []pair
	for i := range 150_000 {
		in = append(in, pair{fmt.Sprintf("key/with/a/common/prefix/%d", i%3_001), fmt.Sprint(i)})
	}
	want := slices.Clone(in)
	slices.SortFunc(want, byKeyAndPayload)
	for _, share := range []int64{1 << 20, 1 << 30} {
		parts, runs := collect(t, in, 1, 2, share, nil)
		if (runs > 0) != (share < 1<<30) {
			t.Errorf("%d runs", runs)
		}
		if !slices.Equal(parts[0], want) {
			t.Errorf("share %d: %d pairs differ from %d", share, len(parts[0]), len(want))
		}
	}
	longest := func(_ []byte, values spill.Cursor, add func([]byte)) error {
		var best []byte
		for values.Next() {
			if v := values.Payload(); len(v) > len(best) || len(v) == len(best) && bytes.Compare(v, best) > 0 {
				best = bytes.Clone(v)
			}
		}
		add(best)
		return values.Err()
	}
	parts, _ := collect(t, in, 1, 2, 1<<20, longest)
	best := map[string]string{}
	for _, p := range in {
		if b := best[p.key]; len(p.payload) > len(b) || len(p.payload) == len(b) && p.payload > b {
			best[p.key] = p.payload
		}
	}
	got := map[string]string{}
	for _, p := range parts[0] {
		if b := got[p.key]; len(p.payload) > len(b) || len(p.payload) == len(b) && p.payload > b {
			got[p.key] = p.payload
		}
	}
	if len(parts[0]) >= len(in) || len(got) != len(best) {
		t.Fatalf("%d pairs left of %d, %d keys of %d", len(parts[0]), len(in), len(got), len(best))
	}
	for k, v := range best {
		if got[k] != v {
			t.Fatalf("%s: %s, want %s", k, got[k], v)
		}
	}
}
