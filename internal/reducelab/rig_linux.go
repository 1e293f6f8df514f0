// SPDX-License-Identifier: Apache-2.0

package reducelab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/quernmr/quern/internal/labnode"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/rpc"
)

// Rig is a lab with a node at every host but the last, from which groups are formed: in this process, or
// in one of its own where it may be killed.
type Rig struct {
	Lab    *netlab.Lab
	limits Limits
	cfg    NodeConfig
	nodes  []*node            // by host less one; nil: it is a process
	child  []*labnode.Process // nil: none runs
}

// NewRig makes a lab and opens all nodes.
func NewRig(l Limits, cfg NodeConfig, o netlab.Options) (r *Rig, err error) {
	r = &Rig{limits: l, cfg: cfg, nodes: make([]*node, l.Hosts), child: make([]*labnode.Process, l.Hosts)}
	o.Hosts = l.Hosts + 1
	if r.Lab, err = netlab.New(o); err != nil {
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
	case r.limits.mortal(h):
		if r.child[i] == nil {
			r.child[i], err = labnode.Start(r.Lab.Host(h), cfg)
		}
	case r.nodes[i] == nil:
		err = r.Lab.Host(h).Do(func() error {
			r.nodes[i], err = openNode(cfg, r.Lab.Host(h).Do)
			return err
		})
	}
	return err
}

// bury takes note that a host's process is dead.
func (r *Rig) bury(h int) {
	r.child[h-1].Kill()
	r.child[h-1] = nil
}

// ask has a host's node obey. An error that is not one of the node says that its process is gone.
func (r *Rig) ask(ctx context.Context, h int, o order) (a reply, err error) {
	if c := r.child[h-1]; c != nil {
		err = c.Ask(o, &a)
	} else {
		a = r.nodes[h-1].obey(ctx, &o)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		err = fmt.Errorf("host %d: %w", h, err)
	}
	return a, err
}

// former is the host that groups are formed from.
func (r *Rig) former() *netlab.Host { return r.Lab.Host(r.limits.Hosts + 1) }

// member connects to a host's control plane.
func (r *Rig) member(h int, ipv6 bool) (m allreduce.Member, closeConn func() error, err error) {
	a := r.Lab.Host(h).IPv4()
	if ipv6 {
		a = r.Lab.Host(h).IPv6()
	}
	conn, err := labnode.Dial(r.former().Do, a)
	if err != nil {
		return m, nil, err
	}
	return allreduce.Member{Name: hostName(h), Address: netip.AddrPortFrom(a, 0), Control: rpc.NewReduceClient(conn)}, conn.Close, nil
}

func hostName(h int) string { return fmt.Sprintf("host-%d", h) }

// Close ends all nodes and the lab. It returns an error for what any of them leaves behind.
func (r *Rig) Close() error {
	var errs []error
	for i := range r.nodes {
		var err error
		if n := r.nodes[i]; n != nil {
			err = n.close()
		} else if c := r.child[i]; c != nil {
			err = c.End()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("host %d: %w", i+1, err))
		}
		if err := r.Lab.Host(i + 1).Do(labnode.Bare); err != nil {
			errs = append(errs, fmt.Errorf("host %d: %w", i+1, err))
		}
	}
	return errors.Join(append(errs, r.Lab.Close())...)
}
