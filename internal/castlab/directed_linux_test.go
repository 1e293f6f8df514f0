// SPDX-License-Identifier: Apache-2.0

package castlab

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle"
)

// up returns the numbers from a to b.
func up(a, b int) (list []int) {
	for ; a <= b; a++ {
		list = append(list, a)
	}
	return list
}

// TestWokenOnce gives contents of many sizes to few and many members over links that lose nothing:
// the source's process sleeps until all have it, and is woken once. Without a delay all may have answered before it
// goes to sleep; with one it does sleep.
func TestWokenOnce(t *testing.T) {
	const hosts = 13
	r := rig(t, Limits{Hosts: hosts, Kernel: hosts}, NodeConfig{Memory: 24 << 20, Idle: time.Minute, Patience: 20 * time.Second}, 1)
	// 1312 bytes are the most that a chunk holds beside a message's head.
	for _, x := range []struct {
		delay time.Duration
		sizes []int64
	}{{0, []int64{0, 1312, 1313, 64 << 10, 3 << 20}}, {time.Millisecond, []int64{1, 1400}}} {
		delay := x.delay
		var counted, woken, all int
		for _, size := range x.sizes {
			for _, members := range []int{1, hosts - 1} {
				for _, chains := range []int{0, 1, (members + 3) / 4} {
					all++
					c := &Case{Seed: uint64(delay)<<8 + uint64(all), Flavour: Programs, IPv6: all%3 == 0, Source: 1 + all%hosts, Chains: chains, Sizes: []int64{size}}
					c.Faults = netlab.Faults{Delay: delay, UDPOnly: true}
					for h := range members {
						c.Members = append(c.Members, 1+(all+1+h)%hosts)
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					out, err := Run(ctx, r, c)
					cancel()
					if err != nil {
						t.Errorf("%s:\n%v\n%+v", c, err, out)
						continue
					}
					if out.Stored != members {
						t.Errorf("%s: the programs of %d members stored", c, out.Stored)
					}
					if out.Counted {
						counted++
						woken += out.Report.Woken
					} else {
						t.Logf("%s: %d packets overran, %d chunks went again", c, out.Overrun, out.Report.Again)
					}
				}
			}
		}
		t.Logf("delay %v: %d of %d broadcasts lost nothing; in %d the source was woken, once", delay, counted, all, woken)
		if counted < all/2 {
			t.Error("most should have lost nothing")
		}
		if delay > 0 && woken < counted/2 {
			t.Error("it should have been woken in most: only where it was held up for as long are all answers there before it sleeps")
		}
	}
}

// TestKilledInTheMiddle kills the first, a middle and the last member of a chain while it takes a content
// that is long on its way. They are said to be out, and the others have all of it.
func TestKilledInTheMiddle(t *testing.T) {
	l := Limits{Hosts: 8, Kernel: 4, Mortal: 4}
	r := rig(t, l, NodeConfig{Memory: 16 << 20, Idle: 20 * time.Second, Patience: 3 * time.Second}, 1)
	slow := netlab.Faults{Delay: 5 * time.Millisecond, UDPOnly: true}
	for i, c := range []*Case{
		{Source: 1, Members: []int{5, 2, 3}, Killed: []Event{{Host: 5}}},
		{Source: 2, Members: []int{1, 6, 3}, Killed: []Event{{Host: 6}}},
		{Source: 3, Members: []int{1, 2, 7}, Killed: []Event{{Host: 7}}},
		{Source: 4, Members: []int{5, 1, 6, 7, 2, 8}, Killed: []Event{{Host: 5}, {Host: 6}, {Host: 7}, {Host: 8}}},
		{Source: 4, Members: []int{8, 7}, Killed: []Event{{Host: 7}, {Host: 8}}},
	} {
		flavours := []Flavour{Programs, NoHelp}
		for k, flavour := range sample(flavours[i%2:i%2+1], flavours) {
			c := *c
			c.Seed, c.Flavour, c.Chains, c.Sizes, c.Faults = uint64(10*i+k), flavour, 1, []int64{2 << 20}, slow
			if slices.Contains(c.Members, 8) && flavour == Programs {
				c.Flavour = Mixed
			}
			c.Killed = slices.Clone(c.Killed)
			for k := range c.Killed {
				c.Killed[k].After = 100 * time.Millisecond
			}
			t.Run(fmt.Sprintf("%d/%s", i, c.Flavour), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				out, err := Run(ctx, r, &c)
				if err != nil {
					t.Fatalf("%s:\n%v\n%+v", &c, err, out)
				}
				if out.Dead != len(c.Killed) {
					t.Errorf("%s: %d members are said to be out, %d were killed", &c, out.Dead, len(c.Killed))
				}
			})
		}
	}
}

// TestCutForGood cuts members' links for longer than their source is patient. They are left out, hear of nothing, and
// give their memory back when the source has been silent for long enough.
func TestCutForGood(t *testing.T) {
	t.Parallel() // it mostly waits
	r := rig(t, Limits{Hosts: 4, Kernel: 3}, NodeConfig{Memory: 16 << 20, Idle: 5 * time.Second, Patience: 2 * time.Second}, 1)
	c := &Case{
		Flavour: Mixed, Source: 1, Members: []int{2, 3, 4}, Chains: 1, Sizes: []int64{2 << 20},
		Faults: netlab.Faults{Delay: 5 * time.Millisecond, UDPOnly: true},
	}
	for _, h := range []int{2, 4} { // one with programs, one without
		c.Cut = append(c.Cut, Event{Host: h, After: 80 * time.Millisecond, For: 6 * time.Second})
	}
	c.Lost = []int{2, 4}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := Run(ctx, r, c)
	if err != nil || out.Dead != 2 {
		t.Errorf("%s: %d members are said to be out, 2 were cut off:\n%v\n%+v", c, out.Dead, err, out)
	}
}

// TestKilledSource kills the processes of two sources in the middle. Their members are told, after a time, that there will
// be no more, and have room for others.
func TestKilledSource(t *testing.T) {
	t.Parallel() // it mostly waits
	l := Limits{Hosts: 6, Kernel: 3, Mortal: 2}
	r := rig(t, l, NodeConfig{Memory: 32 << 20, Idle: 4 * time.Second, Patience: 4 * time.Second}, 1)
	if err := r.Lab.SetFaults(netlab.Faults{Delay: 5 * time.Millisecond, UDPOnly: true}); err != nil {
		t.Fatal(err)
	}
	asked := make(chan error, 2)
	var names []string
	for _, source := range []int{5, 6} {
		s := &sending{Spec: spread{Name: fmt.Sprint("orphan of ", source), Job: shuffle.JobID{byte(source), 7}, Content: Content{uint64(source), 8 << 20}}}
		names = append(names, s.Spec.Name)
		for h := 1; h <= 4; h++ {
			s.Members = append(s.Members, r.Lab.Host(h).IPv4())
		}
		p := r.child[source-1]
		go func() {
			_, err := p.ask(order{Send: s})
			asked <- err
		}()
	}
	parts := func(h int, name string) []Part {
		parts, _, err := r.report(h, name)
		if err != nil {
			t.Fatal(err)
		}
		return parts
	}
	for until := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		begun := 0
		for h := 1; h <= 4; h++ {
			for _, name := range names {
				begun += len(parts(h, name))
			}
		}
		if begun == 8 {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("members have heard of %d contents in all, want 8", begun)
		}
	}
	time.Sleep(50 * time.Millisecond)
	r.kill(5)
	r.kill(6)
	for range 2 {
		if err := <-asked; err == nil {
			t.Fatal("a source was done before it was killed")
		}
	}
	for h := 1; h <= 4; h++ {
		for _, name := range names {
			if err := r.quiet(t.Context(), h, name); err != nil {
				t.Error(err)
			}
			if p := parts(h, name); len(p) != 1 || p[0].Err == "" || len(p[0].Messages) > 0 {
				t.Errorf("host %d, %s: %+v", h, name, p)
			}
		}
	}
	// There is room for as much as there was before.
	c := &Case{Flavour: Mixed, Source: 1, Members: []int{2, 3, 4}, Sizes: []int64{5 << 20}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if out, err := Run(ctx, r, c); err != nil {
		t.Errorf("%s:\n%v\n%+v", c, err, out)
	}
}

// TestGigabyte gives a gibibyte to members. It takes minutes: QUERN_LONG=1.
func TestGigabyte(t *testing.T) {
	if sample(true, false) {
		t.Skip("QUERN_LONG=1 gives a gibibyte")
	}
	r := rig(t, Limits{Hosts: 17, Kernel: 15, Mortal: 2}, NodeConfig{Memory: 80 << 20, Idle: time.Minute, Patience: 20 * time.Second}, 1)
	for i, c := range []*Case{
		{Flavour: Programs, Source: 1, Members: up(2, 16), Window: 32 << 20},
		{Flavour: NoHelp, Source: 1, Members: up(2, 9), Window: 32 << 20},
		{Flavour: Mixed, Source: 2, Members: append(up(3, 6), 16, 17), Window: 32 << 20, Faults: netlab.Faults{Loss: 0.02, Reorder: 0.02, UDPOnly: true}, Killed: []Event{{Host: 16, After: 10 * time.Second}}},
	} {
		c.Seed, c.Sizes = uint64(i), []int64{1 << 30}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
		out, err := Run(ctx, r, c)
		cancel()
		if err != nil {
			t.Errorf("%s:\n%v\n%+v", c, err, out)
		}
		t.Logf("%s: %v, %d again, woken %d times for %d parts", c, out.Took.Round(time.Millisecond), out.Report.Again, out.Report.Woken, out.Parts)
	}
}
