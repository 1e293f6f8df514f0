// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"strings"
	"testing"
)

// TestScenarios looks at what many seeds make.
func TestScenarios(t *testing.T) {
	const n = 3000
	did := map[Action]int{}
	jobs, shuffles := map[string]int{}, map[Shuffle]int{}
	mayFail, second, reducing, beside, spoilt := 0, 0, 0, 0, 0
	for seed := uint64(1); seed <= n; seed++ {
		s := NewScenario(seed, true)
		if again := NewScenario(seed, true); s.String() != again.String() {
			t.Fatalf("seed %d makes two scenarios:\n%v\n%v", seed, s, again)
		}
		if user := NewScenario(seed, false); user.Shuffle != User || strings.ReplaceAll(user.String(), "shuffle user", "shuffle "+string(s.Shuffle)) != s.String() {
			t.Fatalf("seed %d means something else without a kernel:\n%v\n%v", seed, s, user)
		}
		jobs[s.Job]++
		if s.Second != "" {
			second++
			if iterates(s.Job) && iterates(s.Second) {
				beside++
			}
		}
		if s.Faults.UDPOnly {
			if !iterates(s.Job) {
				t.Errorf("seed %d: %v", seed, s)
			}
			spoilt++
		}
		shuffles[s.Shuffle]++
		if s.Hosts < minHosts || s.Hosts > maxHosts || s.Slots < 1 || s.Lease <= 0 || len(s.Events) == 0 {
			t.Fatalf("%v", s)
		}
		gone := map[int]bool{}
		for i, e := range s.Events {
			did[e.Do]++
			if e.Reducing {
				reducing++
			}
			about := e.Do != KillMaster && e.Do != StopMaster && e.Do != SpoilLinks && e.Do != FillMaster && e.Do != KillAll
			switch {
			case i > 0 && e.At < s.Events[i-1].At && e.Reducing == s.Events[i-1].Reducing, i > 0 && !e.Reducing && s.Events[i-1].Reducing:
				t.Errorf("seed %d: events are not in order", seed)
			case about != (e.Host >= 1 && e.Host <= s.Hosts):
				t.Errorf("seed %d: %v", seed, e)
			case e.For == 0 && e.Do != KillWorker && e.Do != DrainWorker && e.Do != KillTask:
				t.Errorf("seed %d: %v is never undone", seed, e)
			case gone[e.Host] && e.Do != CutHost:
				t.Errorf("seed %d: %v happens to somebody who is gone", seed, e)
			case e.Do == FillWorker && e.Host != s.SmallDisk, e.Do == FillMaster && !s.SmallJournal:
				t.Errorf("seed %d: %v would fill the machine's disk", seed, e)
			}
			if e.For == 0 && (e.Do == KillWorker || e.Do == DrainWorker) {
				gone[e.Host] = true
			}
		}
		if s.MayFail {
			mayFail++
		} else if s.Hosts-len(gone) < 2 {
			t.Errorf("seed %d leaves %d workers and may not fail:\n%v", seed, s.Hosts-len(gone), s)
		}
	}
	for _, a := range []Action{KillWorker, StopWorker, SlowWorker, DrainWorker, KillTask, StopTask, KillMaster, StopMaster, CutHost, SpoilLinks, FillWorker, FillMaster, KillAll} {
		if did[a] < 10 {
			t.Errorf("%s happens %d times in %d scenarios", a, did[a], n)
		}
	}
	for _, j := range Jobs {
		if jobs[j] < n/len(Jobs)/2 {
			t.Errorf("%s is run %d times", j, jobs[j])
		}
	}
	for _, s := range []Shuffle{Kernel, User, Mixed} {
		if shuffles[s] < n/10 {
			t.Errorf("shuffle %s is used %d times", s, shuffles[s])
		}
	}
	if second < n/8 || reducing < n/2 {
		t.Errorf("%d of %d have a second job, and %d events are in the reduce stage", second, n, reducing)
	}
	if beside < n/40 || spoilt < n/30 {
		t.Errorf("%d of %d have two iterations at once, and %d iterate on bad links", beside, n, spoilt)
	}
	if mayFail == 0 || mayFail > n/4 {
		t.Errorf("%d of %d may fail", mayFail, n)
	}
}

// TestInput makes the same bytes from the same seed.
func TestInput(t *testing.T) {
	a, b, c := t.TempDir(), t.TempDir(), t.TempDir()
	for dir, seed := range map[string]uint64{a: 1, b: 1, c: 2} {
		in, err := WriteInput(dir, seed)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range Jobs {
			if args, _ := in.Command(Programs{"program", "descent"}, j, "out"); len(args) < 6 {
				t.Errorf("%s has the arguments %q", j, args)
			}
		}
	}
	if err := sameTree(a, b); err != nil {
		t.Error(err)
	}
	if err := sameTree(a, c); err == nil {
		t.Error("another seed makes the same input")
	}
}
