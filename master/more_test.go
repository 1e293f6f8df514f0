// SPDX-License-Identifier: Apache-2.0

package master

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/blobs"
	"github.com/quernmr/quern/master/journal"
	"github.com/quernmr/quern/master/schedule"
)

// A master alone, with what submissions it refuses, and how.
func TestSubmitRefuses(t *testing.T) {
	m := startMaster(t, func(o *Options) {
		o.Limits.JobFile, o.Limits.Arguments, o.Limits.Uploads, o.Limits.Jobs = 1000, 1000, 2, 2
	})
	program := []byte("program")
	digest := m.put(t, program)
	missing := strings.Repeat("ab", 32)
	for name, tc := range map[string]struct {
		change func(r *api.SubmitRequest)
		code   codes.Code
		want   string
	}{
		"protocol":         {func(r *api.SubmitRequest) { r.Protocol = 99 }, codes.FailedPrecondition, "version 99"},
		"version":          {func(r *api.SubmitRequest) { r.Version = "v0" }, codes.FailedPrecondition, "quern v0"},
		"nothing":          {func(r *api.SubmitRequest) { r.Program = nil }, codes.InvalidArgument, "one of the two"},
		"neither":          {func(r *api.SubmitRequest) { r.Program.JobFile = "" }, codes.InvalidArgument, "one of the two"},
		"both":             {func(r *api.SubmitRequest) { r.Program.Blob = digest }, codes.InvalidArgument, "one of the two"},
		"a large job file": {func(r *api.SubmitRequest) { r.Program.JobFile = strings.Repeat("x", 1001) }, codes.InvalidArgument, "at most 1000"},
		"large arguments":  {func(r *api.SubmitRequest) { r.Program.Args = []string{strings.Repeat("x", 1001)} }, codes.InvalidArgument, "at most 1000"},
		"environment":      {func(r *api.SubmitRequest) { r.Program.Environment = []string{"x"} }, codes.InvalidArgument, "NAME=value"},
		"earlier":          {func(r *api.SubmitRequest) { r.Program.Call = 1 }, codes.InvalidArgument, "0 calls before"},
		"shuffle":          {func(r *api.SubmitRequest) { r.Shuffle = "x" }, codes.InvalidArgument, "auto, kernel, user"},
		"memory":           {func(r *api.SubmitRequest) { r.TaskMemory = -1 }, codes.InvalidArgument, "negative"},
		"key":              {func(r *api.SubmitRequest) { r.Key = strings.Repeat("x", 2000) }, codes.InvalidArgument, "1024"},
		"a program's name": {func(r *api.SubmitRequest) { r.Program.JobFile, r.Program.Blob = "", "xyz" }, codes.InvalidArgument, "SHA-256"},
		"no platform":      {func(r *api.SubmitRequest) { r.Program.JobFile, r.Program.Blob = "", digest }, codes.InvalidArgument, "platform"},
		"a missing program": {func(r *api.SubmitRequest) {
			r.Program.JobFile, r.Program.Blob, r.Program.Platform = "", missing, "linux/amd64"
		}, codes.FailedPrecondition, "store it first"},
		"many uploads":     {func(r *api.SubmitRequest) { r.Uploads = make([]*api.Upload, 3) }, codes.InvalidArgument, "at most 2"},
		"a missing upload": {func(r *api.SubmitRequest) { r.Uploads = []*api.Upload{{Path: "in.txt", Blob: missing}} }, codes.FailedPrecondition, "in.txt is not at the master"},
		"an upload's size": {func(r *api.SubmitRequest) { r.Uploads = []*api.Upload{{Path: "in.txt", Blob: digest, Size: 1}} }, codes.InvalidArgument, "its blob 7"},
		"no path":          {func(r *api.SubmitRequest) { r.Uploads = []*api.Upload{{Blob: digest, Size: 7}} }, codes.InvalidArgument, "path"},
	} {
		r := jobFile()
		tc.change(r)
		if _, err := m.client.Submit(m.context(), r); status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	first := jobFile()
	first.Key = "k"
	a := m.submit(first)
	if b := m.submit(first); b != a {
		t.Errorf("one key, two jobs: %s, %s", a, b)
	}
	m.submit(jobFile())
	if _, err := m.client.Submit(m.context(), jobFile()); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a third job: %v", err)
	}
	// The key is known after a restart, too.
	m.restart()
	if b := m.submit(first); b != a {
		t.Errorf("one key, two jobs after a restart: %s, %s", a, b)
	}
	if _, err := m.client.Cancel(m.context(), &api.CancelRequest{Job: "nosuch"}); status.Code(err) != codes.NotFound {
		t.Errorf("cancel of no job: %v", err)
	}
	if _, err := m.client.Cancel(m.context(), &api.CancelRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("cancel of nothing: %v", err)
	}
}

// put stores a blob.
func (m *testMaster) put(t testing.TB, b []byte) string {
	t.Helper()
	sum := sha256.Sum256(b)
	digest := hex.EncodeToString(sum[:])
	if err := m.putAs(digest, int64(len(b)), b); err != nil {
		t.Fatal(err)
	}
	return digest
}

func (m *testMaster) putAs(digest string, size int64, b []byte) error {
	stream, err := m.client.PutBlob(m.context())
	if err != nil {
		return err
	}
	if err := stream.Send(&api.BlobChunk{Digest: digest, Size: size}); err != nil {
		return err
	}
	for len(b) > 0 {
		n := min(len(b), 100_000)
		if err := stream.Send(&api.BlobChunk{Data: b[:n]}); err != nil && err != io.EOF {
			return err
		}
		b = b[n:]
	}
	_, err = stream.CloseAndRecv()
	return err
}

func TestBlobs(t *testing.T) {
	m := startMaster(t, func(o *Options) { o.Limits.Blob = 2 << 20 })
	content := make([]byte, 1<<20+17)
	for i := range content {
		content[i] = byte(rand.Uint32())
	}
	digest := m.put(t, content)
	other := strings.Repeat("00", 32)
	r, err := m.client.HasBlobs(m.context(), &api.HasBlobsRequest{Digests: []string{digest, other}})
	if err != nil || len(r.Missing) != 1 || r.Missing[0] != other {
		t.Errorf("missing: %v, %v", r, err)
	}
	worker := m.attendance(t)
	for _, offset := range []int64{0, 1, 1 << 20, int64(len(content))} {
		stream, err := worker.GetBlob(m.context(), &api.GetBlobRequest{Digest: digest, Offset: offset})
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		first, err := stream.Recv()
		if err != nil || first.Digest != digest || first.Size != int64(len(content)) {
			t.Fatalf("first: %v, %v", first, err)
		}
		for {
			c, err := stream.Recv()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, c.Data...)
		}
		if !bytes.Equal(got, content[offset:]) {
			t.Errorf("from %d: %d bytes, of which some are wrong", offset, len(got))
		}
	}
	get := func(digest string, offset int64) error {
		stream, err := worker.GetBlob(m.context(), &api.GetBlobRequest{Digest: digest, Offset: offset})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	for name, tc := range map[string]struct {
		err  error
		code codes.Code
	}{
		"another digest": {m.putAs(other, 3, []byte("abc")), codes.InvalidArgument},
		"too short":      {m.putAs(other, 3, []byte("ab")), codes.InvalidArgument},
		"too long":       {m.putAs(other, 3, []byte("abcd")), codes.InvalidArgument},
		"too large":      {m.putAs(other, 3<<20, []byte("abcd")), codes.InvalidArgument},
		"a path":         {m.putAs("../../x", 3, []byte("abc")), codes.InvalidArgument},
		"not there":      {get(other, 0), codes.NotFound},
		"beyond the end": {get(digest, 1<<30), codes.InvalidArgument},
		"no digest":      {get("../"+blobs.ErrFull.Error(), 0), codes.InvalidArgument},
	} {
		if status.Code(tc.err) != tc.code {
			t.Errorf("%s: %v", name, tc.err)
		}
	}
	left, err := filepath.Glob(filepath.Join(m.opts.Dir, "blobs", "*"))
	if err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Blobs go when no job needs them any more, and not before.
func TestBlobsAreCollected(t *testing.T) {
	m := startMaster(t, func(o *Options) { o.Limits.BlobAge = time.Nanosecond })
	needed, idle := m.put(t, []byte("needed")), m.put(t, []byte("idle"))
	r := jobFile()
	r.Program = &api.Program{Blob: needed, Platform: "linux/amd64", Name: "p"}
	job := m.submit(r)
	clean := func() {
		if err := m.do(m.context(), m.clean); err != nil {
			t.Fatal(err)
		}
	}
	has := func(d string) bool {
		_, err := os.Stat(filepath.Join(m.opts.Dir, "blobs", d))
		return err == nil
	}
	clean()
	until(t, "the idle one goes", func() bool { return !has(idle) })
	if !has(needed) {
		t.Fatal("a job's program is gone")
	}
	if _, err := m.client.Cancel(m.context(), &api.CancelRequest{Job: job}); err != nil {
		t.Fatal(err)
	}
	clean()
	until(t, "the program goes", func() bool { return !has(needed) })
}

func TestTokens(t *testing.T) {
	m := startMaster(t, func(o *Options) { o.Tokens = map[string]string{"ann": "secret of ann", "bob": "secret of bob"} })
	for token, want := range map[string]codes.Code{
		"": codes.Unauthenticated, "Bearer secret of an": codes.Unauthenticated, "Bearer ": codes.Unauthenticated,
		"secret of ann": codes.Unauthenticated, "Bearer secret of ann": codes.OK, "bearer secret of bob": codes.OK,
	} {
		ctx := m.context()
		if token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", token)
		}
		if _, err := m.client.About(ctx, &api.AboutRequest{}); status.Code(err) != want {
			t.Errorf("%q: %v", token, err)
		}
		stream, err := m.client.Watch(ctx, &api.WatchRequest{Job: "x"})
		if err == nil {
			_, err = stream.Recv()
		}
		if want == codes.OK {
			want = codes.NotFound
		}
		if status.Code(err) != want {
			t.Errorf("watch with %q: %v", token, err)
		}
	}
	// Jobs know whose they are, and keys of users are apart.
	r := jobFile()
	r.Key = "one"
	ids := map[string]string{}
	for _, name := range []string{"ann", "bob"} {
		ctx := metadata.AppendToOutgoingContext(m.context(), "authorization", "Bearer secret of "+name)
		reply, err := m.client.Submit(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = reply.Job
		c, err := m.client.Cancel(ctx, &api.CancelRequest{Job: reply.Job})
		if err != nil || c.Job.User != name || !strings.Contains(c.Job.Error, "by "+name) {
			t.Errorf("cancel: %v, %v", c, err)
		}
	}
	if ids["ann"] == ids["bob"] {
		t.Error("two users share a job")
	}
	if _, err := New(Options{Dir: t.TempDir(), Tokens: map[string]string{"ann": ""}}); err == nil {
		t.Error("an empty token is taken")
	}
}

func TestAuthorize(t *testing.T) {
	var roles sync.Map
	m := startMaster(t, func(o *Options) {
		o.Authorize = func(ctx context.Context, role Role) error {
			roles.Store(role, true)
			if role == RoleWorker {
				return errors.New("your certificate is not a worker's")
			}
			return nil
		}
	})
	m.about()
	stream, err := m.attendance(t).Attend(m.context())
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "not a worker's") {
		t.Errorf("attend: %v", err)
	}
	if _, err := m.attendance(t).Finish(m.context(), &api.FinishRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("finish: %v", err)
	}
}

// Without tokens, calls of other machines are refused.
func TestLocalOnly(t *testing.T) {
	for addr, want := range map[string]bool{"127.0.0.1": true, "::1": true, "10.0.0.1": false, "192.0.2.7": false} {
		ctx := peerContext(&net.TCPAddr{IP: net.ParseIP(addr), Port: 1})
		if local(ctx) != want {
			t.Errorf("%s is local: %v", addr, !want)
		}
	}
	if local(context.Background()) {
		t.Error("nobody is local")
	}
}

func TestWorkersRefused(t *testing.T) {
	m := startMaster(t)
	for name, tc := range map[string]struct {
		change func(h *api.Hello)
		want   string
	}{
		"protocol": {func(h *api.Hello) { h.Protocol = 9 }, "version 9"},
		"version":  {func(h *api.Hello) { h.Version = "v0" }, "quern v0"},
		"id":       {func(h *api.Hello) { h.Worker = "" }, "id"},
		"slots":    {func(h *api.Hello) { h.Slots = 0 }, "slots"},
		"many":     {func(h *api.Hello) { h.Slots = 1 << 20 }, "slots"},
		"address":  {func(h *api.Hello) { h.Address = "nowhere" }, "host:port"},
		"port":     {func(h *api.Hello) { h.Address = "host:0" }, "host:port"},
		"platform": {func(h *api.Hello) { h.Platform = "" }, "platform"},
	} {
		f := newWorker(t, m.addr, newWorld(), &model{}, "a")
		tc.change(f.hello)
		f.start()
		<-f.done
		if f.lastErr == nil || !strings.Contains(f.lastErr.Error(), tc.want) {
			t.Errorf("%s: %v", name, f.lastErr)
		}
	}
	if a := m.about(); a.Workers != 0 {
		t.Errorf("%d workers", a.Workers)
	}
	stream, err := m.attendance(t).Attend(m.context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&api.WorkerMessage{}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no hello: %v", err)
	}
}

// A program is run by workers of its platform alone. Without one it waits, says for what, and fails in the end.
func TestPlatform(t *testing.T) {
	m := startMaster(t, func(o *Options) { o.Schedule.NoWorkers = time.Second })
	w := newWorld()
	d := &model{splits: 5, parts: 3}
	r := jobFile()
	r.Program = &api.Program{Blob: m.put(t, []byte("program")), Platform: "plan9/mips", Name: "p"}
	var program atomic.Value // the job that worker a can't run
	program.Store("")
	a := newWorker(t, m.addr, w, d, "a")
	a.pause = func(at schedule.Attempt) error {
		if at.Job == program.Load() {
			w.problem("%v came to a worker that can't run it", at)
		}
		return nil
	}
	a.start()
	s := m.wait(m.submit(r))
	if s.State != api.JobState_JOB_FAILED || !strings.Contains(s.Error, "no worker runs plan9/mips programs, for 1s") {
		t.Errorf("%v: %s", s.State, s.Error)
	}
	m.wantDone(m.submit(jobFile()), d) // it can do others

	b := newWorker(t, m.addr, w, d, "b")
	b.hello.Platform = r.Program.Platform
	var there sync.WaitGroup
	there.Add(1)
	b.pause = func(at schedule.Attempt) error {
		there.Wait()
		return nil
	}
	b.start()
	until(t, "it is there", func() bool { return m.about().Workers == 2 })
	id := m.submit(r)
	program.Store(id)
	there.Done()
	m.wantDone(id, d)
	w.check(t)
}

// A worker that was with another cluster drops what it has of it.
func TestForeignWorker(t *testing.T) {
	m := startMaster(t)
	w := newWorld()
	d := &model{splits: 2, parts: 1}
	f := newWorker(t, m.addr, w, d, "a")
	f.cluster = "another"
	foreign := schedule.Attempt{Job: "other", Stage: schedule.Map}
	stopped := false
	f.running[foreign] = func() { stopped = true }
	w.held[f.hello.Worker][foreign] = 1
	f.start()
	m.wantDone(m.submit(jobFile()), d)
	if w.has(f.hello.Worker, foreign) || !stopped {
		t.Errorf("it still has an output (%v) or runs (%v)", w.has(f.hello.Worker, foreign), !stopped)
	}
}

// The same worker on a second stream replaces the first; the first is told.
func TestSecondStream(t *testing.T) {
	m := startMaster(t)
	c := m.attendance(t)
	hello := newWorker(t, m.addr, newWorld(), &model{}, "a").hello
	open := func() grpc.BidiStreamingClient[api.WorkerMessage, api.MasterMessage] {
		s, err := c.Attend(m.context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&api.WorkerMessage{Hello: hello}); err != nil {
			t.Fatal(err)
		}
		if msg, err := s.Recv(); err != nil || msg.Welcome == nil || msg.Welcome.Cluster != m.Cluster() || msg.Welcome.LeaseMs != 2000 {
			t.Fatalf("welcome: %v, %v", msg, err)
		}
		return s
	}
	first := open()
	second := open()
	if _, err := first.Recv(); status.Code(err) != codes.Aborted {
		t.Errorf("the first stream: %v", err)
	}
	list, err := m.client.Workers(m.context(), &api.WorkersRequest{})
	if err != nil || len(list.Workers) != 1 || list.Workers[0].State != "live" {
		t.Errorf("workers: %v, %v", list, err)
	}
	_ = second.CloseSend()
	until(t, "it is a suspect without a stream", func() bool {
		list, err := m.client.Workers(m.context(), &api.WorkersRequest{})
		return err == nil && list.Workers[0].State == "suspect"
	})
}

// A worker that drains hands over what is needed, and then may go; so does one that is told to.
func TestDrain(t *testing.T) {
	for _, told := range []bool{false, true} {
		t.Run(fmt.Sprint(told), func(t *testing.T) {
			m := startMaster(t)
			w := newWorld()
			d := &model{splits: 4, parts: 2}
			a := newWorker(t, m.addr, w, d, "a")
			g := newGate()
			a.pause = func(at schedule.Attempt) error {
				if at.Stage == schedule.Reduce {
					g.wait(at)
				}
				return nil
			}
			a.start()
			job := m.submit(jobFile())
			<-g.reached
			if told {
				if _, err := m.client.Drain(m.context(), &api.DrainRequest{Worker: "a"}); err != nil {
					t.Fatal(err)
				}
			} else {
				a.send <- &api.WorkerMessage{Draining: true}
			}
			startWorker(t, m.addr, w, d, "b")
			close(g.open)
			m.wantDone(job, d)
			<-a.done
			until(t, "it is gone", func() bool {
				list, err := m.client.Workers(m.context(), &api.WorkersRequest{})
				return err == nil && len(list.Workers) == 2 && list.Workers[0].State == "gone"
			})
			w.check(t)
		})
	}
	m := startMaster(t)
	if _, err := m.client.Drain(m.context(), &api.DrainRequest{Worker: "nosuch"}); status.Code(err) != codes.NotFound {
		t.Errorf("drain of nobody: %v", err)
	}
}

// fakeClock stands still until it is told otherwise.
type fakeClock struct {
	mu    sync.Mutex
	at    time.Duration
	armed chan struct{} // closed when the loop waits
	due   time.Duration
	fire  chan time.Time
}

func newFakeClock() *fakeClock { return &fakeClock{armed: make(chan struct{})} }

func (c *fakeClock) now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *fakeClock) timer(d time.Duration) (<-chan time.Time, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due, c.fire = c.at+d, make(chan time.Time, 1)
	if d <= 0 {
		c.fire <- time.Time{}
	}
	select {
	case <-c.armed:
	default:
		close(c.armed)
	}
	return c.fire, func() {}
}

// advance lets time pass, and waits until the loop has seen it.
func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	c.at += d
	c.armed = make(chan struct{})
	armed := c.armed
	if c.due <= c.at {
		select {
		case c.fire <- time.Time{}:
		default:
		}
	} else {
		close(armed)
	}
	c.mu.Unlock()
	<-armed
}

// Leases run out by the master's clock, and not while it stood still itself.
func TestLease(t *testing.T) {
	clock := newFakeClock()
	m := startMaster(t, func(o *Options) { o.clock, o.Lease = clock, 8*time.Second })
	c := m.attendance(t)
	hello := newWorker(t, m.addr, newWorld(), &model{}, "a").hello
	s, err := c.Attend(m.context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&api.WorkerMessage{Hello: hello}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	state := func() string {
		list, err := m.client.Workers(m.context(), &api.WorkersRequest{})
		if err != nil || len(list.Workers) != 1 {
			t.Fatalf("workers: %v, %v", list, err)
		}
		return list.Workers[0].State
	}
	pass := func(d time.Duration) {
		for ; d > 0; d -= time.Second / 2 {
			clock.advance(time.Second / 2)
		}
	}
	pass(7 * time.Second)
	if got := state(); got != "live" {
		t.Errorf("after 7 s: %s", got)
	}
	heard := func() time.Duration {
		var h time.Duration
		if err := m.do(m.context(), func() {
			if w := m.workers[hello.Worker]; w != nil {
				h = time.Duration(w.heard.Load())
			}
		}); err != nil {
			t.Fatal(err)
		}
		return h
	}
	if err := s.Send(&api.WorkerMessage{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the message renews the lease", func() bool { return heard() >= 7*time.Second })
	pass(7 * time.Second)
	if got := state(); got != "live" {
		t.Errorf("7 s after a message: %s", got)
	}
	// The master was stopped for a minute: nobody's fault.
	clock.advance(time.Minute)
	if got := state(); got != "live" {
		t.Errorf("after the master stood still: %s", got)
	}
	pass(3 * time.Second)
	if got := state(); got != "gone" {
		t.Errorf("after its lease: %s", got)
	}
	if _, err := s.Recv(); status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "lease") {
		t.Errorf("its stream: %v", err)
	}
}

// Hints of the gossip are hints: nothing is given to a suspect, and nothing is taken from it.
func TestSuspects(t *testing.T) {
	hints := make(chan Suspicion)
	m := startMaster(t, func(o *Options) { o.Suspects, o.Lease = hints, time.Hour })
	w := newWorld()
	d := &model{splits: 2, parts: 1}
	startWorker(t, m.addr, w, d, "a")
	until(t, "the worker", func() bool { return m.about().Workers == 1 })
	hints <- Suspicion{"a", true}
	job := m.submit(jobFile())
	list, err := m.client.Workers(m.context(), &api.WorkersRequest{})
	if err != nil || list.Workers[0].State != "suspect" {
		t.Errorf("workers: %v, %v", list, err)
	}
	var started int
	w.mu.Lock()
	for _, n := range w.launches {
		started += n
	}
	w.mu.Unlock()
	if started != 0 {
		t.Errorf("a suspect was given %d attempts", started)
	}
	hints <- Suspicion{"a", false}
	m.wantDone(job, d)
	close(hints)
	m.wantDone(m.submit(jobFile()), d)
}

// Large jobs: status beyond gRPC's usual limit of 4 MiB, thousands of attempts, in pages.
func TestLargeJob(t *testing.T) {
	m := startMaster(t, func(o *Options) { o.Limits.Attempts = 20_000 })
	w := newWorld()
	d := &model{splits: 1100, parts: 20}
	if os.Getenv("QUERN_LONG") != "" {
		d = &model{splits: 10_000, parts: 400}
	}
	long := strings.Repeat("x", 1000)
	var first atomic.Bool
	hold := newGate()
	f := newWorker(t, m.addr, w, d, "a")
	f.hello.Slots = 64
	f.pause = func(at schedule.Attempt) error {
		if at.Stage == schedule.Commit && first.CompareAndSwap(false, true) {
			hold.wait(at)
		}
		return nil
	}
	f.start()
	job := m.submit(jobFile())
	<-hold.reached
	// Counters with long names are added by hand: that every map task reports them takes long.
	if err := m.do(m.context(), func() {
		for i := range 5000 {
			m.jobs[job].ledger.counts[fmt.Sprintf("%s %d", long, i)] = int64(i)
		}
	}); err != nil {
		t.Fatal(err)
	}
	stream, err := m.client.Watch(m.context(), &api.WatchRequest{Job: job})
	if err != nil {
		t.Fatal(err)
	}
	s, err := stream.Recv()
	if err != nil || len(s.Counters) != 5000 || proto.Size(s) < 4<<20 || s.Map.Done != uint32(d.splits) {
		t.Fatalf("status of %d bytes, %d counters, %v: %v", proto.Size(s), len(s.Counters), s.GetMap(), err)
	}
	tasks, err := m.client.Tasks(m.context(), &api.TasksRequest{Job: job})
	if err != nil {
		t.Fatal(err)
	}
	n, pages := 0, 0
	for {
		page, err := tasks.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n += len(page.Attempts)
		pages++
	}
	if want := 1 + d.splits + d.parts + 1; n != want || pages < n/tasksPage {
		t.Errorf("%d attempts in %d pages, want %d", n, pages, want)
	}
	list, err := m.client.Jobs(m.context(), &api.JobsRequest{})
	if err != nil || len(list.Jobs) != 1 || proto.Size(list) > 10_000 {
		t.Errorf("list of %d bytes: %v", proto.Size(list), err)
	}
	close(hold.open)
	m.wantDone(job, d)
	w.check(t)
}

// What is too much is refused by name.
func TestPlanLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		plan func(r *task.PlanResult)
		want string
	}{
		"partitions":   {func(r *task.PlanResult) { r.Partitions = 1<<16 + 1 }, "65537 partitions: 1 to 65536"},
		"none":         {func(r *task.PlanResult) { r.Partitions = 0 }, "0 partitions"},
		"2^31":         {func(r *task.PlanResult) { r.Partitions = 1 << 31 }, "2147483648 partitions"},
		"outputs":      {func(r *task.PlanResult) { r.Partitions = 1 << 16 }, "65 splits x 65536 partitions"},
		"no lanes":     {func(r *task.PlanResult) { r.Ops = nil }, "makes no sense"},
		"lists others": {func(r *task.PlanResult) { r.Splits = r.Splits[:1] }, "makes no sense"},
		"no plan":      {func(r *task.PlanResult) { r.Plan = []byte("{") }, "can't be read"},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMaster(t, func(o *Options) { o.Schedule.MaxAttempts = 1 })
			w := newWorld()
			startWorker(t, m.addr, w, &model{splits: 65, parts: 1, plan: tc.plan}, "a")
			job := m.submit(jobFile())
			s := m.wait(job)
			if s.State != api.JobState_JOB_FAILED || !strings.Contains(s.Error, tc.want) {
				t.Errorf("%v: %s", s.State, s.Error)
			}
			w.check(t)
		})
	}
}

// The history is bounded, and known after a restart.
func TestHistory(t *testing.T) {
	m := startMaster(t, func(o *Options) { o.Limits.History = 3 })
	var ids []string
	for range 6 {
		job := m.submit(jobFile())
		if _, err := m.client.Cancel(m.context(), &api.CancelRequest{Job: job}); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, job)
	}
	check := func() {
		t.Helper()
		list, err := m.client.Jobs(m.context(), &api.JobsRequest{})
		if err != nil || len(list.Jobs) != 3 || list.Jobs[0].Job != ids[5] || list.Jobs[2].Job != ids[3] {
			t.Fatalf("jobs: %v, %v", list, err)
		}
		list, err = m.client.Jobs(m.context(), &api.JobsRequest{Limit: 1, Before: ids[5]})
		if err != nil || len(list.Jobs) != 1 || list.Jobs[0].Job != ids[4] {
			t.Errorf("before %s: %v, %v", ids[5], list, err)
		}
		list, err = m.client.Jobs(m.context(), &api.JobsRequest{RunningOnly: true})
		if err != nil || len(list.Jobs) != 0 {
			t.Errorf("running: %v, %v", list, err)
		}
	}
	check()
	m.restart()
	check()
	running := m.submit(jobFile())
	list, err := m.client.Jobs(m.context(), &api.JobsRequest{RunningOnly: true})
	if err != nil || len(list.Jobs) != 1 || list.Jobs[0].Job != running {
		t.Errorf("running: %v, %v", list, err)
	}
	if s := list.Jobs[0]; s.Waiting == "" || s.State != api.JobState_JOB_QUEUED {
		t.Errorf("without workers it is %v, and waits since %q", s.State, s.Waiting)
	}
}

// Logs come from the workers that are there.
func TestLogs(t *testing.T) {
	m := startMaster(t)
	w := newWorld()
	d := &model{splits: 1, parts: 1}
	f := newWorker(t, m.addr, w, d, "a")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	peer := &logPeer{}
	server := grpc.NewServer()
	api.RegisterPeerServer(server, peer)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() { server.Stop(); <-served })
	f.hello.Address = l.Addr().String()
	f.start()
	job := m.submit(jobFile())
	m.wantDone(job, d)
	stream, err := m.client.Logs(m.context(), &api.LogsRequest{Job: job[:6], Task: "map 0"})
	if err != nil {
		t.Fatal(err)
	}
	chunk, err := stream.Recv()
	if err != nil || string(chunk.Text) != "log of "+job+" map 0" || chunk.Worker != f.hello.Worker {
		t.Errorf("%v, %v", chunk, err)
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("end: %v", err)
	}
	peer.err = status.Error(codes.Internal, "broken")
	stream, err = m.client.Logs(m.context(), &api.LogsRequest{Job: job})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "broken") {
		t.Errorf("a worker that can't: %v", err)
	}
}

type logPeer struct {
	api.UnimplementedPeerServer
	err error
}

func (p *logPeer) Log(r *api.LogsRequest, s grpc.ServerStreamingServer[api.LogChunk]) error {
	if p.err != nil {
		return p.err
	}
	return s.Send(&api.LogChunk{Text: []byte("log of " + r.Job + " " + r.Task)})
}

// A journal that can't be used is a clear error, and another master's is not touched.
func TestBadJournal(t *testing.T) {
	m := startMaster(t)
	if _, err := New(m.opts); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("a second master: %v", err)
	}
	m.halt()
	path := filepath.Join(m.opts.Dir, journal.File)
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	if _, err := New(m.opts); !errors.Is(err, journal.ErrDamaged) {
		t.Errorf("a damaged journal: %v", err)
	}
}

// A fault of the loop ends Serve with an error; it does not take the process with it.
func TestLoopFault(t *testing.T) {
	m := startMaster(t)
	startWorker(t, m.addr, newWorld(), &model{}, "a")
	until(t, "the worker", func() bool { return m.about().Workers == 1 })
	_ = m.do(m.context(), func() { panic("a fault") })
	err := <-m.served
	if err == nil || !strings.Contains(err.Error(), "a fault") {
		t.Errorf("%v", err)
	}
	m.served <- nil
	if _, err := m.client.About(m.context(), &api.AboutRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("afterwards: %v", err)
	}
}

// The journal is written for real, with syncs, too.
func TestSynced(t *testing.T) {
	m := startMaster(t, func(o *Options) { o.noSync = false })
	w := newWorld()
	d := &model{splits: 2, parts: 1}
	startWorker(t, m.addr, w, d, "a")
	m.wantDone(m.submit(jobFile()), d)
	m.restart()
	list, err := m.client.Jobs(m.context(), &api.JobsRequest{})
	if err != nil || len(list.Jobs) != 1 || list.Jobs[0].State != api.JobState_JOB_DONE {
		t.Errorf("%v, %v", list, err)
	}
}

// A worker that was there is waited for after a restart, for a lease, and no longer.
func TestKnownWorkers(t *testing.T) {
	m := startMaster(t, func(o *Options) { o.Lease = time.Second })
	f := startWorker(t, m.addr, newWorld(), &model{}, "a")
	state := func() string {
		list, err := m.client.Workers(m.context(), &api.WorkersRequest{})
		if err != nil || len(list.Workers) > 1 {
			t.Fatalf("workers: %v, %v", list, err)
		}
		if len(list.Workers) == 0 {
			return ""
		}
		return list.Workers[0].Name + " " + list.Workers[0].State
	}
	until(t, "it is written", func() bool {
		c, err := m.journal.Load()
		return err == nil && len(c.Workers) == 1
	})
	m.halt()
	f.stop()
	m.begin()
	if got := state(); got != "a suspect" {
		t.Errorf("after the restart: %q", got)
	}
	until(t, "its lease runs out", func() bool { return state() == "a gone" })
	until(t, "that is written, too", func() bool {
		c, err := m.journal.Load()
		return err == nil && len(c.Workers) == 0
	})
	m.restart()
	if got := state(); got != "" {
		t.Errorf("after another restart: %q", got)
	}
}

// When nobody knows whether a write got through, the master ends, and the next one sees it.
func TestUnsureJournal(t *testing.T) {
	m := startMaster(t)
	job := m.submit(jobFile())
	m.journal.Watch(nil, func() error { return journal.ErrUnsure })
	r := jobFile()
	r.Key = "k"
	if _, err := m.client.Submit(m.context(), r); err == nil {
		t.Error("the job is taken")
	}
	if err := <-m.served; !errors.Is(err, journal.ErrUnsure) {
		t.Errorf("%v", err)
	}
	m.served <- nil
	m.restart()
	if again := m.submit(r); again == job {
		t.Error("two jobs are one")
	}
	list, err := m.client.Jobs(m.context(), &api.JobsRequest{})
	if err != nil || len(list.Jobs) != 2 {
		t.Errorf("jobs: %v, %v", list, err)
	}
}
