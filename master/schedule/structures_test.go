// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{1, 2, 63, 64, 65, 4095, 4096, 4097, 300_000}).Draw(t, "size")
		s, model := newSet(size), map[int]bool{}
		element := rapid.OneOf(rapid.IntRange(0, size-1), rapid.IntRange(0, min(size, 130)-1), rapid.IntRange(max(0, size-70), size-1))
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			i := element.Draw(t, "i")
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				s.add(i)
				model[i] = true
			case 1:
				s.remove(i)
				delete(model, i)
			}
			want := -1
			for e := range model {
				if e >= i && (want < 0 || e < want) {
					want = e
				}
			}
			if got := s.next(i); got != want || s.has(i) != model[i] || s.count != len(model) {
				t.Fatalf("next(%d) = %d, want %d; has %v, want %v; %d elements, want %d", i, got, want, s.has(i), model[i], s.count, len(model))
			}
		}
	})
}

// Values worked out by hand: 64 to 127 ms go in twos, 128 to 255 in fours, and so on.
func TestDurations(t *testing.T) {
	for _, c := range []struct {
		ms     []int
		median int
	}{
		{nil, 0},
		{[]int{0}, 0},
		{[]int{7, 5, 6}, 6},
		{[]int{5, 6}, 5},
		{[]int{63}, 63},
		{[]int{64}, 65},
		{[]int{65}, 65},
		{[]int{66}, 67},
		{[]int{127}, 127},
		{[]int{128}, 131},
		{[]int{10_000, 1, 10_000}, 10_239},
		{[]int{100_000_000}, 100_663_295},
	} {
		var d durations
		for _, ms := range c.ms {
			d.add(time.Duration(ms) * time.Millisecond)
		}
		if got := d.median(); got != time.Duration(c.median)*time.Millisecond {
			t.Errorf("median of %v is %v, want %d ms", c.ms, got, c.median)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		var d durations
		var all []time.Duration
		top := rapid.SampledFrom([]int{50, 3000, 10_000_000}).Draw(t, "top")
		for range rapid.IntRange(1, 60).Draw(t, "n") {
			v := time.Duration(rapid.IntRange(0, top).Draw(t, "ms")) * time.Millisecond
			d.add(v)
			all = append(all, v)
			slices.Sort(all)
			want := all[(len(all)-1)/2]
			if got := d.median(); got < want || got-want > want/32 {
				t.Fatalf("median of %v is %v, want %v", all, got, want)
			}
		}
	})
}

func TestPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPool(mapSlot)
		type member struct {
			w    *worker
			leaf int
		}
		var members []member
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch what := rapid.IntRange(0, 3).Draw(t, "what"); {
			case what == 0 || len(members) == 0:
				w := &worker{Worker: Worker{Slots: rapid.IntRange(1, 4).Draw(t, "slots"), Memory: int64(rapid.IntRange(0, 3).Draw(t, "memory")) * 24}}
				members = append(members, member{w, p.join(w).leaf})
			case what == 1 && len(members) > 0:
				i := rapid.IntRange(0, len(members)-1).Draw(t, "who")
				p.leave(members[i].leaf)
				members = slices.Delete(members, i, i+1)
			default:
				m := members[rapid.IntRange(0, len(members)-1).Draw(t, "who")]
				m.w.used[mapSlot] = rapid.IntRange(0, m.w.Slots).Draw(t, "used")
				m.w.usedMem = int64(rapid.IntRange(0, 30).Draw(t, "taken"))
				m.w.suspect = rapid.IntRange(0, 4).Draw(t, "suspect") == 0
				p.set(m.leaf, m.w.room(mapSlot))
			}
			need := int64(rapid.SampledFrom([]int{0, 0, 1, 20, 48, 100}).Draw(t, "need"))
			var not *worker
			if len(members) > 0 && rapid.Bool().Draw(t, "but") {
				not = members[rapid.IntRange(0, len(members)-1).Draw(t, "not")].w
			}
			// worth is a member's score, or 0 if it can't be chosen.
			worth := func(w *worker) int32 {
				free, takes := w.Slots-w.used[mapSlot], need
				if need == 0 && w.Memory > 0 {
					takes = w.Memory / int64(2*w.Slots)
				}
				if w == not || w.suspect || w.Memory > 0 && w.Memory-w.usedMem < takes {
					return 0
				}
				return score(free, w.Slots)
			}
			top := int32(0)
			for _, m := range members {
				top = max(top, worth(m.w))
			}
			switch got := p.best(need, not, nil); {
			case got == nil && top > 0:
				t.Fatalf("best(%d) finds nobody, and there is one with %d", need, top)
			case got != nil && worth(got) != top:
				t.Fatalf("best(%d) finds one with %d, and there is one with %d", need, worth(got), top)
			}
		}
	})
}

func TestScore(t *testing.T) {
	order := [][2]int{{0, 5}, {1, 5000}, {1, 4}, {2, 4}, {50, 100}, {1, 1}, {3, 3}, {5000, 5000}}
	for i, o := range order[1:] {
		if a, b := score(order[i][0], order[i][1]), score(o[0], o[1]); a >= b {
			t.Errorf("%d of %d slots free scores %d, %d of %d %d", order[i][0], order[i][1], a, o[0], o[1], b)
		}
	}
	if score(0, 5) != 0 || score(1<<24, 1<<24) <= 0 || score(1, 1<<30) <= 0 {
		t.Error("zero is not what it should be")
	}
}

func TestPaths(t *testing.T) {
	path := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "ab", "a-", "a0", "é"}), 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) string {
			s := strings.Join(path.Draw(t, name), "/")
			if rapid.Bool().Draw(t, "rooted") {
				s = "/" + s
			}
			return s
		}
		splits := make([]Split, rapid.IntRange(1, 20).Draw(t, "splits"))
		for i := range splits {
			splits[i] = Split{Path: draw("path"), Bytes: int64(rapid.IntRange(0, 3).Draw(t, "bytes"))}
		}
		s := New(Config{})
		j := s.addJob(Job{ID: "j"})
		if err := s.shape(j, &Planned{Splits: splits, Partitions: 1}); err != nil {
			t.Fatal(err)
		}
		st := j.stages[Map]
		if j.paths == nil {
			return
		}
		waiting := map[uint32]bool{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			i := uint32(rapid.IntRange(0, len(splits)-1).Draw(t, "task"))
			if rapid.Bool().Draw(t, "waits") {
				st.tasks[i].queue = queued
				waiting[i] = true
			} else {
				st.tasks[i].queue = unqueued
				delete(waiting, i)
			}
			j.paths.set(st, i, waiting[i])
			folder := strings.TrimRight(draw("folder"), "/")
			want := -1
			for i := range splits {
				p := splits[i].Path
				if waiting[uint32(i)] && (p == folder || strings.HasPrefix(p, folder+"/")) {
					if want < 0 || cmp.Or(cmp.Compare(splits[i].Bytes, splits[want].Bytes), cmp.Compare(want, i)) > 0 {
						want = i
					}
				}
			}
			got := -1
			if r := j.paths.least(st, folder); r != none {
				got = int(st.taskAt(int(r)))
			}
			if got != want {
				t.Fatalf("under %q: %d, want %d, of %v, %v wait", folder, got, want, splits, waiting)
			}
		}
	})
}

func TestTimers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ts timers
		list := make([]*timer, 8)
		due := map[int]int{}
		for i := range list {
			list[i] = &timer{}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, len(list)-1).Draw(t, "timer")
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				due[i] = rapid.IntRange(0, 9).Draw(t, "at")
				ts.set(list[i], time.Duration(due[i]))
			case 1:
				delete(due, i)
				ts.stop(list[i])
			default:
				now := rapid.IntRange(0, 9).Draw(t, "now")
				x := ts.due(time.Duration(now))
				least := 10
				for _, at := range due {
					least = min(least, at)
				}
				if (x != nil) != (least <= now) {
					t.Fatalf("due(%d) is %v, but the next is at %d", now, x, least)
				}
				if x != nil {
					i := slices.Index(list, x)
					if due[i] != least {
						t.Fatalf("timer of %d before that of %d", due[i], least)
					}
					delete(due, i)
				}
			}
			if len(ts.heap) != len(due) {
				t.Fatalf("%d timers, want %d", len(ts.heap), len(due))
			}
		}
	})
}
