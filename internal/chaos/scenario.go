// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/quernmr/quern/internal/netlab"
)

// Action is something that is done to a cluster.
type Action string

// The actions. Those with a time are undone when it is over: what was killed is started
// again, what was stopped goes on, what was cut is joined.
const (
	KillWorker  Action = "kill worker"  // SIGKILL; started again after For; 0: never
	StopWorker  Action = "stop worker"  // SIGSTOP, after For SIGCONT
	SlowWorker  Action = "slow worker"  // stopped most of the time, for For
	DrainWorker Action = "drain worker" // leaves as it should; started again after For; 0: never
	KillTask    Action = "kill task"    // SIGKILL to one attempt of the worker, if it has any
	StopTask    Action = "stop task"    // SIGSTOP to one attempt of the worker, after For SIGCONT
	KillMaster  Action = "kill master"  // started again after For
	StopMaster  Action = "stop master"  // after For SIGCONT
	CutHost     Action = "cut off"      // its link
	SpoilLinks  Action = "spoil links"  // faults on all links
	FillWorker  Action = "fill disk of" // of the worker's folder, if that is small
	FillMaster  Action = "fill journal" // the file system of the journal, if that is small
	KillAll     Action = "kill all"     // master and workers at once; started again after For
)

// Event is an action at a time.
type Event struct {
	At       time.Duration // after the jobs were submitted
	Reducing bool          // after the first one has come to its reduce stage, or an iteration to its first round, instead
	Do       Action
	Host     int // of a worker; 0: it is not about one
	For      time.Duration
	// Faults are those of SpoilLinks.
	Faults netlab.Faults
}

func (e Event) String() string {
	text := fmt.Sprintf("%v: %s", e.At, e.Do)
	if e.Reducing {
		text = "reducing + " + text
	}
	if e.Host > 0 {
		text += fmt.Sprintf(" %d", e.Host)
	}
	if e.Do == SpoilLinks {
		text += " " + faultsText(e.Faults)
	}
	switch {
	case e.For > 0:
		text += fmt.Sprintf(" for %v", e.For)
	case e.Do == KillWorker || e.Do == DrainWorker:
		text += " for good"
	}
	return text
}

func faultsText(f netlab.Faults) string {
	text := fmt.Sprintf("(loss %.1f%%, duplicate %.1f%%, reorder %.1f%%, corrupt %.1f%%, delay %v to %v",
		100*f.Loss, 100*f.Duplicate, 100*f.Reorder, 100*f.Corrupt, f.Delay, f.Delay+f.Jitter)
	if f.UDPOnly {
		text += ", UDP only"
	}
	return text + ")"
}

// Shuffle is who folds in a cluster.
type Shuffle string

// Who folds.
const (
	Kernel Shuffle = "kernel" // programs, on every host
	User   Shuffle = "user"   // user space, on every host
	Mixed  Shuffle = "mixed"  // programs on every second host
)

// Scenario is a cluster, a job and what happens to them.
type Scenario struct {
	Seed    uint64
	Job     string // one of Jobs
	Second  string // submitted at the same time; "": nothing
	Hosts   int    // the master is on host 1, and a worker on each
	Slots   int    // of each worker
	Shuffle Shuffle
	Lease   time.Duration
	Faults  netlab.Faults // of all links from the beginning
	// SmallDisk is a host whose worker has little room for files; 0: none. SmallJournal says
	// that the master has.
	SmallDisk    int
	SmallJournal bool
	Events       []Event
	// MayFail says that the job may end with an error, since too little is left to run it.
	MayFail bool
}

func (s *Scenario) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %s on %d hosts with %d slots each, shuffle %s, lease %v", s.Seed, strings.Join(s.Jobs(), " and "), s.Hosts, s.Slots, s.Shuffle, s.Lease)
	if s.Faults.Any() {
		fmt.Fprintf(&b, ", links %s", faultsText(s.Faults))
	}
	if s.SmallDisk > 0 {
		fmt.Fprintf(&b, ", little room on host %d", s.SmallDisk)
	}
	if s.SmallJournal {
		b.WriteString(", little room for the journal")
	}
	if s.MayFail {
		b.WriteString(", may fail")
	}
	for _, e := range s.Events {
		fmt.Fprintf(&b, "\n  %v", e)
	}
	return b.String()
}

// Jobs returns the jobs that are submitted at once.
func (s *Scenario) Jobs() []string {
	if s.Second == "" {
		return []string{s.Job}
	}
	return []string{s.Job, s.Second}
}

// Limits of scenarios.
const (
	minHosts, maxHosts = 3, 5
	span               = 6 * time.Second // in which events begin
)

// NewScenario makes the scenario of a seed. kernel says whether programs can fold here.
func NewScenario(seed uint64, kernel bool) *Scenario {
	rng := rand.New(rand.NewPCG(seed, 0x717565726e))
	s := &Scenario{
		Seed: seed, Job: Jobs[seed%uint64(len(Jobs))], Hosts: minHosts + rng.IntN(maxHosts-minHosts+1), Slots: 1 + rng.IntN(2),
		Lease: time.Duration(1000+rng.IntN(2000)) * time.Millisecond,
	}
	// Drawn in any case, so that a seed means the same everywhere.
	s.Shuffle = []Shuffle{Kernel, Kernel, Kernel, Mixed, User}[rng.IntN(5)]
	if !kernel {
		s.Shuffle = User
	}
	if rng.IntN(3) == 0 {
		s.Faults = someFaults(rng)
	}
	if rng.IntN(4) == 0 {
		s.Second = Jobs[rng.IntN(len(Jobs))]
	}
	if iterates(s.Job) && rng.IntN(2) == 0 {
		s.Faults = frameFaults(rng)
	}
	kinds := make([]Action, 1+rng.IntN(8))
	if rng.IntN(5) == 0 {
		s.SmallDisk = 1 + rng.IntN(s.Hosts)
		kinds = append(kinds, FillWorker)
	}
	if rng.IntN(12) == 0 {
		s.SmallJournal = true
		kinds = append(kinds, FillMaster)
	}
	gone := map[int]bool{} // for good
	for _, kind := range kinds {
		e := s.event(rng, kind)
		if iterates(s.Job) && rng.IntN(2) == 0 {
			e.Reducing, e.At = true, e.At/2 // else most would come before the members are together
		}
		if e.For == 0 && (e.Do == KillWorker || e.Do == DrainWorker) {
			// Two stay, or else there is nobody to take over.
			if gone[e.Host] = true; s.Hosts-len(gone) < 2 {
				delete(gone, e.Host)
				e.For = pause(rng)
			}
		}
		s.Events = append(s.Events, e)
	}
	if rng.IntN(20) == 0 {
		// All of them, for good.
		at := moment(rng) / 4
		for h := 1; h <= s.Hosts; h++ {
			s.Events = append(s.Events, Event{At: at, Do: KillWorker, Host: h})
		}
		s.MayFail = true
	}
	if s.SmallJournal {
		s.MayFail = true
	}
	slices.SortStableFunc(s.Events, func(a, b Event) int {
		if a.Reducing != b.Reducing {
			if b.Reducing {
				return -1
			}
			return 1
		}
		return int(a.At - b.At)
	})
	s.tidy()
	if iterates(s.Job) && rng.IntN(4) == 0 {
		// Two of them want as many workers at once as there are.
		s.Second = []string{descent, wideDescent}[rng.IntN(2)]
	}
	return s
}

// pause is how long something is away: now less than the lease, now more.
func pause(rng *rand.Rand) time.Duration {
	return time.Duration(100<<rng.IntN(6)+rng.IntN(100)) * time.Millisecond // 100 ms to 3.3 s
}

func someFaults(rng *rand.Rand) netlab.Faults {
	f := netlab.Faults{Loss: 0.03 * rng.Float64(), Duplicate: 0.03 * rng.Float64(), Reorder: 0.05 * rng.Float64()}
	if rng.IntN(2) == 0 {
		f.Corrupt = 0.02 * rng.Float64()
	}
	if rng.IntN(3) == 0 {
		f.Delay = time.Duration(rng.IntN(2000)) * time.Microsecond
	}
	return f
}

// frameFaults are heavy, and spare calls, which need a connection that goes on.
func frameFaults(rng *rand.Rand) netlab.Faults {
	f := netlab.Faults{Loss: 0.2 * rng.Float64(), Duplicate: 0.2 * rng.Float64(), Reorder: 0.2 * rng.Float64(), UDPOnly: true}
	if rng.IntN(2) == 0 {
		f.Corrupt = 0.1 * rng.Float64()
	}
	if rng.IntN(2) == 0 {
		f.Jitter = time.Duration(rng.IntN(2000)) * time.Microsecond
	}
	return f
}

// moment is when something happens: rather early, as some jobs take but two seconds.
func moment(rng *rand.Rand) time.Duration {
	u := rng.Float64()
	return time.Duration(u * u * float64(span)).Round(time.Millisecond)
}

// event draws an event, of a kind or of any.
func (s *Scenario) event(rng *rand.Rand, kind Action) Event {
	e := Event{At: moment(rng), Host: 1 + rng.IntN(s.Hosts), For: pause(rng), Do: kind}
	if rng.IntN(3) == 0 {
		// That stage is short.
		e.Reducing, e.At = true, e.At/8
	}
	switch n := rng.IntN(20); {
	case kind == FillWorker:
		e.Host = s.SmallDisk
	case kind == FillMaster:
		e.Host = 0
	case n < 4:
		e.Do = KillWorker
		if rng.IntN(3) == 0 {
			e.For = 0
		}
	case n < 7:
		e.Do = StopWorker
		e.For += time.Duration(rng.Int64N(int64(2 * s.Lease))).Round(time.Millisecond)
	case n < 8:
		e.Do = SlowWorker
		e.For += 2 * time.Second
	case n < 9:
		e.Do = DrainWorker
	case n < 11:
		e.Do, e.For = KillTask, 0
	case n < 12:
		e.Do = StopTask
	case n < 15:
		e.Do, e.Host = KillMaster, 0
	case n < 16:
		e.Do, e.Host = StopMaster, 0
	case n < 18:
		e.Do = CutHost
	case n < 19:
		e.Do, e.Host, e.Faults = SpoilLinks, 0, someFaults(rng)
		if iterates(s.Job) && rng.IntN(2) == 0 {
			e.Faults = frameFaults(rng)
		}
	default:
		e.Do, e.Host = KillAll, 0
	}
	return e
}

// tidy takes out what is done to somebody who is gone for good by then.
func (s *Scenario) tidy() {
	gone := map[int]bool{}
	s.Events = slices.DeleteFunc(s.Events, func(e Event) bool {
		if gone[e.Host] && e.Do != CutHost {
			return true
		}
		if e.For == 0 && (e.Do == KillWorker || e.Do == DrainWorker) {
			gone[e.Host] = true
		}
		return false
	})
}
