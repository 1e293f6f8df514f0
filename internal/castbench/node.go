// SPDX-License-Identifier: Apache-2.0

package castbench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/broadcast"
	"github.com/quernmr/quern/shuffle/receive"
	"github.com/quernmr/quern/shuffle/rpc"
	"github.com/quernmr/quern/shuffle/wire"
)

// Our own protocol, with programs at the interface or without. The control plane is a
// cluster's, over a socket of the file system, which reaches from one network
// namespace to another.

// NodeSpec says what one end of our protocol is.
type NodeSpec struct {
	Interface string // that programs are attached to; "": none
	Listen    string // address that frames come to
	Control   string // path of a member's control plane; "": a source
	Temp      string // folder for temporary files
	Largest   int    // bytes of the largest message
}

// waits is how long a member may take for an answer: a machine whose processors are all in use
// may need seconds to open a region.
const waits = time.Minute

// spareChunks is what regions of small messages may take beside one of the largest.
const spareChunks = 1 << 16

func (s *NodeSpec) limits() shuffle.Limits {
	return shuffle.Limits{
		Streams: 64, Targets: 4, Outgoing: 64, Jobs: 4, Regions: 16, Casts: 4,
		Chunks: 2*broadcast.ChunksOf(int64(s.Largest)) + spareChunks,
	}
}

// node is a host's end.
type node struct {
	*broadcast.Node
	kernel   *bpf.Host
	receiver *receive.Receiver
	served   chan error
	server   *grpc.Server

	mu      sync.Mutex
	taken   Taken // but for the digest
	last    *broadcast.Message
	failure error
}

func openNode(s *NodeSpec) (_ *node, err error) {
	n := &node{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	limits := s.limits()
	ro := receive.Options{Listen: s.Listen, Port: shuffle.Port, TempDir: s.Temp, Limits: limits, FoldMemory: 2 << 20, TableMemory: 1 << 20}
	bo := broadcast.Options{Port: shuffle.Port, Incoming: func(broadcast.Offer) (broadcast.Sink, error) { return n, nil }}
	bo.Patience = waits
	bo.Memory = int64(limits.Chunks) * (wire.ChunkSize + 64)
	bo.PerJob = bo.Memory
	if s.Interface != "" {
		n.kernel, err = bpf.Open(bpf.Options{Interfaces: []string{s.Interface}, Limits: limits, TableMemory: 1 << 20})
		if err != nil {
			return nil, err
		}
		help, ok := any(n.kernel).(shuffle.Broadcasts)
		if !ok {
			return nil, errors.New("this build's programs know no broadcasts")
		}
		jobs := shuffle.NewJobSlots(n.kernel, limits.Jobs)
		ro.Kernel, ro.Jobs, ro.Port = n.kernel, jobs, n.kernel.Port()
		bo.Kernel, bo.Jobs, bo.Port = help, jobs, n.kernel.Port()
	}
	ready := make(chan struct{})
	ro.Other = func(frame []byte, from netip.AddrPort) {
		<-ready // what comes before there is a node waits for it
		if n.Node != nil {
			n.Handle(frame, from)
		}
	}
	bo.Send = func(frame []byte, to netip.AddrPort) error { return n.receiver.SendFrame(frame, to) }
	if n.receiver, err = receive.New(ro); err != nil {
		close(ready)
		return nil, err
	}
	n.Node, err = broadcast.New(bo)
	close(ready)
	if err != nil || s.Control == "" {
		return n, err
	}
	l, err := net.Listen("unix", s.Control)
	if err != nil {
		return nil, fmt.Errorf("control plane: %w", err)
	}
	n.server, n.served = grpc.NewServer(), make(chan error, 1)
	rpc.NewBroadcastServer(n.Control()).Register(n.server)
	go func() { n.served <- n.server.Serve(l) }()
	return n, nil
}

func (n *node) close() error {
	var errs []error
	if n.server != nil {
		n.server.Stop()
		if err := <-n.served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			errs = append(errs, fmt.Errorf("control plane: %w", err))
		}
	}
	if n.Node != nil {
		errs = append(errs, n.Node.Close())
	}
	if n.receiver != nil {
		errs = append(errs, n.receiver.Close())
	}
	if n.kernel != nil {
		errs = append(errs, n.kernel.Close())
	}
	return errors.Join(errs...)
}

// Message is called for each message whose digest was right.
func (n *node) Message(m *broadcast.Message) error {
	b := m.Bytes()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.taken.Messages++
	n.taken.Bytes, n.last = len(b), m
	if len(b) < MinBytes || number(b) <= n.taken.Number {
		n.taken.Wrong++
		return nil
	}
	n.taken.Number = number(b)
	return nil
}

// End is called when the source has closed a region.
func (n *node) End(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = nil
	n.failure = errors.Join(n.failure, err)
}

// got answers what came once so many messages have, or none came for a while. It is called
// before the source closes the region.
func (n *node) got(messages int) (Taken, error) {
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		n.mu.Lock()
		if n.taken.Messages >= messages || n.failure != nil || time.Since(begin) > patience {
			break
		}
		n.mu.Unlock()
	}
	defer n.mu.Unlock()
	t := n.taken
	if n.last != nil {
		t.Digest = digest(n.last.Bytes())
	}
	n.taken.Messages, n.taken.Wrong = 0, 0
	return t, n.failure
}

// patience is how long what was confirmed may take to be counted.
const patience = 10 * time.Second

// castMember is what a source knows of a member.
type castMember struct {
	name    string
	address netip.AddrPort
	control string // path
}

// castSource gives messages by our protocol.
type castSource struct {
	node    *node
	members []broadcast.Member
	conns   []*grpc.ClientConn
	mode    shuffle.Mode
	group   *broadcast.Group
	jobs    uint64
}

func openCastSource(s *NodeSpec, members []castMember) (_ *castSource, err error) {
	c := &castSource{mode: shuffle.UserOnly}
	if s.Interface != "" {
		c.mode = shuffle.KernelOnly
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.node, err = openNode(s); err != nil {
		return nil, err
	}
	for _, m := range members {
		conn, err := grpc.NewClient("unix:"+m.control, grpc.WithTransportCredentials(insecure.NewCredentials()), rpc.Reconnect())
		if err != nil {
			return nil, fmt.Errorf("control plane: %w", err)
		}
		c.conns = append(c.conns, conn)
		c.members = append(c.members, broadcast.Member{Name: m.name, Address: m.address, Control: rpc.NewBroadcastClient(conn)})
	}
	return c, nil
}

func (c *castSource) close() error {
	var errs []error
	if c.node != nil {
		errs = append(errs, c.node.close())
	}
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// open opens a group for messages of a size.
func (c *castSource) open(ctx context.Context, t *Turn) (err error) {
	c.jobs++
	spec := broadcast.GroupSpec{
		Job: shuffle.JobID{'b', 'e', 'n', 'c', 'h', byte(c.jobs >> 16), byte(c.jobs >> 8), byte(c.jobs)}, Secret: [16]byte{7: 7}, Mode: c.mode,
		Name: "benchmark", Kind: "messages", Members: c.members[:t.Members],
		Chunks: (t.warm() + t.Rounds) * broadcast.ChunksOf(int64(t.Bytes)), Size: -1, Usual: int64(t.Bytes), Chains: t.Chains, Window: t.Window,
	}
	c.group, err = c.node.Open(ctx, spec)
	return err
}

// send gives a message and says when the source knew that all have it, and when all had
// confirmed it if that is to be waited for.
func (c *castSource) send(ctx context.Context, m []byte, t *Turn, confirm bool, out *Ran) (known, confirmed time.Duration, err error) {
	began := time.Now()
	report, err := c.group.Send(ctx, int64(len(m)), func(b []byte) error { copy(b, m); return nil })
	known = time.Since(began)
	if err == nil && confirm {
		err = c.group.Confirm(ctx, report)
		confirmed = time.Since(began)
	}
	if err != nil {
		return 0, 0, err
	}
	for _, m := range report.Members {
		if m.Err != nil || m.Have || m.Kernel != (c.mode == shuffle.KernelOnly) {
			return 0, 0, fmt.Errorf("member %s: left out: %w, programs stored it: %v", m.Name, m.Err, m.Kernel)
		}
	}
	out.Again += int(report.Again)
	out.Woken += report.Woken
	out.Chains = report.Chains
	return known, confirmed, nil
}

// end closes the group.
func (c *castSource) end(ctx context.Context) error {
	if c.group == nil {
		return nil
	}
	err := c.group.Close(ctx)
	c.group = nil
	return err
}
