// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/shuffle/spill"
)

func comparePairs(a, b [2]string) int {
	return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
}

// groups makes a grouped job: maps outputs of about n pairs each, with values of up
// to size bytes.
func groups(rng *rand.Rand, parts, maps, n, size int) *testJob {
	j := newJob(parts)
	j.constants.Grouped = true
	for range maps {
		var out [][][2]string
		for range parts {
			var list [][2]string
			for range n {
				list = append(list, [2]string{fmt.Sprintf("key%d", rng.IntN(n)), strings.Repeat(string(rune('a'+rng.IntN(26))), rng.IntN(size+1))})
			}
			slices.SortFunc(list, comparePairs)
			out = append(out, list)
		}
		j.grouped = append(j.grouped, out)
	}
	return j
}

// checkGrouped compares runs with a sort of all pairs.
func (j *testJob) checkGrouped(got *Gathered, part int, lo, hi string) error {
	var want, have [][2]string
	for m := range j.grouped {
		for _, kv := range j.grouped[m][part] {
			if kv[0] >= lo && (hi == "" || kv[0] < hi) {
				want = append(want, kv)
			}
		}
	}
	slices.SortFunc(want, comparePairs)
	var cursors []spill.Cursor
	for _, f := range got.Runs {
		run, err := spill.Open(f.Path)
		if err != nil {
			return err
		}
		defer run.Close()
		cursors = append(cursors, run.Cursor(0, nil, nil))
	}
	m := spill.NewMerger(cursors)
	defer m.Close()
	for m.Next() {
		have = append(have, [2]string{string(m.Key()), string(m.Payload())})
	}
	if err := m.Err(); err != nil {
		return err
	}
	if !slices.Equal(have, want) {
		return fmt.Errorf("%d pairs came out, want %d, or others", len(have), len(want))
	}
	if got.Counts.Pulled != int64(len(want)) {
		return fmt.Errorf("%+v, want %d pulled", got.Counts, len(want))
	}
	return nil
}

func TestGatherByPull(t *testing.T) {
	ctx := testContext(t)
	rng := rand.New(rand.NewPCG(1, 2))
	ws := []*worker{start(t, "a", settings{}), start(t, "b", settings{}), start(t, "c", settings{})}
	j := groups(rng, 2, 9, 4000, 100)
	where := func(m int) *worker { return ws[m%3] }
	var outs []Output
	for m := range j.grouped {
		outs = append(outs, j.keep(t, where(m), m, 0))
	}
	for p := range uint32(2) {
		in := j.input(p, outs, where)
		in.Pull = true
		g := j.gather(t, in)
		g.Memory = []int64{64 << 20, 1}[p] // 1: the least fan-in, several rounds
		got, err := ws[p].x.Gather(ctx, g)
		if err != nil {
			t.Fatal(err)
		}
		if err := j.checkGrouped(got, int(p), "", ""); err != nil {
			t.Errorf("part %d: %v", p, err)
		}
		if want := []int{1, 5}[p]; len(got.Runs) != want || got.Folded {
			t.Errorf("part %d: %d runs, want %d", p, len(got.Runs), want)
		}
		if files, _ := os.ReadDir(g.Dir); len(files) != len(got.Runs) {
			t.Errorf("%d files for %d runs", len(files), len(got.Runs))
		}
	}
}

// TestTotalOrder pulls the parts of a total order from one partition.
func TestTotalOrder(t *testing.T) {
	ctx := testContext(t)
	w := start(t, "a", settings{})
	v := start(t, "b", settings{})
	j := groups(rand.New(rand.NewPCG(3, 4)), 1, 4, 2000, 20)
	j.constants.Parts = 3
	where := func(m int) *worker { return []*worker{w, v}[m%2] }
	var outs []Output
	for m := range j.grouped {
		outs = append(outs, j.keep(t, where(m), m, 0))
	}
	cuts := []string{"", "key2", "key77", ""}
	for p := range uint32(3) {
		in := j.input(p, outs, where)
		in.Pull, in.Low, in.High = true, []byte(cuts[p]), []byte(cuts[p+1])
		got, err := w.x.Gather(ctx, j.gather(t, in))
		if err != nil {
			t.Fatal(err)
		}
		if err := j.checkGrouped(got, 0, cuts[p], cuts[p+1]); err != nil {
			t.Errorf("part %d: %v", p, err)
		}
	}
}

// TestFetchMends has blocks that are damaged on their way and connections that break:
// the rest is fetched again.
func TestFetchMends(t *testing.T) {
	ctx := testContext(t)
	w, v := start(t, "a", settings{}), start(t, "b", settings{})
	j := groups(rand.New(rand.NewPCG(5, 6)), 1, 2, 20_000, 100)
	outs := []Output{j.keep(t, v, 0, 0), j.keep(t, v, 1, 0)}
	var n [2]atomic.Int64
	var again atomic.Int64
	v.onFetch = func(r *api.FetchRequest, b *api.FetchBlock) (*api.FetchBlock, error) {
		switch i := n[r.MapTask].Add(1); {
		case r.MapTask == 0 && i == 2:
			c := &api.FetchBlock{Data: slices.Clone(b.Data), Compressed: b.Compressed, Pairs: b.Pairs, Digest: b.Digest, Last: b.Last}
			c.Data[len(c.Data)/2] ^= 1
			return c, nil
		case r.MapTask == 1 && i == 3:
			return nil, io.ErrClosedPipe
		}
		if r.Skip > 0 {
			again.Add(1)
		}
		return b, nil
	}
	in := j.input(0, outs, func(int) *worker { return v })
	in.Pull = true
	g := j.gather(t, in)
	var lost atomic.Int64
	g.Lost = func(l *api.OutputLost) {
		lost.Add(1)
		if l.Damaged || l.Gone || l.Worker != "b" || l.Reader != g.Attempt {
			t.Errorf("%+v", l)
		}
	}
	got, err := w.x.Gather(ctx, g)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.checkGrouped(got, 0, "", ""); err != nil {
		t.Error(err)
	}
	if lost.Load() != 1 || again.Load() < 2 {
		t.Errorf("lost %d times, %d blocks behind others; want one broken connection, and two streams that went on", lost.Load(), again.Load())
	}
}

// damage changes a byte in the middle of an output that is kept.
func damage(t *testing.T, w *worker, o Output) {
	t.Helper()
	k, done := w.x.store.use(o.Attempt)
	defer done()
	if k == nil {
		return // it is gone
	}
	f, err := os.OpenFile(k.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	if _, err := f.ReadAt(b[:], info.Size()/2); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0xff
	if _, err := f.WriteAt(b[:], info.Size()/2); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedRun finds a run damaged in the midst of a fetch or before a push; the output is
// then had from where it was made again.
func TestDamagedRun(t *testing.T) {
	for _, self := range []bool{false, true} {
		for _, pull := range []bool{false, true} {
			t.Run(fmt.Sprintf("self=%v,pull=%v", self, pull), func(t *testing.T) {
				ctx := testContext(t)
				w, v := start(t, "a", settings{}), start(t, "b", settings{})
				from, again := v, w
				if self {
					from, again = w, v
				}
				j := words(1, 2, 30_000)
				if pull {
					j = groups(rand.New(rand.NewPCG(7, 8)), 1, 2, 20_000, 100)
				}
				outs := []Output{j.keep(t, from, 0, 0), j.keep(t, from, 1, 0)}
				damage(t, from, outs[1])
				in := j.input(0, outs, func(int) *worker { return from })
				in.Pull = pull
				g := j.gather(t, in)
				moved := make(chan *api.MapOutput)
				g.Moved = moved
				var once atomic.Bool
				g.Lost = func(l *api.OutputLost) {
					if !l.Damaged || l.Gone || l.MapTask != 1 || !strings.Contains(l.Error, "damaged") {
						t.Errorf("%+v", l)
					}
					if !once.Swap(true) {
						go func() {
							o := j.keep(t, again, 1, 1)
							moved <- again.has(o, 0)
						}()
					}
				}
				got, err := w.x.Gather(ctx, g)
				if err != nil {
					t.Fatal(err)
				}
				if pull {
					err = j.checkGrouped(got, 0, "", "")
				} else {
					err = j.checkFolded(got, 0)
				}
				if err != nil {
					t.Error(err)
				}
				if !once.Load() {
					t.Error("nobody was told of the damage")
				}
				for _, h := range from.x.Held() {
					if h.Task == 1 {
						t.Error("the damaged output is still said to be held")
					}
				}
			})
		}
	}
}

// TestGone asks for outputs that are not there, and gets them elsewhere.
func TestGone(t *testing.T) {
	for _, pull := range []bool{false, true} {
		ctx := testContext(t)
		w, v := start(t, "a", settings{}), start(t, "b", settings{})
		j := words(1, 3, 100)
		if pull {
			j = groups(rand.New(rand.NewPCG(9, 8)), 1, 3, 100, 100)
		}
		var outs []Output
		for m := range 3 {
			outs = append(outs, j.keep(t, v, m, 0))
		}
		if err := v.x.Drop(j.id()); err != nil {
			t.Fatal(err)
		}
		in := j.input(0, outs, func(int) *worker { return v })
		in.Pull = pull
		g := j.gather(t, in)
		moved := make(chan *api.MapOutput, 3)
		g.Moved = moved
		seen := map[uint32]bool{}
		g.Lost = func(l *api.OutputLost) {
			if !l.Gone || l.Damaged {
				t.Errorf("%+v", l)
			}
			if !seen[l.MapTask] {
				seen[l.MapTask] = true
				o := j.keep(t, w, int(l.MapTask), 1)
				moved <- w.has(o, 0)
			}
		}
		got, err := w.x.Gather(ctx, g)
		if err != nil {
			t.Fatal(err)
		}
		if pull {
			err = j.checkGrouped(got, 0, "", "")
		} else {
			err = j.checkFolded(got, 0)
		}
		if err != nil || len(seen) != 3 {
			t.Errorf("pull %v: %v, %d were lost", pull, err, len(seen))
		}
	}
}

// TestChanged ends a gathering whose map output was made again, and is another.
func TestChanged(t *testing.T) {
	for _, pull := range []bool{false, true} {
		ctx := testContext(t)
		w := start(t, "a", settings{})
		j := words(1, 1, 100)
		if pull {
			j = groups(rand.New(rand.NewPCG(9, 8)), 1, 1, 100, 100)
		}
		o, err := j.write(t.TempDir(), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		in := j.input(0, []Output{o}, func(int) *worker { return w }) // it was never kept
		in.Pull = pull
		g := j.gather(t, in)
		moved := make(chan *api.MapOutput, 1)
		g.Moved = moved
		g.Lost = func(*api.OutputLost) {
			m := w.has(o, 0)
			m.Digest++
			select {
			case moved <- m:
			default:
			}
		}
		if _, err := w.x.Gather(ctx, g); !errors.Is(err, ErrChanged) {
			t.Errorf("got %v", err)
		}
		if files, _ := os.ReadDir(g.Dir); len(files) > 0 {
			t.Errorf("%d files are left", len(files))
		}
	}
}
