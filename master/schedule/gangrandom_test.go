// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Random gangs and ordinary jobs on random workers, some of which die: no gang begins with a part of its members, no worker's memory is
// overdrawn, and all jobs come to their end. What no worker could ever hold fails.
func TestGangsRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New(Config{Epoch: 1, MaxLost: 1000})
		var now time.Duration
		runs := map[Attempt]string{}
		sizes, begun := map[string]int{}, map[string]bool{}
		var order []Attempt
		ended := map[string]string{}
		stages := map[string]Stage{}
		memory := int64(100)
		tell := func(events ...Event) {
			launched := map[string]int{}
			for _, a := range s.Apply(now, events...) {
				switch a := a.(type) {
				case Launch:
					runs[a.Attempt] = a.Worker
					order = append(order, a.Attempt)
					if a.Attempt.Stage == Map {
						launched[a.Attempt.Job]++
					}
				case Stop:
					delete(runs, a.Attempt)
				case JobStage:
					stages[a.Job] = a.Stage
				case JobEnded:
					ended[a.Job] = "done" + a.Error
				}
			}
			for j, n := range launched {
				if size := sizes[j]; size > 0 && !begun[j] {
					if begun[j] = true; n != size {
						t.Fatalf("%d of %d members of %s were launched at first", n, size, j)
					}
				}
			}
			for _, w := range s.Workers() {
				if w.Memory > w.Worker.Memory {
					t.Fatalf("%d of %d bytes are taken at %s", w.Memory, w.Worker.Memory, w.Worker.ID)
				}
			}
		}
		workers := rapid.IntRange(2, 4).Draw(t, "workers")
		slots := rapid.IntRange(1, 3).Draw(t, "slots")
		up := func(i int) { tell(WorkerUp{Worker{ID: fmt.Sprintf("w%d", i), Slots: slots, Memory: memory}}) }
		for i := range workers {
			up(i)
		}
		names := workers
		jobs := rapid.IntRange(2, 5).Draw(t, "jobs")
		for i := range jobs {
			id := fmt.Sprintf("j%d", i)
			if rapid.Bool().Draw(t, "gang") {
				sizes[id] = rapid.IntRange(1, workers).Draw(t, "size")
			}
			tell(JobAdded{Job{ID: id, TaskMemory: rapid.SampledFrom([]int64{0, 40, 60, 100}).Draw(t, "memory"), Priority: rapid.IntRange(0, 1).Draw(t, "priority")}})
		}
		deaths := rapid.IntRange(0, 3).Draw(t, "deaths")
		for step := 0; len(ended) < jobs; step++ {
			if step > 5000 {
				for i := range jobs {
					v, ok := s.Job(fmt.Sprintf("j%d", i))
					t.Logf("%v %v %+v", ok, v, v.Gang)
				}
				t.Fatal("jobs wait for ever")
			}
			now += time.Second
			tell(Tick{})
			if deaths > 0 && step%20 == 7 {
				deaths--
				list := s.Workers()
				id := list[rapid.IntRange(0, len(list)-1).Draw(t, "dies")].Worker.ID
				for a, w := range runs {
					if w == id {
						delete(runs, a)
					}
				}
				tell(WorkerDown{id})
				up(names) // another one comes
				names++
			}
			// The one that has run longest ends; members of a gang only when all of them run, and after a while.
			was := order
			order = nil
			finished := false
			for _, a := range was {
				w, ok := runs[a]
				if !ok {
					continue
				}
				together := 0
				for b := range runs {
					if b.Job == a.Job && b.Stage == Map {
						together++
					}
				}
				size := sizes[a.Job]
				v, _ := s.Job(a.Job)
				if finished || a.Stage == Map && size > 0 && (together+v.Map.Done < size || step%7 != 0) {
					order = append(order, a)
					continue
				}
				finished = true
				delete(runs, a)
				f := Finished{Attempt: a, Worker: w}
				switch a.Stage {
				case Plan:
					f.Planned = &Planned{Partitions: 1, Gang: size > 0, Splits: make([]Split, max(size, 1, 4*boolInt(size == 0)))}
				case Map:
					f.Digests = []uint64{1}
				}
				tell(f)
			}
		}
		for id, how := range ended {
			if how != "done" {
				t.Fatalf("%s: %s", id, how)
			}
		}
	})
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
