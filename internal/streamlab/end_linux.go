// SPDX-License-Identifier: Apache-2.0

package streamlab

import (
	"context"
	"errors"
	"fmt"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/push"
	"github.com/quernmr/quern/shuffle/receive"
)

// End is a host's receiver and sender, for tests of what is built on them.
type End struct {
	Receiver *receive.Receiver
	Sender   *push.Sender
	e        *end
}

// Open opens a host's ends of streams with the setting's sizes, with or without the
// kernel's help. All are small, so that they are used again within a test.
func (s *Setting) Open(host *netlab.Host, kernel bool) (*End, error) {
	e, err := s.open(host, kernel)
	if err != nil {
		return nil, err
	}
	return &End{e.receiver, e.sender, e}, nil
}

// Warm opens the sender's sockets, which are those of the thread that first sends: it sends
// a pair to another end. Afterwards any goroutine may push.
func (e *End) Warm(ctx context.Context, to *End) error {
	j := &Job{Spec: shuffle.JobSpec{ID: shuffle.JobID{0xff, byte(e.e.host.Number())}, Ops: []fold.Op{fold.Sum}}}
	b := commit.NewBuilder(&j.Spec)
	b.Add([]byte("warm"), []int64{1})
	out, err := b.Commit()
	if err != nil {
		return fmt.Errorf("warm %s: %w", e.e.host, err)
	}
	err = e.e.host.Do(func() error {
		_, err := e.Sender.Push(ctx, push.Request{
			Control: to.Receiver, Dest: to.e.host.IPv4(), Output: out, Job: j.Spec, Target: shuffle.TargetSpec{ID: j.Target(0)},
		})
		return err
	})
	if err = errors.Join(err, to.Receiver.Drop(ctx, j.Spec.ID)); err != nil {
		return fmt.Errorf("warm %s: %w", e.e.host, err)
	}
	return nil
}

// Close closes both, and detaches the programs.
func (e *End) Close() error { return e.e.close() }
