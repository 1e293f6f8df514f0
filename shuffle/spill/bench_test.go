// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// benchRuns are sorted word-like keys with a count each, as a word count spills
// them: most words of a run are in other runs too.
func benchRuns(b *testing.B, runs, pairs int, opt Options) []*Run {
	b.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	stems := make([]string, 3000)
	for i := range stems {
		s := make([]byte, 2+random.IntN(6))
		for j := range s {
			s[j] = "etaoinshrdlucmfwypvbgkqjxz_"[int(random.ExpFloat64()*6)%27]
		}
		stems[i] = string(s)
	}
	var out []*Run
	for i := range runs {
		keys := make([]string, pairs)
		for j := range keys {
			k := stems[int(random.ExpFloat64()*300)%len(stems)]
			for random.IntN(3) > 0 {
				k += stems[int(random.ExpFloat64()*300)%len(stems)]
			}
			keys[j] = k
		}
		slices.SortFunc(keys, cmp.Compare[string])
		keys = slices.Compact(keys)
		w, err := Create(runPath(b.TempDir(), fmt.Sprint(i)), opt)
		if err != nil {
			b.Fatal(err)
		}
		var payload [8]byte
		for _, k := range keys {
			binary.LittleEndian.PutUint64(payload[:], uint64(random.ExpFloat64()*20))
			if err := w.Append(0, []byte(k), payload[:]); err != nil {
				b.Fatal(err)
			}
		}
		r, err := w.Close()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { r.Remove() })
		out = append(out, r)
	}
	return out
}

func reportPairs(b *testing.B, pairs int64) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(pairs), "ns/pair")
}

func BenchmarkWrite(b *testing.B) {
	for _, c := range []Compression{None, S2, Zstd} {
		b.Run(c.String(), func(b *testing.B) {
			src := benchRuns(b, 1, 300_000, Options{})[0]
			var pairs [][2][]byte
			for cur := src.Cursor(0, nil, nil); cur.Next(); {
				pairs = append(pairs, [2][]byte{slices.Clone(cur.Key()), slices.Clone(cur.Payload())})
			}
			dir := b.TempDir()
			var size int64
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w, err := Create(runPath(dir, fmt.Sprint("w", i)), Options{Compression: c})
				if err != nil {
					b.Fatal(err)
				}
				for _, p := range pairs {
					w.Append(0, p[0], p[1])
				}
				r, err := w.Close()
				if err != nil {
					b.Fatal(err)
				}
				size = r.Bytes()
				r.Remove()
			}
			reportPairs(b, src.Pairs())
			b.ReportMetric(float64(size)/float64(src.Pairs()), "B/pair")
		})
	}
}

func BenchmarkRead(b *testing.B) {
	for _, c := range []Compression{None, S2, Zstd} {
		b.Run(c.String(), func(b *testing.B) {
			r := benchRuns(b, 1, 300_000, Options{Compression: c})[0]
			b.ReportAllocs()
			for b.Loop() {
				drainCount(b, r.Cursor(0, nil, nil), r.Pairs())
			}
			reportPairs(b, r.Pairs())
		})
	}
}

func drainCount(b *testing.B, c Cursor, want int64) {
	n := int64(0)
	for c.Next() {
		n++
	}
	if c.Err() != nil || n != want {
		b.Fatal(n, c.Err())
	}
	c.Close()
}

func BenchmarkMerge(b *testing.B) {
	for _, k := range []int{2, 12, 20} {
		for _, byKey := range []bool{true, false} {
			b.Run(fmt.Sprintf("runs=%d/bykey=%v", k, byKey), func(b *testing.B) {
				runs := benchRuns(b, k, 200_000, Options{})
				var pairs int64
				for _, r := range runs {
					pairs += r.Pairs()
				}
				b.ReportAllocs()
				for b.Loop() {
					var cs []Cursor
					for _, r := range runs {
						cs = append(cs, r.Cursor(0, nil, nil))
					}
					m := newMerger(cs, byKey)
					n := int64(0)
					for m.Next() {
						n++
					}
					if m.Err() != nil || n != pairs {
						b.Fatal(n, m.Err())
					}
					m.Close()
				}
				reportPairs(b, pairs)
			})
		}
	}
}

// BenchmarkMergeGroups merges few keys with many payloads each.
func BenchmarkMergeGroups(b *testing.B) {
	const k, pairs = 12, 100_000
	random := rand.New(rand.NewPCG(3, 4))
	var runs []*Run
	for i := range k {
		all := make([]pair, pairs)
		for j := range all {
			all[j] = pair{0, fmt.Sprintf("user-%05d", random.IntN(2000)), fmt.Sprintf("%06d,some event", random.IntN(1e6))}
		}
		slices.SortFunc(all, comparePairs)
		runs = append(runs, writeRun(b, runPath(b.TempDir(), fmt.Sprint(i)), Options{}, all))
	}
	for b.Loop() {
		var cs []Cursor
		for _, r := range runs {
			cs = append(cs, r.Cursor(0, nil, nil))
		}
		drainCount(b, NewMerger(cs), k*pairs)
	}
	reportPairs(b, k*pairs)
	for _, r := range runs {
		r.Remove()
	}
}
