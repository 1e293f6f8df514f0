// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/push"
	"github.com/quernmr/quern/shuffle/receive"
	"github.com/quernmr/quern/shuffle/rpc"
	"github.com/quernmr/quern/shuffle/spill"
	"github.com/quernmr/quern/shuffle/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for.
const patience = time.Minute

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// worker is an exchange with what it works with.
type worker struct {
	t        *testing.T
	id       string
	address  string
	dir      string
	x        *Exchange
	receiver *receive.Receiver
	sender   *push.Sender
	server   *grpc.Server
	served   chan struct{}
	mu       sync.Mutex
	conns    map[string]*grpc.ClientConn
	// of a lab; nil: of this host
	dialIn func(ctx context.Context, address string) (net.Conn, error)
	close  func() error
	// hooks of the server; nil: none
	onPush  func(*api.PushRequest) error
	onFetch func(*api.FetchRequest, *api.FetchBlock) (*api.FetchBlock, error)
}

type settings struct {
	receive receive.Options
	push    push.Options
	options Options
}

// start starts a worker.
func start(t *testing.T, id string, s settings) *worker {
	t.Helper()
	w := &worker{t: t, id: id, dir: t.TempDir(), conns: map[string]*grpc.ClientConn{}}
	s.receive.Listen = "127.0.0.1"
	s.receive.TempDir = w.dir
	if s.receive.FoldMemory == 0 {
		s.receive.FoldMemory = 16 << 20
	}
	s.receive.Readers = 1
	if testing.Verbose() && os.Getenv("QUERN_TEST_LOG") != "" {
		log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("worker", id)
		s.receive.Log, s.push.Log, s.options.Log = log, log, log
	}
	var err error
	if w.receiver, err = receive.New(s.receive); err != nil {
		t.Fatal(err)
	}
	if w.sender, err = push.New(s.push); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.run(s, l)
	return w
}

// run starts a worker that has a receiver and a sender.
func (w *worker) run(s settings, l net.Listener) {
	t, id := w.t, w.id
	t.Helper()
	var err error
	w.address = l.Addr().String()
	s.options.Dir, s.options.Receiver, s.options.Sender, s.options.Dial = w.dir, w.receiver, w.sender, w.dial
	s.options.Address, s.options.Worker = w.address, id
	if w.x, err = New(s.options); err != nil {
		t.Fatal(err)
	}
	w.serve(l)
	t.Cleanup(w.stop)
}

type peerServer struct {
	api.UnimplementedPeerServer
	w *worker
}

func (p peerServer) Push(req *api.PushRequest, stream grpc.ServerStreamingServer[api.PushReply]) error {
	if p.w.onPush != nil {
		if err := p.w.onPush(req); err != nil {
			return err
		}
	}
	return p.w.x.Push(req, stream)
}

// hooked lets a test change what is sent.
type hooked struct {
	grpc.ServerStreamingServer[api.FetchBlock]
	req  *api.FetchRequest
	hook func(*api.FetchRequest, *api.FetchBlock) (*api.FetchBlock, error)
}

func (h hooked) Send(b *api.FetchBlock) error {
	b, err := h.hook(h.req, b)
	if err != nil {
		return err
	}
	return h.ServerStreamingServer.Send(b)
}

func (p peerServer) Fetch(req *api.FetchRequest, stream grpc.ServerStreamingServer[api.FetchBlock]) error {
	if p.w.onFetch != nil {
		stream = hooked{stream, req, p.w.onFetch}
	}
	return p.w.x.Fetch(req, stream)
}

func (w *worker) serve(l net.Listener) {
	w.server = grpc.NewServer()
	api.RegisterPeerServer(w.server, peerServer{w: w})
	rpc.NewServer(w.x.Control()).Register(w.server)
	w.served = make(chan struct{})
	go func() {
		defer close(w.served)
		_ = w.server.Serve(l)
	}()
}

// cut breaks the worker's control plane.
func (w *worker) cut() {
	w.server.Stop()
	<-w.served
}

// mend brings it back at the same address.
func (w *worker) mend() {
	w.t.Helper()
	l, err := net.Listen("tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.serve(l)
}

func (w *worker) dial(_ context.Context, address string) (*grpc.ClientConn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.conns[address]; c != nil {
		return c, nil
	}
	opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), rpc.Reconnect()}
	if w.dialIn != nil {
		opts = append(opts, grpc.WithContextDialer(w.dialIn))
	}
	c, err := grpc.NewClient("passthrough:///"+address, opts...)
	if err == nil {
		w.conns[address] = c
	}
	return c, err
}

func (w *worker) stop() {
	w.cut()
	err := w.x.Close()
	for _, c := range w.conns {
		err = errors.Join(err, c.Close())
	}
	w.x.mu.Lock()
	if len(w.x.jobs) > 0 {
		err = errors.Join(err, fmt.Errorf("%d jobs are left", len(w.x.jobs)))
	}
	w.x.mu.Unlock()
	if w.close != nil {
		err = errors.Join(err, w.close())
	} else {
		err = errors.Join(err, w.sender.Close(), w.receiver.Close())
	}
	if err != nil {
		w.t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(w.dir, "*")); len(left) > 0 {
		w.t.Errorf("left behind: %q", left)
	}
}

// value is a pair's value: the exact sums (of other operations, just the number).
type value []*big.Int

// testJob is a job with the outputs of its map tasks, at the scale of each.
type testJob struct {
	constants *api.JobConstants
	ops       []fold.Op
	scales    [][]uint8            // per map task, nil: none
	outputs   [][]map[string]value // per map task and partition
	grouped   [][][][2]string      // per map task and partition, sorted
}

func newJob(parts int, ops ...fold.Op) *testJob {
	c := &api.JobConstants{Id: make([]byte, 16), Secret: make([]byte, 16), Partitions: uint32(parts), Parts: uint32(parts), SeedA: mathrand.Uint64(), SeedB: mathrand.Uint64()}
	_, _ = rand.Read(c.Id)
	_, _ = rand.Read(c.Secret)
	for _, op := range ops {
		c.Ops = append(c.Ops, byte(op))
	}
	return &testJob{constants: c, ops: ops}
}

func (j *testJob) id() string { return fmt.Sprintf("%x", j.constants.Id) }

func (j *testJob) attempt(m int, number uint32) *api.Attempt {
	return &api.Attempt{Job: j.id(), Stage: "map", Task: uint32(m), Number: number, Epoch: 1}
}

var two64 = new(big.Int).Lsh(big.NewInt(1), 64)

// split returns a number as lanes and carries have it: lo + hi x 2^64, lo signed.
func split(v *big.Int) (lo, hi int64) {
	lo = int64(new(big.Int).And(v, new(big.Int).Sub(two64, big.NewInt(1))).Uint64())
	h := new(big.Int).Sub(v, big.NewInt(lo))
	return lo, h.Div(h, two64).Int64()
}

// write writes the run of a map task, and describes it.
func (j *testJob) write(dir string, m int, number uint32) (Output, error) {
	o := Output{Attempt: j.attempt(m, number), Constants: j.constants, Path: filepath.Join(dir, fmt.Sprintf("map-%d-%d-%x", m, number, mathrand.Uint64()))}
	opts := fold.RunOptions
	if j.constants.Grouped {
		opts = spill.Options{}
	}
	w, err := spill.Create(o.Path, opts)
	if err != nil {
		return o, err
	}
	defer w.Abort()
	seed := pairs.Seed{A: j.constants.SeedA, B: j.constants.SeedB}
	for p := range int(j.constants.Partitions) {
		man := task.Manifest{Check: make([]uint64, len(j.ops)), SumAbs: make([][2]uint64, len(j.ops))}
		h := xxh3.New()
		add := func(key, payload []byte) error {
			man.Pairs++
			man.Bytes += int64(len(key) + len(payload))
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], uint64(len(key)))
			_, _ = h.Write(b[:])
			_, _ = h.Write(key)
			_, _ = h.Write(payload)
			class, ok := wire.ClassOf(len(key))
			if !ok {
				class = wire.Classes
			}
			man.Keys[class]++
			return w.Append(p, key, payload)
		}
		if j.constants.Grouped {
			for _, kv := range j.grouped[m][p] {
				if err := add([]byte(kv[0]), []byte(kv[1])); err != nil {
					return o, err
				}
			}
		} else {
			if j.scales != nil {
				o.Scale = j.scales[m]
			}
			for _, key := range slices.Sorted(maps.Keys(j.outputs[m][p])) {
				v := j.outputs[m][p][key]
				lanes, carry := make([]int64, len(v)), make([]int64, len(v))
				carried := false
				for i := range v {
					if j.ops[i] == fold.Sum {
						lanes[i], carry[i] = split(v[i])
						carried = carried || carry[i] != 0
						man.Check[i] += uint64(lanes[i]) * seed.HashBytes([]byte(key))
						abs := new(big.Int).Abs(v[i])
						total := commit.Total{Hi: new(big.Int).Rsh(abs, 64).Uint64(), Lo: new(big.Int).And(abs, new(big.Int).Sub(two64, big.NewInt(1))).Uint64()}
						sum := commit.Total{Hi: man.SumAbs[i][0], Lo: man.SumAbs[i][1]}.Add(total)
						man.SumAbs[i] = [2]uint64{sum.Hi, sum.Lo}
					} else {
						lanes[i] = v[i].Int64()
					}
				}
				if !carried {
					carry = nil
				}
				if err := add([]byte(key), fold.AppendValue(nil, lanes, carry)); err != nil {
					return o, err
				}
			}
		}
		_, _ = h.Write(o.Scale)
		if man.Pairs > 0 {
			man.Digest = h.Sum64()
		}
		o.Parts = append(o.Parts, man)
	}
	run, err := w.Close()
	if err != nil {
		return o, err
	}
	return o, run.Close()
}

// keep gives a map task's output to a worker.
func (j *testJob) keep(t *testing.T, w *worker, m int, number uint32) Output {
	t.Helper()
	o, err := j.write(t.TempDir(), m, number)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.x.Keep(o); err != nil {
		t.Fatal(err)
	}
	return o
}

func (w *worker) has(o Output, part uint32) *api.MapOutput {
	m := o.Parts[part]
	return &api.MapOutput{Task: o.Attempt.Task, Attempt: o.Attempt, Worker: w.id, Address: w.address, Pairs: m.Pairs, Digest: m.Digest}
}

// scale is the largest of all map tasks', per lane.
func (j *testJob) scale() []uint8 {
	if j.scales == nil {
		return nil
	}
	s := make([]uint8, len(j.ops))
	for _, one := range j.scales {
		for i := range one {
			s[i] = max(s[i], one[i])
		}
	}
	return s
}

func pow(n uint8) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

// raise brings a lane's value of a map task to the job's scale.
func (j *testJob) raise(m, lane int, v *big.Int) *big.Int {
	if j.scales == nil {
		return v
	}
	from := uint8(0)
	if j.scales[m] != nil {
		from = j.scales[m][lane]
	}
	op := j.ops[lane]
	if (op == fold.Min || op == fold.Max) && v.Int64() == op.Identity() {
		return v
	}
	return new(big.Int).Mul(v, pow(j.scale()[lane]-from))
}

// want is what a partition, or keys from lo to before hi of it, folds to.
func (j *testJob) want(part int, lo, hi string) map[string]value {
	want := map[string]value{}
	for m := range j.outputs {
		for key, v := range j.outputs[m][part] {
			if key < lo || hi != "" && key >= hi {
				continue
			}
			have := want[key]
			if have == nil {
				have = make(value, len(v))
			}
			for i, op := range j.ops {
				x := j.raise(m, i, v[i])
				switch {
				case have[i] == nil:
					have[i] = x
				case op == fold.Sum:
					have[i] = new(big.Int).Add(have[i], x)
				default:
					have[i] = big.NewInt(op.Apply(have[i].Int64(), x.Int64()))
				}
			}
			want[key] = have
		}
	}
	return want
}

// input says what a reduce attempt is to gather. where tells which worker has a map task's output.
func (j *testJob) input(part uint32, outputs []Output, where func(m int) *worker) *api.ReduceInput {
	in := &api.ReduceInput{Part: part, Generation: 1, Scale: j.scale(), Check: make([]uint64, len(j.ops)), Keys: make([]uint64, 5), Bound: make([]bool, len(j.ops))}
	sums := make([]big.Int, len(j.ops))
	p := partitionOf(j.constants, part)
	for m, o := range outputs {
		man := &o.Parts[p]
		in.Outputs = append(in.Outputs, where(m).has(o, p))
		in.Pairs += man.Pairs
		for c, n := range man.Keys {
			in.Keys[c] += n
		}
		for i := range j.ops {
			by := power(o.Scale, in.Scale, i)
			in.Check[i] += man.Check[i] * by
			abs := new(big.Int).SetUint64(man.SumAbs[i][0])
			abs.Add(abs.Mul(abs, two64), new(big.Int).SetUint64(man.SumAbs[i][1]))
			sums[i].Add(&sums[i], abs.Mul(abs, new(big.Int).SetUint64(by)))
		}
	}
	for i := range sums {
		in.Bound[i] = sums[i].BitLen() <= 63
	}
	return in
}

func (j *testJob) gather(t *testing.T, in *api.ReduceInput) Gather {
	dir := t.TempDir()
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return Gather{
		Attempt: &api.Attempt{Job: j.id(), Stage: "reduce", Task: in.GetPart(), Number: 1, Epoch: 1}, Constants: j.constants, Input: in,
		Dir: dir, Memory: 8 << 20,
	}
}

// checkFolded compares runs with plain arithmetic.
func (j *testJob) checkFolded(got *Gathered, part int) error {
	return j.checkRange(got, part, "", "")
}

func (j *testJob) checkRange(got *Gathered, part int, lo, hi string) error {
	want := j.want(part, lo, hi)
	have := map[string]value{}
	n := len(j.ops)
	for _, f := range got.Runs {
		if !bytes.Equal(f.Scale, j.scale()) {
			return fmt.Errorf("a run at scale %v, want %v", f.Scale, j.scale())
		}
		run, err := spill.Open(f.Path)
		if err != nil {
			return err
		}
		defer run.Close()
		c := run.Cursor(0, nil, nil)
		defer c.Close()
		last := ""
		for first := true; c.Next(); first = false {
			key := string(c.Key())
			if !first && (key < last || key == last && got.Folded) {
				return fmt.Errorf("key %q comes after %q", key, last)
			}
			last = key
			lanes, carry := make([]int64, n), make([]int64, n)
			if _, err := fold.DecodeValue(c.Payload(), lanes, carry); err != nil {
				return err
			}
			v := have[key]
			if v == nil {
				v = make(value, n)
			}
			for i, op := range j.ops {
				x := new(big.Int).Mul(big.NewInt(carry[i]), two64)
				x.Add(x, big.NewInt(lanes[i]))
				switch {
				case v[i] == nil:
					v[i] = x
				case op == fold.Sum:
					v[i] = new(big.Int).Add(v[i], x)
				default:
					v[i] = big.NewInt(op.Apply(v[i].Int64(), x.Int64()))
				}
			}
			have[key] = v
		}
		if err := c.Err(); err != nil {
			return err
		}
	}
	if len(have) != len(want) {
		return fmt.Errorf("%d keys came out, want %d", len(have), len(want))
	}
	for key, w := range want {
		for i := range w {
			if have[key] == nil || have[key][i].Cmp(w[i]) != 0 {
				return fmt.Errorf("key %.60q: %v, want %v", key, have[key], w)
			}
		}
	}
	return nil
}
