// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/push"
	"github.com/quernmr/quern/shuffle/receive"
	"github.com/quernmr/quern/shuffle/scratch"
	"github.com/quernmr/quern/shuffle/wire"
)

// Our own protocol: committed outputs are pushed to a receiver, with programs at
// both interfaces (kernel) or without any (socket).

// job is what both ends agree on. No lane counts carries: nothing overflows, and the
// baseline's table counts none either.
func job() shuffle.JobSpec {
	return shuffle.JobSpec{
		ID: shuffle.JobID{'b', 'e', 'n', 'c', 'h'}, Secret: [16]byte{7: 7}, Seed: Seed,
		Ops: []fold.Op{fold.Sum}, Bound: []bool{true},
	}
}

// streamLimits have room for many small outputs under way.
var streamLimits = shuffle.Limits{Streams: 2048, Targets: 64, Outgoing: 2048, Jobs: 4}

// MinKeys and MaxKeys bound what Fold measures. With fewer keys an output has so few
// pairs that opening its stream is all that is measured, and takes hours; for more
// the baseline's table has no place in a hash's bits.
const (
	MinKeys = 1000
	MaxKeys = 20_000_000
)

// partitionKeys is the most keys of a partition: more of them have more partitions, as
// a job of that size would, so that a partition's keys fit the largest table.
const partitionKeys = 1_000_000

// Partitions returns how many partitions keys are spread over.
func Partitions(keys int) int { return max(1, (keys+partitionKeys-1)/partitionKeys) }

// tripTarget is the partition that round trips are measured on.
const tripTarget = 1 << 16

// StreamReceiver is the role that receives streams and folds them.
type StreamReceiver struct {
	Meter
	ctx      context.Context // the role's
	kernel   *bpf.Host
	receiver *receive.Receiver
	control  *controlServer
	stats    io.Closer
}

// StreamReceive says what a StreamReceiver gets ready.
type StreamReceive struct {
	Interface   string // that programs are attached to; "": none
	Control     string // path of the control plane's socket
	Listen      string // address that frames come to
	Temp        string // folder for runs
	TableMemory int64  // bytes
	FoldMemory  int64
}

// Open attaches programs and begins to receive.
func (r *StreamReceiver) Open(in *StreamReceive, _ *None) (err error) {
	if r.receiver != nil {
		return errors.New("receives already")
	}
	opts := receive.Options{Listen: in.Listen, TempDir: in.Temp, Limits: streamLimits, TableMemory: in.TableMemory, FoldMemory: in.FoldMemory}
	if in.Interface != "" {
		r.kernel, err = bpf.Open(bpf.Options{Interfaces: []string{in.Interface}, Limits: streamLimits, TableMemory: in.TableMemory + in.TableMemory/4})
		if err != nil {
			return err
		}
		opts.Kernel, opts.Mode, opts.Port = r.kernel, shuffle.KernelOnly, r.kernel.Port()
	}
	if r.receiver, err = receive.New(opts); err != nil {
		return err
	}
	if r.control, err = serveControl(in.Control, r.receiver); err != nil {
		return err
	}
	return nil
}

// StreamStats are what a receiver has done.
type StreamStats struct {
	receive.Stats
	Runs uint64        // of the program at the interface while times were taken
	Time time.Duration // of them, all that they called included
}

// Stats answers with what was done so far.
func (r *StreamReceiver) Stats(_ *None, out *StreamStats) error {
	if r.receiver == nil {
		return errors.New("does not receive")
	}
	out.Stats = r.receiver.Stats()
	if r.kernel == nil {
		return nil
	}
	times, err := r.kernel.Times()
	for _, t := range times {
		out.Runs += t.Runs
		out.Time += t.Time
	}
	return err
}

// TakeTimes has the kernel take the times of programs, or no longer.
func (r *StreamReceiver) TakeTimes(on *bool, _ *None) (err error) {
	if r.stats != nil {
		err = r.stats.Close()
		r.stats = nil
	}
	if *on && err == nil {
		r.stats, err = bpf.Stats()
	}
	return err
}

// StreamFolded is what was folded, and where.
type StreamFolded struct {
	Folded
	Kernel, User uint64 // pairs
}

// StreamFinish says what is to be finished.
type StreamFinish struct {
	Partitions []uint32
	Rounds     int    // outputs that each of them was sent
	Pairs      uint64 // in all
}

// Finish ends partitions, drains them and answers with what they hold. The books
// must balance.
func (r *StreamReceiver) Finish(in *StreamFinish, out *StreamFolded) error {
	if r.receiver == nil {
		return errors.New("does not receive")
	}
	ctx := r.ctx
	for _, p := range in.Partitions {
		id := shuffle.TargetID{Job: job().ID, Partition: p}
		books, err := r.receiver.Totals(id)
		if err != nil {
			return err
		}
		res, err := r.receiver.Finish(ctx, id, receive.Expect{Streams: books.Streams, Pairs: books.Sent})
		if err != nil {
			return err
		}
		out.Kernel += res.Kernel
		out.User += res.User
		err = res.Walk(ctx, func(key []byte, lanes []int64) error {
			out.Keys++
			out.Sum += lanes[0]
			out.Check += uint64(lanes[0]) * Seed.HashBytes(key)
			return nil
		})
		if err = errors.Join(err, res.Close()); err != nil {
			return err
		}
	}
	out.Pairs = out.Kernel + out.User
	return nil
}

// Close ends the receiver and detaches the programs.
func (r *StreamReceiver) Close() error {
	var errs []error
	if r.stats != nil {
		errs = append(errs, r.stats.Close())
	}
	if r.control != nil {
		errs = append(errs, r.control.Close())
	}
	if r.receiver != nil {
		errs = append(errs, r.receiver.Close())
	}
	if r.kernel != nil {
		errs = append(errs, r.kernel.Close())
	}
	return errors.Join(errs...)
}

// StreamSender is the role that pushes committed outputs.
type StreamSender struct {
	Meter
	ctx     context.Context // the role's
	in      StreamSend
	kernel  *bpf.Host
	past    *bpf.Transmitter // nil: frames go by sockets
	jobs    *shuffle.JobSlots
	control *controlClient
	bulk    *push.Sender
	single  *push.Sender // one frame at a time
	outputs []*commit.Output
	trips   *commit.Output
	tripped uint32
}

// StreamSend says what a StreamSender gets ready.
type StreamSend struct {
	Interface  string // that programs are attached to; "": none
	Control    string // path of the control plane's socket
	To         netip.Addr
	Keys       int
	Trips      int  // frames that round trips are measured with at most
	Sockets    bool // frames go by sockets even if there are programs
	Concurrent int  // outputs that are under way at once; 0: as many as keep the sender busy
}

// framePairs is how many pairs a frame holds.
var framePairs = wire.Keyed(1, 1, false).PairsPerFrame()

// Open makes the outputs and attaches programs.
func (s *StreamSender) Open(in *StreamSend, _ *None) (err error) {
	if s.bulk != nil {
		return errors.New("is open already")
	}
	s.in = *in
	if s.control, err = dialControl(in.Control); err != nil {
		return err
	}
	n := Partitions(in.Keys)
	for p := range n {
		o, err := output(p, in.Keys, n)
		if err != nil {
			return err
		}
		s.outputs = append(s.outputs, o)
	}
	if in.Trips > 0 {
		if s.trips, err = output(0, in.Trips*framePairs, 1); err != nil {
			return err
		}
	}
	if s.in.Concurrent <= 0 {
		s.in.Concurrent = min(max(2_000_000/int(s.outputs[0].Manifest().Pairs), 2), 128)
	}
	opts := push.Options{Retry: 3 * time.Second, Stall: 30 * time.Second}
	if in.Interface != "" {
		s.kernel, err = bpf.Open(bpf.Options{Interfaces: []string{in.Interface}, Limits: streamLimits})
		if err != nil {
			return err
		}
		s.jobs = shuffle.NewJobSlots(s.kernel, streamLimits.Jobs)
		opts.Kernel, opts.Jobs = s.kernel, s.jobs
		if !in.Sockets {
			if s.past, err = bpf.NewTransmitter(s.kernel); err != nil {
				return err
			}
			opts.Transmitter = s.past
		}
	} else {
		opts.Memory = shuffle.NewMemory(shuffle.Limits{Streams: 1, Targets: 1, Outgoing: streamLimits.Outgoing})
	}
	// Both take slots of the same memory, so there is one at a time.
	if s.bulk, err = push.New(opts); err != nil {
		return err
	}
	runtime.GC() // what made the outputs is not to be collected while they are sent
	return nil
}

// output makes a committed output of every n-th of so many keys, from key p on.
func output(p, keys, n int) (*commit.Output, error) {
	spec := job()
	b := commit.NewBuilder(&spec)
	var key [KeyBytes]byte
	one := []int64{1}
	for i := p; i < keys; i += n {
		PutKey(key[:], i)
		b.Add(key[:], one)
	}
	return b.Commit()
}

// StreamPush says what is to be pushed: each output so many times, as that of as
// many map tasks.
type StreamPush struct{ First, Rounds int }

// StreamPushed is what a push did.
type StreamPushed struct {
	Sent
	push.Report // sums of counts; no round trips
}

// Push pushes outputs, some at a time, until all are folded and confirmed.
func (s *StreamSender) Push(in *StreamPush, out *StreamPushed) error {
	if s.bulk == nil {
		return errors.New("is not open")
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	began := time.Now()
	var next atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range s.in.Concurrent {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= in.Rounds*len(s.outputs) || ctx.Err() != nil {
					return
				}
				o, p := s.outputs[i%len(s.outputs)], uint32(i%len(s.outputs))
				r, err := s.push(ctx, s.bulk, o, p, uint32(in.First+i/len(s.outputs)))
				mu.Lock()
				out.Report = addReports(out.Report, r)
				mu.Unlock()
				if err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	out.Sent = Sent{out.Report.Pairs, time.Since(began)}
	return nil
}

func (s *StreamSender) push(ctx context.Context, via *push.Sender, o *commit.Output, partition, task uint32) (push.Report, error) {
	spec := job()
	return via.Push(ctx, push.Request{
		Control: s.control, Dest: s.in.To, Output: o, Job: spec, Map: task,
		Target: shuffle.TargetSpec{ID: shuffle.TargetID{Job: spec.ID, Partition: partition}, Keys: o.Manifest().Keys()},
	})
}

func addReports(a, b push.Report) push.Report {
	a.Pairs += b.Pairs
	a.Frames += b.Frames
	a.Segments += b.Segments
	a.Sent += b.Sent
	a.Retransmitted += b.Retransmitted
	a.Spurious += b.Spurious
	a.Delivered += b.Delivered
	a.Acks += b.Acks
	a.Wakeups += b.Wakeups
	a.Probes += b.Probes
	a.Bursts += b.Bursts
	a.Past += b.Past
	a.StatusCalls += b.StatusCalls
	return a
}

// StreamTrips are round trips, from when a frame was stamped to when its answer was
// taken in, where that is done: by a program or by the sending process.
type StreamTrips struct {
	Sent
	Kernel, User push.RTT
	Resent       uint64
}

// Trips pushes an output with one frame under way at a time.
func (s *StreamSender) Trips(_ *None, out *StreamTrips) (err error) {
	if s.trips == nil {
		return errors.New("has no output for round trips")
	}
	if s.single == nil {
		opts := push.Options{Retry: 3 * time.Second, Stall: 30 * time.Second, Ports: 1, Window: 1}
		if s.kernel != nil {
			opts.Kernel, opts.Jobs = s.kernel, s.jobs
			if s.past != nil {
				opts.Transmitter = s.past
			}
		}
		if s.single, err = push.New(opts); err != nil {
			return err
		}
	}
	began := time.Now()
	r, err := s.push(s.ctx, s.single, s.trips, tripTarget, s.tripped)
	s.tripped++
	out.Sent = Sent{r.Pairs, time.Since(began)}
	out.Kernel, out.User, out.Resent = r.KernelRTT, r.UserRTT, r.Retransmitted
	return err
}

// Blast sends the frames of all outputs so many times without a receiver that
// knows of them, as the sender does. It is what sending alone costs.
func (s *StreamSender) Blast(rounds *int, out *Sent) error {
	if s.bulk == nil {
		return errors.New("is not open")
	}
	began := time.Now()
	var past shuffle.Transmitter
	if s.past != nil {
		past = s.past
	}
	pairs, err := blast(s.ctx, s.outputs, *rounds, netip.AddrPortFrom(s.in.To, shuffle.Port), past)
	*out = Sent{pairs, time.Since(began)}
	return err
}

// Close ends the senders and detaches the programs.
func (s *StreamSender) Close() error {
	var errs []error
	for _, p := range []*push.Sender{s.single, s.bulk} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	if s.past != nil {
		errs = append(errs, s.past.Close())
	}
	if s.kernel != nil {
		errs = append(errs, s.kernel.Close())
	}
	if s.control != nil {
		errs = append(errs, s.control.Close())
	}
	return errors.Join(errs...)
}

// folderPrefix begins the name of a session's folder.
const folderPrefix = "quern-bench-fold-"

// streamSession is our own protocol between two places.
type streamSession struct {
	base
	keys   int
	rounds int
	trips  int
	times  int             // trips pushed
	folder *scratch.Folder // of the control plane's socket, and of what the roles write
}

// openStreams opens the kernel path if iface names an interface at both places, else
// the socket path.
func openStreams(ctx context.Context, from, to Place, iface string, c Config) (_ session, err error) {
	s := &streamSession{base: base{path: "socket", keys: c.Keys}, keys: c.Keys, trips: c.Trips}
	if iface != "" {
		s.path = "kernel"
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.folder, err = scratch.New("", folderPrefix); err != nil {
		return nil, err
	}
	if err := s.start(ctx, from, to, "stream-send", "stream-receive"); err != nil {
		return nil, err
	}
	control := filepath.Join(s.folder.Path(), "control")
	in := StreamReceive{
		Interface: iface, Control: control, Listen: to.Address(), Temp: s.folder.Path(),
		TableMemory: max(512<<20, int64(Partitions(c.Keys)*runtime.NumCPU())*(100<<20)),
		FoldMemory:  max(512<<20, int64(c.Keys)*400),
	}
	if err := s.receive.Call(ctx, "Open", &in, &None{}); err != nil {
		return nil, err
	}
	to4, err := netip.ParseAddr(to.Address())
	if err != nil {
		return nil, err
	}
	out := StreamSend{Interface: iface, Control: control, To: to4, Keys: c.Keys, Trips: c.Trips}
	if err := s.send.Call(ctx, "Open", &out, &None{}); err != nil {
		return nil, err
	}
	_, err = s.bulk(ctx, 1) // keys are in the tables from now on
	return s, err
}

func (s *streamSession) bulk(ctx context.Context, pairs int) (Sent, error) {
	rounds := max(1, (pairs+s.keys-1)/s.keys)
	var out StreamPushed
	err := s.send.Call(ctx, "Push", &StreamPush{s.rounds, rounds}, &out)
	s.rounds += rounds
	s.note = pushedWords(&out)
	return out.Sent, err
}

func (s *streamSession) trip(ctx context.Context) (p50, p99 time.Duration, sent Sent, err error) {
	var out StreamTrips
	if err = s.send.Call(ctx, "Trips", &None{}, &out); err != nil {
		return 0, 0, sent, err
	}
	s.times++
	own, other := out.User, out.Kernel
	if s.path == "kernel" {
		own, other = out.Kernel, out.User
	}
	if other.Samples*100 > own.Samples {
		return 0, 0, sent, fmt.Errorf("round trips of the %s path: %d answers of its own, %d of the other end", s.path, own.Samples, other.Samples)
	}
	return own.P50, own.P99, out.Sent, nil
}

func (s *streamSession) alone(ctx context.Context, pairs int) (Sent, error) {
	if s.path != "kernel" {
		return Sent{}, nil
	}
	rounds := max(1, (pairs+s.keys-1)/s.keys)
	var out Sent
	err := s.send.Call(ctx, "Blast", &rounds, &out)
	return out, err
}

// program returns what the receiving program takes per pair.
func (s *streamSession) program(ctx context.Context, pairs int) (float64, error) {
	if s.path != "kernel" {
		return 0, nil
	}
	on, off := true, false
	if err := s.receive.Call(ctx, "TakeTimes", &on, &None{}); err != nil {
		return 0, err
	}
	var before, after StreamStats
	if err := s.receive.Call(ctx, "Stats", &None{}, &before); err != nil {
		return 0, err
	}
	sent, err := s.bulk(ctx, pairs)
	if err != nil {
		return 0, err
	}
	if err := s.receive.Call(ctx, "Stats", &None{}, &after); err != nil {
		return 0, err
	}
	return float64(after.Time-before.Time) / float64(sent.Pairs), s.receive.Call(ctx, "TakeTimes", &off, &None{})
}

func (s *streamSession) verify(ctx context.Context) error {
	in := StreamFinish{Rounds: s.rounds}
	for p := range Partitions(s.keys) {
		in.Partitions = append(in.Partitions, uint32(p))
	}
	var stats StreamStats
	if err := s.receive.Call(ctx, "Stats", &None{}, &stats); err != nil {
		return err
	}
	var out StreamFolded
	if err := s.receive.Call(ctx, "Finish", &in, &out); err != nil {
		return err
	}
	want := Expect(s.keys, s.rounds)
	if out.Folded != want {
		return fmt.Errorf("the %s path folded %v, not %v", s.path, out.Folded, want)
	}
	if s.times > 0 {
		var trips StreamFolded
		if err := s.receive.Call(ctx, "Finish", &StreamFinish{Partitions: []uint32{tripTarget}}, &trips); err != nil {
			return err
		}
		if want := Expect(s.trips*framePairs, s.times); trips.Folded != want {
			return fmt.Errorf("round trips of the %s path folded %v, not %v", s.path, trips.Folded, want)
		}
	}
	s.inKernel = float64(out.Kernel) / math.Max(float64(out.Pairs), 1)
	s.note = statsWords(&stats)
	return nil
}

func (s *streamSession) close() error {
	err := s.base.close()
	if s.folder != nil {
		err = errors.Join(err, s.folder.Close())
	}
	return err
}
