// SPDX-License-Identifier: Apache-2.0

package quantise_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/quantise"
)

var (
	inf  = math.Inf(1)
	nan  = math.NaN()
	zero = math.Copysign(0, -1)
)

// What one member can't add is one error at all members, and the group goes on as if nothing had been.
func TestTroubleOfOneMember(t *testing.T) {
	type terms = [3][]float64 // one a member
	for name, c := range map[string]struct {
		rule  quantise.Rule
		terms terms
		want  quantise.ValueError
	}{
		"NaN":                {quantise.Rule{}, terms{{1, 2}, {1, nan}, {1, 2}}, quantise.ValueError{Element: 1, Member: 1, Value: nan, Err: quantise.ErrNonFinite}},
		"infinite":           {quantise.Rule{}, terms{{1, 2}, {1, 2}, {-inf, 2}}, quantise.ValueError{Element: 0, Member: 2, Value: -inf, Err: quantise.ErrNonFinite}},
		"NaN, fixed":         {quantise.Rule{Quantum: 1}, terms{{1, nan}, {1, 2}, {1, 2}}, quantise.ValueError{Element: 1, Member: 0, Value: nan, Err: quantise.ErrNonFinite}},
		"two members":        {quantise.Rule{}, terms{{1, inf}, {1, nan}, {nan, 2}}, quantise.ValueError{Element: 0, Member: 2, Value: nan, Err: quantise.ErrNonFinite}},
		"the same element":   {quantise.Rule{}, terms{{1, 2}, {1, nan}, {1, inf}}, quantise.ValueError{Element: 1, Member: 1, Value: nan, Err: quantise.ErrNonFinite}},
		"length":             {quantise.Rule{}, terms{{1, 2}, {1, 2}, {1}}, quantise.ValueError{Element: 0, Member: 2, Value: 1, Err: quantise.ErrLength}},
		"length, fixed":      {quantise.Rule{Quantum: 0.5}, terms{{1, 2, 3}, {1, 2}, {1, 2}}, quantise.ValueError{Element: 0, Member: 0, Value: 3, Err: quantise.ErrLength}},
		"quantum":            {quantise.Rule{Quantum: 0x1p-50}, terms{{1, 2}, {1, 2}, {2048, -2049}}, quantise.ValueError{Element: 1, Member: 2, Value: -2049, Err: quantise.ErrQuantum}},
		"quantum, by counts": {quantise.Rule{Quantum: 0x1p-50, NonFinite: quantise.Count}, terms{{1, nan}, {1, 2}, {2048, -2049}}, quantise.ValueError{Element: 1, Member: 2, Value: -2049, Err: quantise.ErrQuantum}},
		"overflow":           {quantise.Rule{}, terms{{1, -math.MaxFloat64}, {1, -math.MaxFloat64}, {1, 2}}, quantise.ValueError{Element: 1, Member: -1, Value: -inf, Err: quantise.ErrOverflow}},
	} {
		t.Run(name, func(t *testing.T) {
			groups := newGroup(3)
			for i, err := range together(groups, func(rank int, g allreduce.Group) error {
				out := make([]float64, 2)
				if rep, err := quantise.Float64(t.Context(), g, [][]float64{c.terms[rank]}, out, c.rule); !errors.Is(err, c.want.Err) || rep != (quantise.Report{}) {
					return fmt.Errorf("error %w, %+v", err, rep)
				} else if v := (*quantise.ValueError)(nil); !errors.As(err, &v) || v.Element != c.want.Element || v.Member != c.want.Member || !same(v.Value, c.want.Value) || v.Error() != c.want.Error() {
					return fmt.Errorf("error %w", err)
				}
				_, err := quantise.Float64(t.Context(), g, [][]float64{{float64(rank), 0.5}}, out, quantise.Rule{})
				if err == nil && !slices.Equal(out, []float64{3, 1.5}) {
					err = fmt.Errorf("got %v", out)
				}
				return err
			}) {
				if err != nil {
					t.Errorf("member %d: %v", i, err)
				}
			}
		})
	}
}

func TestErrorsNameWhatTheyAreOf(t *testing.T) {
	for want, e := range map[string]*quantise.ValueError{
		"element 7 of member 2: value NaN: ": {Element: 7, Member: 2, Value: nan, Err: quantise.ErrNonFinite},
		"element 7: ":                        {Element: 7, Member: -1, Value: inf, Err: quantise.ErrOverflow},
		"term 1 of member 0 has 3 values: ":  {Element: 1, Member: 0, Value: 3, Err: quantise.ErrLength},
	} {
		if e.Error() != want+e.Err.Error() {
			t.Error(e)
		}
	}
}

// Counted values are as if they were 0, at every width, and all members have the counts of all.
func TestNonFiniteCounted(t *testing.T) {
	for _, quantum := range []float64{0, 0.25} {
		rule := quantise.Rule{NonFinite: quantise.Count, Quantum: quantum, Measure: true}
		terms := [2][]float64{{1, nan, 2, -inf, nan, zero}, {inf, -1, 0.25, -inf, 3, zero}}
		want := []float64{1, -1, 2.25, 0, 3, 0}
		ok := func(what string, got []float64, rep quantise.Report) error {
			for i, v := range got {
				if !same(v, want[i]) {
					return fmt.Errorf("%s: got %v", what, got)
				}
			}
			if rep.NaN != 2 || rep.PosInf != 1 || rep.NegInf != 2 || rep.Measured != 0 || rep.Bound >= 0.51 {
				return fmt.Errorf("%s: report %+v", what, rep)
			}
			return nil
		}
		errs := together(newGroup(2), func(rank int, g allreduce.Group) error {
			out := make([]float64, len(want))
			rep, err := quantise.Float64(t.Context(), g, [][]float64{terms[rank]}, out, rule)
			if err = errors.Join(err, ok("float64", out, rep)); err != nil {
				return err
			}
			for round := range 3 { // what feedback holds of other elements is not touched by holes
				v, half := make([]float32, len(want)), make([]uint16, len(want))
				for i, x := range terms[rank] {
					v[i], half[i] = float32(x), quantise.ToBFloat16(float32(x))
				}
				var f *quantise.Feedback
				if round > 0 {
					f = &quantise.Feedback{}
				}
				rep, err := quantise.Float32(t.Context(), g, v, f, rule)
				for i, x := range v {
					out[i] = float64(x)
				}
				if err = errors.Join(err, ok("float32", out, rep)); err != nil {
					return err
				}
				rep, err = quantise.BFloat16(t.Context(), g, half, f, rule)
				for i, x := range half {
					out[i] = float64(quantise.FromBFloat16(x))
				}
				if err = errors.Join(err, ok("bfloat16", out, rep)); err != nil {
					return err
				}
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	}
}

// A hole keeps what its element carried.
func TestFeedbackBesideHoles(t *testing.T) {
	f := &quantise.Feedback{}
	f.Carry([]float32{0.125, 0.25, 0.0625})
	v := []float32{float32(nan), 0.5, float32(inf)}
	if _, err := quantise.Float32(t.Context(), newGroup(1)[0], v, f, quantise.Rule{Quantum: 1, NonFinite: quantise.Count}); err != nil {
		t.Fatal(err)
	}
	// 0.75 is one quantum.
	if want := []float32{0.125, -0.25, 0.0625}; !slices.Equal(f.Carried(), want) || !slices.Equal(v, []float32{0, 1, 0}) {
		t.Errorf("carried %v, got %v", f.Carried(), v)
	}
}

// Rules that can't be, or that differ, and calls that do not go together: an error at all members and nobody waits.
func TestMisuseHangsNobody(t *testing.T) {
	one := [][]float64{{1, 2}}
	sum := func(vecs [][]float64, r quantise.Rule) func(context.Context, allreduce.Group) error {
		return func(ctx context.Context, g allreduce.Group) error {
			_, err := quantise.Float64(ctx, g, vecs, make([]float64, 2), r)
			return err
		}
	}
	sum32 := func(r quantise.Rule) func(context.Context, allreduce.Group) error {
		return func(ctx context.Context, g allreduce.Group) error {
			_, err := quantise.Float32(ctx, g, make([]float32, 2), nil, r)
			return err
		}
	}
	half := func(r quantise.Rule) func(context.Context, allreduce.Group) error {
		return func(ctx context.Context, g allreduce.Group) error {
			_, err := quantise.BFloat16(ctx, g, make([]uint16, 2), nil, r)
			return err
		}
	}
	type calls = [2]func(context.Context, allreduce.Group) error
	for name, c := range map[string]struct {
		calls calls
		text  string // of the first member's error
	}{
		"quantum":          {calls{sum(one, quantise.Rule{Quantum: -1}), sum(one, quantise.Rule{})}, "quantum -1"},
		"quantum NaN":      {calls{sum(one, quantise.Rule{Quantum: nan}), sum(one, quantise.Rule{})}, "quantum NaN"},
		"quantum inf":      {calls{sum(one, quantise.Rule{Quantum: inf}), sum(one, quantise.Rule{})}, "quantum +Inf"},
		"block":            {calls{sum(one, quantise.Rule{Block: -1}), sum(one, quantise.Rule{})}, "blocks of -1 values"},
		"non-finite":       {calls{sum(one, quantise.Rule{NonFinite: 9}), sum(one, quantise.Rule{})}, "NonFinite(9)"},
		"terms":            {calls{sum(one, quantise.Rule{Terms: -1}), sum(one, quantise.Rule{})}, "-1 terms: 1 to 1073741824"},
		"many terms":       {calls{sum(one, quantise.Rule{Terms: 1<<30 + 1}), sum(one, quantise.Rule{})}, "1073741825 terms"},
		"many terms of 32": {calls{sum32(quantise.Rule{Terms: 1<<20 + 1}), sum32(quantise.Rule{})}, "1048577 terms: 1 to 1048576"},
		"one too few":      {calls{sum(nil, quantise.Rule{}), sum(one, quantise.Rule{})}, "members had 1 terms, Terms says 2"},
		"one too many":     {calls{sum([][]float64{{1, 2}, {3, 4}}, quantise.Rule{}), sum(one, quantise.Rule{})}, "members had 3 terms, Terms says 2"},
		"terms of 32":      {calls{sum32(quantise.Rule{Terms: 1}), sum32(quantise.Rule{Terms: 1})}, "members had 2 terms, Terms says 1"},
		"different terms":  {calls{sum(one, quantise.Rule{Terms: 2}), sum(one, quantise.Rule{Terms: 3})}, "members called with different ones"},
		"different quanta": {calls{sum(one, quantise.Rule{Quantum: 1}), sum(one, quantise.Rule{Quantum: 2})}, "members called with different ones"},
		"different blocks": {calls{sum(one, quantise.Rule{Block: 3}), sum(one, quantise.Rule{Block: 4})}, "members called with different ones"},
		"different finite": {calls{sum32(quantise.Rule{}), sum32(quantise.Rule{NonFinite: quantise.Count})}, "members called with different ones"},
		"measured or not":  {calls{sum32(quantise.Rule{}), sum32(quantise.Rule{Measure: true})}, "members called with different ones"},
		"different kinds":  {calls{sum32(quantise.Rule{}), half(quantise.Rule{})}, "members called with different ones"},
		"min and sum": {calls{func(ctx context.Context, g allreduce.Group) error {
			return quantise.MinMax(ctx, g, allreduce.Sum, []float32{1})
		}, func(ctx context.Context, g allreduce.Group) error {
			return quantise.MinMax(ctx, g, allreduce.Min, []float32{1})
		}}, "operation 0 is neither Min nor Max"},
		"feedback": {calls{func(ctx context.Context, g allreduce.Group) error {
			f := &quantise.Feedback{}
			f.Carry(make([]float32, 3))
			_, err := quantise.Float32(ctx, g, make([]float32, 2), f, quantise.Rule{})
			return err
		}, sum32(quantise.Rule{})}, "feedback of 3 values for a vector of 2"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := together(newGroup(2), func(rank int, g allreduce.Group) error { return c.calls[rank](t.Context(), g) })
			for i, err := range errs {
				if !errors.Is(err, quantise.ErrRule) && (i == 0 || !errors.Is(err, allreduce.ErrBroken)) {
					t.Errorf("member %d: %v", i, err)
				}
			}
			if errs[0] != nil && !strings.Contains(errs[0].Error(), c.text) {
				t.Error(errs[0])
			}
		})
	}
}

// breaking is a group that breaks at a call.
type breaking struct {
	allreduce.Group
	at int
}

func (b *breaking) Reduce(ctx context.Context, v allreduce.Vector) error {
	if b.at--; b.at < 0 {
		return allreduce.ErrBroken
	}
	return b.Group.Reduce(ctx, v)
}

// A round that fails, for whatever reason, can be done again as if it had not been tried: terms and feedback are as they were.
func TestRoundsThatFailChangeNothing(t *testing.T) {
	before, carried := []float32{0.1, 0.7, math.MaxFloat32}, []float32{0.3, -0.1, 0}
	rule := quantise.Rule{Block: 1, Measure: true}
	for at := range 4 {
		f, v := &quantise.Feedback{}, slices.Clone(before)
		f.Carry(carried)
		groups := newGroup(2)
		errs := together(groups, func(rank int, g allreduce.Group) error {
			if rank == 1 { // what it adds is too much for the last element
				_, err := quantise.Float32(t.Context(), g, slices.Clone(before), nil, rule)
				return err
			}
			_, err := quantise.Float32(t.Context(), &breaking{g, at}, v, f, rule)
			if errors.Is(err, allreduce.ErrBroken) {
				g.Close()
			}
			return err
		})
		if at < 2 && !errors.Is(errs[0], allreduce.ErrBroken) || at >= 2 && !errors.Is(errs[0], quantise.ErrOverflow) {
			t.Errorf("breaking at call %d: %v", at, errs[0])
		}
		if !slices.Equal(v, before) || !slices.Equal(f.Carried(), carried) {
			t.Errorf("breaking at call %d: %v, carried %v", at, v, f.Carried())
		}
		if _, err := quantise.Float32(t.Context(), newGroup(1)[0], v, f, rule); err != nil || slices.Equal(v, before) {
			t.Errorf("again: %v, %v", v, err)
		}
	}
}

// What overflows in the last block has changed no earlier one, where terms and results share their memory.
func TestOverflowChangesNoTerm(t *testing.T) {
	for _, measure := range []bool{false, true} {
		before := []float64{1, 2, -math.MaxFloat64, 3}
		v, w := slices.Clone(before), slices.Clone(before)
		rule := quantise.Rule{Block: 1, Measure: measure}
		for i, err := range together(newGroup(2), func(rank int, g allreduce.Group) error {
			mine := [][]float64{v, w}[rank]
			_, err := quantise.Float64(t.Context(), g, [][]float64{mine}, mine, rule)
			return err
		}) {
			if !errors.Is(err, quantise.ErrOverflow) {
				t.Errorf("member %d: %v", i, err)
			}
		}
		if !slices.Equal(v, before) || !slices.Equal(w, before) {
			t.Errorf("terms are %v and %v", v, w)
		}
	}
}

// Blocks as large as can be are one block.
func TestLargestBlock(t *testing.T) {
	v := []float64{1, 2, 3}
	if _, err := quantise.Float64(t.Context(), newGroup(1)[0], [][]float64{v}, v, quantise.Rule{Block: math.MaxInt}); err != nil || !slices.Equal(v, []float64{1, 2, 3}) {
		t.Error(v, err)
	}
	w := []float32{1, 2, 3}
	if _, err := quantise.Float32(t.Context(), newGroup(1)[0], w, nil, quantise.Rule{Block: math.MaxInt}); err != nil || !slices.Equal(w, []float32{1, 2, 3}) {
		t.Error(w, err)
	}
}

// What one member carries may be less than the smallest number of the format: that is in everybody's bound.
func TestOthersFeedbackIsBound(t *testing.T) {
	var reports [2]quantise.Report
	for i, err := range together(newGroup(2), func(rank int, g allreduce.Group) (err error) {
		var f *quantise.Feedback
		if rank == 1 {
			f = &quantise.Feedback{}
			f.Carry([]float32{0x1p-135})
		}
		v := []uint16{1} // 2^-133
		reports[rank], err = quantise.BFloat16(t.Context(), g, v, f, quantise.Rule{Measure: true})
		if err == nil && v[0] != 2 {
			err = fmt.Errorf("got %#x", v)
		}
		return err
	}) {
		if err != nil {
			t.Errorf("member %d: %v", i, err)
		}
	}
	if r := reports[0]; r != reports[1] || r.Bound != 0x1p-133 || r.Measured < 0x1p-135 || r.Measured > r.Bound {
		t.Errorf("%+v", reports)
	}
}

// The very edges, by hand.
func TestEdges(t *testing.T) {
	wide := func(rule quantise.Rule, terms ...float64) (float64, quantise.Report, error) {
		vecs := make([][]float64, len(terms))
		for i, v := range terms {
			vecs[i] = []float64{v}
		}
		out := []float64{7}
		if rule.Terms == 0 {
			rule.Terms = len(terms)
		}
		for len(vecs) < rule.Terms {
			vecs = append(vecs, []float64{0})
		}
		rep, err := quantise.Float64(t.Context(), newGroup(1)[0], vecs, out, rule)
		return out[0], rep, err
	}
	// A sum that only its rounding takes beyond the largest number, and one that it does not.
	if v, _, err := wide(quantise.Rule{}, math.MaxFloat64, 0x1p970); !errors.Is(err, quantise.ErrOverflow) {
		t.Error(v, err)
	}
	if v, _, err := wide(quantise.Rule{}, math.MaxFloat64, 0x1p969); v != math.MaxFloat64 || err != nil {
		t.Error(v, err)
	}
	if v, _, err := wide(quantise.Rule{}, -math.MaxFloat64, -0x1p969); v != -math.MaxFloat64 || err != nil {
		t.Error(v, err)
	}
	for small, ok := range map[float32]bool{0x1p103: false, 0x1p102: true} {
		groups := newGroup(2)
		for _, err := range together(groups, func(rank int, g allreduce.Group) error {
			v := []float32{math.MaxFloat32}
			if rank == 1 {
				v[0] = small
			}
			_, err := quantise.Float32(t.Context(), g, v, nil, quantise.Rule{})
			if err == nil && v[0] != math.MaxFloat32 {
				return fmt.Errorf("got %v", v[0])
			}
			return err
		}) {
			if ok != (err == nil) || err != nil && !errors.Is(err, quantise.ErrOverflow) {
				t.Error(small, err)
			}
		}
	}
	// Quanta that are subnormal numbers.
	for _, c := range []struct{ quantum, v, want float64 }{
		{0x1p-1074, 0x3p-1074, 0x3p-1074},
		{0x1p-1073, 0x3p-1074, 0x4p-1074},
		{0x3p-1074, 0x3p-1074, 0x4p-1074}, // the next lower power of two is 2^-1073
		{0x1p-1060, 0x1p-1060, 0x1p-1060},
		{0x1p-1023, 0x3p-1024, 0x1p-1022},
	} {
		if v, rep, err := wide(quantise.Rule{Quantum: c.quantum}, c.v); v != c.want || err != nil || rep.Quantum > c.quantum || rep.Quantum*2 <= c.quantum {
			t.Errorf("quantum %x of %x: %x, %+v, %v", c.quantum, c.v, v, rep, err)
		}
	}
	// A block of subnormal numbers of so many terms that 2^-1074 is too fine for it.
	if v, rep, err := wide(quantise.Rule{Terms: 1 << 18}, 0x1p-1023+0x1p-1074); v != 0x1p-1023 || err != nil || rep.Quantum != 0x1p-1066 || rep.Bits != 44 {
		t.Errorf("%x, %+v, %v", v, rep, err)
	}
	// What is carried may be finer than any bfloat16.
	f := &quantise.Feedback{}
	f.Carry([]float32{0x1p-140})
	half := []uint16{1}
	rep, err := quantise.BFloat16(t.Context(), newGroup(1)[0], half, f, quantise.Rule{Measure: true})
	if err != nil || half[0] != 1 || rep.Bound < 0x1p-140 || rep.Measured < 0x1p-140 || f.Carried()[0] != 0x1p-140 {
		t.Errorf("%x, %+v, %v, carried %x", half, rep, err, f.Carried())
	}
	if v, rep, err := wide(quantise.Rule{Measure: true}, zero, 0); math.Signbit(v) || v != 0 || rep != (quantise.Report{Bits: 61}) || err != nil {
		t.Error(v, rep, err)
	}
}
