// SPDX-License-Identifier: Apache-2.0

package quantise_test

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/quantise"
)

// deal gives each of so many members a run of the terms, some none.
func deal(t *rapid.T, label string, terms, members int) [][2]int {
	cuts := []int{0, terms}
	for range members - 1 {
		cuts = append(cuts, rapid.IntRange(0, terms).Draw(t, label))
	}
	slices.Sort(cuts)
	var shares [][2]int
	for i := range members {
		shares = append(shares, [2]int{cuts[i], cuts[i+1]})
	}
	return shares
}

// check compares a result with what was worked out, and the report with the errors it makes.
func check(t *rapid.T, k kind, want []expected, got []float64, rep quantise.Report) {
	worst := new(big.Rat)
	for i, e := range want {
		if rat(got[i]).Cmp(e.result) != 0 || got[i] == 0 && math.Signbit(got[i]) {
			t.Fatalf("%s: element %d is %x, want %v", k.name, i, got[i], e.result)
		}
		off := new(big.Rat).Sub(rat(got[i]), e.exact)
		if off.Abs(off).Cmp(worst) > 0 {
			worst = off
		}
	}
	// The bound on 4 terms of quanta of 2^1023 has no float.
	if none := math.IsInf(rep.Bound, 0); none && rep.Quantum < 0x1p1020 || !none && worst.Cmp(rat(rep.Bound)) > 0 {
		t.Fatalf("%s: an error of %v is above the bound %v", k.name, worst, rep.Bound)
	}
	if worst.Cmp(rat(rep.Measured)) > 0 {
		t.Fatalf("%s: an error of %v was measured as %v", k.name, worst, rep.Measured)
	}
	if w, _ := worst.Float64(); rep.Measured > w*(1+1e-9)+rep.Quantum*0x1p-20+0x1p-1073 {
		t.Fatalf("%s: an error of %v was measured as %v", k.name, w, rep.Measured)
	}
}

func overflows(want []expected) bool {
	return slices.ContainsFunc(want, func(e expected) bool { return !e.finite })
}

// Every bit of the result, the bound and the measured error, for any values, blocks and grouping.
func TestFloat64AgainstBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, terms := rapid.IntRange(0, 12).Draw(t, "n"), rapid.IntRange(1, 7).Draw(t, "terms")
		rule := quantise.Rule{Block: rapid.IntRange(0, 5).Draw(t, "block"), Terms: terms, Measure: true}
		kind := rapid.SampledFrom(kinds64).Draw(t, "kind")
		vecs, exact := make([][]float64, terms), make([][]*big.Rat, terms)
		cancel := rapid.Bool().Draw(t, "cancel")
		for i := range vecs {
			vecs[i], exact[i] = make([]float64, n), make([]*big.Rat, n)
			for j := range vecs[i] {
				vecs[i][j] = hardFloat64(t, kind)
				if cancel && i%2 == 1 {
					vecs[i][j] = -vecs[i-1][j] // all but nothing is left
				}
				exact[i][j] = rat(vecs[i][j])
			}
		}
		want := kind64.sums(exact, n, rule.Block, terms, nil)
		for _, members := range []int{1, rapid.IntRange(2, 4).Draw(t, "members")} {
			shares := deal(t, "cut", terms, members)
			reports := make([]quantise.Report, members)
			outs := make([][]float64, members)
			errs := together(newGroup(members), func(rank int, g allreduce.Group) (err error) {
				outs[rank] = make([]float64, n)
				reports[rank], err = quantise.Float64(t.Context(), g, vecs[shares[rank][0]:shares[rank][1]], outs[rank], rule)
				return err
			})
			for i, err := range errs {
				var v *quantise.ValueError
				if overflows(want) {
					if !errors.Is(err, quantise.ErrOverflow) || !errors.As(err, &v) || v.Member != -1 || want[v.Element].finite {
						t.Fatalf("error %v", err)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if reports[i] != reports[0] || reports[i].Bits != kind64.bits(terms) {
					t.Fatalf("reports %+v and %+v", reports[i], reports[0])
				}
				check(t, kind64, want, outs[i], reports[i])
			}
		}
	})
}

// rounds runs several of a 32-bit sum with feedback against the definition.
func rounds(t *testing.T, k kind, draw func(t *rapid.T, kind string) float32, sum func(g allreduce.Group, v []float32, f *quantise.Feedback, rule quantise.Rule) (quantise.Report, error)) {
	rapid.Check(t, func(t *rapid.T) {
		n, members := rapid.IntRange(0, 12).Draw(t, "n"), rapid.IntRange(1, 4).Draw(t, "members")
		rule := quantise.Rule{Block: rapid.IntRange(0, 5).Draw(t, "block"), Measure: true}
		if rapid.Bool().Draw(t, "larger") {
			rule.Terms = members + rapid.IntRange(0, 1000).Draw(t, "more")
		}
		kind := rapid.SampledFrom(kinds64).Draw(t, "kind")
		groups, carried, feedback := newGroup(members), make([][]float32, members), make([]*quantise.Feedback, members)
		if rapid.Bool().Draw(t, "feedback") {
			for i := range feedback {
				feedback[i], carried[i] = &quantise.Feedback{}, make([]float32, n)
			}
		}
		cancel := rapid.Bool().Draw(t, "cancel")
		for range rapid.IntRange(1, 3).Draw(t, "rounds") {
			vecs, exact := make([][]float32, members), make([][]*big.Rat, members)
			for i := range vecs {
				vecs[i], exact[i] = make([]float32, n), make([]*big.Rat, n)
				for j := range vecs[i] {
					vecs[i][j] = draw(t, kind)
					if cancel && i%2 == 1 {
						vecs[i][j] = -vecs[i-1][j]
					}
					v := float64(vecs[i][j])
					if carried[i] != nil {
						v += float64(carried[i][j])
					}
					exact[i][j] = rat(v)
				}
			}
			terms := members
			if rule.Terms != 0 {
				terms = rule.Terms
			}
			want := k.sums(exact, n, rule.Block, terms, nil)
			reports := make([]quantise.Report, members)
			errs := together(groups, func(rank int, g allreduce.Group) (err error) {
				reports[rank], err = sum(g, vecs[rank], feedback[rank], rule)
				return err
			})
			for i, err := range errs {
				if overflows(want) {
					if !errors.Is(err, quantise.ErrOverflow) {
						t.Fatalf("error %v", err)
					}
				} else {
					if err != nil {
						t.Fatal(err)
					}
					if reports[i] != reports[0] || reports[i].Bits != k.bits(terms) {
						t.Fatalf("reports %+v and %+v", reports[i], reports[0])
					}
					got := make([]float64, n)
					for j, v := range vecs[i] {
						got[j] = float64(v)
					}
					check(t, k, want, got, reports[i])
					for j, e := range want {
						if carried[i] == nil {
							break
						}
						rest := new(big.Rat).Set(e.dropped[i])
						if i == 0 {
							rest.Add(rest, new(big.Rat).Sub(e.sum, e.result))
						}
						f, _ := rest.Float64()
						carried[i][j] = float32(f)
					}
				}
				if feedback[i] != nil && !slices.Equal(feedback[i].Carried(), carried[i]) {
					t.Fatalf("member %d carries %v, want %v", i, feedback[i].Carried(), carried[i])
				}
			}
		}
	})
}

func TestFloat32AgainstBig(t *testing.T) {
	rounds(t, kind32, hardFloat32, func(g allreduce.Group, v []float32, f *quantise.Feedback, rule quantise.Rule) (quantise.Report, error) {
		return quantise.Float32(t.Context(), g, v, f, rule)
	})
}

func TestBFloat16AgainstBig(t *testing.T) {
	draw := func(t *rapid.T, kind string) float32 {
		return math.Float32frombits(math.Float32bits(hardFloat32(t, kind)) &^ 0xffff)
	}
	rounds(t, kind16, draw, func(g allreduce.Group, v []float32, f *quantise.Feedback, rule quantise.Rule) (quantise.Report, error) {
		half := make([]uint16, len(v))
		for i, x := range v {
			half[i] = quantise.ToBFloat16(x)
		}
		rep, err := quantise.BFloat16(t.Context(), g, half, f, rule)
		for i, x := range half {
			v[i] = quantise.FromBFloat16(x)
		}
		return rep, err
	})
}

// A fixed quantum: the same figures, and what does not fit is the same error at all members.
func TestFixedQuantumAgainstBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, terms := rapid.IntRange(0, 6).Draw(t, "n"), rapid.IntRange(1, 6).Draw(t, "terms")
		fixed := rapid.OneOf(rapid.IntRange(-1074, 1023), rapid.IntRange(-60, 60)).Draw(t, "quantum")
		quantum := math.Ldexp(1, fixed)
		if fixed < 1023 && fixed > -1074 && rapid.Bool().Draw(t, "no power of two") {
			quantum *= 1.5
		}
		rule := quantise.Rule{Quantum: quantum, Block: rapid.IntRange(0, 3).Draw(t, "block"), Terms: terms, Measure: true}
		largest := twoTo(fixed + kind64.bits(terms))
		kind := rapid.SampledFrom(kinds64).Draw(t, "kind")
		vecs, exact := make([][]float64, terms), make([][]*big.Rat, terms)
		first, bad := n, false
		for i := range vecs {
			vecs[i], exact[i] = make([]float64, n), make([]*big.Rat, n)
			for j := range vecs[i] {
				v := hardFloat64(t, kind)
				if rapid.Bool().Draw(t, "at the limit") {
					v = math.Ldexp(1, fixed+kind64.bits(terms))
					if math.IsInf(v, 0) {
						v = -1
					}
				}
				vecs[i][j], exact[i][j] = v, rat(v)
				if new(big.Rat).Abs(exact[i][j]).Cmp(largest) > 0 {
					first, bad = min(first, j), true
				}
			}
		}
		members := rapid.IntRange(1, 3).Draw(t, "members")
		shares, groups := deal(t, "cut", terms, members), newGroup(members)
		outs, reports := make([][]float64, members), make([]quantise.Report, members)
		errs := together(groups, func(rank int, g allreduce.Group) (err error) {
			outs[rank] = make([]float64, n)
			reports[rank], err = quantise.Float64(t.Context(), g, vecs[shares[rank][0]:shares[rank][1]], outs[rank], rule)
			return err
		})
		var want []expected
		if !bad {
			want = kind64.sums(exact, n, rule.Block, terms, &fixed)
		}
		for i, err := range errs {
			var v *quantise.ValueError
			switch {
			case bad:
				if !errors.Is(err, quantise.ErrQuantum) || !errors.As(err, &v) || v.Element != first || err.Error() != errs[0].Error() {
					t.Fatalf("error %v, the first is element %d", err, first)
				}
			case overflows(want):
				if !errors.Is(err, quantise.ErrOverflow) {
					t.Fatalf("error %v", err)
				}
			case err != nil:
				t.Fatal(err)
			default:
				check(t, kind64, want, outs[i], reports[i])
			}
		}
	})
}

func TestFixedQuantum32(t *testing.T) {
	rule := quantise.Rule{Quantum: 0.25, Terms: 2, Measure: true}
	vecs := [][]float32{{1.125, 0x1p27, -0.375}, {1.375, 0x1p27, 100}}
	errs := together(newGroup(2), func(rank int, g allreduce.Group) error {
		rep, err := quantise.Float32(t.Context(), g, vecs[rank], nil, rule)
		// 1.125 and 1.375 are ties: 4 and 6 quanta. -0.375 is one as well: -2.
		if want := (quantise.Report{Bound: 16.25, Quantum: 0.25, Bits: 29, Measured: rep.Measured}); rep != want {
			return fmt.Errorf("report %+v, want %+v", rep, want)
		}
		if rep.Measured < 0.125 || rep.Measured > 0.126 {
			return fmt.Errorf("measured %v", rep.Measured)
		}
		if want := []float32{2.5, 0x1p28, 99.5}; err == nil && !slices.Equal(vecs[rank], want) {
			return fmt.Errorf("got %v, want %v", vecs[rank], want)
		}
		return err
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	errs = together(newGroup(2), func(rank int, g allreduce.Group) error {
		v := []float32{1, 0x1p27}
		if rank == 1 {
			v[1] = math.Nextafter32(0x1p27, 0x1p28)
		}
		_, err := quantise.Float32(t.Context(), g, v, nil, rule)
		return err
	})
	for _, err := range errs {
		if !errors.Is(err, quantise.ErrQuantum) || err.Error() != "element 1 of member 1: value 1.34217744e+08: "+quantise.ErrQuantum.Error() {
			t.Error(err)
		}
	}
}
