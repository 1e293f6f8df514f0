// SPDX-License-Identifier: Apache-2.0

package reducelab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/internal/labnode"
	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/wire"
)

// callMost is how long a member stays with its calls at most.
const callMost = 2 * time.Minute

// duty is what a member is to do.
type duty struct {
	Token   uint64
	Seed    uint64
	Group   int
	Members int
	Calls   []Call
	Pauses  []Pause // its own
	Dies    *End    // the process kills itself
	GivesUp *End
}

// Result is what became of it.
type Result struct {
	Done   int    // calls that brought what they were to bring
	Wrong  string // what is not right
	Err    string // why it did not go on
	Broken bool   // the error says that the group is broken
	Rank   int    // of the member that the error names, -1: none
	Killed bool   // there is nobody who knows
}

// do makes a member's calls.
func (n *node) do(ctx context.Context, d *duty) (r Result) {
	r.Rank = -1
	fail := func(err error) Result {
		r.Err, r.Broken = err.Error(), errors.Is(err, allreduce.ErrBroken)
		if m := (*allreduce.MemberError)(nil); errors.As(err, &m) {
			r.Rank = m.Rank
		}
		return r
	}
	if d.Dies != nil {
		defer die()
	}
	ctx, cancel := context.WithTimeout(ctx, callMost)
	defer cancel()
	g, err := n.node.Group(d.Token)
	if err != nil {
		return fail(err)
	}
	for i, c := range d.Calls {
		s := numbersOf(d.Seed, d.Group, i)
		v := c.fill(s, g.Rank())
		for _, p := range d.Pauses {
			if p.Call == i {
				time.Sleep(p.For)
			}
		}
		if d.Dies != nil && d.Dies.Call == i {
			defer time.AfterFunc(d.Dies.After, die).Stop()
		}
		if d.GivesUp != nil && d.GivesUp.Call == i {
			defer time.AfterFunc(d.GivesUp.After, cancel).Stop()
		}
		if err := g.Reduce(ctx, v); err != nil {
			// Nor can it be used any more.
			if again := g.Reduce(context.WithoutCancel(ctx), c.fill(s, g.Rank())); !errors.Is(again, allreduce.ErrBroken) {
				r.Wrong = fmt.Sprintf("call %d failed, and the next one does not: %v", i, again)
			}
			return fail(fmt.Errorf("call %d: %w", i, err))
		}
		if err := c.check(s, d.Members, v); err != nil {
			r.Wrong = fmt.Sprintf("call %d (%+v): %v", i, c, err)
			return r
		}
		r.Done++
	}
	return r
}

// die ends this process without a word.
func die() { _ = unix.Kill(os.Getpid(), unix.SIGKILL) }

// order is a line that a node's process reads: one of its fields is set.
type order struct {
	Do     []duty           `json:",omitempty"` // at the same time
	Answer *wire.AnswerMode `json:",omitempty"`
	Report bool             `json:",omitempty"`
}

// reply is a line that it writes: the answer to an order.
type reply struct {
	Results []Result `json:",omitempty"`
	Open    []string `json:",omitempty"`
	Deeds   Deeds
	Error   string `json:",omitempty"`
}

// obey does what an order says.
func (n *node) obey(ctx context.Context, o *order) (r reply) {
	var err error
	switch {
	case len(o.Do) > 0:
		done := make(chan struct{})
		r.Results = make([]Result, len(o.Do))
		for i := range o.Do {
			go func() {
				r.Results[i] = n.do(ctx, &o.Do[i])
				done <- struct{}{}
			}()
		}
		for range o.Do {
			<-done
		}
	case o.Answer != nil:
		err = n.answer(*o.Answer)
	case o.Report:
		r.Open = n.open()
		r.Deeds, err = n.deeds()
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// ChildMain is the main of a node's process, which obeys until standard input ends; false if this is none.
func ChildMain() bool { return labnode.Child(serve) }

func serve(cfg NodeConfig, orders *labnode.Orders) (err error) {
	n, err := openNode(cfg, here)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := orders.Ready(); err != nil {
		return err
	}
	for {
		var o order
		if orders.Next(&o) != nil {
			return nil
		}
		if err := orders.Answer(n.obey(context.Background(), &o)); err != nil {
			return err
		}
	}
}
