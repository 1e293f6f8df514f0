package spill

import (
	"syscall"
	"testing"
	"fmt"
	"os"
)

func cpuNow() int64 {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return r.Utime.Nano() + r.Stime.Nano()
}

func TestZZCPU(t *testing.T) {
	if os.Getenv("ZZ") == "" { t.Skip() }
	b := &testing.B{}
	_ = b
	for _, k := range []int{1, 2, 12, 20} {
		for _, byKey := range []bool{true, false} {
			res := testing.Benchmark(func(b *testing.B) {
				runs := benchRuns(b, k, 200_000, Options{})
				var pairs int64
				for _, r := range runs {
					pairs += r.Pairs()
				}
				best := int64(1<<62)
				b.ResetTimer()
				for i := 0; i < 7; i++ {
					start := cpuNow()
					var cs []Cursor
					for _, r := range runs {
						cs = append(cs, r.Cursor(0, nil, nil))
					}
					m := newMerger(cs, byKey)
					n := int64(0)
					for m.Next() {
						n++
					}
					m.Close()
					best = min(best, cpuNow()-start)
				}
				b.ReportMetric(float64(best)/float64(pairs), "cpu-ns/pair")
			})
			fmt.Println(k, byKey, res.Extra)
		}
	}
}
