// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/rpc"
	"github.com/quernmr/quern/worker/exchange"
)

// groupFormed is a group that was formed from here.
type groupFormed interface {
	token() uint64
	kernel() bool // programs serve it at all workers
	close(context.Context) error
}

type formedGroup struct{ *allreduce.Formed }

func (f formedGroup) token() uint64                   { return f.Token }
func (f formedGroup) kernel() bool                    { return !slices.Contains(f.Kernel, false) }
func (f formedGroup) close(ctx context.Context) error { return f.Close(ctx) }

// formGroup implements exchanger.
func (s *shuffler) formGroup(ctx context.Context, o *api.GangForm) (groupFormed, error) {
	if s.sums == nil {
		return nil, errNoGroups
	}
	c := o.GetConstants()
	spec := allreduce.FormSpec{Name: fmt.Sprintf("%s %#x", short(o.GetJob()), o.GetGeneration()), Patience: s.patience, Log: s.log}
	if len(c.GetId()) != len(spec.Job) || len(c.GetSecret()) != len(spec.Secret) || hex.EncodeToString(c.GetId()) != o.GetJob() {
		return nil, fmt.Errorf("the order names job %q by %d bytes and a secret of %d", o.GetJob(), len(c.GetId()), len(c.GetSecret()))
	}
	spec.Job, spec.Secret = shuffle.JobID(c.GetId()), [16]byte(c.GetSecret())
	if c.GetShuffle() != "" {
		mode, err := shuffle.ParseMode(c.GetShuffle())
		if err != nil {
			return nil, err
		}
		spec.Mode = mode
	}
	for _, w := range o.GetWorkers() {
		m := allreduce.Member{Name: cmp.Or(w.GetName(), w.GetWorker())}
		host, err := exchange.HostOf(ctx, w.GetAddress())
		if err != nil {
			return nil, fmt.Errorf("worker %s: %w", m.Name, err)
		}
		conn, err := s.peers.get(ctx, w.GetAddress())
		if err != nil {
			return nil, fmt.Errorf("worker %s: %w", m.Name, err)
		}
		m.Address, m.Control = netip.AddrPortFrom(host, 0), rpc.NewReduceClient(conn)
		spec.Members = append(spec.Members, m)
	}
	f, err := allreduce.Form(ctx, spec)
	if err != nil {
		return nil, err
	}
	return formedGroup{f}, nil
}

// group implements exchanger.
func (s *shuffler) group(token uint64) (allreduce.Group, error) {
	if s.sums == nil {
		return nil, errNoGroups
	}
	return s.sums.Group(token)
}

// closeGroup implements exchanger.
func (s *shuffler) closeGroup(ctx context.Context, token uint64) error {
	if s.sums == nil {
		return errNoGroups
	}
	return s.sums.Control().CloseGroup(ctx, token)
}
