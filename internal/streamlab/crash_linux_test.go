// SPDX-License-Identifier: Apache-2.0

package streamlab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/rpc"
)

// childEnv turns the test binary into a receiver's process.
const childEnv = "QUERN_STREAMLAB_CHILD"

func TestMain(m *testing.M) {
	if v := os.Getenv(childEnv); v != "" {
		var cfg ChildConfig
		err := json.Unmarshal([]byte(v), &cfg)
		if err == nil {
			err = Child(cfg, os.Stdin, os.Stdout)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// process is a receiver's process as its starter sees it.
type process struct {
	cmd     *netlab.Command
	in      io.WriteCloser
	out     *json.Decoder
	resumed bool
}

func startChild(ctx context.Context, host *netlab.Host, cfg ChildConfig) (*process, error) {
	c, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	cmd := host.Command(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(c))
	cmd.Stderr = os.Stderr
	p := &process{cmd: cmd}
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = json.NewDecoder(out)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var a answer
	if err := p.out.Decode(&a); err != nil || !a.Ready {
		return nil, errors.Join(fmt.Errorf("a receiver's process did not get ready: %w", err), cmd.Wait())
	}
	p.resumed = a.Resumed
	return p, nil
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// finish reads a partition's rows and compares them.
func (p *process) finish(j *Job, part int) (end answer, err error) {
	expect, err := j.Expect(part)
	if err != nil {
		return end, err
	}
	target := j.Target(part)
	if err := json.NewEncoder(p.in).Encode(order{Finish: &target, Expect: expect}); err != nil {
		return end, err
	}
	got := Result{}
	for {
		var a answer
		if err := p.out.Decode(&a); err != nil {
			return end, err
		}
		if a.End {
			end = a
			break
		}
		var lanes []*big.Int
		for _, v := range a.Lanes {
			lanes = append(lanes, big.NewInt(v))
		}
		got[string(a.Key)] = lanes
	}
	want := j.Want(part)
	switch {
	case end.Again:
		return end, nil
	case want.Overflows():
		if !end.Overrun {
			return end, fmt.Errorf("a sum that does not fit was not reported: %q", end.Error)
		}
		return end, nil
	case end.Error != "":
		return end, errors.New(end.Error)
	case end.Kernel+end.User != expect.Pairs:
		return end, fmt.Errorf("%d pairs folded in the kernel, %d in user space; %d were sent", end.Kernel, end.User, expect.Pairs)
	case len(got) != len(want):
		return end, fmt.Errorf("%d keys came out, want %d", len(got), len(want))
	}
	for key, w := range want {
		g, ok := got[key]
		if !ok {
			return end, fmt.Errorf("key %q did not come out", key)
		}
		for i := range w {
			if w[i].Cmp(g[i]) != 0 {
				return end, fmt.Errorf("key %q, lane %d: %d, want %d", key, i, g[i], w[i])
			}
		}
	}
	return end, nil
}

// TestKilledReceiver kills a receiver's process in mid-stream, once or more, at
// times that the seed chooses, while two hosts send to it. What comes out in the
// end is as if nothing had happened.
func TestKilledReceiver(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	runs, first := env(t, "QUERN_CRASH_RUNS", sample(4, 200)), uint64(env(t, "QUERN_STREAM_SEED", 1))
	lab, err := netlab.New(netlab.Options{Hosts: 3, Seed: first})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	}()
	var resumed, again, kernel int
	// Tables are made while frames come already, and receivers are killed soon: on a slow machine some runs end before the
	// kernel has folded anything. Then more seeds are tried.
	tried := func() bool { return runs < 4 || resumed > 0 && kernel > 0 }
	for seed := first; seed < first+uint64(runs) || !tried() && !t.Failed() && seed < first+uint64(runs)+16; seed++ {
		j := NewJob(seed, Size{Maps: 4, Partitions: 4, Keys: 100_000, Pairs: 200_000})
		s := NewSetting(seed, 3)
		s.Kernel = []bool{true, true, true}
		if seed%4 == 0 {
			s.Kernel[2] = false
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		c := &crash{t: t, lab: lab, job: j, setting: s, dir: filepath.Join(t.TempDir(), fmt.Sprintf("seed%d", seed))}
		err := c.run(ctx, rand.New(rand.NewPCG(seed, 7)))
		cancel()
		resumed += c.resumed
		again += c.again
		kernel += int(c.kernel)
		if err != nil {
			t.Errorf("%s\non %s, %d kills:\n%v\nto repeat: QUERN_CRASH_RUNS=1 QUERN_STREAM_SEED=%d go test -run TestKilledReceiver ./internal/streamlab", j, s, c.kills, err, seed)
			continue
		}
		t.Logf("%s: %d kills, %d times taken up, %d partitions sent again, %d pairs of the kernel's", j, c.kills, c.resumed, c.again, c.kernel)
	}
	if !tried() {
		t.Errorf("state was taken up %d times, and %d pairs folded in the kernel: both were to be tried", resumed, kernel)
	}
}

type crash struct {
	t       *testing.T
	lab     *netlab.Lab
	job     *Job
	setting Setting
	dir     string

	child *process

	kills, resumed, again int
	kernel                uint64
}

func (c *crash) start(ctx context.Context) error {
	s := c.setting
	p, err := startChild(ctx, c.lab.Host(3), ChildConfig{
		Kernel: s.Kernel[2], Dir: c.dir, TableBits: s.TableBits, TableMemory: s.TableMemory, FoldMemory: s.FoldMemory,
		Verbose: os.Getenv("QUERN_STREAM_VERBOSE") != "",
	})
	if err != nil {
		return err
	}
	c.child = p
	if p.resumed {
		c.resumed++
	}
	return nil
}

func (c *crash) run(ctx context.Context, rng *rand.Rand) (err error) {
	j, s := c.job, c.setting
	if err := c.lab.SetFaults(s.Faults); err != nil {
		return err
	}
	var ends []*end
	defer func() {
		for _, e := range ends {
			err = errors.Join(err, e.close())
		}
	}()
	for i := range 2 {
		e, err := s.open(c.lab.Host(i+1), s.Kernel[i])
		if err != nil {
			return err
		}
		ends = append(ends, e)
	}
	if err := c.start(ctx); err != nil {
		return err
	}
	defer func() {
		// A clean stop leaves nothing.
		_ = json.NewEncoder(c.child.in).Encode(order{Close: true})
		err = errors.Join(err, c.child.cmd.Wait())
		if left := bpf.Leftovers(filepath.Dir(c.dir)); len(left) > 0 {
			err = errors.Join(err, fmt.Errorf("left behind: %q", left))
		}
	}()
	to := (&end{host: c.lab.Host(3)}).addr(s.IPv6)
	clients := make([]shuffle.Control, len(ends))
	for i, e := range ends {
		conn, err := dialIn(e.host, to)
		if err != nil {
			return err
		}
		defer conn.Close()
		clients[i] = rpc.NewClient(conn)
	}
	push := func(parts []int) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		var wg sync.WaitGroup
		for _, p := range parts {
			for m := range j.Maps {
				wg.Go(func() {
					if _, err := j.push(ctx, ends[m%2], clients[m%2], to, m, p); err != nil {
						cancel(err)
					}
				})
			}
		}
		wg.Wait()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return nil
	}
	var parts []int
	for p := range j.Partitions {
		parts = append(parts, p)
	}
	pushed := make(chan error, 1)
	go func() { pushed <- push(parts) }()
	kills := 1 + rng.IntN(3)
	for range kills {
		select {
		case err = <-pushed:
			pushed <- err
		case <-time.After(time.Duration(10<<rng.IntN(7)) * time.Millisecond):
		}
		c.kills++
		c.child.kill()
		if err := c.start(ctx); err != nil {
			return errors.Join(err, <-pushed)
		}
	}
	if err := <-pushed; err != nil {
		return err
	}
	for tries := 0; len(parts) > 0; tries++ {
		if tries == 5 {
			return fmt.Errorf("partitions %v are never complete", parts)
		}
		var rest []int
		for _, p := range parts {
			end, err := c.child.finish(j, p)
			if err != nil {
				return fmt.Errorf("partition %d: %w", p, err)
			}
			c.kernel += end.Kernel
			if end.Again {
				rest = append(rest, p)
			}
		}
		c.again += len(rest)
		if parts = rest; len(parts) > 0 {
			if err := push(parts); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestCleanTargetGoesOn kills a receiver's process between two map tasks' outputs,
// of which only the kernel had folded anything: what it had folded is still there,
// and nothing of it is sent again.
func TestCleanTargetGoesOn(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	lab, err := netlab.New(netlab.Options{Hosts: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	}()
	j := &Job{Seed: 1, Maps: 2, Partitions: 1, Keys: 5000, shape: "numbered"}
	j.Spec = shuffle.JobSpec{ID: shuffle.JobID{1}, Ops: []fold.Op{fold.Sum}}
	for m := range j.Maps {
		part := map[string][]int64{}
		for i := range j.Keys {
			part[fmt.Sprintf("key%d", i)] = []int64{int64(i + m)}
		}
		j.Output = append(j.Output, []map[string][]int64{part})
	}
	s := Setting{Hosts: 3, Kernel: []bool{true, true, true}, Ports: 1, Stall: 10 * time.Second}
	c := &crash{t: t, lab: lab, job: j, setting: s, dir: filepath.Join(t.TempDir(), "clean")}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e, err := s.open(lab.Host(1), true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := c.start(ctx); err != nil {
		t.Fatal(err)
	}
	to := lab.Host(3).IPv4()
	conn, err := dialIn(e.host, to)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctl := rpc.NewClient(conn)
	var sent [2]uint64
	for m := range j.Maps {
		r, err := j.push(ctx, e, ctl, to, m, 0)
		if err != nil {
			t.Fatal(err)
		}
		sent[m] = uint64(r.Frames) + r.Retransmitted
		if m == 0 {
			c.child.kill()
			if err := c.start(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	end, err := c.child.finish(j, 0)
	if err != nil {
		t.Fatal(err)
	}
	if c.resumed != 1 || end.Again || end.Kernel != 10000 || end.User != 0 {
		t.Errorf("taken up %d times, to be sent again: %v, kernel %d, user %d (frames sent %d); want 1, false, 10000, 0", c.resumed, end.Again, end.Kernel, end.User, sent)
	}
	if err := json.NewEncoder(c.child.in).Encode(order{Close: true}); err != nil {
		t.Error(err)
	}
	if err := c.child.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// dialIn connects a host to the control plane at an address.
func dialIn(host *netlab.Host, to netip.Addr) (*grpc.ClientConn, error) {
	dial := func(ctx context.Context, address string) (conn net.Conn, err error) {
		err = host.Do(func() error {
			// Dialled by this thread, so in the host: no second attempt by another one.
			d := net.Dialer{FallbackDelay: -1}
			conn, err = d.DialContext(ctx, "tcp", address)
			return err
		})
		return conn, err
	}
	return grpc.NewClient("passthrough:///"+netip.AddrPortFrom(to, ControlPort).String(), grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()), rpc.Reconnect())
}
