// SPDX-License-Identifier: Apache-2.0

package castlab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/internal/labnode"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/broadcast"
	"github.com/quernmr/quern/shuffle/receive"
	"github.com/quernmr/quern/shuffle/rpc"
)

// NodeConfig says what a host's end of broadcasts is to be.
type NodeConfig struct {
	Kernel   bool
	Memory   int64 // bytes of all its regions and casts
	Idle     time.Duration
	Patience time.Duration
	Verbose  bool
}

// chunks is how many chunks a node of that memory can hold.
func (c NodeConfig) chunks() int { return int(c.Memory / (1344 + 8)) }

// node is a host's end of broadcasts, with a socket for frames and one for control calls.
type node struct {
	cfg      NodeConfig
	kernel   *bpf.Host
	receiver *receive.Receiver
	node     *broadcast.Node
	stop     func() error // the control plane
	ledger   ledger
}

// openNode opens a node in the network namespace of the calling thread.
func openNode(cfg NodeConfig) (n *node, err error) {
	n = &node{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	limits := shuffle.Limits{Streams: 16, Targets: 8, Outgoing: 16, Jobs: 8, Regions: 16, Casts: 4, Chunks: cfg.chunks()}
	log := slog.New(slog.DiscardHandler)
	if cfg.Verbose {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	opts := broadcast.Options{
		Port: shuffle.Port, Memory: cfg.Memory, PerJob: cfg.Memory, Idle: cfg.Idle, Patience: cfg.Patience,
		Incoming: n.ledger.incoming, Log: log,
	}
	ropts := receive.Options{Port: shuffle.Port, Limits: limits, FoldMemory: 8 << 20, Readers: 1, ReceiveBuffer: 4 << 20, Log: log}
	if cfg.Kernel {
		if n.kernel, err = bpf.Open(bpf.Options{Interfaces: []string{netlab.InterfaceName}, Limits: limits, TableMemory: 8 << 20, Log: log}); err != nil {
			return nil, err
		}
		if opts.Kernel, err = n.kernel.Broadcasts(); err != nil {
			return nil, err
		}
		jobs := shuffle.NewJobSlots(n.kernel, limits.Jobs)
		opts.Jobs = jobs
		ropts.Kernel, ropts.Jobs = n.kernel, jobs
	}
	var to atomic.Pointer[broadcast.Node]
	ropts.Other = func(frame []byte, from netip.AddrPort) {
		if b := to.Load(); b != nil {
			b.Handle(frame, from)
		}
	}
	if n.receiver, err = receive.New(ropts); err != nil {
		return nil, err
	}
	opts.Send = n.receiver.SendFrame
	if n.node, err = broadcast.New(opts); err != nil {
		return nil, err
	}
	to.Store(n.node)
	n.stop, err = labnode.Serve(rpc.NewBroadcastServer(n.node.Control()))
	return n, err
}

func (n *node) close() error {
	errs := []error{n.ledger.letGo()}
	if n.stop != nil {
		errs = append(errs, n.stop())
	}
	if n.receiver != nil {
		errs = append(errs, n.receiver.Close())
	}
	if n.node != nil {
		errs = append(errs, n.node.Close())
	}
	if n.kernel != nil {
		errs = append(errs, n.kernel.Close())
	}
	return errors.Join(errs...)
}

// open lists what is open in the memory that programs share.
func (n *node) open() (list []string) {
	if n.kernel == nil {
		return nil
	}
	ends := n.kernel.Ends()
	for i := range ends.Regions {
		if token := atomic.LoadUint64(&ends.Regions[i].Token); token != 0 {
			list = append(list, fmt.Sprintf("region %d with token %#x", i, token))
		}
	}
	for i := range ends.Casts {
		if token := atomic.LoadUint64(&ends.Casts[i].Token); token != 0 {
			list = append(list, fmt.Sprintf("cast %d with token %#x", i, token))
		}
	}
	return list
}

// fill opens a region that takes all memory that the node may use, which it has if
// nothing else has any, and closes it again.
func (n *node) fill(ctx context.Context, job shuffle.JobID, token uint64) error {
	c := n.node.Control()
	spec := shuffle.RegionSpec{
		Job: job, Secret: [16]byte{1}, Token: token, Source: netip.MustParseAddrPort("10.71.17.1:9"), Chunks: n.cfg.chunks(), Name: "fill", Size: -1,
	}
	g, err := c.OpenRegion(ctx, spec)
	// What has ended gives its memory back once no program runs that saw it.
	for until := time.Now().Add(patience); errors.Is(err, shuffle.ErrBusy) && time.Now().Before(until); g, err = c.OpenRegion(ctx, spec) {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("not all memory is free: %w", err)
	}
	if g.Kernel != n.cfg.Kernel {
		err = fmt.Errorf("programs store a region: %v, want %v", g.Kernel, n.cfg.Kernel)
	}
	return errors.Join(err, c.CloseRegion(ctx, token, true))
}

// mapped maps a part of a file to be read.
func mapped(f *os.File, offset, size int64) (content []byte, unmap func() error, err error) {
	if size == 0 {
		return nil, func() error { return nil }, nil
	}
	from := offset &^ int64(os.Getpagesize()-1)
	b, err := unix.Mmap(int(f.Fd()), from, int(size+offset-from), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("map what was retained: %w", err)
	}
	return b[offset-from:], func() error { return unix.Munmap(b) }, nil
}
