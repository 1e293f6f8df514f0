// SPDX-License-Identifier: Apache-2.0

package quantise_test

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/quantise"
)

// The mean of many rounds comes to the exact mean with feedback, as fast as 1/n, and does not without.
func TestFeedbackConverges(t *testing.T) {
	const members, n, total = 3, 40, 400
	type sums func(g allreduce.Group, v []float32, f *quantise.Feedback) (quantise.Report, error)
	for name, sum := range map[string]sums{
		"float32, coarse": func(g allreduce.Group, v []float32, f *quantise.Feedback) (quantise.Report, error) {
			return quantise.Float32(t.Context(), g, v, f, quantise.Rule{Terms: 1 << 20}) // 11 bits
		},
		"float32, fixed": func(g allreduce.Group, v []float32, f *quantise.Feedback) (quantise.Report, error) {
			return quantise.Float32(t.Context(), g, v, f, quantise.Rule{Quantum: 0x1p-6})
		},
		"bfloat16": func(g allreduce.Group, v []float32, f *quantise.Feedback) (quantise.Report, error) {
			half := make([]uint16, len(v))
			for i, x := range v {
				half[i] = quantise.ToBFloat16(x)
				v[i] = quantise.FromBFloat16(half[i])
			}
			rep, err := quantise.BFloat16(t.Context(), g, half, f, quantise.Rule{})
			for i, x := range half {
				v[i] = quantise.FromBFloat16(x)
			}
			return rep, err
		},
	} {
		for _, fed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, feedback %v", name, fed), func(t *testing.T) {
				exact, got := make([]*big.Rat, n), make([]*big.Rat, n)
				for i := range n {
					exact[i], got[i] = new(big.Rat), new(big.Rat)
				}
				feedback := make([]*quantise.Feedback, members)
				random := make([]*rand.Rand, members)
				for i := range members {
					random[i] = rand.New(rand.NewPCG(1, uint64(i)))
					if fed {
						feedback[i] = &quantise.Feedback{}
					}
				}
				groups, bounds := newGroup(members), 0.0
				fixed := make([][]float32, members) // the same each round, with signs and sizes mixed
				for i := range fixed {
					for range n {
						fixed[i] = append(fixed[i], float32(math.Ldexp(random[i].NormFloat64(), -random[i].IntN(8))))
					}
				}
				for range total {
					vecs := make([][]float32, members)
					for i := range vecs {
						for j, x := range fixed[i] {
							if j%2 == 0 { // half of them change
								x += float32(random[i].NormFloat64())
							}
							if name == "bfloat16" {
								x = quantise.FromBFloat16(quantise.ToBFloat16(x))
							}
							vecs[i] = append(vecs[i], x)
							exact[j].Add(exact[j], rat(float64(x)))
						}
					}
					reports := make([]quantise.Report, members)
					if err := errors.Join(together(groups, func(rank int, g allreduce.Group) (err error) {
						reports[rank], err = sum(g, vecs[rank], feedback[rank])
						return err
					})...); err != nil {
						t.Fatal(err)
					}
					bounds = max(bounds, reports[0].Bound)
					for j, x := range vecs[0] {
						got[j].Add(got[j], rat(float64(x)))
					}
				}
				worst := 0.0
				for j := range n {
					off, _ := new(big.Rat).Sub(got[j], exact[j]).Float64()
					worst = max(worst, math.Abs(off)/total)
				}
				// What is carried is at most one round's bound.
				if limit := bounds * (1.0/total + 0x1p-20); fed != (worst <= limit) {
					t.Errorf("means are off by up to %v, one round by up to %v", worst, bounds)
				}
			})
		}
	}
}

// A checkpoint of what is carried goes on where it was.
func TestFeedbackFromCheckpoint(t *testing.T) {
	groups := newGroup(1)
	run := func(f *quantise.Feedback) float32 {
		v := []float32{0.3}
		if _, err := quantise.Float32(t.Context(), groups[0], v, f, quantise.Rule{Quantum: 1}); err != nil {
			t.Fatal(err)
		}
		return v[0]
	}
	var f quantise.Feedback
	if f.Carried() != nil || run(&f) != 0 || run(&f) != 1 { // 0.3, 0.6: 1 - 0.4
		t.Error(f.Carried())
	}
	var g quantise.Feedback
	g.Carry(f.Carried())
	run(&f)
	if g.Carried()[0] == f.Carried()[0] {
		t.Error("the checkpoint is not a copy")
	}
	run(&g)
	if g.Carried()[0] != f.Carried()[0] {
		t.Errorf("%v and %v", g.Carried(), f.Carried())
	}
	g.Carry(nil)
	if v := []float32{1, 2}; true {
		if _, err := quantise.Float32(t.Context(), groups[0], v, &g, quantise.Rule{}); err != nil {
			t.Error(err)
		}
	}
}

// Smallest and largest values are those of Go's min and max.
func TestMinMax(t *testing.T) {
	special := []float64{inf, -inf, nan, 0, zero, 0x1p-1074, -0x1p-1074, math.MaxFloat64, -math.MaxFloat64, 0x1p-149, -0x1p-149}
	value := rapid.Custom(func(t *rapid.T) float64 {
		if rapid.Bool().Draw(t, "special") {
			return rapid.SampledFrom(special).Draw(t, "v")
		}
		return math.Float64frombits(rapid.Uint64().Draw(t, "bits"))
	})
	rapid.Check(t, func(t *rapid.T) {
		n, members := rapid.IntRange(0, 5).Draw(t, "n"), rapid.IntRange(1, 3).Draw(t, "members")
		op := rapid.SampledFrom([]allreduce.Op{allreduce.Min, allreduce.Max}).Draw(t, "op")
		vecs, narrow := make([][]float64, members), make([][]float32, members)
		var want []float64
		var want32 []float32
		for i := range vecs {
			vecs[i], narrow[i] = make([]float64, n), make([]float32, n)
			for j := range vecs[i] {
				vecs[i][j] = value.Draw(t, "v")
				narrow[i][j] = float32(vecs[i][j])
				switch {
				case i == 0:
					want, want32 = append(want, vecs[i][j]), append(want32, narrow[i][j])
				case op == allreduce.Min:
					want[j], want32[j] = min(want[j], vecs[i][j]), min(want32[j], narrow[i][j])
				default:
					want[j], want32[j] = max(want[j], vecs[i][j]), max(want32[j], narrow[i][j])
				}
			}
		}
		if err := errors.Join(together(newGroup(members), func(rank int, g allreduce.Group) error {
			return errors.Join(quantise.MinMax(t.Context(), g, op, vecs[rank]), quantise.MinMax(t.Context(), g, op, narrow[rank]))
		})...); err != nil {
			t.Fatal(err)
		}
		for i := range vecs {
			for j, v := range vecs[i] {
				if !same(v, want[j]) || !same(float64(narrow[i][j]), float64(want32[j])) {
					t.Fatalf("member %d: got %x and %x, want %x and %x", i, v, narrow[i][j], want[j], want32[j])
				}
			}
		}
	})
}

// Where plain addition gives other bits for another order, sums of integers do not.
func TestSumsDoNotDependOnOrder(t *testing.T) {
	const n, terms = 500, 12
	r := rand.New(rand.NewPCG(1, 2))
	vecs := make([][]float64, terms)
	for i := range vecs {
		for range n {
			vecs[i] = append(vecs[i], math.Ldexp(r.NormFloat64(), r.IntN(30)-15))
		}
	}
	var first, plainFirst []float64
	differs := false
	for members := 1; members <= 6; members++ {
		r.Shuffle(terms, func(i, j int) { vecs[i], vecs[j] = vecs[j], vecs[i] })
		plain := make([]float64, n)
		for _, v := range vecs {
			for i, x := range v {
				plain[i] += x
			}
		}
		var outs [][]float64
		for _, groups := range [][]allreduce.Group{newGroup(members), allreduce.Local(members)} {
			sums := make([][]float64, members)
			if err := errors.Join(together(groups, func(rank int, g allreduce.Group) error {
				sums[rank] = make([]float64, n)
				_, err := quantise.Float64(t.Context(), g, vecs[terms*rank/members:terms*(rank+1)/members], sums[rank], quantise.Rule{Terms: terms})
				return err
			})...); err != nil {
				t.Fatal(err)
			}
			outs = append(outs, sums...)
			groups[0].Close()
		}
		if first == nil {
			first, plainFirst = outs[0], plain
		}
		for i := range n {
			differs = differs || plain[i] != plainFirst[i]
			for _, out := range outs {
				if !same(out[i], first[i]) {
					t.Fatalf("%d members: element %d is %x, was %x", members, i, out[i], first[i])
				}
			}
		}
	}
	if !differs {
		t.Error("plain addition does not depend on these orders: the test proves nothing")
	}
}

// The bits that are left for a term, by hand: the largest power of two of which Terms fit.
func TestBitsOfTerms(t *testing.T) {
	for terms, want := range map[int][2]int{1: {62, 30}, 2: {61, 29}, 3: {61, 29}, 4: {60, 28}, 5: {60, 28}, 7: {60, 28}, 8: {59, 27}, 1000: {53, 21}, 1 << 20: {42, 10}} {
		g := newGroup(1)[0]
		rep, err := quantise.Float64(t.Context(), g, make([][]float64, terms), nil, quantise.Rule{Terms: terms})
		if err != nil || rep.Bits != want[0] {
			t.Errorf("%d terms: %+v, %v", terms, rep, err)
		}
		v := []float32{1}
		rep, err = quantise.Float32(t.Context(), g, v, nil, quantise.Rule{Terms: terms})
		// 1 is below 2: a quantum is 2 over 2^bits, and the bound that half of it for the one that there was.
		quantum := math.Ldexp(2, -want[1])
		if err != nil || rep.Bits != want[1] || rep.Quantum != quantum || v[0] != 1 || rep.Bound < quantum/2 || rep.Bound > quantum/2+0x1p-24 {
			t.Errorf("%d terms: %+v, %v, %v", terms, rep, v, err)
		}
	}
}

func TestBFloat16Text(t *testing.T) {
	for v, want := range map[float32]uint16{
		1: 0x3f80, 1 + 0x1p-8: 0x3f80, 1 + 3*0x1p-8: 0x3f82, -1 - 0x1p-8 - 0x1p-20: 0xbf81, math.MaxFloat32: 0x7f80,
		float32(inf): 0x7f80, float32(-inf): 0xff80, 0x1p-133: 1, 0x1p-134: 0, 0x1.8p-133: 2, 0: 0,
	} {
		if got := quantise.ToBFloat16(v); got != want {
			t.Errorf("%v: %#x", v, got)
		}
	}
	if got := quantise.ToBFloat16(float32(math.Copysign(0, -1))); got != 0x8000 {
		t.Errorf("-0: %#x", got)
	}
	for _, b := range []uint32{0x7fc00000, 0xff800001, 0x7f800001, 0x7fffffff} {
		if v := quantise.FromBFloat16(quantise.ToBFloat16(math.Float32frombits(b))); v == v {
			t.Errorf("%#x is no NaN any more", b)
		}
	}
	for b := range 1 << 16 {
		if v := quantise.FromBFloat16(uint16(b)); v == v && quantise.ToBFloat16(v) != uint16(b) {
			t.Errorf("%#x comes back as %#x", b, quantise.ToBFloat16(v))
		}
	}
}
