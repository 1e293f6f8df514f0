// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/push"
	"github.com/quernmr/quern/shuffle/rpc"
	"github.com/quernmr/quern/shuffle/spill"
	"github.com/quernmr/quern/shuffle/wire"
)

// pushesAtOnce is how many outputs are pushed at once for one request.
const pushesAtOnce = 8

// Push serves api.Peer's Push.
func (x *Exchange) Push(req *api.PushRequest, stream grpc.ServerStreamingServer[api.PushReply]) error {
	ctx, leave, err := x.enter(stream.Context())
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer leave()
	conn, err := x.opts.Dial(ctx, req.GetReceiver())
	if err != nil {
		return status.Errorf(codes.Unavailable, "exchange: reach the receiver at %s: %v", req.GetReceiver(), err)
	}
	dest, err := HostOf(ctx, req.GetReceiver())
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return x.push(ctx, req, rpc.Once(rpc.NewClient(conn)), dest, stream.Send)
}

// HostOf returns the address of a host:port.
func HostOf(ctx context.Context, address string) (netip.Addr, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("exchange: %q is no host:port: %w", address, err)
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap(), nil
	}
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(list) == 0 {
		return netip.Addr{}, fmt.Errorf("exchange: the address of %q: %w", host, err)
	}
	return list[0].Unmap(), nil
}

// push pushes outputs to a receiver: one in this process if dest is not valid.
// Every output is answered for.
func (x *Exchange) push(ctx context.Context, req *api.PushRequest, control shuffle.Control, dest netip.Addr, send func(*api.PushReply) error) error {
	spec, err := jobSpec(req.GetConstants(), req.GetBound())
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex // of send
	say := func(r *api.PushReply) {
		mu.Lock()
		defer mu.Unlock()
		if err := send(r); err != nil {
			cancel(err)
		}
	}
	var wg sync.WaitGroup
	work := make(chan *api.MapOutput)
	for range min(pushesAtOnce, len(req.GetOutputs())) {
		wg.Go(func() {
			for out := range work {
				say(x.pushOne(ctx, req, &spec, out, control, dest))
			}
		})
	}
	stop := make(chan struct{})
	var beat sync.WaitGroup
	beat.Go(func() {
		t := time.NewTicker(aliveEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				say(&api.PushReply{Alive: true})
			case <-stop:
				return
			}
		}
	})
	for _, out := range req.GetOutputs() {
		select {
		case work <- out:
		case <-ctx.Done():
		}
	}
	close(work)
	wg.Wait()
	close(stop)
	beat.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// pushOne pushes one output and says how it went.
func (x *Exchange) pushOne(ctx context.Context, req *api.PushRequest, spec *shuffle.JobSpec, out *api.MapOutput, control shuffle.Control, dest netip.Addr) *api.PushReply {
	reply := &api.PushReply{MapTask: out.GetTask()}
	err := x.pushOutput(ctx, req, spec, out, control, dest, reply)
	if err == nil {
		return reply
	}
	reply.Error = err.Error()
	switch {
	case errors.Is(err, errGone):
		reply.Gone = true
	case errors.Is(err, errDamaged):
		reply.Damaged = true
	case errors.Is(err, commit.ErrBeyond):
		reply.Pull = true
	case errors.Is(err, errFatal), errors.Is(err, ErrPermanent):
		reply.Fatal = true
	case errors.Is(err, shuffle.ErrReset), errors.Is(err, shuffle.ErrUnknown), errors.Is(err, shuffle.ErrRefused):
		reply.Reset_ = true
	}
	if ctx.Err() == nil {
		x.log.Warn("a map output was not pushed", "job", out.GetAttempt().GetJob(), "map", out.GetTask(), "partition", req.GetPartition(), "receiver", req.GetReceiver(), "error", err)
	}
	return reply
}

func (x *Exchange) pushOutput(ctx context.Context, req *api.PushRequest, spec *shuffle.JobSpec, out *api.MapOutput, control shuffle.Control, dest netip.Addr, reply *api.PushReply) error {
	k, done := x.store.use(out.GetAttempt())
	defer done()
	part := int(req.GetPartition())
	if err := k.holds(out, part); err != nil {
		return err
	}
	need := k.cost(part, len(spec.Ops), x.opts.Memory)
	if err := x.memory.Acquire(ctx, need); err != nil {
		return context.Cause(ctx)
	}
	defer x.memory.Release(need)
	o, err := x.commit(ctx, k, part, spec, req.GetScale())
	if err != nil {
		return k.failed(err)
	}
	m := o.Manifest()
	target := shuffle.TargetID{Job: spec.ID, Partition: req.GetPartition(), Generation: req.GetGeneration()}
	r := push.Request{
		Control: control, Dest: dest, Output: o, Job: *spec, Map: out.GetTask(),
		Target: shuffle.TargetSpec{ID: target, Keys: m.Keys()},
	}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		if dest.IsValid() {
			_, err = x.opts.Sender.Push(ctx, r)
		} else {
			_, err = x.opts.Sender.Deliver(ctx, r)
		}
		if !errors.Is(err, shuffle.ErrBusy) || !pause(ctx, wait) {
			break
		}
	}
	if err != nil {
		return err
	}
	reply.Streams, reply.Pairs = uint32(len(m.Segments)), int64(m.Pairs)
	for _, s := range m.SumAbs {
		reply.SumAbs = append(reply.SumAbs, s.Hi, s.Lo)
	}
	return nil
}

// holds says whether an output is what is asked for. k may be nil.
func (k *kept) holds(out *api.MapOutput, part int) error {
	switch {
	case k == nil:
		return fmt.Errorf("exchange: map task %d: %w", out.GetTask(), errGone)
	case k.damaged.Load():
		return fmt.Errorf("exchange: map task %d: %w", out.GetTask(), errDamaged)
	case k.Attempt.GetTask() != out.GetTask() || part >= len(k.Parts):
		return fmt.Errorf("exchange: map task %d has no partition %d: %w", out.GetTask(), part, errGone)
	case k.Parts[part].Digest != out.GetDigest() || k.Parts[part].Pairs != out.GetPairs():
		return fmt.Errorf("exchange: partition %d of map task %d has %d pairs and digest %#x here, %d and %#x are wanted: %w", part, out.GetTask(),
			k.Parts[part].Pairs, k.Parts[part].Digest, out.GetPairs(), out.GetDigest(), errGone)
	}
	return nil
}

// cost is about how many bytes it takes to cut a partition into frames: each pair as a record,
// as it travels, and while it is sorted. At most all there are.
func (k *kept) cost(part, lanes int, most int64) int64 {
	p := &k.Parts[part]
	n := int64(64 << 10)
	for class, keys := range p.Keys {
		size := int64(12 + 8*lanes + 8<<class)
		if class == wire.Classes {
			n += 2 * p.Bytes
			size = int64(16 + 8*lanes)
		}
		n += int64(min(keys, 1<<40)) * (2*size + 40)
	}
	return min(n, most)
}

// commit cuts a partition into frames.
func (x *Exchange) commit(ctx context.Context, k *kept, part int, spec *shuffle.JobSpec, scale []byte) (*commit.Output, error) {
	lanes := len(spec.Ops)
	b := commit.NewBuilder(spec)
	pairs := int64(0)
	if k.Path != "" {
		c, err := x.cursor(k, part, nil, nil, scale)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		v, carry := make([]int64, lanes), make([]int64, lanes)
		for ; c.Next(); pairs++ {
			if pairs&0xfff == 0 && ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			carried, err := fold.DecodeValue(c.Payload(), v, carry)
			if err != nil {
				return nil, err
			}
			if carried {
				b.AddCarry(c.Key(), v, carry)
			} else {
				b.Add(c.Key(), v)
			}
			if err := b.Err(); err != nil {
				return nil, fmt.Errorf("exchange: map task %d: %w", k.Attempt.GetTask(), err)
			}
		}
		if err := c.Err(); err != nil {
			return nil, err
		}
	}
	if want := k.Parts[part].Pairs; pairs != want {
		return nil, fmt.Errorf("exchange: map task %d: partition %d has %d pairs, not %d: %w", k.Attempt.GetTask(), part, pairs, want, spill.ErrCorrupt)
	}
	o, err := b.Commit()
	if err != nil {
		return nil, fmt.Errorf("exchange: map task %d: %w", k.Attempt.GetTask(), err)
	}
	for i, want := range k.Parts[part].Check {
		if i >= lanes || spec.Ops[i] != fold.Sum {
			continue
		}
		have := o.Manifest().Check[i]
		if want *= power(k.Scale, scale, i); have != want {
			return nil, fmt.Errorf("exchange: map task %d: the values of lane %d of partition %d add up to %#x, its manifest says %#x: %w", k.Attempt.GetTask(), i, part, have, want, spill.ErrCorrupt)
		}
	}
	return o, nil
}

// power is by what a lane is multiplied to come from one scale to another, mod 2^64.
func power(from, to []uint8, lane int) uint64 {
	p := uint64(1)
	if lane >= len(to) {
		return p
	}
	n := to[lane]
	if lane < len(from) {
		n -= from[lane]
	}
	for range n {
		p *= 10
	}
	return p
}
