// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// anyFloat draws finite floats of every size, and those where rounding is hard.
func anyFloat() *rapid.Generator[float64] {
	return rapid.OneOf(
		rapid.Custom(func(t *rapid.T) float64 {
			b := rapid.Uint64().Draw(t, "bits")
			if b&(0x7ff<<52) == 0x7ff<<52 {
				b &^= 1 << 60
			}
			return math.Float64frombits(b)
		}),
		rapid.SampledFrom([]float64{
			0, math.Copysign(0, -1), math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64,
			0x1p-1022, 0x1p-1022 - 0x1p-1074, 1e308, -1e308, 1e-308, -1e-308, 1, -1, 1 + 0x1p-52, 0x1p-53, -0x1p-53, 0x1p-54, 0x1p-105, 3, 0.1,
		}),
		rapid.Custom(func(t *rapid.T) float64 { return rapid.Float64Range(-1000, 1000).Draw(t, "usual") }),
	)
}

func finiteFloat32() *rapid.Generator[float32] {
	return rapid.Custom(func(t *rapid.T) float32 {
		b := rapid.Uint32().Draw(t, "bits")
		if b&(0xff<<23) == 0xff<<23 {
			b &^= 1 << 29
		}
		return math.Float32frombits(b)
	})
}

func ratOf(v float64) *big.Rat { return new(big.Rat).SetFloat64(v) }

// units returns n x 2^exp.
func units(n *big.Int, exp int) *big.Rat {
	r := new(big.Rat).SetInt(n)
	two := new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), uint(max(exp, -exp))))
	if exp < 0 {
		return r.Quo(r, two)
	}
	return r.Mul(r, two)
}

// sameBits says whether two results are the same, NaN and NaN included.
func sameBits(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || a != a && b != b
}

// Every finite float comes out of its lanes as it went in, and every product as it is.
func TestLanesHoldFloatsExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, w, f := anyFloat().Draw(t, "v"), anyFloat().Draw(t, "w"), finiteFloat32().Draw(t, "f")
		check := func(what string, want *big.Rat, unit, n, room int, put func([]int64) uint32, add func(*exact, uint32, Lanes) error) {
			lanes := make([]int64, n)
			var a exact
			window := put(lanes)
			if err := add(&a, window, Lanes{V: lanes}); err != nil {
				t.Fatal(what, err)
			}
			for _, l := range lanes {
				if l >= 1<<room || l <= -1<<room {
					t.Errorf("%s: lane %#x is over %d bits", what, l, room)
				}
			}
			if got := units(a.integer(), unit); got.Cmp(want) != 0 {
				t.Errorf("%s: got %v, want %v", what, got, want)
			}
		}
		check("float64", ratOf(v), unit64, 2, lane64, func(l []int64) uint32 { return put64(l, v) }, addDouble)
		check("float32", ratOf(float64(f)), unit32, 1, 24+1<<window32-1, func(l []int64) uint32 { return put32(l, f) }, addSingle)
		product := new(big.Rat).Mul(ratOf(v), ratOf(w))
		check("product", product, unitProduct, 4, laneSquare, func(l []int64) uint32 { return putProduct(l, v, w) }, addProduct)
	})
}

// parts hands numbers of parts to a fold, as damaged data would.
func parts(subs ...uint32) iter.Seq2[uint32, Lanes] {
	return func(yield func(uint32, Lanes) bool) {
		for _, sub := range subs {
			if !yield(sub, Lanes{V: []int64{1, 1, 1, 1}}) {
				return
			}
		}
	}
}

func TestPartsOfVectorsOutOfRange(t *testing.T) {
	get := func(_ any, err error) error { return err }
	tables := func(sub uint32) error {
		return get(FloatTable(make([]FloatColumn, 2), 1, 0, false, func(t *FloatTotals) (int, error) { return 0, nil }).getSub(parts(sub)))
	}
	for name, f := range map[string]struct {
		get  func(sub uint32) error
		good []uint32 // the last ones that there are
		bad  []uint32
	}{
		"integers": {func(sub uint32) error { return get(VectorSum[int64](5).getSub(parts(sub))) }, []uint32{1}, []uint32{2, 1 << 31}},
		"exact":    {func(sub uint32) error { return get(VectorFloat64Sum[float64](5).getSub(parts(sub))) }, []uint32{2<<6 | 63}, []uint32{3 << 6, math.MaxUint32}},
		"narrow":   {func(sub uint32) error { return get(VectorFloat32Sum[float32](5).getSub(parts(sub))) }, []uint32{1<<4 | 15}, []uint32{2 << 4}},
		"quantum":  {func(sub uint32) error { return get(VectorFloat64Sum[float64](5, Quantum(1)).getSub(parts(sub))) }, []uint32{1}, []uint32{2}},
		"extremes": {func(sub uint32) error { return get(VectorFloatMin[float64](5).getSub(parts(sub))) }, []uint32{1}, []uint32{2}},
		"table":    {tables, []uint32{0, 1, 512 + 1 + 66, 512 + 1 + 128 + 255, 1<<31 + 1<<14 - 1}, []uint32{1 + 67, 1 + 128 + 256, 1 + 2*512, 1<<31 + 1<<14, math.MaxUint32}},
	} {
		for _, sub := range f.good {
			if err := f.get(sub); err != nil {
				t.Errorf("%s: part %d: %v", name, sub, err)
			}
		}
		for _, sub := range f.bad {
			if f.get(sub) == nil {
				t.Errorf("%s: part %d is accepted", name, sub)
			}
		}
	}
}

// What is wrong with a fold of vectors, a job that has it says.
func TestVectorFoldsThatAreWrong(t *testing.T) {
	for want, err := range map[string]error{
		"fold VectorSum of 0 elements: 1 to 1048576 are possible":                                   VectorSum[int32](0).err,
		"fold VectorMax of -1 elements":                                                             VectorMax[int64](-1).err,
		"fold VectorFloat32Sum of 1048577 elements":                                                 VectorFloat32Sum[float32](MaxVector + 1).err,
		"fold VectorFloatMin of 0 elements":                                                         VectorFloatMin[float32](0).err,
		"quantum -1: it must be a finite number above 0":                                            VectorFloat64Sum[float64](3, Quantum(-1)).err,
		"fold VectorFloatMax: it takes no Quantum":                                                  VectorFloatMax[float64](3, Quantum(1)).err,
		"fold CountNonFinite: it is not for VectorFloatMin and VectorFloatMax":                      CountNonFinite(VectorFloatMax[float64](3)).err,
		"fold CountNonFinite: it is for folds of floats, once":                                      CountNonFinite(VectorSum[int64](3)).err,
		"quantum NaN: it must be":                                                                   FloatTable(nil, 0, math.NaN(), false, func(*FloatTotals) (int, error) { return 0, nil }).err,
		"fold FloatTable of 4194304 columns and 1 sketches: at most 4194303 and 65536 are possible": FloatTable(make([]FloatColumn, 1<<22), 1, 0, false, func(*FloatTotals) (int, error) { return 0, nil }).err,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	if err := errors.Join(VectorSum[int32](MaxVector).err, VectorFloat64Sum[float32](1, SkipNonFinite).err, CountNonFinite(VectorFloat64Sum[float64](1)).err); err != nil {
		t.Error(err)
	}
}

func TestPartsOutOfRange(t *testing.T) {
	var a exact
	l := Lanes{V: make([]int64, 4)}
	for i, f := range []func(window uint32) error{
		func(w uint32) error { return addSingle(&a, w, l) },
		func(w uint32) error { return addDouble(&a, w, l) },
		func(w uint32) error { return addProduct(&a, w, l) },
	} {
		highest := []uint32{windows32, windows64, windowsProduct}[i]
		if f(highest) != nil || f(highest+1) == nil || f(math.MaxUint32) == nil {
			t.Error(i)
		}
	}
	lanes := make([]int64, 4)
	if put64(lanes, math.MaxFloat64) > windows64 || put32(lanes, math.MaxFloat32) > windows32 || putProduct(lanes, math.MaxFloat64, -math.MaxFloat64) > windowsProduct {
		t.Error("the largest numbers have no window")
	}
}

// Sums of words with carries at any place, rounded to both formats, against math/big.
func TestExactAgainstBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a exact
		sum := new(big.Int)
		high := rapid.SampledFrom([]uint{10, 200, 2100, 4200}).Draw(t, "high")
		for range rapid.IntRange(0, 12).Draw(t, "n") {
			v, carry := rapid.Int64().Draw(t, "v"), int64(0)
			if rapid.Bool().Draw(t, "carried") {
				carry = rapid.Int64Range(-1<<40, 1<<40).Draw(t, "carry")
			}
			shift := rapid.UintRange(0, high).Draw(t, "shift")
			a.add(v, carry, shift)
			x := Lanes{V: []int64{v}, Carry: []int64{carry}}.Big(0)
			sum.Add(sum, x.Lsh(x, shift))
		}
		if got := a.integer(); got.Cmp(sum) != 0 {
			t.Fatalf("got %v, want %v", got, sum)
		}
		n := rapid.OneOf(rapid.Uint64Range(1, 9), rapid.Uint64Range(1, 1<<63-1)).Draw(t, "divisor")
		for _, unit := range []int{unit64, unit32} {
			exactly := units(sum, unit)
			b := a
			want, _ := exactly.Float64()
			if got := b.rounded(formatFloat64, unit); !sameBits(got, want) {
				t.Errorf("float64 of %v: got %x, want %x", exactly, got, want)
			}
			b = a
			mean := new(big.Rat).Quo(exactly, new(big.Rat).SetInt(new(big.Int).SetUint64(n)))
			want, _ = mean.Float64()
			if got := b.mean(unit, n); !sameBits(got, want) && !(got == 0 && want == 0) {
				t.Errorf("mean of %v: got %x, want %x", mean, got, want)
			}
			if unit == unit32 {
				b = a
				want, _ := exactly.Float32()
				if got := b.rounded(formatFloat32, unit); !sameBits(got, float64(want)) {
					t.Errorf("float32 of %v: got %x, want %x", exactly, got, want)
				}
			}
		}
	})
}

// Quotients and roots of integers of any size and at any scale, also where they are
// subnormal or too large.
func TestQuotientAndRootAgainstBig(t *testing.T) {
	integer := rapid.Custom(func(t *rapid.T) *big.Int {
		b := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "bytes")
		n := new(big.Int).SetBytes(b)
		return n.Lsh(n, rapid.SampledFrom([]uint{0, 1, 64, 1000}).Draw(t, "shift"))
	})
	rapid.Check(t, func(t *rapid.T) {
		num, den := integer.Draw(t, "num"), integer.Draw(t, "den")
		den.Add(den, big.NewInt(1))
		exp := 2 * rapid.IntRange(-1100, 600).Draw(t, "exp")
		if rapid.Bool().Draw(t, "square") { // whose root is exact
			num.Mul(num, num)
			den.Mul(den, den)
		}
		exactly := units(num, exp)
		exactly.Quo(exactly, new(big.Rat).SetInt(den))
		before := fmt.Sprint(num, den)
		want, _ := exactly.Float64()
		if got := quotient(num, den, exp); !sameBits(got, want) {
			t.Errorf("%v / %v x 2^%d: got %x, want %x", num, den, exp, got, want)
		}
		if got := quotient(new(big.Int).Neg(num), den, exp); num.Sign() > 0 && !sameBits(got, -want) {
			t.Errorf("-%v / %v x 2^%d: got %x, want %x", num, den, exp, got, -want)
		}
		f := new(big.Float).SetPrec(6000).SetRat(exactly)
		want, _ = f.Sqrt(f).Float64()
		if got := root(num, den, exp); !sameBits(got, want) {
			t.Errorf("root of %v / %v x 2^%d: got %x, want %x", num, den, exp, got, want)
		}
		if fmt.Sprint(num, den) != before {
			t.Error("the operands were changed")
		}
	})
}

// Half of the smallest number, and a little more, at the border of a word.
func TestRoundingAtTheBorderOfAWord(t *testing.T) {
	for _, c := range []struct {
		words  []uint64
		sticky bool
		want   float64
	}{
		{[]uint64{1 << 63}, false, 0},
		{[]uint64{1 << 63}, true, 0x1p-1074},
		{[]uint64{1<<63 | 1}, false, 0x1p-1074},
		{[]uint64{1<<63 - 1}, true, 0},
		{[]uint64{1 << 63, 1}, false, 0x1p-1073},
		{[]uint64{1 << 63, 2}, false, 0x1p-1073},
	} {
		base := unit64 - 64
		if got := formatFloat64.round(c.words, base, c.sticky); got != c.want {
			t.Errorf("%x, %v: got %x, want %x", c.words, c.sticky, got, c.want)
		}
	}
}

// A count of a quantum is the nearest integer, ties to even, and refused only
// where it is out of range.
func TestQuantumCountsAreNearest(t *testing.T) {
	quanta := rapid.OneOf(
		rapid.SampledFrom([]float64{1, 0.01, 0.1, 0x1p-20, 3, 1e-9, 1e300, 0x1p-1074, 7 * 0x1p-1074, 0x1p-1060, math.MaxFloat64}),
		rapid.Custom(func(t *rapid.T) float64 { return math.Abs(anyFloat().Draw(t, "any")) }).Filter(func(q float64) bool { return q > 0 }),
	)
	half := big.NewRat(1, 2)
	rapid.Check(t, func(t *rapid.T) {
		q := newQuantum(quanta.Draw(t, "quantum"))
		v := anyFloat().Draw(t, "v")
		if rapid.Bool().Draw(t, "close to a tie") {
			k := rapid.OneOf(rapid.Int64Range(-1<<53, 1<<53), rapid.Int64Range(-9, 9)).Draw(t, "k")
			v = (float64(k) + 0.5) * q.q
			for range rapid.IntRange(0, 2).Draw(t, "steps") {
				v = math.Nextafter(v, rapid.SampledFrom([]float64{0, math.Inf(1), math.Inf(-1)}).Draw(t, "towards"))
			}
			if math.IsInf(v, 0) {
				v = 0
			}
		}
		exactly := new(big.Rat).Quo(ratOf(v), ratOf(q.q))
		k, ok := q.count(v)
		if size, _ := new(big.Rat).Abs(exactly).Float64(); ok != (size < 0x1p62) {
			t.Fatalf("%x / %x = %v: in range is %v", v, q.q, size, ok)
		}
		if !ok {
			return
		}
		off := new(big.Rat).Sub(exactly, new(big.Rat).SetInt64(k))
		if c := off.Abs(off).Cmp(half); c > 0 || c == 0 && k&1 != 0 {
			t.Errorf("%x / %x: %d is off by %v", v, q.q, k, off)
		}
		if n := q.countExactly(v); n != k {
			t.Errorf("%x / %x: %d, by integers %d", v, q.q, k, n)
		}
	})
}

func TestOrderOfFloats(t *testing.T) {
	inf := math.Inf(1)
	rising := []float64{-inf, -math.MaxFloat64, -1, -0x1p-1074, math.Copysign(0, -1), 0, 0x1p-1074, 1, math.MaxFloat64, inf}
	for i, v := range rising {
		if !sameBits(floatAt(orderOf(v)), v) {
			t.Errorf("%v comes back as %v", v, floatAt(orderOf(v)))
		}
		if i > 0 && orderOf(rising[i-1]) >= orderOf(v) {
			t.Errorf("%v does not come before %v", rising[i-1], v)
		}
	}
	if orderOf(inf) >= OpMin.Identity() || orderOf(-inf) <= OpMax.Identity() {
		t.Error("a float is the operation's identity")
	}
	rapid.Check(t, func(t *rapid.T) {
		v, w := anyFloat().Draw(t, "v"), anyFloat().Draw(t, "w")
		if v < w != (orderOf(v) < orderOf(w)) && v != w || !sameBits(floatAt(orderOf(v)), v) {
			t.Errorf("%x and %x", v, w)
		}
	})
}

func TestDecimalText(t *testing.T) {
	for want, d := range map[string]Decimal{
		"0": {}, "-12.50": {-1250, 2}, "0.05": {5, 2}, "-0.05": {-5, 2}, "-9223372036854775808": {math.MinInt64, 0},
		"-9.223372036854775808": {math.MinInt64, 18}, "7.000": {7000, 3},
	} {
		if d.String() != want {
			t.Errorf("got %s, want %s", d, want)
		}
	}
}

// Nothing but a remainder decides these ties.
func TestTiesThatRemaindersDecide(t *testing.T) {
	tie := new(big.Int).Lsh(big.NewInt(1<<53+1), 147)
	even, odd := 0x1p200, math.Nextafter(0x1p200, math.Inf(1))
	three, one := big.NewInt(3), big.NewInt(1)
	num := new(big.Int).Mul(tie, three)
	square := new(big.Int).Mul(num, tie)
	for _, c := range []struct{ got, want float64 }{
		{quotient(num, three, 0), even},
		{quotient(new(big.Int).Add(num, one), three, 0), odd},
		{root(square, three, 0), even},
		{root(new(big.Int).Add(square, one), three, 0), odd},
		{root(new(big.Int).Add(square, three), three, 0), odd},
	} {
		if c.got != c.want {
			t.Errorf("got %x, want %x", c.got, c.want)
		}
	}
}
