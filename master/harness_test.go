// SPDX-License-Identifier: Apache-2.0

package master

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/schedule"
)

const testVersion = "v-test"

// patience is how long tests wait for what must come.
const patience = 60 * time.Second

// model is a job whose map and reduce functions are arithmetic.
type model struct {
	splits, parts int
	grouped       bool
	total         bool // order
	scales        bool // results have decimals of their own
	counters      int  // per map task
	plan          func(*task.PlanResult)
	mapped        func(l *api.Launch, r *task.MapResult)
	reduced       func(l *api.Launch, r *task.ReduceResult, f *api.FinishRequest)
	sides         []side // that the plan makes
}

// side is a side input.
type side struct {
	name    string
	content []byte
}

func (s side) file() task.SideFile {
	return task.SideFile{Name: s.name, File: s.name, Size: int64(len(s.content)), Digest: digestOf(s.content)}
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (d *model) shuffled() int {
	if d.total {
		return 1
	}
	return d.parts
}

func (d *model) planResult() *task.PlanResult {
	r := &task.PlanResult{
		Name: "model", Grouped: d.grouped, Partitions: d.parts, TotalOrder: d.total, Files: 1, Exact: true,
		Ticket: []byte("ticket"), Why: []string{"because"}, Notes: []string{"note of the plan"},
	}
	if !d.grouped {
		r.Ops = []uint8{opSum, 2}
	}
	type split struct {
		Files []int `json:"files"`
	}
	plan := struct {
		Total  int      `json:"total"`
		Files  []string `json:"files"`
		Splits []split  `json:"splits"`
	}{1, []string{"input"}, make([]split, d.splits)}
	for i := range d.splits {
		plan.Splits[i].Files = []int{0}
		r.Splits = append(r.Splits, task.SplitInfo{Path: "/input", Bytes: 100})
		r.Bytes += 100
	}
	for _, s := range d.sides {
		r.SideInputs = append(r.SideInputs, s.file())
	}
	r.Plan, _ = json.Marshal(plan)
	if d.plan != nil {
		d.plan(r)
	}
	return r
}

// pairsOf is how many pairs map task t has for partition p; some have none.
func pairsOf(t, p int) int64 { return int64((t*7 + p*3) % 4) }

// checkOf is their check at scale 0.
func checkOf(t, p int) uint64 {
	if pairsOf(t, p) == 0 {
		return 0
	}
	return uint64(t+1)*0x9e3779b97f4a7c15 + uint64(p)*31
}

func (d *model) scaleOf(t int) uint8 {
	if !d.scales {
		return 0
	}
	return uint8(t % 4)
}

func (d *model) mapResult(t int) *task.MapResult {
	r := &task.MapResult{Run: "run", Size: 10, Records: 10, Bytes: 100}
	if d.scales {
		r.Scale = []uint8{d.scaleOf(t), 0}
	}
	for p := range d.shuffled() {
		m := task.Manifest{Pairs: pairsOf(t, p), Bytes: 8}
		if m.Pairs > 0 {
			m.Digest = uint64(t)<<32 | uint64(p) | 1<<63
			m.Keys[0] = uint64(m.Pairs)
		}
		if !d.grouped {
			m.Check = []uint64{checkOf(t, p) * pow10(d.scaleOf(t)), 0}
			m.SumAbs = [][2]uint64{{0, uint64(m.Pairs)}, {}}
		}
		r.Emitted += 2 * m.Pairs
		r.Parts = append(r.Parts, m)
	}
	if d.counters > 0 {
		r.Counters = map[string]int64{}
		for i := range d.counters {
			r.Counters[fmt.Sprintf("counter %d", i)] = 1
		}
	}
	return r
}

// world is what workers share: outputs that they hold for each other, and what is published.
type world struct {
	mu        sync.Mutex
	held      map[string]map[schedule.Attempt]uint64 // worker, map attempt: salt of its digests
	published map[string]int                         // job: times
	aborted   map[string]int
	tickets   map[string]string // of aborts, by job
	launches  map[schedule.Stage]int
	targets   map[string]schedule.Attempt // job, part and generation
	problems  []string
}

func newWorld() *world {
	return &world{
		held: map[string]map[schedule.Attempt]uint64{}, published: map[string]int{}, aborted: map[string]int{}, tickets: map[string]string{},
		launches: map[schedule.Stage]int{}, targets: map[string]schedule.Attempt{},
	}
}

func (w *world) problem(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

func (w *world) check(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.problems {
		t.Error(p)
	}
}

// fakeWorker speaks the real protocol and computes by a model.
type fakeWorker struct {
	t       testing.TB
	world   *world
	model   *model
	hello   *api.Hello
	conn    *grpc.ClientConn
	client  api.AttendanceClient
	cancel  context.CancelFunc
	ctx     context.Context
	done    chan struct{}
	wg      sync.WaitGroup
	pause   func(a schedule.Attempt) error // called before an attempt is computed
	outcome func(a schedule.Attempt, r *api.FinishReply)
	spread  func(o *api.Spread) // called for each that is ordered; nil: nothing is done
	gang    *fakeGang           // nil: it has no members
	// careless: its members end without a state that is kept.
	careless bool

	mu       sync.Mutex
	running  map[schedule.Attempt]context.CancelFunc
	moved    map[schedule.Attempt]chan *api.MapOutput
	send     chan *api.WorkerMessage
	welcomes int
	refusals []string
	spreads  []*api.Spread
	overs    []*api.SpreadOver
	forgot   map[string]bool // jobs
	launched map[schedule.Attempt]*api.Launch
	lastErr  error
	drained  bool
	cut      context.CancelFunc // of its stream
	frozen   chan struct{}      // it opens no stream until this is closed; nil: it may
	cluster  string
}

func randomID() string {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

var fakePorts struct {
	sync.Mutex
	last int
}

func dial(t testing.TB, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.5, MaxDelay: 50 * time.Millisecond}, MinConnectTimeout: time.Second,
		}),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func newWorker(t testing.TB, addr string, w *world, d *model, name string) *fakeWorker {
	t.Helper()
	fakePorts.Lock()
	fakePorts.last++
	port := 10000 + fakePorts.last
	fakePorts.Unlock()
	f := &fakeWorker{
		t: t, world: w, model: d, conn: dial(t, addr), done: make(chan struct{}),
		hello: &api.Hello{
			Worker: name + "-" + randomID(), Name: name, Address: fmt.Sprintf("127.0.0.1:%d", port), Slots: 2,
			Version: testVersion, Protocol: api.Protocol, Platform: "linux/amd64", Shuffle: "a model",
		},
		running: map[schedule.Attempt]context.CancelFunc{}, moved: map[schedule.Attempt]chan *api.MapOutput{},
		send: make(chan *api.WorkerMessage, 1000), forgot: map[string]bool{}, launched: map[schedule.Attempt]*api.Launch{},
	}
	f.client = api.NewAttendanceClient(f.conn)
	f.ctx, f.cancel = context.WithCancel(context.Background())
	w.mu.Lock()
	w.held[f.hello.Worker] = map[schedule.Attempt]uint64{}
	w.mu.Unlock()
	t.Cleanup(f.stop)
	return f
}

func startWorker(t testing.TB, addr string, w *world, d *model, name string) *fakeWorker {
	f := newWorker(t, addr, w, d, name)
	f.start()
	return f
}

func (f *fakeWorker) start() { go f.live() }

// die kills the worker: what it holds is gone. It returns how many map outputs that were.
func (f *fakeWorker) die() int {
	f.cancel()
	f.world.mu.Lock()
	defer f.world.mu.Unlock()
	n := len(f.world.held[f.hello.Worker])
	delete(f.world.held, f.hello.Worker)
	return n
}

// stop kills the worker and waits until it is gone.
func (f *fakeWorker) stop() {
	f.die()
	gone := make(chan struct{})
	go func() {
		f.wg.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-time.After(patience): // a test that failed may not have let its attempts go
		f.t.Error("attempts of a worker do not end")
	}
	_ = f.conn.Close()
}

func (f *fakeWorker) live() {
	defer close(f.done)
	for f.ctx.Err() == nil {
		f.mu.Lock()
		frozen := f.frozen
		f.mu.Unlock()
		if frozen != nil {
			select {
			case <-frozen:
			case <-f.ctx.Done():
				return
			}
		}
		err := f.attend(f.ctx)
		f.mu.Lock()
		f.lastErr = err
		left := f.drained
		f.mu.Unlock()
		if left || status.Code(err) == codes.FailedPrecondition || status.Code(err) == codes.InvalidArgument {
			return
		}
		select {
		case <-f.ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (f *fakeWorker) attend(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.client.Attend(ctx)
	if err != nil {
		return err
	}
	h := f.hello
	f.mu.Lock()
	f.cut = cancel
	h.Running, h.Outputs, h.Cluster = nil, nil, f.cluster
	for a := range f.running {
		h.Running = append(h.Running, toAPI(a))
	}
	f.mu.Unlock()
	f.world.mu.Lock()
	for a := range f.world.held[h.Worker] {
		h.Outputs = append(h.Outputs, &api.Held{Job: a.Job, Task: a.Task, Attempt: toAPI(a)})
	}
	f.world.mu.Unlock()
	first := &api.WorkerMessage{Hello: h}
	if f.gang != nil {
		f.gang.stands(first)
	}
	if err := stream.Send(first); err != nil {
		return err
	}
	// What this stream takes to be sent must not be lost on the next one.
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel()
	sender.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			m := &api.WorkerMessage{}
			select {
			case m = <-f.send:
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if stream.Send(m) != nil {
				return
			}
		}
	})
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		f.hear(m)
		if m.Drain {
			f.mu.Lock()
			f.drained = true
			f.mu.Unlock()
			f.send <- &api.WorkerMessage{Leaving: true}
		}
	}
}

func (f *fakeWorker) hear(m *api.MasterMessage) {
	stop := func(a *api.Attempt) {
		at, _ := fromAPI(a)
		f.mu.Lock()
		if c := f.running[at]; c != nil {
			c()
			delete(f.running, at)
		}
		f.mu.Unlock()
	}
	if w := m.Welcome; w != nil {
		f.mu.Lock()
		f.welcomes++
		if f.cluster != "" && f.cluster != w.Cluster {
			f.world.mu.Lock()
			f.world.held[f.hello.Worker] = map[schedule.Attempt]uint64{}
			f.world.mu.Unlock()
		}
		f.cluster = w.Cluster
		f.mu.Unlock()
		for _, a := range w.Stop {
			stop(a)
		}
	}
	f.mu.Lock()
	f.spreads = append(f.spreads, m.Spread...)
	f.overs = append(f.overs, m.SpreadOver...)
	f.mu.Unlock()
	for _, o := range m.Spread {
		if len(o.Members) == 0 || slices.ContainsFunc(o.Members, func(s *api.SpreadMember) bool { return s.Worker == f.hello.Worker || s.Address == "" }) {
			f.world.problem("%s is to send to %v", f.hello.Worker, o.Members)
		}
		if f.spread != nil {
			f.wg.Go(func() { f.spread(o) })
		}
	}
	for _, l := range m.Launch {
		at, _ := fromAPI(l.Attempt)
		f.mu.Lock()
		f.launched[at] = l
		for _, o := range f.spreads {
			if o.Job == at.Job && slices.Contains(l.Coming, o.Blob) {
				f.world.problem("%v is to wait for what its own worker sends", at)
			}
		}
		f.mu.Unlock()
		if want := len(f.model.sides); f.model.plan == nil && (at.Stage == schedule.Map || at.Stage == schedule.Reduce) && len(l.SideInputs) != want {
			f.world.problem("%v has %d side inputs of %d", at, len(l.SideInputs), want)
		}
		ctx, cancel := context.WithCancel(f.ctx)
		f.mu.Lock()
		if f.running[at] != nil {
			f.world.problem("%v is launched twice", at)
		}
		f.running[at] = cancel
		f.moved[at] = make(chan *api.MapOutput, 10000)
		f.mu.Unlock()
		f.world.mu.Lock()
		f.world.launches[at.Stage]++
		f.world.mu.Unlock()
		f.wg.Go(func() { f.run(ctx, at, l) })
	}
	for _, s := range m.Stop {
		stop(s.Attempt)
	}
	for _, r := range m.Relocate {
		at, _ := fromAPI(r.Reader)
		f.mu.Lock()
		c := f.moved[at]
		f.mu.Unlock()
		if c != nil {
			c <- r.Output
		}
	}
	f.hearGang(m)
	for _, job := range m.Forget {
		f.mu.Lock()
		f.forgot[job] = true
		f.mu.Unlock()
		f.world.mu.Lock()
		for a := range f.world.held[f.hello.Worker] {
			if a.Job == job {
				delete(f.world.held[f.hello.Worker], a)
			}
		}
		f.world.mu.Unlock()
	}
}

// failError is an error of an attempt.
type failError struct {
	task           task.Error
	infrastructure bool
}

func (e *failError) Error() string { return e.task.Message }

func (f *fakeWorker) run(ctx context.Context, at schedule.Attempt, l *api.Launch) {
	req := &api.FinishRequest{Attempt: l.Attempt, Worker: f.hello.Worker}
	result, err := f.compute(ctx, at, l, req)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		e, ok := err.(*failError)
		if !ok {
			e = &failError{task: task.Error{Message: err.Error()}}
		}
		req.Error, _ = json.Marshal(&e.task)
		req.Infrastructure = e.infrastructure
	} else if result != nil {
		req.Result, _ = json.Marshal(result)
	}
	for ctx.Err() == nil {
		reply, err := f.client.Finish(ctx, req)
		if err != nil {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		f.mu.Lock()
		delete(f.running, at)
		if !reply.Accepted {
			f.refusals = append(f.refusals, reply.Reason)
		}
		f.mu.Unlock()
		if f.outcome != nil {
			f.outcome(at, reply)
		}
		if at.Stage == schedule.Map && !reply.Accepted {
			f.world.mu.Lock()
			delete(f.world.held[f.hello.Worker], at)
			f.world.mu.Unlock()
		}
		return
	}
}

func (f *fakeWorker) compute(ctx context.Context, at schedule.Attempt, l *api.Launch, req *api.FinishRequest) (any, error) {
	if f.pause != nil {
		if err := f.pause(at); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	d := f.model
	switch at.Stage {
	case schedule.Plan:
		for _, s := range d.sides {
			for err := keep(f.client, ctx, s.content); err != nil; err = keep(f.client, ctx, s.content) {
				if ctx.Err() != nil || status.Code(err) != codes.Unavailable {
					return nil, err
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
		return d.planResult(), nil
	case schedule.Map:
		if l.Split != at.Task || len(l.Plan) == 0 || l.Constants.Partitions != uint32(d.shuffled()) || l.Constants.Parts != uint32(d.parts) {
			f.world.problem("%v: split %d, constants %v", at, l.Split, l.Constants)
		}
		r := d.mapResult(int(at.Task))
		if l.Gang != nil {
			if !f.careless {
				if err := f.iterate(ctx, at, l); err != nil {
					return nil, err
				}
			}
			if at.Task == 0 {
				r.Iteration, _ = json.Marshal(&mapreduce.IterationResult{Rounds: int(f.gang.rounds)})
			}
		}
		if d.mapped != nil {
			d.mapped(l, r)
		}
		f.world.mu.Lock()
		if h := f.world.held[f.hello.Worker]; h != nil {
			h[at] = r.Parts[0].Digest
		}
		f.world.mu.Unlock()
		return r, nil
	case schedule.Reduce:
		return f.reduce(ctx, at, l, req)
	case schedule.Commit:
		var c task.CommitRequest
		if err := json.Unmarshal(l.Commit, &c); err != nil {
			return nil, err
		}
		if len(c.Parts) != d.parts || string(l.Ticket) != "ticket" {
			f.world.problem("%v: parts %v, ticket %q", at, c.Parts, l.Ticket)
		}
		f.world.mu.Lock()
		f.world.published[at.Job]++
		f.world.mu.Unlock()
		return &task.CommitResult{Notes: []string{"note of the commit"}}, nil
	case schedule.Abort:
		f.world.mu.Lock()
		f.world.aborted[at.Job]++
		f.world.tickets[at.Job] = string(l.Ticket)
		f.world.mu.Unlock()
	}
	return nil, nil
}

// keep stores a side input.
func keep(client api.AttendanceClient, ctx context.Context, b []byte) error {
	return keepAs(client, ctx, digestOf(b), int64(len(b)), b)
}

func keepAs(client api.AttendanceClient, ctx context.Context, digest string, size int64, b []byte) error {
	stream, err := client.KeepBlob(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&api.BlobChunk{Digest: digest, Size: size}); err != nil && err != io.EOF {
		return err
	}
	for piece := range slices.Chunk(b, 100_000) {
		if err := stream.Send(&api.BlobChunk{Data: piece}); err != nil && err != io.EOF {
			return err
		}
	}
	r, err := stream.CloseAndRecv()
	if err == nil && r.Digest != digest {
		return fmt.Errorf("%s was kept as %s", digest, r.Digest)
	}
	return err
}

// has says whether a worker holds a map output.
func (w *world) has(worker string, a schedule.Attempt) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.held[worker][a]
	return ok
}

func (f *fakeWorker) reduce(ctx context.Context, at schedule.Attempt, l *api.Launch, req *api.FinishRequest) (any, error) {
	d, in := f.model, l.Reduce
	key := fmt.Sprintf("%s %d %d", at.Job, in.Part, in.Generation)
	f.world.mu.Lock()
	if other, ok := f.world.targets[key]; ok && other != at {
		f.world.problems = append(f.world.problems, fmt.Sprintf("%v and %v share target %s", at, other, key))
	}
	f.world.targets[key] = at
	f.world.mu.Unlock()
	if in.Part != at.Task || in.Pull != (d.grouped || d.total) {
		f.world.problem("%v: part %d, pull %v", at, in.Part, in.Pull)
	}
	p := int(in.Part)
	if d.total {
		p = 0
	}
	outputs := map[uint32]*api.MapOutput{}
	for _, o := range in.Outputs {
		outputs[o.Task] = o
	}
	pairs := int64(0)
	check := make([]uint64, 2)
	for t := range d.splits {
		o := outputs[uint32(t)]
		if o == nil {
			if pairsOf(t, p) != 0 && d.mapped == nil {
				f.world.problem("%v: map %d is not among the outputs", at, t)
			}
			continue
		}
		for {
			a, _ := fromAPI(o.Attempt)
			if f.world.has(o.Worker, a) {
				break
			}
			if o.Worker != "" {
				f.send <- &api.WorkerMessage{Lost: []*api.OutputLost{{Reader: l.Attempt, MapTask: o.Task, Output: o.Attempt, Worker: o.Worker, Error: "it is gone", Damaged: true}}}
			}
			f.mu.Lock()
			moved := f.moved[at]
			f.mu.Unlock()
			for got := false; !got; {
				select {
				case n := <-moved:
					if n.Task == uint32(t) {
						o, got = n, true
					} else {
						outputs[n.Task] = n
					}
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
		}
		pairs += o.Pairs
		if !d.grouped {
			f := uint64(1)
			if len(in.Scale) > 0 {
				f = pow10(in.Scale[0])
			}
			check[0] += checkOf(t, p) * f
		}
	}
	if d.mapped == nil && (pairs != in.Pairs || !d.grouped && !slices.Equal(check, in.Check)) {
		f.world.problem("%v: %d pairs of %d, check %x of %x", at, pairs, in.Pairs, check, in.Check)
	}
	r := &task.ReduceResult{Name: fmt.Sprintf("part-%d-%d-%d-%d", at.Task, at.StageAttempt, at.Epoch, at.Number), Rows: 1, Keys: 1, Pairs: pairs, Bytes: 1}
	if !d.grouped {
		r.Check = check
	}
	if d.total && in.Part != 0 { // part 0 takes all
		pairs = 0
		r.Check = nil
	}
	if in.Pull {
		req.PulledPairs = pairs
	} else {
		req.KernelPairs = pairs / 2
		req.UserPairs = pairs - pairs/2
	}
	if d.reduced != nil {
		d.reduced(l, r, req)
	}
	return r, nil
}

// testMaster is a master that can be restarted at its address.
type testMaster struct {
	*Master
	t      testing.TB
	opts   Options
	addr   string
	served chan error
	cancel context.CancelFunc
	closed bool
	conn   *grpc.ClientConn
	client api.ClusterClient
	dead   *atomic.Bool // see crash
}

func testLog() *slog.Logger {
	if os.Getenv("QUERN_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

func startMaster(t testing.TB, change ...func(*Options)) *testMaster {
	t.Helper()
	opts := Options{
		Dir: t.TempDir(), Address: "127.0.0.1:0", Version: testVersion, Lease: 2 * time.Second, Log: testLog(), noSync: true,
		Schedule: schedule.Config{Backoff: time.Millisecond, LocalWait: -1, Speculate: -1, Settle: 200 * time.Millisecond},
	}
	for _, c := range change {
		c(&opts)
	}
	m := &testMaster{t: t, opts: opts}
	m.begin()
	m.conn = dial(t, m.addr)
	m.client = api.NewClusterClient(m.conn)
	t.Cleanup(func() {
		m.halt()
		_ = m.conn.Close()
	})
	return m
}

func (m *testMaster) begin() {
	m.t.Helper()
	m.open()
	m.serve()
	if m.client == nil {
		return
	}
	// The client's connection was to the one before.
	until(m.t, "the master answers", func() bool {
		_, err := m.client.About(m.context(), &api.AboutRequest{})
		return status.Code(err) != codes.Unavailable
	})
}

func (m *testMaster) open() {
	m.t.Helper()
	opts := m.opts
	if m.addr != "" {
		opts.Address = m.addr
	}
	var err error
	for range 100 {
		if m.Master, err = New(opts); err == nil {
			break
		}
		if _, ok := err.(*net.OpError); !ok {
			time.Sleep(10 * time.Millisecond)
		}
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.addr = m.Addr().String()
	m.dead = new(atomic.Bool)
}

func (m *testMaster) serve() {
	var ctx context.Context
	ctx, m.cancel = context.WithCancel(context.Background())
	m.served = make(chan error, 1)
	master := m.Master
	served := m.served
	go func() { served <- master.Serve(ctx) }()
	m.closed = false
}

// halt ends the master; the journal is as the last write has left it.
func (m *testMaster) halt() {
	m.t.Helper()
	if m.closed {
		return
	}
	m.closed = true
	m.cancel()
	if err := m.Close(); err != nil {
		m.t.Error(err)
	}
	if err := <-m.served; err != nil {
		m.t.Error(err)
	}
}

func (m *testMaster) restart() {
	m.t.Helper()
	m.halt()
	m.begin()
}

func (m *testMaster) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	m.t.Cleanup(cancel)
	return ctx
}

func jobFile() *api.SubmitRequest {
	return &api.SubmitRequest{Program: &api.Program{JobFile: "job: model\n", Name: "the model"}, Version: testVersion, Protocol: api.Protocol}
}

func (m *testMaster) submit(r *api.SubmitRequest) string {
	m.t.Helper()
	reply, err := m.client.Submit(m.context(), r)
	if err != nil {
		m.t.Fatal(err)
	}
	return reply.Job
}

// wait follows a job until it ends, over restarts of the master.
func (m *testMaster) wait(job string) *api.JobStatus {
	m.t.Helper()
	var last *api.JobStatus
	ctx := m.context()
	for {
		stream, err := m.client.Watch(ctx, &api.WatchRequest{Job: job})
		for err == nil {
			var s *api.JobStatus
			if s, err = stream.Recv(); err == nil {
				last = s
			}
		}
		if last != nil && over(last.State) {
			return last
		}
		if ctx.Err() != nil || status.Code(err) == codes.NotFound {
			m.t.Fatalf("job %s: %v; last status %v", job, err, last)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// until waits for a condition.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("waited too long: %s", what)
}

func (m *testMaster) wantDone(job string, d *model) *api.JobStatus {
	m.t.Helper()
	s := m.wait(job)
	if s.State != api.JobState_JOB_DONE || s.Error != "" {
		m.t.Fatalf("job %s is %v: %s", job, s.State, s.Error)
	}
	pairs, emitted := int64(0), int64(0)
	for t := range d.splits {
		for p := range d.shuffled() {
			pairs += pairsOf(t, p)
			emitted += 2 * pairsOf(t, p)
		}
	}
	var r mapreduce.Result
	if err := json.Unmarshal(s.Result, &r); err != nil {
		m.t.Fatal(err)
	}
	if d.plan == nil {
		var want []mapreduce.SideInputInfo
		for _, s := range d.sides {
			want = append(want, mapreduce.SideInputInfo{Name: s.name, Size: int64(len(s.content))})
		}
		if !slices.Equal(r.SideInputs, want) {
			m.t.Errorf("side inputs %+v, want %+v", r.SideInputs, want)
		}
	}
	if d.mapped == nil {
		if r.Audit.PairsCombined != pairs || r.Audit.PairsFolded != pairs || r.Audit.PairsEmitted != emitted || r.Audit.SumCombined != r.Audit.SumFolded {
			m.t.Errorf("audit %+v, want %d pairs, %d emitted", r.Audit, pairs, emitted)
		}
		if !d.grouped && r.Audit.SumCombined == 0 && pairs > 0 {
			m.t.Errorf("audit has no sum")
		}
	}
	if int(r.Audit.Rows) != d.parts || r.Splits != d.splits || r.Parts != d.parts || r.Records != int64(10*d.splits) {
		m.t.Errorf("result %+v", r)
	}
	if s.PairsKernel+s.PairsUser+s.PairsPulled != r.Audit.PairsFolded || (s.PairsPulled > 0) != ((d.grouped || d.total) && pairs > 0) {
		m.t.Errorf("pairs by path: %d, %d, %d", s.PairsKernel, s.PairsUser, s.PairsPulled)
	}
	return s
}
