// SPDX-License-Identifier: Apache-2.0

package castlab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/quernmr/quern/internal/labnode"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/broadcast"
	"github.com/quernmr/quern/shuffle/rpc"
)

// Rig is a lab with a node at every host: in this process, or in one of its own where it may be killed.
type Rig struct {
	Lab    *netlab.Lab
	limits Limits
	cfg    NodeConfig
	nodes  []*node  // by host less one; nil: it is a process
	child  []*child // nil: none runs
	killed int
}

// NewRig makes a lab and opens all nodes.
func NewRig(l Limits, cfg NodeConfig, seed uint64) (r *Rig, err error) {
	r = &Rig{limits: l, cfg: cfg, nodes: make([]*node, l.Hosts), child: make([]*child, l.Hosts)}
	if r.Lab, err = netlab.New(netlab.Options{Hosts: l.Hosts, Seed: seed, StaticNeighbours: true}); err != nil {
		return nil, err
	}
	for h := 1; h <= l.Hosts; h++ {
		if err := r.ready(h); err != nil {
			return nil, errors.Join(fmt.Errorf("host %d: %w", h, err), r.Close())
		}
	}
	return r, nil
}

// ready opens a host's node if it is not open.
func (r *Rig) ready(h int) (err error) {
	cfg := r.cfg
	cfg.Kernel = r.limits.hasKernel(h)
	switch i := h - 1; {
	case h > r.limits.Hosts-r.limits.Mortal:
		if r.child[i] == nil {
			r.child[i], err = startChild(r.Lab.Host(h), cfg)
		}
	case r.nodes[i] == nil:
		err = r.Lab.Host(h).Do(func() error {
			r.nodes[i], err = openNode(cfg)
			return err
		})
	}
	return err
}

// kill ends a host's process without a word.
func (r *Rig) kill(h int) {
	r.killed++
	r.child[h-1].Kill()
	r.child[h-1] = nil
}

// set says how a host's node is to take what comes.
func (r *Rig) set(h int, s settings) error {
	if c := r.child[h-1]; c != nil {
		_, err := c.ask(order{Set: &s})
		return err
	}
	r.nodes[h-1].ledger.set(s.Have, s.Retain)
	return nil
}

// report returns what came of a name to a host, and what is open there.
func (r *Rig) report(h int, name string) (parts []Part, open []string, err error) {
	if c := r.child[h-1]; c != nil {
		a, err := c.ask(order{Report: name})
		return a.Parts, a.Open, err
	}
	n := r.nodes[h-1]
	return n.ledger.of(name), n.open(), nil
}

// letGo has a host give back what it retained.
func (r *Rig) letGo(h int) error {
	if c := r.child[h-1]; c != nil {
		_, err := c.ask(order{LetGo: true})
		return err
	}
	return r.nodes[h-1].ledger.letGo()
}

// address is where a host's frames go, before the port is known.
func (r *Rig) address(h int, ipv6 bool) netip.Addr {
	if ipv6 {
		return r.Lab.Host(h).IPv6()
	}
	return r.Lab.Host(h).IPv4()
}

// memberAt connects to a member's control plane.
func memberAt(do func(func() error) error, a netip.Addr) (m broadcast.Member, closeConn func() error, err error) {
	conn, err := labnode.Dial(do, a)
	if err != nil {
		return m, nil, err
	}
	return broadcast.Member{Name: a.String(), Address: netip.AddrPortFrom(a, 0), Control: rpc.NewBroadcastClient(conn)}, conn.Close, nil
}

// Close ends all nodes and the lab. It returns an error for what any of them leaves behind.
func (r *Rig) Close() error {
	var errs []error
	for i, n := range r.nodes {
		if n == nil {
			continue
		}
		for _, open := range n.open() {
			errs = append(errs, fmt.Errorf("host %d: %s is open", i+1, open))
		}
		if err := n.fill(context.Background(), shuffle.JobID{0xfe}, 1<<60+uint64(i)); err != nil {
			errs = append(errs, fmt.Errorf("host %d: %w", i+1, err))
		}
		if err := n.close(); err != nil {
			errs = append(errs, fmt.Errorf("host %d: %w", i+1, err))
		}
	}
	for i, c := range r.child {
		if c == nil {
			continue
		}
		if err := c.End(); err != nil {
			errs = append(errs, fmt.Errorf("host %d: %w", i+1, err))
		}
	}
	for h := 1; h <= r.limits.Hosts; h++ {
		if err := r.Lab.Host(h).Do(labnode.Bare); err != nil {
			errs = append(errs, fmt.Errorf("host %d: %w", h, err))
		}
	}
	return errors.Join(append(errs, r.Lab.Close())...)
}
