// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestAddAbs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sum [2]uint64
		want, most := new(big.Int), new(big.Int).Lsh(big.NewInt(1), 128)
		edge := rapid.SampledFrom([]int64{0, 1, -1, math.MaxInt64, math.MinInt64, math.MinInt64 + 1})
		for range rapid.IntRange(1, 6).Draw(t, "values") {
			v := rapid.OneOf(edge, rapid.Int64()).Draw(t, "v")
			carry := rapid.OneOf(edge, rapid.Int64Range(-3, 3)).Draw(t, "carry")
			addAbs(&sum, v, carry)
			x := new(big.Int).Lsh(big.NewInt(carry), 64)
			x.Add(x, big.NewInt(v))
			want.Add(want, x.Abs(x))
		}
		if want.Cmp(most) >= 0 {
			want.Sub(most, big.NewInt(1))
		}
		got := new(big.Int).Lsh(new(big.Int).SetUint64(sum[0]), 64)
		got.Add(got, new(big.Int).SetUint64(sum[1]))
		// Once it is at its largest value, what is added may take it no further.
		if got.Cmp(want) != 0 && want.BitLen() < 128 {
			t.Fatalf("%v, want %v", got, want)
		}
	})
	var sum [2]uint64
	for range 4 {
		addAbs(&sum, 0, math.MinInt64)
	}
	if sum != [2]uint64{^uint64(0), ^uint64(0)} {
		t.Errorf("a sum beyond 128 bits: %x", sum)
	}
	addAbs(&sum, 5, 0)
	if sum != [2]uint64{^uint64(0), ^uint64(0)} {
		t.Errorf("and more: %x", sum)
	}
}

// pairList is a cursor over pairs "key=payload", whose memory is another's after Next.
type pairList struct {
	pairs []string
	at    int
	key   []byte
	load  []byte
}

func (l *pairList) Next() bool {
	for i := range l.key {
		l.key[i] = '#'
	}
	for i := range l.load {
		l.load[i] = '#'
	}
	l.at++
	if l.at > len(l.pairs) {
		return false
	}
	k, v, _ := strings.Cut(l.pairs[l.at-1], "=")
	l.key, l.load = []byte(k), []byte(v)
	return true
}
func (l *pairList) Key() []byte     { return l.key }
func (l *pairList) Payload() []byte { return l.load }
func (l *pairList) Err() error      { return nil }
func (l *pairList) Close()          {}

// Keys are cut apart, however much of each is read.
func TestGroupValues(t *testing.T) {
	for read := range 5 {
		v := &groupValues{cur: &pairList{pairs: []string{"=0", "a=1", "a=2", "a=3", "b=4", "c=5", "c=6"}}}
		var got []string
		for more := v.advance(); more; more = !v.done {
			v.begin()
			line := string(v.key) + ":"
			if !v.several() {
				got = append(got, line+string(v.first))
				continue
			}
			for i := 0; i < read && v.Next(); i++ {
				if string(v.Key()) != string(v.key) {
					t.Errorf("key %s among those of %s", v.Key(), v.key)
				}
				line += string(v.Payload())
			}
			for v.Next() {
			}
			if v.Next() {
				t.Error("more after the end")
			}
			got = append(got, line)
		}
		want := fmt.Sprint([]string{":0", "a:" + "123"[:min(read, 3)], "b:4", "c:" + "56"[:min(read, 2)]})
		if fmt.Sprint(got) != want || v.read != 7 {
			t.Errorf("reading %d: %v, %d pairs; want %s", read, got, v.read, want)
		}
	}
}
