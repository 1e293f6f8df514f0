// SPDX-License-Identifier: Apache-2.0

package reducebench

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/quernmr/quern/internal/benchlab"
	"github.com/quernmr/quern/internal/foldbench"
)

// roles as foldbench has them.
var roles = map[string]func(context.Context) any{
	"member": func(ctx context.Context) any { return &Member{ctx: ctx} },
}

// ServeRole is a role's process; see [benchlab.Serve].
func ServeRole(name string, in io.Reader, out io.Writer) error {
	return benchlab.Serve(roles, name, in, out)
}

type none = foldbench.None

// path is one member's end of a way to reduce vectors.
type path interface {
	// begin is called before so many rounds follow each other, end behind them.
	begin(rounds int) error
	// round replaces v by the sum over all members. All call it in the same order.
	round(v []int32) error
	end() error
	// close is called by all members when no round is under way.
	close() error
}

// nodeOf names the node of a path. Programs are attached once to an interface.
func nodeOf(path string) string {
	if path == Auto {
		return Kernel
	}
	return path
}

// Member is the role of a member, by all paths.
type Member struct {
	ctx     context.Context // the role's
	spec    MemberSpec
	streams *streams
	stop    func() bool
	nodes   map[string]*node
	members []MemberPorts // by rank
	turn    Turn
	path    path
	memory  []int32
}

// MemberSpec says what a member gets ready.
type MemberSpec struct {
	Rank  int
	TCP   string              // its address that TCP uses
	Nodes map[string]NodeSpec // by path, Auto's and Kernel's as Kernel's
}

// MemberPorts is where others find a member.
type MemberPorts struct {
	TCP string
}

// Open makes what others connect to.
func (m *Member) Open(in *MemberSpec, out *MemberPorts) (err error) {
	if m.streams != nil {
		return errors.New("is open already")
	}
	m.spec = *in
	if m.streams, err = listen(m.ctx, in.TCP, in.Rank); err != nil {
		return err
	}
	// Reads and writes end with the role.
	m.stop = context.AfterFunc(m.ctx, m.streams.close)
	m.nodes = map[string]*node{}
	for name, spec := range in.Nodes {
		if m.nodes[name], err = openNode(&spec); err != nil {
			delete(m.nodes, name)
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	out.TCP = m.streams.listener.Addr().String()
	return nil
}

// Meet tells of all members.
func (m *Member) Meet(in *[]MemberPorts, _ *none) error {
	m.members = *in
	return nil
}

// Turn is some bursts of one path.
type Turn struct {
	Path     string
	Members  int // the first ones
	Elements int
	Rounds   int    // most of a burst
	Token    uint64 // of the group, if it is our protocol
}

// Prepare opens what a turn needs. The members do it at the same time.
func (m *Member) Prepare(t *Turn, _ *none) (err error) {
	if m.path != nil {
		return errors.New("a turn is under way")
	}
	if need := t.Elements * t.Rounds; cap(m.memory) < need {
		m.memory = nil
		m.memory = make([]int32, need)
	}
	m.turn = *t
	var p path
	rank := m.spec.Rank
	switch {
	case m.nodes[nodeOf(t.Path)] != nil:
		p, err = m.nodes[nodeOf(t.Path)].join(m.ctx, t.Token)
	case t.Path == Server && rank == 0:
		p, err = newServer(m.streams, t.Members, t.Elements)
	case t.Path == Server:
		p, err = newMember(m.streams, m.members[0].TCP, t.Elements)
	case t.Path == Ring:
		p, err = newRing(m.streams, rank, t.Members, t.Elements, m.members[(rank+1)%t.Members].TCP)
	default:
		err = fmt.Errorf("there is no path %q", t.Path)
	}
	if err != nil {
		return err
	}
	m.path = p
	return nil
}

// Burst is some rounds that follow each other.
type Burst struct {
	First  uint32 // number of the first round; no two rounds of a run have the same
	Rounds int
}

// vector returns the one of a burst's round.
func (m *Member) vector(i int) []int32 {
	return m.memory[:cap(m.memory)][i*m.turn.Elements:][:m.turn.Elements]
}

// Fill makes the member's vectors.
func (m *Member) Fill(b *Burst, _ *none) error {
	for i := range b.Rounds {
		fill(m.vector(i), b.First+uint32(i), m.spec.Rank)
	}
	return nil
}

// Ran says when each round of a burst began and ended at this member, by the machine's clock, in nanoseconds.
type Ran struct {
	Began, Ended []int64
}

// Run does a burst's rounds.
func (m *Member) Run(b *Burst, out *Ran) error {
	if m.path == nil {
		return errors.New("no turn is under way")
	}
	out.Began, out.Ended = make([]int64, b.Rounds), make([]int64, b.Rounds)
	if err := m.path.begin(b.Rounds); err != nil {
		return err
	}
	for i := range b.Rounds {
		v := m.vector(i)
		out.Began[i] = benchlab.Monotonic()
		if err := m.path.round(v); err != nil {
			return fmt.Errorf("%s: %w", m.turn.Path, err)
		}
		out.Ended[i] = benchlab.Monotonic()
	}
	return m.path.end()
}

// Check looks at the results of a burst.
func (m *Member) Check(b *Burst, _ *none) error {
	for i := range b.Rounds {
		if err := check(m.vector(i), b.First+uint32(i), m.turn.Members); err != nil {
			return err
		}
	}
	return nil
}

// End closes what Prepare has opened.
func (m *Member) End(*none, *none) error {
	p := m.path
	m.path = nil
	if p == nil {
		return nil
	}
	return p.close()
}

// Close ends it.
func (m *Member) Close() error {
	if m.stop != nil {
		m.stop()
	}
	if m.streams != nil {
		m.streams.close()
	}
	errs := []error{m.End(nil, nil)}
	for _, n := range m.nodes {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
}
