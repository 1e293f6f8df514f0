// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// deadline is how long tests wait for what is to happen.
const deadline = 60 * time.Second

// wait fails the test if a condition does not come true.
func wait(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// master is a master as far as its workers can tell.
type master struct {
	api.UnimplementedAttendanceServer
	t       *testing.T
	address string
	server  *grpc.Server
	ended   chan struct{} // closed when the address is free
	creds   credentials.TransportCredentials

	mu       sync.Mutex
	lease    time.Duration
	cluster  string
	epoch    uint64
	unwanted func(*api.Attempt) bool // of Hello.running: is to be stopped
	finish   func(*api.FinishRequest) (*api.FinishReply, error)
	blobs    map[string][]byte
	served   map[string]int             // blobs
	refuse   func(*api.BlobChunk) error // side inputs
	kept     []string                   // side inputs
	hellos   []*api.WorkerMessage
	heard    []*api.WorkerMessage
	links    map[string]grpc.BidiStreamingServer[api.WorkerMessage, api.MasterMessage] // by worker
	finished []*api.FinishRequest
	left     map[string]bool
	states   []*api.KeepStateRequest
}

func newMaster(t *testing.T) *master {
	m := &master{
		t: t, lease: 10 * time.Second, cluster: "one", epoch: 1, blobs: map[string][]byte{}, served: map[string]int{},
		links: map[string]grpc.BidiStreamingServer[api.WorkerMessage, api.MasterMessage]{}, left: map[string]bool{},
	}
	m.start("127.0.0.1:0")
	t.Cleanup(m.stop)
	return m
}

// newMasterIn makes a master in a host of a lab.
func newMasterIn(t *testing.T, host *netlab.Host) *master {
	t.Helper()
	m := newMaster(t)
	m.stop()
	if err := host.Do(func() error {
		m.start(host.IPv4().String() + ":0")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *master) start(address string) {
	m.t.Helper()
	var l net.Listener
	wait(m.t, address+" is free", func() (ok bool) {
		// A child that is being started may still have the old listener for a moment.
		var err error
		l, err = net.Listen("tcp", address)
		return err == nil
	})
	m.address = l.Addr().String()
	m.server = grpc.NewServer(grpc.MaxRecvMsgSize(MaxMessage), grpc.Creds(m.creds))
	api.RegisterAttendanceServer(m.server, m)
	served := make(chan struct{})
	m.ended = served
	server := m.server
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
}

func (m *master) stop() {
	m.server.Stop()
	<-m.ended
}

func (m *master) Attend(s grpc.BidiStreamingServer[api.WorkerMessage, api.MasterMessage]) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	h := first.GetHello()
	if h == nil {
		return status.Error(codes.InvalidArgument, "no hello")
	}
	m.mu.Lock()
	m.hellos = append(m.hellos, first)
	welcome := &api.Welcome{Epoch: m.epoch, Cluster: m.cluster, LeaseMs: m.lease.Milliseconds()}
	for _, a := range h.GetRunning() {
		if m.unwanted != nil && m.unwanted(a) {
			welcome.Stop = append(welcome.Stop, a)
		}
	}
	m.mu.Unlock()
	if err := s.Send(&api.MasterMessage{Welcome: welcome}); err != nil {
		return err
	}
	m.mu.Lock()
	m.links[h.GetWorker()] = s
	m.mu.Unlock()
	for {
		w, err := s.Recv()
		if err != nil {
			m.mu.Lock()
			if m.links[h.GetWorker()] == s {
				delete(m.links, h.GetWorker())
			}
			m.mu.Unlock()
			return nil
		}
		m.mu.Lock()
		m.heard = append(m.heard, w)
		if w.GetLeaving() {
			m.left[h.GetWorker()] = true
		}
		m.mu.Unlock()
	}
}

func (m *master) Finish(_ context.Context, r *api.FinishRequest) (*api.FinishReply, error) {
	m.mu.Lock()
	f := m.finish
	m.mu.Unlock()
	reply, err := &api.FinishReply{Accepted: true}, error(nil)
	if f != nil {
		reply, err = f(r)
	}
	if err == nil {
		m.mu.Lock()
		m.finished = append(m.finished, r)
		m.mu.Unlock()
	}
	return reply, err
}

func (m *master) GetBlob(r *api.GetBlobRequest, s grpc.ServerStreamingServer[api.BlobChunk]) error {
	m.mu.Lock()
	b, ok := m.blobs[r.GetDigest()]
	if r.GetOffset() == 0 {
		m.served[r.GetDigest()]++
	}
	m.mu.Unlock()
	if !ok {
		return status.Error(codes.NotFound, "no such blob")
	}
	b = b[r.GetOffset():]
	if err := s.Send(&api.BlobChunk{Digest: r.GetDigest()}); err != nil {
		return err
	}
	for len(b) > 0 {
		n := min(len(b), 1<<20)
		if err := s.Send(&api.BlobChunk{Data: b[:n]}); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func (m *master) KeepBlob(s grpc.ClientStreamingServer[api.BlobChunk, api.PutBlobReply]) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	m.mu.Lock()
	refuse := m.refuse
	m.mu.Unlock()
	if refuse != nil {
		if err := refuse(first); err != nil {
			return err
		}
	}
	all := first.GetData()
	for {
		c, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		all = append(all, c.GetData()...)
	}
	if d := m.put(all); d != first.GetDigest() || int64(len(all)) != first.GetSize() {
		return status.Errorf(codes.InvalidArgument, "blob %s has %d bytes, %s and %d were said", d, len(all), first.GetDigest(), first.GetSize())
	}
	m.mu.Lock()
	m.kept = append(m.kept, first.GetDigest())
	m.mu.Unlock()
	return s.SendAndClose(&api.PutBlobReply{Digest: first.GetDigest()})
}

func (m *master) KeepState(_ context.Context, r *api.KeepStateRequest) (*api.KeepStateReply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b, ok := m.blobs[r.GetDigest()]; !ok || int64(len(b)) != r.GetSize() {
		return nil, status.Error(codes.FailedPrecondition, "no such blob")
	}
	m.states = append(m.states, r)
	return &api.KeepStateReply{}, nil
}

// put stores a blob and returns its digest.
func (m *master) put(b []byte) string {
	sum := sha256.Sum256(b)
	d := hex.EncodeToString(sum[:])
	m.mu.Lock()
	m.blobs[d] = b
	m.mu.Unlock()
	return d
}

// self is this test's binary, as a blob.
func (m *master) self() string {
	path, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		m.t.Fatal(err)
	}
	return m.put(b)
}

// send says something to a worker, once it is there.
func (m *master) send(worker string, msg *api.MasterMessage) {
	m.t.Helper()
	wait(m.t, "the worker attends", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		s := m.links[worker]
		return s != nil && s.Send(msg) == nil
	})
}

// result waits for an attempt's end.
func (m *master) result(at *api.Attempt) *api.FinishRequest {
	m.t.Helper()
	var r *api.FinishRequest
	wait(m.t, fmt.Sprintf("%v is finished", keyOf(at)), func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		i := slices.IndexFunc(m.finished, func(r *api.FinishRequest) bool { return keyOf(r.GetAttempt()) == keyOf(at) })
		if i >= 0 {
			r = m.finished[i]
		}
		return i >= 0
	})
	return r
}

func (m *master) some(f func(*api.WorkerMessage) bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.heard, f)
}

// running is a worker of a test.
type running struct {
	*Worker
	t    *testing.T
	dir  string
	stop context.CancelFunc
	done chan struct{}
	err  error
}

// start starts a worker of a master.
func (m *master) startWorker(change func(*Options)) *running {
	m.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		m.t.Fatal(err)
	}
	r := &running{t: m.t, dir: m.t.TempDir(), done: make(chan struct{})}
	address := m.address // every master of the test has it
	o := Options{
		Name: "tester", Dir: r.dir, Listener: l, Slots: 2, Memory: 4 << 30, Version: "test", Room: -1, pause: 20 * time.Millisecond,
		Masters: func(context.Context) ([]string, error) { return []string{address}, nil },
	}
	o.Receive.Listen = "127.0.0.1"
	o.Receive.FoldMemory = 16 << 20
	o.Broadcast.Idle, o.Broadcast.Patience, o.Reduce.Patience = deadline, deadline, deadline // machines are slow
	if os.Getenv("QUERN_TEST_LOG") != "" {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if change != nil {
		change(&o)
	}
	if r.Worker, err = New(o); err != nil {
		m.t.Fatal(err)
	}
	r.blobs.patience = deadline
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() {
		defer close(r.done)
		r.err = r.Run(ctx)
	}()
	m.t.Cleanup(r.end)
	return r
}

// end stops the worker and looks at what it leaves.
func (r *running) end() {
	r.t.Helper()
	r.stop()
	r.ended()
}

func (r *running) ended() {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(deadline):
		r.t.Error("the worker does not end")
		return
	}
	if r.err != nil {
		r.t.Errorf("worker: %v", r.err)
	}
	if left, _ := os.ReadDir(r.dir); len(left) > 0 {
		r.t.Errorf("files are left: %v", left)
	}
	if pids := within(r.dir); len(pids) > 0 {
		r.t.Errorf("processes are left: %v", pids)
	}
}

// within lists processes whose TMPDIR is in a folder.
func within(dir string) (pids []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range all {
		b, _ := os.ReadFile(path)
		for v := range slices.Values(splitZero(b)) {
			if len(v) > 7 && v[:7] == "TMPDIR=" && len(v) > 7+len(dir) && v[7:7+len(dir)+1] == dir+"/" {
				pids = append(pids, path)
			}
		}
	}
	return pids
}

func splitZero(b []byte) (all []string) {
	for len(b) > 0 {
		i := slices.Index(b, 0)
		if i < 0 {
			i = len(b)
		}
		all = append(all, string(b[:i]))
		b = b[min(i+1, len(b)):]
	}
	return all
}

// job is a job that a test drives as a master would.
type job struct {
	m         *master
	id        string
	program   *api.Program
	constants *api.JobConstants
	plan      *task.PlanResult
	maps      []*task.MapResult
	outputs   []*api.MapOutput
	number    uint32
	coming    []string // digests
}

func (m *master) job(how string, env ...string) (*job, string) {
	m.t.Helper()
	dir := m.t.TempDir()
	in, out := filepath.Join(dir, "in.txt"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, []byte(text(200)), 0o600); err != nil {
		m.t.Fatal(err)
	}
	j := &job{m: m, id: "00112233445566778899aabbccddeeff", program: &api.Program{
		JobFile: in + "\n" + out + "\n", Environment: append([]string{"PROGRAM=" + how}, env...),
	}}
	return j, out
}

// blob makes the job's program a blob, as Go programs are.
func (j *job) blob() {
	j.program.Blob, j.program.Args, j.program.Platform = j.m.self(), strings.Fields(j.program.GetJobFile()), platform
	j.program.JobFile = ""
}

func (j *job) attempt(stage string, n int) *api.Attempt {
	j.number++
	return &api.Attempt{Job: j.id, Stage: stage, Task: uint32(n), Number: j.number, Epoch: 1}
}

// launch has a worker run an attempt.
func (j *job) launch(w *running, l *api.Launch) *api.Attempt {
	j.m.t.Helper()
	l.Program, l.Constants = j.program, j.constants
	if j.plan != nil {
		for _, s := range j.plan.SideInputs {
			l.SideInputs = append(l.SideInputs, &api.SideInput{Name: s.Name, Blob: s.Digest, Size: s.Size})
		}
		l.Coming = j.coming
	}
	j.m.send(w.ID(), &api.MasterMessage{Launch: []*api.Launch{l}})
	return l.GetAttempt()
}

// ok fails the test if an attempt has failed, and else reads its result.
func (j *job) ok(at *api.Attempt, into any) {
	j.m.t.Helper()
	r := j.m.result(at)
	if len(r.GetError()) > 0 {
		j.m.t.Fatalf("%v: %s\n%s", keyOf(at), r.GetError(), r.GetLog())
	}
	if err := json.Unmarshal(r.GetResult(), into); err != nil {
		j.m.t.Fatal(err)
	}
}

// failed fails the test if an attempt has not failed.
func (j *job) failed(at *api.Attempt) (*api.FinishRequest, *task.Error) {
	j.m.t.Helper()
	r := j.m.result(at)
	var e task.Error
	if err := json.Unmarshal(r.GetError(), &e); err != nil || e.Message == "" {
		j.m.t.Fatalf("%v has not failed: %s", keyOf(at), r.GetResult())
	}
	return r, &e
}

// planned plans.
func (j *job) planned(w *running) {
	j.m.t.Helper()
	j.plan = &task.PlanResult{}
	j.ok(j.launch(w, &api.Launch{Attempt: j.attempt("plan", 0)}), j.plan)
	id, _ := hex.DecodeString(j.id)
	j.constants = &api.JobConstants{
		Id: id, Secret: []byte("0123456789abcdef"), SeedA: 7, SeedB: 8, Ops: j.plan.Ops, Suffix: uint32(j.plan.Suffix),
		Partitions: uint32(j.plan.Partitions), Parts: uint32(j.plan.Partitions), Grouped: j.plan.Grouped, Shuffle: "user",
	}
}

func (j *job) mapLaunch(split int) *api.Launch {
	j.m.t.Helper()
	splits, err := task.ParsePlan(j.plan.Plan)
	if err != nil {
		j.m.t.Fatal(err)
	}
	plan, err := splits.Split(split)
	if err != nil {
		j.m.t.Fatal(err)
	}
	return &api.Launch{Attempt: j.attempt("map", split), Plan: plan, Split: uint32(split)}
}

// mapped runs all map tasks, over the workers in turn.
func (j *job) mapped(workers ...*running) {
	j.m.t.Helper()
	var all []*api.Attempt
	for i := range j.plan.Splits {
		all = append(all, j.launch(workers[i%len(workers)], j.mapLaunch(i)))
	}
	for i, at := range all {
		r := &task.MapResult{}
		j.ok(at, r)
		j.maps = append(j.maps, r)
		w := workers[i%len(workers)]
		j.outputs = append(j.outputs, &api.MapOutput{Task: uint32(i), Attempt: at, Worker: w.ID(), Address: w.opt.Address})
	}
}

// input is what a reduce attempt is told.
func (j *job) input(part int) *api.ReduceInput {
	in := &api.ReduceInput{Part: uint32(part), Generation: j.number, Pull: j.plan.Grouped, Check: make([]uint64, len(j.plan.Ops))}
	for i, m := range j.maps {
		o := j.outputs[i]
		in.Outputs = append(in.Outputs, &api.MapOutput{
			Task: o.GetTask(), Attempt: o.GetAttempt(), Worker: o.GetWorker(), Address: o.GetAddress(),
			Pairs: m.Parts[part].Pairs, Digest: m.Parts[part].Digest,
		})
		in.Pairs += m.Parts[part].Pairs
		for lane, c := range m.Parts[part].Check {
			in.Check[lane] += c
		}
	}
	return in
}

func (j *job) reduceLaunch(part int) *api.Launch {
	return &api.Launch{Attempt: j.attempt("reduce", part), Ticket: j.plan.Ticket, Reduce: j.input(part)}
}

// commit publishes parts.
func (j *job) commit(w *running, parts []*task.ReduceResult) {
	j.m.t.Helper()
	req := task.CommitRequest{}
	for _, p := range parts {
		req.Parts = append(req.Parts, p.Name)
		req.Audit.Keys += p.Keys
		req.Audit.Rows += p.Rows
	}
	for _, m := range j.maps {
		req.Audit.PairsEmitted += m.Emitted
	}
	b, err := json.Marshal(req)
	if err != nil {
		j.m.t.Fatal(err)
	}
	j.ok(j.launch(w, &api.Launch{Attempt: j.attempt("commit", 0), Ticket: j.plan.Ticket, Commit: b}), &task.CommitResult{})
}

// words is the sum over all parts of an output.
func words(t *testing.T, out string) (n int, counts map[string]int) {
	t.Helper()
	counts = map[string]int{}
	parts, _ := filepath.Glob(filepath.Join(out, "part-*"))
	for _, p := range parts {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for line := range slices.Values(lines(b)) {
			var w string
			var c int
			if _, err := fmt.Sscan(line, &w, &c); err != nil {
				t.Fatalf("%s: %q", p, line)
			}
			counts[w] += c
			n += c
		}
	}
	if _, err := os.Stat(filepath.Join(out, "_SUCCESS")); err != nil {
		t.Errorf("no _SUCCESS: %v", errors.Unwrap(err))
	}
	return n, counts
}

func lines(b []byte) (all []string) {
	for len(b) > 0 {
		i := slices.Index(b, '\n')
		if i < 0 {
			i = len(b)
		}
		all = append(all, string(b[:i]))
		b = b[min(i+1, len(b)):]
	}
	return all
}
