// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/broadcast"
	"github.com/quernmr/quern/shuffle/push"
	"github.com/quernmr/quern/shuffle/receive"
	"github.com/quernmr/quern/shuffle/rpc"
	"github.com/quernmr/quern/shuffle/wire"
	"github.com/quernmr/quern/worker/exchange"
	"google.golang.org/grpc"
)

// shuffler is an exchange with both ends of the shuffle that it works with.
type shuffler struct {
	*exchange.Exchange
	receiver *receive.Receiver
	sender   *push.Sender
	node     *broadcast.Node // nil: there are no broadcasts
	sums     *allreduce.Node // nil: there are no all-reduces
	peers    *peers
	patience time.Duration // of groups
	log      *slog.Logger
}

// newExchange makes the ends of the shuffle, and what moves pairs between them.
func (w *Worker) newExchange(dir string) (_ exchanger, err error) {
	o := &w.opt
	s := &shuffler{log: o.Log, patience: o.Reduce.Patience, peers: &peers{dial: func(a string) (*grpc.ClientConn, error) { return dial(a, o.Peers, rpc.Reconnect()) }, conns: map[string]*grpc.ClientConn{}}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	ro := o.Receive
	ro.TempDir, ro.Log = dir, o.Log
	if ro.Kernel != nil && ro.Jobs == nil {
		// Programs check frames of both ends with the same keys.
		ro.Jobs = shuffle.NewJobSlots(ro.Kernel, ro.Limits.EnsureDefaults().Jobs)
	}
	// Frames may come before there is a node.
	var node atomic.Pointer[broadcast.Node]
	var sums atomic.Pointer[allreduce.Node]
	ro.Other = func(frame []byte, from netip.AddrPort) {
		if h, err := wire.ParseHead(frame); err == nil && (h.Kind == wire.Reduce || h.Kind == wire.Reduced) {
			if n := sums.Load(); n != nil {
				n.Handle(frame, from)
			}
			return
		}
		if n := node.Load(); n != nil {
			n.Handle(frame, from)
		}
	}
	if s.receiver, err = receive.New(ro); err != nil {
		return nil, err
	}
	po := o.Push
	po.Kernel, po.Log = ro.Kernel, o.Log
	if po.Jobs = nil; ro.Jobs != nil {
		po.Jobs = ro.Jobs
	}
	if s.sender, err = push.New(po); err != nil {
		return nil, err
	}
	bo := o.Broadcast
	bo.Jobs, bo.Mode, bo.Log, bo.Incoming = ro.Jobs, ro.Mode, o.Log, w.blobs.incoming
	bo.Idle = cmp.Or(bo.Idle, silence)
	bo.Port, bo.Send = s.receiver.Port(), s.receiver.SendFrame
	if s.node, err = broadcast.New(bo); err != nil {
		// Nothing depends on them.
		o.Log.Warn("without broadcasts: programs, uploads and side inputs come from the master alone", "error", err)
		s.node = nil
	}
	node.Store(s.node)
	ao := o.Reduce
	ao.Jobs, ao.Mode, ao.Log = ro.Jobs, ro.Mode, o.Log
	ao.Port, ao.Send = s.receiver.Port(), s.receiver.SendFrames
	if ao.Streams, err = listenStreams(ro.Listen, ao.Port); err != nil {
		o.Log.Warn("without streams: large vectors of iterations go by frames, which takes longer", "error", err)
	}
	if s.sums, err = allreduce.New(ao); err != nil {
		if ao.Streams != nil {
			err = errors.Join(err, ao.Streams.Close())
		}
		// Nothing but iterations depends on them.
		o.Log.Warn("without all-reduces: iterations have at most one member here that needs others", "error", err)
		s.sums = nil
	}
	sums.Store(s.sums)
	s.Exchange, err = exchange.New(exchange.Options{
		Dir: dir, Receiver: s.receiver, Sender: s.sender, Dial: s.peers.get, Address: o.Address, Worker: w.id, Log: o.Log,
	})
	return s, err
}

// listenStreams takes TCP connections at the port that frames come to over UDP, or where somebody else has that, at any free one: others
// are told which.
func listenStreams(address string, port int) (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		l, err = net.Listen("tcp", net.JoinHostPort(address, "0"))
	}
	if err != nil {
		return nil, err // else it would be an interface that is not nil
	}
	return l, nil
}

func (s *shuffler) register(g *grpc.Server) {
	rpc.NewServer(s.Control()).Register(g)
	if s.node != nil {
		rpc.NewBroadcastServer(s.node.Control()).Register(g)
	}
	if s.sums != nil {
		rpc.NewReduceServer(s.sums.Control()).Register(g)
	}
}

// dropBroadcasts implements exchanger.
func (s *shuffler) dropBroadcasts(job string) {
	id, err := hex.DecodeString(job)
	if err != nil || len(id) != len(shuffle.JobID{}) {
		return
	}
	if s.node != nil {
		s.node.Drop(shuffle.JobID(id))
	}
	if s.sums != nil {
		s.sums.Drop(shuffle.JobID(id))
	}
}

// Close closes all in the order in which they use each other.
func (s *shuffler) Close() (err error) {
	if s.Exchange != nil {
		err = s.Exchange.Close()
	}
	if s.sender != nil {
		err = errors.Join(err, s.sender.Close())
	}
	if s.receiver != nil {
		err = errors.Join(err, s.receiver.Close())
	}
	if s.node != nil {
		err = errors.Join(err, s.node.Close()) // which the receiver has handed frames to
	}
	if s.sums != nil {
		err = errors.Join(err, s.sums.Close())
	}
	return errors.Join(err, s.peers.close())
}

// peers keeps connections to other workers.
type peers struct {
	dial func(address string) (*grpc.ClientConn, error)

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn // nil: closed
}

func (p *peers) get(_ context.Context, address string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		return nil, errLeft
	}
	if c := p.conns[address]; c != nil {
		return c, nil
	}
	c, err := p.dial(address)
	if err == nil {
		p.conns[address] = c
	}
	return c, err
}

func (p *peers) close() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		err = errors.Join(err, c.Close())
	}
	p.conns = nil
	return err
}
