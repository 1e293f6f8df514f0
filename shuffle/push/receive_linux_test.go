// SPDX-License-Identifier: Apache-2.0

package push

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/receive"
)

// Outputs of several map tasks, pushed at once over a bad wire to the receiver that
// there is, come to what a plain map adds up.
func TestPushToReceiver(t *testing.T) {
	for _, tc := range []struct {
		dest string
		ops  []fold.Op
		bad  bool
	}{
		{"127.0.0.1", []fold.Op{fold.Sum}, false},
		{"::1", []fold.Op{fold.Sum}, true},
		{"127.0.0.1", []fold.Op{fold.Sum, fold.Min, fold.Max, fold.Xor}, true},
		{"127.0.0.1", []fold.Op{fold.Sum, fold.Min, fold.Max, fold.Xor, fold.And, fold.Or}, true},
	} {
		t.Run(fmt.Sprintf("%s,%d lanes,bad=%v", tc.dest, len(tc.ops), tc.bad), func(t *testing.T) {
			r, err := receive.New(receive.Options{TempDir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			s := sender(t, Options{})
			if tc.bad {
				s.wrap = func(b batchConn) batchConn { return &cutter{batchConn: b, rng: rand.New(rand.NewPCG(1, 2))} }
			}
			spec := job
			spec.Ops = tc.ops
			id := shuffle.TargetID{Job: spec.ID, Partition: 1, Generation: 2}
			want := map[string][]int64{}
			expect := receive.Expect{Check: make([]uint64, len(tc.ops))}
			rng := rand.New(rand.NewPCG(3, uint64(len(tc.ops))))
			var g sync.WaitGroup
			for m := range 3 {
				b := commit.NewBuilder(&spec)
				for i := range 12_000 {
					if rng.IntN(3) == 0 {
						continue
					}
					k := fmt.Sprint(i)
					switch i % 100 {
					case 7:
						k += strings.Repeat("x", i%190)
					case 13:
						if i%1000 == 13 {
							k += strings.Repeat("y", 3000)
						}
					}
					v := make([]int64, len(tc.ops))
					for l := range v {
						v[l] = int64(rng.Uint64()) >> (16 + 2*(i%20))
					}
					b.Add([]byte(k), v)
					if have := want[k]; have == nil {
						want[k] = v
					} else {
						for l, op := range tc.ops {
							have[l] = op.Apply(have[l], v[l])
						}
					}
				}
				o, err := b.Commit()
				if err != nil {
					t.Fatal(err)
				}
				expect.Streams += len(o.Manifest().Segments)
				expect.Pairs += o.Manifest().Pairs
				for l, c := range o.Manifest().Check {
					expect.Check[l] += c
				}
				g.Go(func() {
					rep, err := s.Push(ctxFor(t), Request{
						Control: r, Dest: netip.MustParseAddr(tc.dest), Output: o, Job: spec,
						Target: shuffle.TargetSpec{ID: id, Keys: o.Manifest().Keys()}, Map: uint32(m),
					})
					t.Logf("%+v", rep)
					if err != nil {
						t.Error(err)
					}
				})
			}
			g.Wait()
			if t.Failed() {
				return
			}
			res, err := r.Finish(ctxFor(t), id, expect)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Close()
			n := 0
			err = res.Walk(ctxFor(t), func(key []byte, lanes []int64) error {
				n++
				if !slices.Equal(lanes, want[string(key)]) {
					return fmt.Errorf("%.60q: %v, want %v", key, lanes, want[string(key)])
				}
				return nil
			})
			if err != nil || n != len(want) {
				t.Errorf("%d of %d keys, %v", n, len(want), err)
			}
		})
	}
}
