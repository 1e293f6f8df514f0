// SPDX-License-Identifier: Apache-2.0

package reducelab

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/wire"
)

// equal makes n calls that are alike.
func equal(n, values int) (calls []Call) {
	for i := range n {
		calls = append(calls, Call{Op: allreduce.Op(i % 3), Wide: i%2 == 0, Len: values})
	}
	return calls
}

// happens has a case happen, which has to do well.
func happens(t *testing.T, r *Rig, c *Case) *Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := Run(ctx, r, c)
	if err != nil {
		t.Errorf("%s:\n%v\n%+v", c, err, out)
	}
	return out
}

// TestWokenOnce makes calls of one block over links that lose nothing: sockets hear of nothing, and a member sleeps once per call at
// most, for the one result.
func TestWokenOnce(t *testing.T) {
	r := rig(t, Limits{Hosts: 5, Kernel: 5}, NodeConfig{Patience: 10 * time.Second}, netlab.Options{Seed: 1, StaticNeighbours: true})
	var byPrograms uint64
	for i, members := range [][]int{{1, 2}, {3, 1, 2, 5}, {1, 2, 3, 4, 5}} {
		const calls = 100
		c := &Case{Seed: uint64(i), Flavour: Programs, IPv6: i == 1, Groups: []Group{{Members: members, Calls: equal(calls, 100)}}}
		c.Faults.UDPOnly = true
		out := happens(t, r, c)
		d := &out.Deeds
		// Where the reducer's own part is the last one, its user space completes the block.
		n := d.Programs[wire.BlockReduced]
		if byPrograms += n; n > calls {
			t.Errorf("%d blocks were completed by programs in %d calls", n, calls)
		}
		t.Logf("%d members: %d of %d blocks by programs, woken %d times and %d by timers, %d parts again", len(members), d.Programs[wire.BlockReduced], calls, d.Woken, d.Timers, d.Again)
		if most := uint64(calls * len(members)); d.Woken > most {
			t.Errorf("members were woken %d times in %d calls", d.Woken, most)
		}
		if n := count(d.User, wire.Added, wire.ResultStored, wire.ResultPassed, wire.UpGroup); n > 0 {
			t.Errorf("user space did %d times what programs should: %v", n, d.User)
		}
	}
	if byPrograms == 0 {
		t.Error("programs never completed a block")
	}
}

// TestSlowMember has members compute for longer than anybody is patient: they are waited for.
func TestSlowMember(t *testing.T) {
	t.Parallel() // it mostly waits
	r := rig(t, Limits{Hosts: 4, Kernel: 2, Mortal: 1}, NodeConfig{}, netlab.Options{Seed: 1, StaticNeighbours: true})
	c := &Case{Flavour: Mixed, Patience: 2 * time.Second, Groups: []Group{{Members: []int{4, 1, 3, 2}, Calls: equal(4, 1000)}}}
	for rank := range 3 {
		c.Pauses = append(c.Pauses, Pause{Rank: rank, Call: 2, For: 4 * time.Second})
	}
	happens(t, r, c)
}

// TestKilledInTheMiddle kills the first, a middle and the last member of groups that are in the middle of many calls. All that live are told
// who was the reason, and go on in a group of their own.
func TestKilledInTheMiddle(t *testing.T) {
	l := Limits{Hosts: 7, Kernel: 3, Mortal: 3}
	r := rig(t, l, NodeConfig{Patience: 800 * time.Millisecond}, netlab.Options{Seed: 1, StaticNeighbours: true})
	slow := netlab.Faults{Delay: time.Millisecond, UDPOnly: true}
	cases := []*Case{
		{Flavour: Programs, Groups: []Group{{Members: []int{5, 1, 2}}}, Killed: []End{{Rank: 0}}},
		{Flavour: Programs, Groups: []Group{{Members: []int{1, 5, 2, 6}}}, Killed: []End{{Rank: 1}, {Rank: 3}}},
		{Flavour: NoHelp, Groups: []Group{{Members: []int{1, 4, 5}}}, Killed: []End{{Rank: 2}}},
		{Flavour: Mixed, IPv6: true, Groups: []Group{{Members: []int{4, 7, 1, 6, 2}}}, Killed: []End{{Rank: 1}, {Rank: 3}}},
		{Flavour: Mixed, Groups: []Group{{Members: []int{7, 2}}}, Killed: []End{{Rank: 0}}},
	}
	for i, c := range sample(cases[1:4], cases) {
		c.Seed, c.Faults = uint64(i), slow
		g := &c.Groups[0]
		g.Calls = equal(30, 20_000)
		for k := range c.Killed {
			c.Killed[k].Call, c.Killed[k].After = 10, time.Duration(3*k)*time.Millisecond
		}
		out := happens(t, r, c)
		for rank, result := range out.Results[0] {
			if !result.Killed && (result.Done < 10 || result.Done == 30 || result.Rank < 0) {
				t.Errorf("%s: member %d: %+v", c, rank, result)
			}
		}
		after := &Case{Seed: 100 + c.Seed, Flavour: c.Flavour, IPv6: c.IPv6, Groups: []Group{{Calls: equal(3, 1000)}}, Faults: slow}
		for rank, h := range g.Members {
			if endOf(c.Killed, rank) == nil {
				after.Groups[0].Members = append(after.Groups[0].Members, h)
			}
		}
		happens(t, r, after)
	}
}

// TestCut cuts a member's link: for a moment, which its group does not mind, and for longer than anybody is patient. Then all are told who was
// the reason, and the member itself once its link is whole.
func TestCut(t *testing.T) {
	t.Parallel() // it mostly waits
	r := rig(t, Limits{Hosts: 3, Kernel: 2}, NodeConfig{Patience: time.Second}, netlab.Options{Seed: 1, StaticNeighbours: true})
	for _, long := range []bool{false, true} {
		c := &Case{Flavour: Mixed, Groups: []Group{{Members: []int{2, 1, 3}, Calls: equal(4, 1000)}}}
		// Until then nobody is in a call that could be done.
		c.Pauses = []Pause{{Rank: 0, Call: 2, For: 400 * time.Millisecond}}
		cut, healed := 200*time.Millisecond, 600*time.Millisecond
		if long {
			c.Seed, healed = 1, 5*time.Second
			c.Lost = []int{1}
		}
		done := make(chan error, 2)
		c.Formed = func() { // which takes its time, and does not happen over a link that is cut
			time.AfterFunc(cut, func() { done <- r.Lab.Cut(1) })
			time.AfterFunc(healed, func() { done <- r.Lab.Heal(1) })
		}
		begin := time.Now()
		out := happens(t, r, c)
		if out.Results == nil {
			t.FailNow() // no group was formed, and nothing cut
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		for rank, result := range out.Results[0] {
			switch {
			case !long && result.Done != 4, long && result.Done == 4:
				t.Errorf("cut for long %v: member %d: %+v", long, rank, result)
			case long && !strings.Contains(result.Err, hostName(1)):
				t.Errorf("member %d is not told who is the reason: %s", rank, result.Err)
			}
		}
		t.Logf("cut for long %v: %v", long, time.Since(begin).Round(time.Millisecond))
	}
}

// TestWithoutNeighbours has hosts find each other first: user space sends on until programs can.
func TestWithoutNeighbours(t *testing.T) {
	r := rig(t, Limits{Hosts: 4, Kernel: 4}, NodeConfig{Patience: 5 * time.Second}, netlab.Options{Seed: 1})
	for i := range 2 {
		c := &Case{Seed: uint64(i), Flavour: Programs, IPv6: i == 1, Groups: []Group{{Members: []int{3, 1, 4, 2}, Calls: equal(40, 500)}}}
		for call := range 4 {
			c.Pauses = append(c.Pauses, Pause{Rank: 0, Call: 10 * call, For: 300 * time.Millisecond})
		}
		out := happens(t, r, c)
		if out.Deeds.Programs[wire.ResultPassed] == 0 {
			t.Error("programs never sent a result on")
		}
	}
}

// TestDirected has what needs no lab of its own.
func TestDirected(t *testing.T) {
	r := rig(t, Limits{Hosts: 4, Kernel: 3}, NodeConfig{Patience: 5 * time.Second}, netlab.Options{Seed: 1, StaticNeighbours: true})
	t.Run("calls differ", func(t *testing.T) { callsDiffer(t, r) })
	t.Run("many groups", func(t *testing.T) { manyGroups(t, r) })
}

// callsDiffer has members make calls that differ.
func callsDiffer(t *testing.T, r *Rig) {
	for i, other := range []Call{
		{Op: allreduce.Sum, Len: 999},
		{Op: allreduce.Sum, Len: 1000, Wide: true},
		{Op: allreduce.Max, Len: 1000},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := &Case{Seed: uint64(i), Groups: []Group{{Members: []int{1, 2, 4}, Calls: []Call{{Op: allreduce.Sum, Len: 1000}}}}}
		x := &run{Case: c, rig: r, hosts: c.Groups[0].Members}
		closeConns, err := x.form(ctx)
		if err != nil {
			t.Fatal(err)
		}
		results := make(chan Result, 3)
		for rank, h := range x.hosts {
			d := duty{Token: x.formed[0].Token, Seed: c.Seed, Members: 3, Calls: c.Groups[0].Calls}
			if rank == i {
				d.Calls = []Call{other}
			}
			go func() { results <- r.nodes[h-1].do(ctx, &d) }()
		}
		for range 3 {
			if got := <-results; !got.Broken || got.Done > 0 || got.Wrong != "" || !strings.Contains(got.Err, "another vector") {
				t.Errorf("%+v: %+v", other, got)
			}
		}
		if err := x.formed[0].Close(ctx); err != nil {
			t.Error(err)
		}
		if err := closeConns(); err != nil {
			t.Error(err)
		}
	}
}

// manyGroups forms and closes groups at the same time, more often than there is room for them.
func manyGroups(t *testing.T, r *Rig) {
	for i := range sample(6, 60) {
		c := &Case{Seed: uint64(i), Flavour: []Flavour{Mixed, NoHelp, Programs}[i%3]}
		members := []int{1 + i%3, 1 + (i+1)%3}
		if c.Flavour != Programs {
			members = append(members, 4)
		}
		for range 1 + i%4 {
			c.Groups = append(c.Groups, Group{Members: members, Bits: 2 + i%3, Calls: equal(10, 3000)})
		}
		happens(t, r, c)
	}
}
