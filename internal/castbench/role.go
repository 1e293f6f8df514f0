// SPDX-License-Identifier: Apache-2.0

package castbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/quernmr/quern/internal/benchlab"
	"github.com/quernmr/quern/internal/foldbench"
)

// roles as foldbench has them.
var roles = map[string]func(context.Context) any{
	"member": func(context.Context) any { return &Member{} },
	"source": func(ctx context.Context) any { return &Source{ctx: ctx} },
}

// ServeRole is a role's process; see [benchlab.Serve].
func ServeRole(name string, in io.Reader, out io.Writer) error {
	return benchlab.Serve(roles, name, in, out)
}

type none = foldbench.None

// Member is the role of a member, by all paths.
type Member struct {
	room  room
	tcp   *tcpMember
	udp   *udpMember
	nodes map[string]*node
}

// MemberSpec says what a member gets ready.
type MemberSpec struct {
	Plain string              // its address in the plain network
	Nodes map[string]NodeSpec // by path
}

// MemberPorts is where a member takes messages.
type MemberPorts struct {
	TCP string
	UDP netip.AddrPort
}

// Open begins to take messages.
func (m *Member) Open(in *MemberSpec, out *MemberPorts) (err error) {
	if m.nodes != nil {
		return errors.New("is open already")
	}
	m.nodes = map[string]*node{}
	if m.tcp, err = listenTCP(in.Plain, &m.room); err != nil {
		return err
	}
	if m.udp, err = listenUDP(in.Plain, &m.room); err != nil {
		return err
	}
	for path, spec := range in.Nodes {
		if m.nodes[path], err = openNode(&spec); err != nil {
			delete(m.nodes, path)
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	out.TCP = m.tcp.listener.Addr().String()
	out.UDP, err = netip.ParseAddrPort(m.udp.conn.LocalAddr().String())
	return err
}

// Due says what a member must have got since it was last asked.
type Due struct {
	Path     string
	Messages int
}

// Taken answers with what came by a path since it was last asked.
func (m *Member) Taken(in *Due, out *Taken) (err error) {
	if n := m.nodes[in.Path]; n != nil {
		*out, err = n.got(in.Messages)
	} else {
		*out, err = m.room.got()
	}
	return err
}

// Close ends it.
func (m *Member) Close() error {
	if m.tcp != nil {
		m.tcp.close()
	}
	if m.udp != nil {
		m.udp.close()
	}
	var errs []error
	for _, n := range m.nodes {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
}

// Source is the role of the source, by all paths.
type Source struct {
	ctx     context.Context // the role's
	message message
	number  uint64 // of the message that was sent last
	tcp     *tcpSource
	udp     *udpSource
	casts   map[string]*castSource
	stop    func() bool
}

// SourceSpec says what a source gets ready.
type SourceSpec struct {
	Plain   string
	Largest int                 // bytes
	Nodes   map[string]NodeSpec // by path
	Members []SourceMember
}

// SourceMember is where a source finds a member.
type SourceMember struct {
	Ports MemberPorts
	Nodes map[string]NodeSpec // the member's
}

// Open makes room for messages and connects to the members.
func (s *Source) Open(in *SourceSpec, _ *none) (err error) {
	if s.message != nil {
		return errors.New("is open already")
	}
	s.message = newMessage(in.Largest)
	var tcp []string
	var udp []netip.AddrPort
	for _, m := range in.Members {
		tcp, udp = append(tcp, m.Ports.TCP), append(udp, m.Ports.UDP)
	}
	if s.tcp, err = dialTCP(s.ctx, tcp); err != nil {
		return err
	}
	// Reads and writes end with the role.
	s.stop = context.AfterFunc(s.ctx, s.tcp.close)
	if s.udp, err = openUDP(in.Plain, udp); err != nil {
		return err
	}
	s.casts = map[string]*castSource{}
	for path, spec := range in.Nodes {
		var members []castMember
		for i, m := range in.Members {
			to, err := netip.ParseAddr(m.Nodes[path].Listen)
			if err != nil {
				return err
			}
			members = append(members, castMember{fmt.Sprint("member ", i+1), netip.AddrPortFrom(to, 0), m.Nodes[path].Control})
		}
		if s.casts[path], err = openCastSource(&spec, members); err != nil {
			delete(s.casts, path)
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// Turn is some rounds of one path.
type Turn struct {
	Path    string
	Members int // the first ones
	Bytes   int
	Rounds  int           // at most, and one at least
	Time    time.Duration // after which no other round begins
	Confirm bool          // wait for each round's confirmation before the next
	Chains  int
	Window  int
}

// small is the size up to which some rounds go ahead of those that count.
const small = 1 << 20

// warm is how many rounds go ahead.
func (t *Turn) warm() int {
	if t.Bytes <= small {
		return 3
	}
	return 0
}

// Ran is what a turn did. But for Warm, it is of the rounds that count.
type Ran struct {
	Known     []time.Duration // per round: until the source knew
	Confirmed []time.Duration // and until all had confirmed
	Again     int             // packets sent again
	Woken     int
	Chains    int
	Warm      int
}

// Prepare opens what a turn needs, and sends the rounds that do not count.
func (s *Source) Prepare(t *Turn, _ *none) error {
	if c := s.casts[t.Path]; c != nil {
		if err := c.open(s.ctx, t); err != nil {
			return err
		}
	}
	for range t.warm() {
		if _, _, err := s.send(t, true, &Ran{}); err != nil {
			return err
		}
	}
	return nil
}

// Run sends the rounds of a turn.
func (s *Source) Run(t *Turn, out *Ran) error {
	out.Warm = t.warm()
	for begin := time.Now(); len(out.Known) == 0 || len(out.Known) < t.Rounds && time.Since(begin) < t.Time; {
		known, confirmed, err := s.send(t, t.Confirm, out)
		if err != nil {
			return err
		}
		out.Known = append(out.Known, known)
		if confirmed > 0 {
			out.Confirmed = append(out.Confirmed, confirmed)
		}
	}
	return nil
}

// send sends a message.
func (s *Source) send(t *Turn, confirm bool, out *Ran) (known, confirmed time.Duration, err error) {
	s.number++
	m := s.message.cut(t.Bytes, s.number)
	if c := s.casts[t.Path]; c != nil {
		return c.send(s.ctx, m[headBytes:], t, confirm, out)
	}
	began := time.Now()
	switch t.Path {
	case Sequential:
		err = s.tcp.sequential(m, t.Members)
	case Parallel:
		err = s.tcp.parallel(m, t.Members)
	case Loop:
		before := s.udp.again
		err = s.udp.send(s.ctx, m[headBytes:], s.number, t.Members)
		out.Again += s.udp.again - before
	default:
		err = fmt.Errorf("there is no path %q", t.Path)
	}
	return time.Since(began), 0, err
}

// Ended is the message that a turn sent last.
type Ended struct {
	Number uint64
	Digest Digest
}

// Last answers with the message that was sent last.
func (s *Source) Last(t *Turn, out *Ended) error {
	*out = Ended{s.number, digest(s.message.cut(t.Bytes, s.number)[headBytes:])}
	return nil
}

// End closes what Prepare has opened.
func (s *Source) End(t *Turn, _ *none) error {
	if c := s.casts[t.Path]; c != nil {
		return c.end(s.ctx)
	}
	return nil
}

// Close ends it.
func (s *Source) Close() error {
	if s.stop != nil {
		s.stop()
	}
	if s.tcp != nil {
		s.tcp.close()
	}
	if s.udp != nil {
		s.udp.close()
	}
	var errs []error
	for _, c := range s.casts {
		errs = append(errs, c.close())
	}
	return errors.Join(errs...)
}
