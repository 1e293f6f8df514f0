// SPDX-License-Identifier: Apache-2.0

package reducelab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/internal/labnode"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/receive"
	"github.com/quernmr/quern/shuffle/rpc"
	"github.com/quernmr/quern/shuffle/wire"
)

// NodeConfig says what a host's end of all-reduces is to be.
type NodeConfig struct {
	Kernel   bool
	Blocks   int // that all its groups have room for
	Patience time.Duration
	Verbose  bool
}

// node is a host's end of all-reduces, with a socket for frames and one for control calls.
type node struct {
	cfg      NodeConfig
	kernel   *bpf.Host
	receiver *receive.Receiver
	node     *allreduce.Node
	stop     func() error // the control plane
}

// place runs a function at a node's host.
type place func(func() error) error

// here is for a process all of whose threads are there.
func here(f func() error) error { return f() }

// dial connects to another host's streams.
func (p place) dial(ctx context.Context, to netip.AddrPort) (conn net.Conn, err error) {
	err = p(func() error {
		// Dialled by this thread, so at the host: no second attempt by another one.
		d := net.Dialer{FallbackDelay: -1, Timeout: 2 * time.Second}
		conn, err = d.DialContext(ctx, "tcp", to.String())
		return err
	})
	return conn, err
}

// openNode opens a node in the network namespace of the calling thread.
func openNode(cfg NodeConfig, do place) (n *node, err error) {
	n = &node{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	limits := shuffle.Limits{Streams: 16, Targets: 8, Outgoing: 16, Jobs: 8, Regions: 1, Casts: 1, Groups: 4, Chunks: cfg.Blocks}
	log := slog.New(slog.DiscardHandler)
	if cfg.Verbose {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		return nil, err
	}
	defer func() {
		if n.node == nil {
			err = errors.Join(err, listener.Close()) // else the node does
		}
	}()
	opts := allreduce.Options{Streams: listener, Dial: do.dial, Port: shuffle.Port, Memory: int64(cfg.Blocks) * (wire.ChunkSize + 8), Patience: cfg.Patience, Log: log}
	ropts := receive.Options{Port: shuffle.Port, Limits: limits, FoldMemory: 8 << 20, Readers: 1, ReceiveBuffer: 4 << 20, Log: log}
	if cfg.Kernel {
		if n.kernel, err = bpf.Open(bpf.Options{Interfaces: []string{netlab.InterfaceName}, Limits: limits, TableMemory: 8 << 20, Log: log}); err != nil {
			return nil, err
		}
		if opts.Kernel, err = n.kernel.Reduces(); err != nil {
			return nil, err
		}
		jobs := shuffle.NewJobSlots(n.kernel, limits.Jobs)
		opts.Jobs = jobs
		ropts.Kernel, ropts.Jobs = n.kernel, jobs
	}
	var to atomic.Pointer[allreduce.Node]
	ropts.Other = func(frame []byte, from netip.AddrPort) {
		if a := to.Load(); a != nil {
			a.Handle(frame, from)
		}
	}
	if n.receiver, err = receive.New(ropts); err != nil {
		return nil, err
	}
	opts.Send = n.receiver.SendFrames
	if n.node, err = allreduce.New(opts); err != nil {
		return nil, err
	}
	to.Store(n.node)
	n.stop, err = labnode.Serve(rpc.NewReduceServer(n.node.Control()))
	return n, err
}

// close ends the node. It returns an error for what is left.
func (n *node) close() error {
	var errs []error
	if n.stop != nil {
		errs = append(errs, n.stop())
	}
	if n.receiver != nil {
		errs = append(errs, n.receiver.Close())
	}
	if n.node != nil {
		for _, open := range n.open() {
			errs = append(errs, fmt.Errorf("%s is open", open))
		}
		errs = append(errs, n.node.Close())
	}
	if n.kernel != nil {
		if n.node != nil {
			errs = append(errs, n.fill())
		}
		errs = append(errs, n.kernel.Close())
	}
	return errors.Join(errs...)
}

// open lists what is open here, in the node's own memory and in that which programs share.
func (n *node) open() (list []string) {
	if s := n.node.Stats(); s.Open != 0 || s.Memory != 0 {
		list = append(list, fmt.Sprintf("%d groups with %d bytes", s.Open, s.Memory))
	}
	if n.kernel == nil {
		return list
	}
	groups := n.kernel.Groups()
	for i := range groups {
		if token := atomic.LoadUint64(&groups[i].Token); token != 0 {
			list = append(list, fmt.Sprintf("group %d with token %#x", i, token))
		}
	}
	return list
}

// fill takes all memory of the kernel's that groups may use, which is free if nothing else has any.
func (n *node) fill() error {
	c, err := n.kernel.NewContent(n.cfg.Blocks)
	if err != nil {
		return fmt.Errorf("not all memory is free: %w", err)
	}
	return n.kernel.FreeContent(c)
}

// Deeds counts what a host's programs and user space did.
type Deeds struct {
	Programs, User [wire.Reasons]uint64
	Again          uint64 // parts that were sent again
	Pieces         uint64 // that came over streams
	Woken, Timers  uint64 // how waits of calls ended
}

func (d *Deeds) add(o *Deeds, sign uint64) {
	for i := range d.Programs {
		d.Programs[i] += sign * o.Programs[i]
		d.User[i] += sign * o.User[i]
	}
	d.Again += sign * o.Again
	d.Pieces += sign * o.Pieces
	d.Woken += sign * o.Woken
	d.Timers += sign * o.Timers
}

func (n *node) deeds() (d Deeds, err error) {
	s := n.node.Stats()
	d.User, d.Again, d.Woken, d.Timers, d.Pieces = s.Reasons, s.Again, s.Woken, s.Timers, s.Pieces
	if n.kernel != nil {
		d.Programs, err = n.kernel.Reasons()
	}
	return d, err
}

// answer sets how what programs make leaves.
func (n *node) answer(mode wire.AnswerMode) error {
	if n.kernel == nil || n.kernel.Answer() == mode {
		return nil
	}
	return n.kernel.SetAnswer(mode)
}
