// SPDX-License-Identifier: Apache-2.0

package fold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle/pairs"
)

// model is the plain fold that everything is compared with: sums without
// bounds, other operations as the language has them.
type model map[string][]*big.Int

func (m model) add(ops []Op, key string, v []int64, scale []int) {
	row, ok := m[key]
	if !ok {
		row = make([]*big.Int, len(ops))
		for i := range row {
			row[i] = new(big.Int)
		}
	}
	for i, op := range ops {
		x := big.NewInt(v[i])
		if scale != nil {
			x.Mul(x, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale[i])), nil))
		}
		switch {
		case !ok:
			row[i].Set(x)
		case op == Sum:
			row[i].Add(row[i], x)
		case op == Min:
			if x.Cmp(row[i]) < 0 {
				row[i].Set(x)
			}
		case op == Max:
			if x.Cmp(row[i]) > 0 {
				row[i].Set(x)
			}
		default:
			row[i].SetInt64(op.Apply(row[i].Int64(), x.Int64()))
		}
	}
	m[key] = row
}

// setup is a job's combiners over one arena.
type setup struct {
	cfg    Config
	cs     []*Combiner
	runs   []Run
	folded int64
	mu     sync.Mutex
}

func newSetup(t testing.TB, ops []Op, partitions, sub, suffix, combiners int, share int64) *setup {
	t.Helper()
	a, err := pairs.NewArena(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	s := &setup{}
	dir := t.TempDir()
	s.cfg = Config{Arena: a, Ops: ops, Seed: pairs.Seed{A: 1, B: 2}, Partitions: partitions, SubBuckets: sub, Suffix: suffix, Share: share}
	s.cfg.Spill = func(c *Combiner) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		r, n, err := c.WriteRun(filepath.Join(dir, fmt.Sprint(len(s.runs))), nil)
		if err != nil {
			return err
		}
		s.folded += n
		s.runs = append(s.runs, r)
		return nil
	}
	for range combiners {
		s.cs = append(s.cs, NewCombiner(s.cfg))
	}
	t.Cleanup(func() {
		for _, r := range s.runs {
			r.Remove()
		}
	})
	return s
}

func (c *Combiner) addString(key string, v []int64) {
	p := unsafe.Pointer(unsafe.StringData(key))
	if len(c.cfg.Ops) == 1 && c.cfg.Ops[0] == Sum {
		c.Add1(p, len(key), v[0])
		return
	}
	c.Add(p, len(key), v)
}

// drain returns all rows, checks their order and the books.
func (s *setup) drain(t testing.TB) map[string][]*big.Int {
	t.Helper()
	for _, c := range s.cs {
		c.Flush()
	}
	if len(s.runs) > 0 {
		for _, c := range s.cs {
			if c.Records() > 0 {
				if err := s.cfg.Spill(c); err != nil {
					t.Fatal(err)
				}
				c.Reset()
			}
		}
	}
	var records int64
	check := make([]uint64, len(s.cfg.Ops))
	for _, c := range s.cs {
		if c.Err() != nil {
			t.Fatal(c.Err())
		}
		records += c.Records()
	}
	d, err := NewDrain(context.Background(), s.cfg, s.cs, s.runs, Options{Workers: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.cs { // after the drain has brought all to one scale
		for i, v := range c.Check() {
			check[i] += v
		}
	}
	got := map[string][]*big.Int{}
	w := d.Walker()
	for part := range s.cfg.Partitions {
		var last []byte
		first := true
		for r := range d.Ranges(part) {
			err := w.Each(context.Background(), part, r, func(key []byte, lanes, carry []int64) error {
				if !first && bytes.Compare(last, key) >= 0 {
					t.Fatalf("part %d: %q after %q", part, key, last)
				}
				first = false
				last = append(last[:0], key...)
				if s.cfg.Partitions > 1 {
					if want := pairs.Partition(pairs.FixedSeed.HashBytes(key[:len(key)-s.cfg.Suffix]), s.cfg.Partitions); want != part {
						t.Fatalf("key %q in part %d, want %d", key, part, want)
					}
				}
				row := make([]*big.Int, len(lanes))
				for i, v := range lanes {
					row[i] = big.NewInt(v)
					if carry != nil {
						row[i].Add(row[i], new(big.Int).Lsh(big.NewInt(carry[i]), 64))
					}
				}
				if _, twice := got[string(key)]; twice {
					t.Fatalf("key %q twice", key)
				}
				got[string(key)] = row
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(s.runs) == 0 && d.Folded() != records {
		t.Fatalf("folded %d of %d records", d.Folded(), records)
	}
	if !slices.Equal(check, w.Check()) {
		t.Fatalf("sum check: %x while adding, %x in the result", check, w.Check())
	}
	return got
}

func compare(t testing.TB, got map[string][]*big.Int, want model) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d keys, want %d", len(got), len(want))
	}
	for k, w := range want {
		g := got[k]
		if g == nil {
			t.Fatalf("key %q is missing", k)
		}
		for i := range w {
			if g[i].Cmp(w[i]) != 0 {
				t.Fatalf("key %q lane %d: %v, want %v", k, i, g[i], w[i])
			}
		}
	}
}

func genKey() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[a-c]{0,3}`),
		rapid.SampledFrom([]string{"", "\x00", "\x00\x00", "a\x00", "a", "aaaaaaaa", "aaaaaaaaa", "aaaaaaaa\x00", strings.Repeat("x", 16), strings.Repeat("x", 17), strings.Repeat("x", 300)}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 40), func(b []byte) string { return string(b) }),
		rapid.Map(rapid.IntRange(0, 5000), func(i int) string { return fmt.Sprintf("common/prefix/of/keys/%d", i) }),
	)
}

func TestFoldEqualsModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ops := rapid.SliceOfN(rapid.SampledFrom([]Op{Sum, Min, Max, And, Or, Xor}), 1, 5).Draw(rt, "ops")
		if rapid.Bool().Draw(rt, "one sum") {
			ops = []Op{Sum}
		}
		partitions := rapid.SampledFrom([]int{1, 3}).Draw(rt, "partitions")
		share := rapid.SampledFrom([]int64{1, 1 << 20, 1 << 30}).Draw(rt, "share")
		s := newSetup(t, ops, partitions, rapid.SampledFrom([]int{1, 16}).Draw(rt, "sub"), 0, rapid.IntRange(1, 3).Draw(rt, "combiners"), share)
		m := model{}
		value := rapid.OneOf(rapid.Int64(), rapid.Int64Range(-5, 5), rapid.SampledFrom([]int64{math.MaxInt64, math.MinInt64, 0, 1, -1}))
		for range rapid.IntRange(0, 400).Draw(rt, "pairs") {
			key := genKey().Draw(rt, "key")
			v := rapid.SliceOfN(value, len(ops), len(ops)).Draw(rt, "value")
			s.cs[rapid.IntRange(0, len(s.cs)-1).Draw(rt, "combiner")].addString(key, v)
			m.add(ops, key, v, nil)
		}
		compare(t, s.drain(t), m)
	})
}

// Enough keys for ranges, growing tables and long runs, in memory and spilled.
func TestFoldManyKeys(t *testing.T) {
	for _, share := range []int64{2 << 20, 1 << 30} {
		for _, partitions := range []int{1, 4} {
			t.Run(fmt.Sprintf("share=%d/partitions=%d", share, partitions), func(t *testing.T) {
				ops := []Op{Sum, Max}
				s := newSetup(t, ops, partitions, 16, 0, 2, share)
				m := model{}
				x := uint64(1)
				for i := range 300_000 {
					x = x*6364136223846793005 + 1442695040888963407
					key := fmt.Sprintf("k%d", x>>33%90_000)
					if i%3 == 0 {
						key = fmt.Sprintf("https://example.org/a/long/common/prefix/%d", x>>33%70_000)
					}
					v := []int64{int64(x >> 20), int64(x)}
					s.cs[i%2].addString(key, v)
					m.add(ops, key, v, nil)
				}
				if spilled := len(s.runs) > 0; spilled != (share < 1<<30) {
					t.Fatalf("%d runs", len(s.runs))
				}
				compare(t, s.drain(t), m)
			})
		}
	}
}

// The order of pairs must not decide whether an overflow is seen.
func TestCarries(t *testing.T) {
	const big1 = math.MaxInt64
	for _, share := range []int64{1, 1 << 30} {
		for _, order := range [][]int64{{big1, -2, 1}, {big1, 1, -2}, {1, big1, -2}, {-2, 1, big1}, {big1, big1, big1, math.MinInt64, math.MinInt64, math.MinInt64}} {
			s := newSetup(t, []Op{Sum}, 1, 1, 0, 2, share)
			m := model{}
			for i, v := range order {
				s.cs[i%2].addString("k", []int64{v})
				m.add([]Op{Sum}, "k", []int64{v}, nil)
			}
			compare(t, s.drain(t), m)
		}
	}
}

func TestScales(t *testing.T) {
	ops := []Op{Sum, Min, Max, Sum}
	for _, share := range []int64{1, 1 << 30} {
		s := newSetup(t, ops, 1, 4, 0, 2, share)
		m := model{}
		add := func(c int, key string, v int64, up int) {
			s.cs[c].addString(key, []int64{v, v, v, 1})
			m.add(ops, key, []int64{v, v, v, 1}, []int{up, up, up, 0})
		}
		// 12 and 7 with no digit, then 3.45, in the other mapper 0.125: all end with three.
		add(0, "a", 12, 3)
		add(0, "b", 7, 3)
		s.cs[0].addString("none", []int64{0, Min.Identity(), Max.Identity(), 0})
		for _, lane := range []int{0, 1, 2} {
			s.cs[0].SetScale(lane, 2)
			s.cs[1].SetScale(lane, 3)
		}
		add(0, "a", 345, 1)
		add(1, "a", 125, 0)
		add(1, "c", -1, 0)
		got := s.drain(t)
		none := got["none"]
		delete(got, "none")
		compare(t, got, m)
		if none[1].Int64() != Min.Identity() || none[2].Int64() != Max.Identity() {
			t.Errorf("a lane without values became %v, %v", none[1], none[2])
		}
	}
}

func TestScaleOutOfRange(t *testing.T) {
	s := newSetup(t, []Op{Min}, 1, 1, 0, 1, 1<<30)
	s.cs[0].addString("k", []int64{math.MaxInt64 / 5})
	s.cs[0].SetScale(0, 1)
	if err := s.cs[0].Err(); !errors.Is(err, ErrScale) {
		t.Fatalf("got %v", err)
	}
}

func TestScaleUpAgainstBig(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		lo := rapid.Int64().Draw(rt, "lo")
		hi := rapid.Int64Range(-1<<20, 1<<20).Draw(rt, "hi")
		by := pow10[rapid.IntRange(0, MaxScale).Draw(rt, "scale")]
		value := func(lo, hi int64) *big.Int {
			return new(big.Int).Add(big.NewInt(lo), new(big.Int).Lsh(big.NewInt(hi), 64))
		}
		want := new(big.Int).Mul(value(lo, hi), big.NewInt(by))
		l, h, err := scaleUp(Sum, lo, hi, by)
		if err != nil {
			if hi > -(1<<62)/by && hi < (1<<62)/by {
				rt.Fatal(err)
			}
			return
		}
		if value(l, h).Cmp(want) != 0 {
			rt.Fatalf("got %v, want %v", value(l, h), want)
		}
	})
}

func FuzzDecodeLanes(f *testing.F) {
	f.Add(appendLanes(nil, []int64{1, -2}, nil))
	f.Add(appendLanes(nil, []int64{1, -2}, []int64{0, 3}))
	f.Fuzz(func(t *testing.T, b []byte) {
		lanes, carry := make([]int64, 2), make([]int64, 2)
		has, err := decodeLanes(b, lanes, carry)
		if err != nil {
			return
		}
		c := carry
		if !has {
			c = nil
		}
		again, again2 := make([]int64, 2), make([]int64, 2)
		if _, err := decodeLanes(appendLanes(nil, lanes, c), again, again2); err != nil || !slices.Equal(lanes, again) {
			t.Fatalf("%v does not survive: %v %v", lanes, again, err)
		}
	})
}

func BenchmarkAdd1(b *testing.B) {
	for _, n := range []int{1 << 10, 1 << 15, 1 << 20} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			keys := make([]string, n)
			for i := range keys {
				keys[i] = fmt.Sprintf("key%d", i*7919)
			}
			s := newSetup(b, []Op{Sum}, 1, 256, 0, 1, 900<<20)
			c := s.cs[0]
			b.ReportAllocs()
			x := uint64(1)
			for b.Loop() {
				x = x*6364136223846793005 + 1442695040888963407
				k := keys[x>>40&uint64(n-1)]
				c.Add1(unsafe.Pointer(unsafe.StringData(k)), len(k), 1)
			}
		})
	}
}
