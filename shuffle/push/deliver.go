// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// Deliver is Push without packets: all frames go over the control plane. It is for
// receivers in the same process, and for whoever can't send packets. Request.Dest
// is only named in errors.
func (s *Sender) Deliver(ctx context.Context, req Request) (report Report, err error) {
	m := req.Output.Manifest()
	report = Report{Pairs: m.Pairs, Frames: m.Frames, Segments: len(m.Segments)}
	if err := s.begin(); err != nil {
		return report, err
	}
	defer s.end()
	begin := time.Now()
	defer func() { report.Time = time.Since(begin) }()
	d := &delivery{push: push{sender: s, req: &req, out: req.Output, tags: wire.NewTags(req.Job.Secret), report: &report}}
	for resets := 0; ; resets++ {
		err = d.run(ctx)
		again := errors.Is(err, shuffle.ErrReset) || errors.Is(err, shuffle.ErrUnknown)
		if !again || resets >= s.opts.Resets || ctx.Err() != nil {
			break
		}
		report.Resets++
		s.opts.Log.Info("the receiver has begun anew; all streams are opened again", "target", req.Target.ID.String(), "map", req.Map, "error", err)
		if !pause(ctx, min(10*time.Millisecond<<min(resets, 7), time.Second)) {
			break
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		err = fmt.Errorf("deliver %s, map task %d: %w", req.Target.ID, req.Map, err)
	}
	return report, err
}

// delivery is what Deliver needs of a push: its calls.
type delivery struct{ push }

func (d *delivery) run(ctx context.Context) error {
	c := d.req.Control
	if err := d.call(ctx, "open the job", func(ctx context.Context) error { return c.OpenJob(ctx, d.req.Job) }); err != nil {
		return err
	}
	if err := d.call(ctx, "open the target", func(ctx context.Context) error { return c.OpenTarget(ctx, d.req.Target) }); err != nil {
		return err
	}
	for i := range d.out.Manifest().Segments {
		if err := d.segment(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// segment delivers a segment, and again what the receiver misses, since a packet's copy of
// a frame may have been claimed and given up in a receiver that was restarted.
func (d *delivery) segment(ctx context.Context, i int) error {
	c := d.req.Control
	spec := d.out.Stream(d.req.Target.ID, d.req.Map, i)
	var grant shuffle.Grant
	err := d.call(ctx, "open a stream", func(ctx context.Context) error {
		grants, err := c.Open(ctx, []shuffle.StreamSpec{spec})
		if err == nil && len(grants) != 1 {
			err = fmt.Errorf("%d grants for a stream", len(grants))
		}
		if err == nil {
			grant = grants[0]
		}
		return err
	})
	if err != nil {
		return err
	}
	if grant.Done {
		d.report.Known += uint64(spec.Frames)
		return nil
	}
	first := d.out.Manifest().Segments[i].First
	claimed := grant.Claimed
	for round := 0; ; round++ {
		if err := d.missing(ctx, spec, grant, first, claimed); err != nil {
			return err
		}
		var status shuffle.StreamStatus
		err := d.call(ctx, "ask for the state of a stream", func(ctx context.Context) error {
			list, err := c.Status(ctx, []shuffle.StreamID{spec.ID})
			if err == nil && len(list) != 1 {
				err = fmt.Errorf("%d answers about a stream", len(list))
			}
			if err == nil {
				status = list[0]
			}
			return err
		})
		switch {
		case err != nil:
			return err
		case status.Complete:
			d.moved = true
			return d.call(ctx, "confirm a stream", func(ctx context.Context) error { return c.Confirm(ctx, []shuffle.StreamID{spec.ID}) })
		case round >= 2*diversion:
			return fmt.Errorf("%w: %s was delivered %d times and is not complete", ErrStalled, spec.ID, round+1)
		}
		claimed = status.Claimed
		if !pause(ctx, time.Millisecond<<round) {
			return context.Cause(ctx)
		}
	}
}

// missing delivers those frames of a segment that are not claimed, in parcels.
func (d *delivery) missing(ctx context.Context, spec shuffle.StreamSpec, grant shuffle.Grant, first int, claimed []uint32) error {
	var list [][]byte
	size := 0
	flush := func() error {
		if len(list) == 0 {
			return nil
		}
		err := d.call(ctx, "deliver frames", func(ctx context.Context) error { return d.req.Control.Deliver(ctx, spec.ID, list) })
		d.report.Delivered += uint64(len(list))
		list, size = nil, 0
		return err
	}
	for f := range spec.Frames {
		if f/32 < len(claimed) && claimed[f/32]>>(f%32)&1 != 0 {
			continue
		}
		n := d.out.Size(first + f)
		if size > 0 && size+n > parcel {
			if err := flush(); err != nil {
				return err
			}
		}
		frame := d.out.Frame(first+f, make([]byte, 0, n), wire.Head{Token: grant.Token, Stream: grant.Slot, Seq: uint32(f), Back: noBack})
		d.tags.SealData(frame)
		list = append(list, frame)
		size += n
	}
	return flush()
}

// noBack is no sender's slot: nothing that is delivered is answered by packets.
const noBack = 1<<32 - 1
