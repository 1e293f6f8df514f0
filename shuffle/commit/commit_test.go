// SPDX-License-Identifier: Apache-2.0

package commit

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/wire"
)

type pair struct {
	key          string
	lanes, carry []int64
}

func jobOf(ops ...fold.Op) *shuffle.JobSpec {
	return &shuffle.JobSpec{Seed: pairs.Seed{A: 0x1234567890abcdef, B: 0xfedcba0987654321}, Ops: ops}
}

func commit(t testing.TB, job *shuffle.JobSpec, in []pair) *Output {
	t.Helper()
	b := NewBuilder(job)
	for _, p := range in {
		b.AddCarry([]byte(p.key), p.lanes, p.carry)
	}
	o, err := b.Commit()
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// frame is a body taken apart.
type frame struct {
	shape wire.Shape
	body  []byte
	pairs []pair
}

// parse reads a body by the rules of quern.h, not with the code that wrote it.
func parse(t testing.TB, job *shuffle.JobSpec, o *Output, i int) frame {
	t.Helper()
	shape, count, body := o.Body(i)
	if len(body) == 0 || len(body)%wire.BodyStep != 0 {
		t.Fatalf("frame %d: a body of %d bytes", i, len(body))
	}
	f := frame{shape: shape, body: body}
	at := 0
	lanes := len(job.Ops)
	for range count {
		p := pair{lanes: make([]int64, lanes)}
		if shape == wire.Long {
			n := int(binary.LittleEndian.Uint32(body[at:]))
			for l := range lanes {
				p.lanes[l] = int64(binary.LittleEndian.Uint64(body[at+4+8*l:]))
			}
			p.key = string(body[at+4+8*lanes:][:n])
			at += 4 + 8*lanes + n
			for ; at%4 != 0; at++ {
				if body[at] != 0 {
					t.Fatalf("frame %d: padding is not 0", i)
				}
			}
			f.pairs = append(f.pairs, p)
			continue
		}
		meta := binary.LittleEndian.Uint32(body[at:])
		n := int(meta&127) - 1
		at += 4
		for l := range lanes {
			if shape&wire.Wide != 0 {
				p.lanes[l] = int64(binary.LittleEndian.Uint64(body[at:]))
				at += 8
			} else {
				p.lanes[l] = int64(int32(binary.LittleEndian.Uint32(body[at:])))
				at += 4
			}
		}
		p.key = string(body[at : at+n])
		if h := job.Seed.HashBytes([]byte(p.key)); meta != uint32(h>>39)<<7|uint32(n+1) {
			t.Fatalf("frame %d: meta of %q is %#x", i, p.key, meta)
		}
		for _, c := range body[at+n : at+shape.KeyBytes()] {
			if c != 0 {
				t.Fatalf("frame %d: key %q is not padded with zeros", i, p.key)
			}
		}
		at += shape.KeyBytes()
		f.pairs = append(f.pairs, p)
	}
	for _, c := range body[at:] {
		if c != 0 {
			t.Fatalf("frame %d: body is not padded with zeros", i)
		}
	}
	return f
}

var allOps = []fold.Op{fold.Sum, fold.Min, fold.Max, fold.And, fold.Or, fold.Xor}

func genKey() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 70), func(b []byte) string { return string(b) }),
		rapid.Map(rapid.SampledFrom([]int{0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200, 1300, 1360, 1400, 5000}),
			func(n int) string { return strings.Repeat("k", n) }),
		rapid.Map(rapid.IntRange(0, 10_000), func(n int) string { return fmt.Sprint(n) }),
	)
}

func genValue() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64Range(-100, 100),
		rapid.SampledFrom([]int64{math.MaxInt32, math.MinInt32, math.MaxInt32 + 1, math.MinInt32 - 1, math.MaxInt64, math.MinInt64}),
		rapid.Int64(),
	)
}

// Whatever the order in which pairs come, the frames are the same; every pair
// is in them once; order, widths and filling follow the rules.
func TestFramesFollowFromThePairs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.SampledFrom([]int{1, 1, 2, 3, 4, 5, 7}).Draw(rt, "lanes")
		ops := rapid.SliceOfN(rapid.SampledFrom(allOps), n, n).Draw(rt, "ops")
		job := jobOf(ops...)
		job.Seed = pairs.Seed{A: rapid.Uint64().Draw(rt, "A"), B: rapid.Uint64().Draw(rt, "B")}
		small := rapid.Bool().Draw(rt, "small values")
		value := genValue()
		if small {
			value = rapid.Int64Range(math.MinInt32, math.MaxInt32)
		}
		var in []pair
		want := map[string]pair{}
		for _, k := range rapid.SliceOfNDistinct(genKey(), 0, 300, rapid.ID).Draw(rt, "keys") {
			p := pair{key: k, lanes: rapid.SliceOfN(value, n, n).Draw(rt, "values")}
			in = append(in, p)
			want[k] = p
		}
		o := commit(t, job, in)
		m := o.Manifest()
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "shuffle"), 1))
		rng.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
		again := commit(t, job, in)

		check, abs, sum := make([]uint64, n), make([]uint64, n), make([]*big.Int, n)
		for l := range sum {
			sum[l] = new(big.Int)
		}
		var last pair
		lastClass, lastHash := -1, uint64(0)
		var perClass [wire.Classes + 1]Class
		narrow := [wire.Classes + 1]bool{true, true, true, true, false}
		digest := xxh3.New()
		for i := range m.Frames {
			f := parse(t, job, o, i)
			shape, count, body := again.Body(i)
			if shape != f.shape || count != len(f.pairs) || !bytes.Equal(body, f.body) {
				rt.Fatalf("frame %d depends on the order of pairs", i)
			}
			digest.Write(body)
			for _, p := range f.pairs {
				w, ok := want[p.key]
				if !ok || !slices.Equal(w.lanes, p.lanes) {
					rt.Fatalf("frame %d: %q has %v, want %v", i, p.key, p.lanes, w.lanes)
				}
				delete(want, p.key)
				class, ok := wire.ClassOf(len(p.key))
				if !ok || n > 4 {
					class = 4
				}
				h := job.Seed.HashBytes([]byte(p.key))
				if c := cmp.Or(cmp.Compare(lastClass, class), cmp.Compare(lastHash, h), cmp.Compare(last.key, p.key)); lastClass >= 0 && c >= 0 {
					rt.Fatalf("frame %d: %q behind %q", i, p.key, last.key)
				}
				last, lastClass, lastHash = p, class, h
				perClass[class].Pairs++
				perClass[class].Keys++
				for l, v := range p.lanes {
					narrow[class] = narrow[class] && v == int64(int32(v))
					b := new(big.Int).Abs(big.NewInt(v))
					sum[l].Add(sum[l], b)
					abs[l] = max(abs[l], b.Uint64())
					if ops[l] == fold.Sum {
						check[l] += uint64(v) * h
					}
				}
			}
		}
		if len(want) != 0 {
			rt.Fatalf("%d pairs are in no frame", len(want))
		}
		first := 0
		for c := range perClass {
			w := &perClass[c]
			if w.Pairs > 0 {
				w.Width = 8
				if narrow[c] {
					w.Width = 4
				}
			}
			if c < wire.Classes {
				if w.Pairs > 0 {
					shape := wire.Keyed(c, n, w.Width == 8)
					per := uint64(1376 / (4 + n*w.Width + 8<<c))
					w.Frames = int((w.Pairs + per - 1) / per)
					for i := first; i < first+w.Frames; i++ {
						s, count, _ := o.Body(i)
						if s != shape || i < first+w.Frames-1 && uint64(count) != per {
							rt.Fatalf("frame %d: shape %#x with %d pairs", i, s, count)
						}
					}
				}
			} else {
				w.Frames = m.Frames - first
			}
			first += w.Frames
		}
		if m.Classes != perClass {
			rt.Fatalf("classes %+v, want %+v", m.Classes, perClass)
		}
		if m.Pairs != uint64(len(in)) || m.Digest != again.Manifest().Digest {
			rt.Fatalf("%d pairs of %d, digests %x and %x", m.Pairs, len(in), m.Digest, again.Manifest().Digest)
		}
		if len(m.Segments) > 1 || len(m.Segments) == 1 && m.Segments[0].Digest != digest.Sum64() {
			rt.Fatalf("segments %+v, digest %x", m.Segments, digest.Sum64())
		}
		if !slices.Equal(m.Check, check) || !slices.Equal(m.MaxAbs, abs) {
			rt.Fatalf("check %x, want %x; largest %d, want %d", m.Check, check, m.MaxAbs, abs)
		}
		for l, s := range m.SumAbs {
			got := new(big.Int).SetUint64(s.Hi)
			got.Lsh(got, 64).Add(got, new(big.Int).SetUint64(s.Lo))
			if got.Cmp(sum[l]) != 0 || s.Fits() != (sum[l].BitLen() <= 63) {
				rt.Fatalf("lane %d: sum %v, want %v; fits: %v", l, got, sum[l], s.Fits())
			}
		}
	})
}

// Long frames are filled as far as they go, and a pair too large has one of its own.
func TestLongFramesAreFull(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		job := jobOf(fold.Sum)
		var in []pair
		for i, n := range rapid.SliceOfN(rapid.OneOf(rapid.IntRange(66, 400), rapid.IntRange(1300, 3000)), 1, 60).Draw(rt, "sizes") {
			in = append(in, pair{key: fmt.Sprintf("%02d%s", i, strings.Repeat("x", n-2)), lanes: []int64{1}})
		}
		o := commit(t, job, in)
		for i := range o.Frames() {
			f := parse(t, job, o, i)
			if n := len(f.body); n > wire.BodySize && len(f.pairs) != 1 {
				rt.Fatalf("frame %d has %d bytes and %d pairs", i, n, len(f.pairs))
			}
			if i+1 < o.Frames() {
				used := 0
				for _, p := range f.pairs {
					used += 12 + (len(p.key)+3)/4*4
				}
				next := parse(t, job, o, i+1).pairs[0]
				if used+12+(len(next.key)+3)/4*4 <= wire.BodySize {
					rt.Fatalf("frame %d has room for the first pair of the next", i)
				}
			}
		}
	})
}

// Sums beyond 64 bits travel as pairs that are not, and add up to the same.
func TestCarriesAreSplit(t *testing.T) {
	job := jobOf(fold.Sum, fold.Min, fold.Sum)
	for _, tc := range []struct {
		lanes, carry []int64
		pairs        uint64
	}{
		{[]int64{5, 3, 7}, []int64{0, 0, 0}, 1},
		{[]int64{5, 3, 7}, nil, 1},
		// 2^64 + 5 = 2 x (2^63-1) + 7
		{[]int64{5, 3, 7}, []int64{1, 0, 0}, 3},
		// -2^64 + 5 = -2^63 + (5 - 2^63)
		{[]int64{5, 3, -7}, []int64{-1, 0, 0}, 2},
		// 2^64 - 1 = (2^63-1) + 2^63 = 2 x (2^63-1) + 1; the other is -3 x 2^64 - 1
		{[]int64{-1, 3, -1}, []int64{1, 0, -3}, 7},
		{[]int64{math.MinInt64, math.MinInt64, math.MaxInt64}, []int64{1, 0, 1000}, 0},
		{[]int64{math.MaxInt64, -1, math.MinInt64}, []int64{-1000, 0, 1}, 0},
	} {
		key := "some key"
		o := commit(t, job, []pair{{"other", []int64{1, 2, 3}, nil}, {key, tc.lanes, tc.carry}, {"third", []int64{1, 2, 3}, nil}})
		m := o.Manifest()
		if tc.pairs > 0 && m.Pairs != tc.pairs+2 || m.Classes[0].Keys != 3 {
			t.Errorf("%v %v: %d pairs, want %d", tc.lanes, tc.carry, m.Pairs-2, tc.pairs)
		}
		want := make([]*big.Int, 3)
		got := []*big.Int{new(big.Int), big.NewInt(math.MaxInt64), new(big.Int)}
		check := make([]uint64, 3)
		for l := range want {
			want[l] = big.NewInt(tc.lanes[l])
			if tc.carry != nil && l != 1 {
				want[l].Add(want[l], new(big.Int).Lsh(big.NewInt(tc.carry[l]), 64))
			}
		}
		for i := range o.Frames() {
			for _, p := range parse(t, job, o, i).pairs {
				h := job.Seed.HashBytes([]byte(p.key))
				check[0] += uint64(p.lanes[0]) * h
				check[2] += uint64(p.lanes[2]) * h
				if p.key != key {
					continue
				}
				got[0].Add(got[0], big.NewInt(p.lanes[0]))
				got[2].Add(got[2], big.NewInt(p.lanes[2]))
				if v := big.NewInt(p.lanes[1]); v.Cmp(got[1]) < 0 {
					got[1] = v
				}
			}
		}
		for l := range want {
			if want[l].Cmp(got[l]) != 0 {
				t.Errorf("%v %v: lane %d is %v, want %v", tc.lanes, tc.carry, l, got[l], want[l])
			}
		}
		if !slices.Equal(m.Check, check) {
			t.Errorf("%v %v: check %x, want %x", tc.lanes, tc.carry, m.Check, check)
		}
	}
}

func TestCommitRefuses(t *testing.T) {
	job := jobOf(fold.Sum)
	for name, tc := range map[string]struct {
		job  *shuffle.JobSpec
		add  func(b *Builder)
		want string
	}{
		"a key twice":       {job, func(b *Builder) { b.Add([]byte("a"), []int64{1}); b.Add([]byte("a"), []int64{2}) }, ErrRepeated.Error()},
		"a long key twice":  {job, func(b *Builder) { k := bytes.Repeat([]byte("a"), 99); b.Add(k, []int64{1}); b.Add(k, []int64{2}) }, ErrRepeated.Error()},
		"the empty key":     {job, func(b *Builder) { b.Add(nil, []int64{1}); b.Add([]byte{}, []int64{2}) }, ErrRepeated.Error()},
		"a split key again": {job, func(b *Builder) { b.AddCarry([]byte("a"), []int64{1}, []int64{1}); b.Add([]byte("a"), []int64{2}) }, ErrRepeated.Error()},
		"one often": {job, func(b *Builder) {
			for range 100 {
				b.Add([]byte("a"), []int64{1})
			}
		}, ErrRepeated.Error()},
		"too few lanes": {job, func(b *Builder) { b.Add([]byte("a"), nil) }, "0 lanes in a job of 1"},
		"far too much":  {job, func(b *Builder) { b.AddCarry([]byte("a"), []int64{1}, []int64{1 << 20}) }, ErrBeyond.Error()},
		"no lanes":      {&shuffle.JobSpec{}, func(*Builder) {}, "0 lanes"},
		"a vector of 2": {jobOf(fold.Sum, fold.Sum), func(b *Builder) { _, b.err = Dense(jobOf(fold.Sum, fold.Sum), []int64{1}) }, "job of one"},
	} {
		b := NewBuilder(tc.job)
		tc.add(b)
		if _, err := b.Commit(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
	b := NewBuilder(job)
	if _, err := b.Commit(); err != nil {
		t.Error(err)
	}
	if _, err := b.Commit(); err == nil {
		t.Error("a builder was committed twice")
	}
}

// Keys that differ in their last byte alone, or in length alone, are not one key.
func TestKeysThatLookAlike(t *testing.T) {
	job := jobOf(fold.Sum)
	in := []pair{{"", []int64{1}, nil}, {"\x00", []int64{2}, nil}, {"\x00\x00", []int64{3}, nil}, {"aaaaaaaa", []int64{4}, nil}, {"aaaaaaaa\x00", []int64{5}, nil}}
	if m := commit(t, job, in).Manifest(); m.Pairs != 5 || m.Classes[0].Keys != 4 || m.Classes[1].Keys != 1 {
		t.Errorf("%+v", m)
	}
}

// Equal hashes are ordered by key. They can't be had for the asking, so the
// sorter is given them.
func TestEqualHashesGoByKey(t *testing.T) {
	for _, n := range []int{5, 500} {
		keys := make([][]byte, n)
		var e []entry
		for i := range keys {
			keys[i] = fmt.Appendf(nil, "%05d", i)
			e = append(e, entry{hash: 42, ref: uint32(i)})
		}
		rand.New(rand.NewPCG(1, uint64(n))).Shuffle(n, func(i, j int) { e[i], e[j] = e[j], e[i] })
		s := sorter{key: func(e entry) []byte { return keys[e.ref] }}
		for i, e := range s.sort(e, make([]entry, n)) {
			if int(e.ref) != i {
				t.Fatalf("of %d: %d at %d", n, e.ref, i)
			}
		}
	}
}

func TestSortEqualsCompare(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.SampledFrom([]int{0, 1, few, few + 1, 100, 3000, 40_000}).Draw(rt, "n")
		mask := rapid.SampledFrom([]uint64{^uint64(0), 0xff, 0xffff << 40, 0xf00000000000000f}).Draw(rt, "mask")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		e := make([]entry, n)
		for i := range e {
			e[i] = entry{hash: rng.Uint64() & mask, ref: uint32(i)}
		}
		key := func(e entry) []byte { return binary.BigEndian.AppendUint32(nil, e.ref*2654435761) }
		s := sorter{key: key}
		want := slices.Clone(e)
		slices.SortFunc(want, func(a, b entry) int {
			return cmp.Or(cmp.Compare(a.hash, b.hash), bytes.Compare(key(a), key(b)))
		})
		if got := s.sort(e, make([]entry, n)); !slices.Equal(got, want) {
			rt.Fatalf("%d entries under mask %x are not sorted", n, mask)
		}
	})
}

// Worked out by hand: three pairs of one narrow class, one of a wide one.
func TestSmallOutput(t *testing.T) {
	job := jobOf(fold.Sum)
	in := []pair{{"a", []int64{1}, nil}, {"bb", []int64{-2}, nil}, {"ccc", []int64{300}, nil}, {"nine byte", []int64{1 << 40}, nil}}
	o := commit(t, job, in)
	slices.SortFunc(in[:3], func(a, b pair) int {
		return cmp.Compare(job.Seed.HashBytes([]byte(a.key)), job.Seed.HashBytes([]byte(b.key)))
	})
	var want strings.Builder
	for _, p := range in[:3] {
		meta := uint32(job.Seed.HashBytes([]byte(p.key))>>39)<<7 | uint32(len(p.key)+1)
		fmt.Fprintf(&want, "%08x", []byte{byte(meta), byte(meta >> 8), byte(meta >> 16), byte(meta >> 24)})
		want.WriteString(map[string]string{
			"a":   "01000000" + "6100000000000000",
			"bb":  "feffffff" + "6262000000000000",
			"ccc": "2c010000" + "6363630000000000",
		}[p.key])
	}
	// 3 pairs of 16 bytes, padded to 64.
	want.WriteString(strings.Repeat("00", 16))
	shape, count, body := o.Body(0)
	if shape != 0 || count != 3 || hex.EncodeToString(body) != want.String() {
		t.Errorf("shape %#x, %d pairs\n%x, want\n%s", shape, count, body, want.String())
	}
	shape, count, body = o.Body(1)
	if shape != 0x11 || count != 1 || len(body) != 64 || hex.EncodeToString(body[4:]) != "0000000000010000"+"6e696e65206279746500000000000000"+strings.Repeat("00", 36) {
		t.Errorf("shape %#x, %d pairs, %x", shape, count, body)
	}
	if m := o.Manifest(); m.Frames != 2 || m.MaxAbs[0] != 1<<40 || m.SumAbs[0] != (Total{0, 1<<40 + 303}) || len(m.Segments) != 1 {
		t.Errorf("%+v", m)
	}
	h := wire.Head{Token: 77, Stream: 5, Seq: 1, Back: 9, Flags: wire.FlagWantAck}
	f := o.Frame(1, nil, h)
	got, err := wire.ParseFrame(f)
	if err != nil || got.Token != 77 || got.Stream != 5 || got.Seq != 1 || got.Back != 9 || got.Count != 1 || !bytes.Equal(f[wire.HeadSize:], body) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, _, body := o.Body(2); body != nil {
		t.Error("there is a frame beyond the end")
	}
}

// The other code that makes frames makes the same ones.
func TestFramesAreThoseOfTheWire(t *testing.T) {
	job := jobOf(fold.Sum, fold.Max)
	var in []pair
	for i := range 2000 {
		in = append(in, pair{key: strings.Repeat("k", i%90) + fmt.Sprint(i), lanes: []int64{int64(i), int64(i%17) << (i % 50)}})
	}
	in = append(in, pair{key: strings.Repeat("L", 3000), lanes: []int64{1, 2}})
	o := commit(t, job, in)
	for i := range o.Frames() {
		f := parse(t, job, o, i)
		h := wire.Head{Token: 3, Seq: uint32(i)}
		var want []byte
		if len(f.body) > wire.BodySize {
			var err error
			if want, err = wire.LargeFrame(h, []byte(f.pairs[0].key), f.pairs[0].lanes, nil); err != nil {
				t.Fatal(err)
			}
		} else {
			var b wire.Builder
			b.Reset(make([]byte, wire.FrameSize), f.shape)
			for _, p := range f.pairs {
				if !b.Add(job.Seed.HashBytes([]byte(p.key)), []byte(p.key), p.lanes) {
					t.Fatal(b.Err())
				}
			}
			want = b.Finish(h, nil)
		}
		if got := o.Frame(i, nil, h); !bytes.Equal(got, want) {
			t.Fatalf("frame %d differs", i)
		}
		if o.Size(i) != len(want) {
			t.Fatalf("frame %d: size %d, want %d", i, o.Size(i), len(want))
		}
	}
}

// More than 4096 frames are several segments.
func TestSegments(t *testing.T) {
	job := jobOf(fold.Sum)
	b := NewBuilder(job)
	const n = 4096*86 + 3 // 86 pairs of 16 bytes a frame
	for i := range n {
		b.Add(fmt.Appendf(nil, "%d", i), []int64{int64(i)})
	}
	o, err := b.Commit()
	if err != nil {
		t.Fatal(err)
	}
	m := o.Manifest()
	if len(m.Segments) != 2 || m.Segments[0].Frames != 4096 || m.Segments[1].Frames != 1 || m.Segments[1].First != 4096 ||
		m.Segments[0].Pairs != 4096*86 || m.Segments[1].Pairs != 3 || m.Frames != 4097 || m.Pairs != n {
		t.Fatalf("%+v", m)
	}
	if m.Segments[0].Check[0]+m.Segments[1].Check[0] != m.Check[0] {
		t.Error("checks of segments are not that of the whole")
	}
	var check uint64
	for _, p := range parse(t, job, o, 4096).pairs {
		check += uint64(p.lanes[0]) * job.Seed.HashBytes([]byte(p.key))
	}
	if s := o.Stream(shuffle.TargetID{Partition: 3}, 8, 1); s.Check[0] != check || s.Frames != 1 || s.Pairs != 3 || s.ID.Segment != 1 || s.ID.Map != 8 || s.Digest != m.Segments[1].Digest {
		t.Errorf("%+v", s)
	}
}

func TestDense(t *testing.T) {
	job := jobOf(fold.Sum)
	for _, tc := range []struct {
		n      int
		large  int64
		frames int
		last   int // bytes of the last body
	}{
		{0, 0, 0, 0},
		{1, 0, 1, 64},
		{342, 0, 1, 1376}, // 8 + 342 x 4 = 1376
		{343, 0, 2, 64},
		{343, math.MinInt32 - 1, 3, 64}, // 171 a frame
		{1000, math.MinInt32, 3, 1280},  // 316 in the last: 8 + 1264 = 1272
	} {
		values := make([]int64, tc.n)
		var check uint64
		for i := range values {
			values[i] = int64(i*7 - 300)
		}
		if tc.n > 0 {
			values[tc.n-1] = tc.large
		}
		for i, v := range values {
			var k [8]byte
			binary.LittleEndian.PutUint64(k[:], uint64(i))
			check += uint64(v) * job.Seed.HashBytes(k[:])
		}
		o, err := Dense(job, values)
		if err != nil {
			t.Fatal(err)
		}
		m := o.Manifest()
		if m.Frames != tc.frames || m.Pairs != uint64(tc.n) || m.Dense != uint64(tc.n) || m.Check[0] != check {
			t.Errorf("%d values: %+v, want %d frames and check %x", tc.n, m, tc.frames, check)
		}
		at := 0
		for i := range m.Frames {
			shape, count, body := o.Body(i)
			width, want := 4, wire.Dense
			if tc.large < math.MinInt32 {
				width, want = 8, wire.Dense|wire.Wide
			}
			n := int(binary.LittleEndian.Uint32(body[4:]))
			if shape != want || count != 0 || int(binary.LittleEndian.Uint32(body)) != at {
				t.Fatalf("%d values, frame %d: shape %#x, count %d, offset %d", tc.n, i, shape, count, binary.LittleEndian.Uint32(body))
			}
			for k := range n {
				v := int64(int32(binary.LittleEndian.Uint32(body[8+width*k:])))
				if width == 8 {
					v = int64(binary.LittleEndian.Uint64(body[8+width*k:]))
				}
				if v != values[at+k] {
					t.Fatalf("value %d is %d, want %d", at+k, v, values[at+k])
				}
			}
			at += n
			if i == m.Frames-1 && len(body) != tc.last {
				t.Errorf("%d values: the last body has %d bytes, want %d", tc.n, len(body), tc.last)
			}
		}
		if at != tc.n {
			t.Errorf("%d of %d values", at, tc.n)
		}
	}
}

// Random access makes no garbage.
func TestFrameAllocatesNothing(t *testing.T) {
	var in []pair
	for i := range 3000 {
		in = append(in, pair{key: strings.Repeat("k", i%80) + fmt.Sprint(i), lanes: []int64{1}})
	}
	o := commit(t, jobOf(fold.Sum), in)
	buf := make([]byte, 0, 2*wire.FrameSize)
	i := 0
	if n := testing.AllocsPerRun(500, func() {
		o.Frame(i%o.Frames(), buf, wire.Head{Seq: uint32(i)})
		i++
	}); n != 0 {
		t.Errorf("%v allocations a frame", n)
	}
}

func TestTotal(t *testing.T) {
	top := Total{^uint64(0), ^uint64(0)}
	for _, tc := range []struct {
		a, b, want Total
		fits       bool
	}{
		{Total{0, 1}, Total{0, 2}, Total{0, 3}, true},
		{Total{0, 1<<63 - 2}, Total{0, 1}, Total{0, 1<<63 - 1}, true},
		{Total{0, 1<<63 - 1}, Total{0, 1}, Total{0, 1 << 63}, false},
		{Total{0, 1 << 63}, Total{0, 1 << 63}, Total{1, 0}, false},
		{top, Total{0, 1}, top, false},
		{Total{1 << 63, 0}, Total{1 << 63, 5}, top, false},
	} {
		if got := tc.a.Add(tc.b); got != tc.want || got.Fits() != tc.fits {
			t.Errorf("%v + %v = %v, fits: %v", tc.a, tc.b, got, got.Fits())
		}
	}
}

func benchPairs(n, keyLen int) ([][]byte, []int64) {
	keys := make([][]byte, n)
	for i, p := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		keys[i] = fmt.Appendf(nil, "%0*d", keyLen, p)
	}
	return keys, []int64{1}
}

func BenchmarkCommit(b *testing.B) {
	for _, tc := range []struct{ n, key int }{{10_000, 8}, {1_000_000, 8}, {1_000_000, 14}, {300_000, 40}, {300_000, 100}} {
		b.Run(fmt.Sprintf("pairs=%d/key=%d", tc.n, tc.key), func(b *testing.B) {
			keys, lanes := benchPairs(tc.n, tc.key)
			job := jobOf(fold.Sum)
			b.ReportAllocs()
			for b.Loop() {
				c := NewBuilder(job)
				for _, k := range keys {
					c.Add(k, lanes)
				}
				if _, err := c.Commit(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(tc.n), "ns/pair")
		})
	}
}

// Outputs that are divided while they are built follow the same rules, at any size about
// the border.
func TestDividedOutputs(t *testing.T) {
	job := jobOf(fold.Sum, fold.Max)
	for _, n := range []int{splitAt - 1, splitAt, splitAt + 1, 3 * splitAt} {
		in := make([]pair, n)
		for i := range in {
			in[i] = pair{key: fmt.Sprintf("%0*d", 9+i%60, i), lanes: []int64{int64(i), -int64(i)}}
			if i%3 > 0 {
				in[i].key = fmt.Sprint(i)
			}
		}
		o := commit(t, job, in)
		rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { in[i], in[j] = in[j], in[i] })
		again := commit(t, job, in)
		seen := map[string]bool{}
		last, lastClass := uint64(0), -1
		for i := range o.Frames() {
			f := parse(t, job, o, i)
			if _, _, body := again.Body(i); !bytes.Equal(f.body, body) {
				t.Fatalf("%d pairs: frame %d depends on the order of pairs", n, i)
			}
			for _, p := range f.pairs {
				class, ok := wire.ClassOf(len(p.key))
				if !ok {
					class = long
				}
				h := job.Seed.HashBytes([]byte(p.key))
				if class < lastClass || class == lastClass && h < last {
					t.Fatalf("%d pairs: frame %d is out of order", n, i)
				}
				last, lastClass = h, class
				if v, _ := strconv.ParseInt(p.key, 10, 64); seen[p.key] || p.lanes[0] != v || p.lanes[1] != -v {
					t.Fatalf("%d pairs: %q has %v", n, p.key, p.lanes)
				}
				seen[p.key] = true
			}
		}
		if len(seen) != n || o.Manifest().Pairs != uint64(n) || keysOf(o) != uint64(n) {
			t.Errorf("%d pairs: %d came out", n, len(seen))
		}
	}
}

func keysOf(o *Output) (sum uint64) {
	for _, k := range o.Manifest().Keys() {
		sum += k
	}
	return sum
}

// A drain's pairs are those of the output.
func TestAddDrain(t *testing.T) {
	arena, err := pairs.NewArena(64 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	job := jobOf(fold.Sum)
	cfg := fold.Config{Arena: arena, Ops: job.Ops, Seed: job.Seed, Partitions: 1, SubBuckets: 4, Share: 32 << 20}
	c := fold.NewCombiner(cfg)
	want := map[string]*big.Int{}
	add := func(k string, v int64) {
		b := []byte(k)
		c.Add(unsafe.Pointer(unsafe.SliceData(b)), len(b), []int64{v})
		if want[k] == nil {
			want[k] = new(big.Int)
		}
		want[k].Add(want[k], big.NewInt(v))
	}
	for i := range 5000 {
		add(fmt.Sprint(i%700), int64(i))
	}
	for range 3 {
		add("large", math.MaxInt64)
	}
	d, err := fold.NewDrain(t.Context(), cfg, []*fold.Combiner{c}, nil, fold.Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	b := NewBuilder(job)
	if err := b.AddDrain(t.Context(), d, 0); err != nil {
		t.Fatal(err)
	}
	o, err := b.Commit()
	if err != nil {
		t.Fatal(err)
	}
	for i := range o.Frames() {
		for _, p := range parse(t, job, o, i).pairs {
			want[p.key].Sub(want[p.key], big.NewInt(p.lanes[0]))
		}
	}
	for k, v := range want {
		if v.Sign() != 0 {
			t.Errorf("%q: %v is missing", k, v)
		}
	}
	if !slices.Equal(o.Manifest().Check, c.Check()) {
		t.Errorf("check %x, the combiner's is %x", o.Manifest().Check, c.Check())
	}
}
