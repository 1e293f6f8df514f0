// SPDX-License-Identifier: Apache-2.0

package reducebench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/internal/benchlab"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/receive"
	"github.com/quernmr/quern/shuffle/rpc"
)

// Our own protocol, with programs at the interface or without. The control plane is a
// cluster's, over a socket of the file system, which reaches from one network
// namespace to another. The benchmark forms groups, as a cluster's master does.

// NodeSpec says what one end of our protocol is.
type NodeSpec struct {
	Interface string // that programs are attached to; "": none
	Listen    string // address that frames come to
	Streams   string // address that streams come to; "": none
	Plain     bool   // streams go to members' addresses on the plain network
	Control   string // path of the control plane
	Temp      string // folder for temporary files
}

// waits is how long a member may take for an answer: a machine whose processors are all in use
// may need seconds to open a group.
const waits = time.Minute

// node is a host's end.
type node struct {
	*allreduce.Node
	kernel   *bpf.Host
	receiver *receive.Receiver
	served   chan error
	server   *grpc.Server
}

func openNode(s *NodeSpec) (_ *node, err error) {
	n := &node{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	limits := shuffle.Limits{Streams: 64, Targets: 4, Outgoing: 64, Jobs: 4, Regions: 2, Casts: 2, Groups: 4, Chunks: 1 << 16}
	ro := receive.Options{Listen: s.Listen, Port: shuffle.Port, TempDir: s.Temp, Limits: limits, FoldMemory: 2 << 20, TableMemory: 1 << 20}
	ao := allreduce.Options{Port: shuffle.Port, Patience: waits}
	if s.Interface != "" {
		n.kernel, err = bpf.Open(bpf.Options{Interfaces: []string{s.Interface}, Limits: limits, TableMemory: 1 << 20})
		if err != nil {
			return nil, err
		}
		help, ok := any(n.kernel).(shuffle.Reduces)
		if !ok {
			return nil, errors.New("this build's programs know no all-reduces")
		}
		jobs := shuffle.NewJobSlots(n.kernel, limits.Jobs)
		ro.Kernel, ro.Jobs, ro.Port = n.kernel, jobs, n.kernel.Port()
		ao.Kernel, ao.Jobs, ao.Port = help, jobs, n.kernel.Port()
	}
	if s.Streams != "" {
		if ao.Streams, err = net.Listen("tcp4", net.JoinHostPort(s.Streams, "0")); err != nil {
			return nil, fmt.Errorf("streams: %w", err)
		}
		defer func() {
			if n.Node == nil {
				err = errors.Join(err, ao.Streams.Close()) // else the node does
			}
		}()
	}
	if s.Plain {
		ao.Dial = dialPlain
	}
	ready := make(chan struct{})
	ro.Other = func(frame []byte, from netip.AddrPort) {
		<-ready // what comes before there is a node waits for it
		if n.Node != nil {
			n.Handle(frame, from)
		}
	}
	ao.Send = func(b []byte, size int, to netip.AddrPort) error { return n.receiver.SendFrames(b, size, to) }
	if n.receiver, err = receive.New(ro); err != nil {
		close(ready)
		return nil, err
	}
	n.Node, err = allreduce.New(ao)
	close(ready)
	if err != nil {
		return n, err
	}
	l, err := net.Listen("unix", s.Control)
	if err != nil {
		return nil, fmt.Errorf("control plane: %w", err)
	}
	n.server, n.served = grpc.NewServer(), make(chan error, 1)
	rpc.NewReduceServer(n.Control()).Register(n.server)
	go func() { n.served <- n.server.Serve(l) }()
	return n, nil
}

// dialPlain connects to who has an address of the lab by its address on the plain network.
func dialPlain(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	for number := 1; number <= MaxMembers; number++ {
		if netlab.IPv4(number) == to.Addr() {
			to = netip.AddrPortFrom(benchlab.PlainAddress(number), to.Port())
			break
		}
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp4", to.String())
}

func (n *node) close() error {
	var errs []error
	if n.server != nil {
		n.server.Stop()
		if err := <-n.served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			errs = append(errs, fmt.Errorf("control plane: %w", err))
		}
	}
	// Nothing may come up any more when the node closes.
	if n.receiver != nil {
		errs = append(errs, n.receiver.Close())
	}
	if n.Node != nil {
		errs = append(errs, n.Node.Close())
	}
	if n.kernel != nil {
		errs = append(errs, n.kernel.Close())
	}
	return errors.Join(errs...)
}

// join returns a member's end of a group that was formed.
func (n *node) join(ctx context.Context, token uint64) (path, error) {
	g, err := n.Group(token)
	return member{ctx, g}, err
}

// member is a path: an end of a group.
type member struct {
	ctx   context.Context
	group allreduce.Group
}

func (m member) begin(int) error { return nil }

func (m member) round(v []int32) error { return allreduce.AllReduce(m.ctx, m.group, allreduce.Sum, v) }

func (m member) end() error { return nil }

func (m member) close() error { return m.group.Close() }

// former forms groups of nodes.
type former struct {
	members []allreduce.Member
	conns   []*grpc.ClientConn
	jobs    uint64
}

func newFormer(nodes []NodeSpec) (_ *former, err error) {
	f := &former{}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	for rank, n := range nodes {
		conn, err := grpc.NewClient("unix:"+n.Control, grpc.WithTransportCredentials(insecure.NewCredentials()), rpc.Reconnect())
		if err != nil {
			return nil, fmt.Errorf("control plane: %w", err)
		}
		f.conns = append(f.conns, conn)
		address, err := netip.ParseAddr(n.Listen)
		if err != nil {
			return nil, err
		}
		f.members = append(f.members, allreduce.Member{
			Name: fmt.Sprint("member ", rank), Address: netip.AddrPortFrom(address, 0), Control: rpc.NewReduceClient(conn),
		})
	}
	return f, nil
}

func (f *former) close() error {
	var errs []error
	for _, c := range f.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// form forms a group of the first members.
func (f *former) form(ctx context.Context, path string, members int) (*allreduce.Formed, error) {
	f.jobs++
	spec := allreduce.FormSpec{
		Job: shuffle.JobID{'b', 'e', 'n', 'c', 'h', byte(f.jobs >> 16), byte(f.jobs >> 8), byte(f.jobs)}, Secret: [16]byte{7: 7},
		Mode: shuffle.UserOnly, Name: "benchmark", Members: f.members[:members], Patience: waits, Streams: shuffle.StreamsNever,
	}
	if path != User {
		spec.Mode = shuffle.KernelOnly
	}
	if path == Auto {
		spec.Streams = shuffle.StreamsBySize
	}
	return allreduce.Form(ctx, spec)
}
