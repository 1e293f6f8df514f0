// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"testing"
)

func TestStateEncoding(t *testing.T) {
	s := &iterationState{rounds: 300, converged: true, bound: 0.25, numbers: []float64{1, math.Copysign(0, -1), math.Inf(-1), math.NaN(), 5e-324}}
	b := s.encode()
	// By hand: the head of five words, five numbers, a hash.
	want := "qrnstat1" + "\x2c\x01\x00\x00\x00\x00\x00\x00" + "\x01\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\xd0\x3f" + "\x05\x00\x00\x00\x00\x00\x00\x00" +
		"\x00\x00\x00\x00\x00\x00\xf0\x3f" + "\x00\x00\x00\x00\x00\x00\x00\x80" + "\x00\x00\x00\x00\x00\x00\xf0\xff" + "\x01\x00\x00\x00\x00\x00\xf8\x7f" + "\x01\x00\x00\x00\x00\x00\x00\x00"
	if len(b) != len(want)+8 || string(b[:len(want)]) != want {
		t.Errorf("%q", b)
	}
	got, err := decodeState(b)
	if err != nil || !same(got, s) {
		t.Errorf("%+v, %v", got, err)
	}
	if size, err := stateSize(append(bytes.Clone(b), "{}"...)); err != nil || size != len(b) {
		t.Errorf("%d bytes, %v", size, err)
	}
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 4
		if s, err := decodeState(bad); !errors.Is(err, errState) {
			t.Errorf("with another byte %d: %+v, %v", i, s, err)
		}
		if s, err := decodeState(b[:i]); !errors.Is(err, errState) {
			t.Errorf("%d bytes of it: %+v, %v", i, s, err)
		}
	}
}

// The digest is another one for every state.
func TestStateDigest(t *testing.T) {
	seen := map[int64]bool{}
	numbers := make([]float64, 200)
	add := func(s iterationState) {
		d := s.digest()
		if seen[d] {
			t.Errorf("%d rounds, converged %v, bound %v: the digest is that of another state", s.rounds, s.converged, s.bound)
		}
		seen[d] = true
	}
	add(iterationState{numbers: numbers})
	add(iterationState{rounds: 1, numbers: numbers})
	add(iterationState{converged: true, numbers: numbers})
	add(iterationState{bound: 1, numbers: numbers})
	for n := range numbers {
		add(iterationState{rounds: 2, numbers: numbers[:n]})
		other := slices.Clone(numbers)
		other[n] = math.Copysign(0, -1)
		add(iterationState{numbers: other})
	}
}

// What a member came to goes to other processes in one piece.
func TestMemberToFinish(t *testing.T) {
	plan := numbersFile(t, t.TempDir(), 3, 40, 100)
	x := mixing{state: 5, sums: 2, rounds: 7, end: 6, checkpoint: 2}
	want, err := x.serial(plan)
	if err != nil {
		t.Fatal(err)
	}
	p, err := x.iteration().compile()
	if err != nil {
		t.Fatal(err)
	}
	var c code = p
	if c.traits().iter == nil || c.traits().iter.limit() != 7 {
		t.Errorf("%+v", c.traits())
	}
	e := &engine{code: p, t: p.traits(), opts: Options{Workers: 2}, plan: plan, mem: memoryPlan{budget: 1 << 30}}
	final, err := p.member(context.Background(), e, 0, len(plan.Splits), &testGang{hub: newTestHub(1, 1, 0, 0)})
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.finish(final)
	if err != nil {
		t.Fatal(err)
	}
	r := &IterationResult{}
	if err := json.Unmarshal(text, r); err != nil {
		t.Fatal(err)
	}
	if got := (&iterationState{r.Rounds, r.Converged, r.Bound, r.State}); !same(got, want) || len(r.Times) != 6 || r.Groups != 1 {
		t.Errorf("%+v instead of %+v", r, want)
	}
	if !slices.Equal(bitsOf(p.last.numbers), bitsOf(want.numbers)) {
		t.Errorf("rows are made of %v", p.last.numbers)
	}
	for n := range final {
		if _, err := p.finish(final[:n]); !errors.Is(err, errState) {
			t.Fatalf("%d bytes of it: %v", n, err)
		}
	}

	// A state that is too large for a message is in the rows alone.
	for _, n := range []int{MaxResultState, MaxResultState + 1} {
		large := &member{state: iterationState{rounds: 1, numbers: make([]float64, n)}}
		if final, err = large.final(); err != nil {
			t.Fatal(err)
		}
		if text, err = p.finish(final); err != nil {
			t.Fatal(err)
		}
		r = &IterationResult{}
		if err := json.Unmarshal(text, r); err != nil || r.Rounds != 1 || (len(r.State) == n) != (n <= MaxResultState) || len(p.last.numbers) != n {
			t.Errorf("%d numbers: %d in the result, %d for rows, %v", n, len(r.State), len(p.last.numbers), err)
		}
	}
}

func FuzzDecodeState(f *testing.F) {
	for _, s := range []iterationState{{}, {rounds: 5, numbers: []float64{1, 2}}, {converged: true, numbers: []float64{math.NaN()}}} {
		f.Add(s.encode())
		f.Add(append(s.encode(), "{}"...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if size, err := stateSize(b); err == nil && (size < stateHead || size > len(b)) {
			t.Errorf("a state of %d of %d bytes", size, len(b))
		}
		s, err := decodeState(b)
		if err != nil {
			return
		}
		if !bytes.Equal(s.encode(), b) {
			t.Errorf("%q comes back as %q", b, s.encode())
		}
	})
}
