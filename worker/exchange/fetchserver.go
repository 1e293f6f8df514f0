// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/spill"
)

// aliveEvery is how often a peer that waits is told that this worker is at it.
const aliveEvery = 3 * time.Second

// Errors of what a worker is asked for, by this process or by others (see fetchStatus).
var (
	errGone    = errors.New("the map output is not here (any more)")
	errDamaged = errors.New("the map output is damaged")
	errFatal   = fmt.Errorf("a value can't be brought to the scale of others: %w", ErrPermanent)
)

// Fetch serves api.Peer's Fetch.
func (x *Exchange) Fetch(req *api.FetchRequest, stream grpc.ServerStreamingServer[api.FetchBlock]) error {
	ctx, leave, err := x.enter(stream.Context())
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer leave()
	return fetchStatus(x.fetch(ctx, req, false, stream.Send))
}

// fetchStatus makes a status of an error of fetch; fetchError does the reverse.
func fetchStatus(err error) error {
	if err == nil {
		return nil
	}
	code := codes.Unavailable
	switch {
	case errors.Is(err, errGone):
		code = codes.NotFound
	case errors.Is(err, errDamaged):
		code = codes.DataLoss
	case errors.Is(err, errFatal):
		code = codes.FailedPrecondition
	}
	if _, is := status.FromError(err); is {
		return err
	}
	return status.Error(code, err.Error())
}

func fetchError(err error) error {
	switch status.Code(err) {
	case codes.NotFound:
		return fmt.Errorf("%w: %w", errGone, err)
	case codes.DataLoss:
		return fmt.Errorf("%w: %w", errDamaged, err)
	case codes.FailedPrecondition:
		return fmt.Errorf("%w: %w", errFatal, err)
	}
	return err
}

// fetch sends the pairs of an output for a partition as blocks.
func (x *Exchange) fetch(ctx context.Context, req *api.FetchRequest, plain bool, send func(*api.FetchBlock) error) error {
	k, done := x.store.use(req.GetAttempt())
	defer done()
	switch {
	case k == nil || req.GetJob() != k.Attempt.GetJob() || req.GetMapTask() != k.Attempt.GetTask():
		return fmt.Errorf("exchange: map task %d of job %s: %w", req.GetMapTask(), req.GetJob(), errGone)
	case k.damaged.Load():
		return fmt.Errorf("exchange: map task %d of job %s: %w", req.GetMapTask(), req.GetJob(), errDamaged)
	}
	w := &blockWriter{plain: plain}
	if k.Path == "" {
		return send(w.take(true))
	}
	c, err := x.cursor(k, int(req.GetPartition()), bound(req.GetLow()), bound(req.GetHigh()), req.GetScale())
	if err != nil {
		return k.failed(err)
	}
	defer c.Close()
	said := time.Now()
	left := req.GetSkip()
	for n := 0; c.Next(); n++ {
		if n&0xfff == 0 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if time.Since(said) > aliveEvery {
				if err := send(&api.FetchBlock{Digest: emptyDigest}); err != nil {
					return err
				}
				said = time.Now()
			}
		}
		if left > 0 {
			left--
			continue
		}
		w.add(c.Key(), c.Payload())
		if w.full() {
			if err := send(w.take(false)); err != nil {
				return err
			}
			said = time.Now()
		}
	}
	if err := c.Err(); err != nil {
		return k.failed(err)
	}
	if left > 0 {
		return k.failed(fmt.Errorf("exchange: map task %d: %d of the pairs that are to be left out are not there: %w", req.GetMapTask(), left, spill.ErrCorrupt))
	}
	return send(w.take(true))
}

// emptyDigest is that of a block without pairs.
var emptyDigest = (&blockWriter{plain: true}).take(false).GetDigest()

// bound returns a bound as spill has it: nil for none.
func bound(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}

// cursor reads a partition of an output that is in use. Values of a fold are brought to scale.
func (x *Exchange) cursor(k *kept, part int, lo, hi, scale []byte) (spill.Cursor, error) {
	run, err := x.store.open(k)
	if err != nil {
		return nil, err
	}
	if k.Constants.GetGrouped() {
		return run.Cursor(part, lo, hi), nil
	}
	ops, err := opsOf(k.Constants)
	if err != nil {
		return nil, err
	}
	to, err := scaleOf(scale, len(ops))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errFatal, err)
	}
	c, err := fold.Run{Run: run, Scale: k.Scale}.CursorAt(ops, to, part, lo, hi)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errFatal, err)
	}
	return c, nil
}

// failed says what an error of reading an output means to who wants it.
func (k *kept) failed(err error) error {
	switch {
	case errors.Is(err, spill.ErrCorrupt), errors.Is(err, fold.ErrPayload):
		k.damaged.Store(true)
		return fmt.Errorf("map task %d: %w: %w", k.Attempt.GetTask(), errDamaged, err)
	case errors.Is(err, fold.ErrScale):
		return fmt.Errorf("map task %d: %w: %w", k.Attempt.GetTask(), errFatal, err)
	}
	return err
}
