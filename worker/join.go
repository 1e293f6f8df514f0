// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"sync"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/push"
	"github.com/quernmr/quern/shuffle/receive"
	"github.com/quernmr/quern/shuffle/rpc"
	"github.com/quernmr/quern/worker/exchange"
	"google.golang.org/grpc"
)

// shuffler is an exchange with both ends of the shuffle that it works with.
type shuffler struct {
	*exchange.Exchange
	receiver *receive.Receiver
	sender   *push.Sender
	peers    *peers
}

// newExchange makes the ends of the shuffle, and what moves pairs between them.
func (w *Worker) newExchange(dir string) (_ exchanger, err error) {
	o := &w.opt
	s := &shuffler{peers: &peers{dial: func(a string) (*grpc.ClientConn, error) { return dial(a, o.Peers, rpc.Reconnect()) }, conns: map[string]*grpc.ClientConn{}}}
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
	s.Exchange, err = exchange.New(exchange.Options{
		Dir: dir, Receiver: s.receiver, Sender: s.sender, Dial: s.peers.get, Address: o.Address, Worker: w.id, Log: o.Log,
	})
	return s, err
}

func (s *shuffler) register(g *grpc.Server) { rpc.NewServer(s.Control()).Register(g) }

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
