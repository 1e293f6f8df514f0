// SPDX-License-Identifier: Apache-2.0

package streamlab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/push"
	"github.com/quernmr/quern/shuffle/receive"
)

// end is one host of a run: it sends the output of map tasks and folds partitions.
type end struct {
	host     *netlab.Host
	kernel   *bpf.Host
	past     *bpf.Transmitter
	jobs     *shuffle.JobSlots
	receiver *receive.Receiver
	sender   *push.Sender
}

// limits are small, so that slots are used again within a run.
var limits = shuffle.Limits{Streams: 64, Targets: 32, Outgoing: 64, Jobs: 8}

func (s *Setting) open(host *netlab.Host, kernel bool) (e *end, err error) {
	e = &end{host: host}
	err = host.Do(func() error {
		ropts := receive.Options{
			Port: shuffle.Port, Limits: limits, FoldMemory: s.FoldMemory, TableMemory: s.TableMemory, TableBits: s.TableBits,
			Readers: 1, ReceiveBuffer: 1 << 20, Log: s.Log,
		}
		sopts := push.Options{Ports: s.Ports, Stall: s.Stall, Log: s.Log, Window: 64}
		if kernel {
			if e.kernel, err = bpf.Open(bpf.Options{Interfaces: []string{netlab.InterfaceName}, Limits: limits, TableMemory: s.TableMemory}); err != nil {
				return err
			}
			e.jobs = shuffle.NewJobSlots(e.kernel, limits.Jobs)
			ropts.Kernel, ropts.Jobs = e.kernel, e.jobs
			sopts.Kernel, sopts.Jobs = e.kernel, e.jobs
			if s.Past {
				switch e.past, err = bpf.NewTransmitter(e.kernel); {
				case err == nil:
					sopts.Transmitter = e.past
				case !errors.Is(err, bpf.ErrUnsupported):
					return err
				}
			}
		}
		if e.receiver, err = receive.New(ropts); err != nil {
			return err
		}
		e.sender, err = push.New(sopts)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("host %s: %w", host, err), e.close())
	}
	return e, nil
}

func (e *end) close() error {
	var errs []error
	if e.sender != nil {
		errs = append(errs, e.sender.Close())
	}
	if e.receiver != nil {
		errs = append(errs, e.receiver.Close())
	}
	if e.past != nil {
		errs = append(errs, e.past.Close())
	}
	if e.kernel != nil {
		errs = append(errs, e.kernel.Close())
	}
	return errors.Join(errs...)
}

func (e *end) addr(ipv6 bool) netip.Addr {
	if ipv6 {
		return e.host.IPv6()
	}
	return e.host.IPv4()
}

// Run sends a job's outputs between the hosts of a lab: map task m from host m,
// partition p to the host after. It returns an error unless every partition is
// what plain arithmetic says and the books balance.
func Run(ctx context.Context, lab *netlab.Lab, s Setting, j *Job) (report Report, err error) {
	begin := time.Now()
	defer func() { report.Time = time.Since(begin) }()
	if err := lab.SetFaults(s.Faults); err != nil {
		return report, err
	}
	ends := make([]*end, s.Hosts)
	defer func() {
		for _, e := range ends {
			if e != nil {
				err = errors.Join(err, e.close())
			}
		}
	}()
	for i := range ends {
		if ends[i], err = s.open(lab.Host(i+1), s.Kernel[i]); err != nil {
			return report, err
		}
	}
	// The caller's context may be cut short by the first failure.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for m := range j.Maps {
		for p := range j.Partitions {
			from, to := ends[m%s.Hosts], ends[(p+1)%s.Hosts]
			wg.Go(func() {
				r, err := j.push(ctx, from, to.receiver, to.addr(s.IPv6), m, p)
				mu.Lock()
				report.Pairs += r.Pairs
				report.Retransmitted += r.Retransmitted
				report.Delivered += r.Delivered
				report.Past += r.Past
				mu.Unlock()
				if err != nil {
					cancel(err)
				}
			})
		}
	}
	wg.Wait()
	if ctx.Err() != nil {
		return report, context.Cause(ctx)
	}
	for p := range j.Partitions {
		e := ends[(p+1)%s.Hosts]
		if err := j.check(ctx, e.receiver, p, &report); err != nil {
			return report, fmt.Errorf("partition %d at %s: %w", p, e.host, err)
		}
	}
	for _, e := range ends {
		st := e.receiver.Stats()
		report.Receivers = append(report.Receivers, st)
		report.Flips += st.Flips
		report.Runs += st.Runs
	}
	return report, nil
}

// Target names a partition of the job.
func (j *Job) Target(p int) shuffle.TargetID {
	return shuffle.TargetID{Job: j.Spec.ID, Partition: uint32(p)}
}

// Commit makes the committed output of a map task for a partition.
func (j *Job) Commit(m, p int) (*commit.Output, error) {
	b := commit.NewBuilder(&j.Spec)
	for key, v := range j.Output[m][p] {
		b.Add([]byte(key), v)
	}
	return b.Commit()
}

func (j *Job) push(ctx context.Context, from *end, ctl shuffle.Control, dest netip.Addr, m, p int) (push.Report, error) {
	out, err := j.Commit(m, p)
	if err != nil {
		return push.Report{}, err
	}
	var report push.Report
	// A sender opens its sockets when the first push to a destination begins.
	err = from.host.Do(func() error {
		var err error
		report, err = from.sender.Push(ctx, push.Request{
			Control: ctl, Dest: dest, Output: out, Job: j.Spec, Map: uint32(m),
			Target: shuffle.TargetSpec{ID: j.Target(p), Keys: out.Manifest().Keys()},
		})
		return err
	})
	return report, err
}

// Finisher is what check asks of a receiver.
type Finisher interface {
	Finish(ctx context.Context, id shuffle.TargetID, expect receive.Expect) (*receive.Result, error)
}

// Expect says what the manifests of a partition come to.
func (j *Job) Expect(p int) (receive.Expect, error) {
	expect := receive.Expect{Check: make([]uint64, len(j.Spec.Ops)), SumAbs: make([]commit.Total, len(j.Spec.Ops))}
	for m := range j.Maps {
		out, err := j.Commit(m, p)
		if err != nil {
			return expect, err
		}
		man := out.Manifest()
		expect.Streams += len(man.Segments)
		expect.Pairs += man.Pairs
		for i, c := range man.Check {
			expect.Check[i] += c
			expect.SumAbs[i] = expect.SumAbs[i].Add(man.SumAbs[i])
		}
	}
	return expect, nil
}

func (j *Job) check(ctx context.Context, r Finisher, p int, report *Report) error {
	expect, err := j.Expect(p)
	if err != nil {
		return err
	}
	res, err := r.Finish(ctx, j.Target(p), expect)
	if err != nil {
		return err
	}
	defer func() { _ = res.Close() }()
	report.Kernel += res.Kernel
	report.User += res.User
	if res.Kernel+res.User != expect.Pairs {
		return fmt.Errorf("%d pairs folded in the kernel and %d in user space; %d were sent", res.Kernel, res.User, expect.Pairs)
	}
	want := j.Want(p)
	overflows := want.Overflows()
	keys := 0
	var last []byte
	err = res.Walk(ctx, func(key []byte, lanes []int64) error {
		if keys > 0 && bytes.Compare(last, key) >= 0 {
			return fmt.Errorf("key %q comes after %q", key, last)
		}
		last = append(last[:0], key...)
		keys++
		w, ok := want[string(key)]
		if !ok {
			return fmt.Errorf("key %q was never sent", key)
		}
		for i, v := range lanes {
			if !w[i].IsInt64() || w[i].Int64() != v {
				return fmt.Errorf("key %q, lane %d: %d, want %d", key, i, v, w[i])
			}
		}
		return nil
	})
	switch {
	case overflows && errors.Is(err, receive.ErrOverflow):
		report.Overflows++
		return nil
	case overflows:
		return fmt.Errorf("a sum that does not fit was not reported: %w", err)
	case err != nil:
		return err
	case keys != len(want):
		return fmt.Errorf("%d keys came out, want %d", keys, len(want))
	}
	return nil
}
