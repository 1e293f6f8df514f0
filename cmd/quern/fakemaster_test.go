// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// fakeMaster answers what a test tells it to, and remembers what it was asked.
type fakeMaster struct {
	api.UnimplementedClusterServer
	protocol uint32
	version  string
	token    string           // "": none is wanted
	statuses []*api.JobStatus // that Watch sends, one after the other
	hang     chan struct{}    // if not nil, Watch waits for it behind the last one
	jobs     []*api.JobStatus
	workers  []*api.WorkerStatus

	mu       sync.Mutex
	requests []*api.SubmitRequest
	blobs    map[string]int64
	drained  []string
	come     []*api.WorkerStatus // that are there once one was drained
	away     int                 // answers of Submit that it is not there
	looks    int                 // calls of Watch before the one that counts
	watched  chan struct{}       // closed when that has sent its statuses

	address string
	start   sync.Once // once the test has said all
	serve   func()
}

// env is the environment in which the master is found. The test changes nothing from then on.
func (f *fakeMaster) env(more ...string) []string {
	f.start.Do(f.serve)
	return append([]string{"QUERN_MASTER=" + f.address}, more...)
}

const fakeJob = "0123456789abcdef0123456789abcdef"

func newFakeMaster(t *testing.T) *fakeMaster {
	t.Helper()
	f := &fakeMaster{protocol: api.Protocol, version: "9.8.7", blobs: map[string]int64{}, watched: make(chan struct{})}
	f.statuses = []*api.JobStatus{fakeStatus(api.JobState_JOB_DONE)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.address = l.Addr().String()
	s := grpc.NewServer(grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		if f.token != "" && !slices.Contains(md.Get("authorization"), "Bearer "+f.token) {
			return nil, status.Error(codes.Unauthenticated, "the token is none of ours")
		}
		return next(ctx, req)
	}))
	api.RegisterClusterServer(s, f)
	f.serve = func() { go func() { _ = s.Serve(l) }() }
	t.Cleanup(func() {
		s.Stop()
		_ = l.Close() // if it never served
	})
	return f
}

// fakeStatus is the status of a job in some state.
func fakeStatus(state api.JobState) *api.JobStatus {
	s := &api.JobStatus{
		Job: fakeJob, Name: "wordcount", State: state, SubmittedUnixMs: 1_700_000_000_000, ElapsedMs: 1500, User: "ann",
		Map: &api.StageStatus{Tasks: 4, Done: 3, Running: 1, FailedAttempts: 1}, Reduce: &api.StageStatus{Tasks: 2, LostAttempts: 2},
		Bytes: 750, TotalBytes: 1000, PairsEmitted: 40, PairsCombined: 30, PairsKernel: 20, PairsUser: 9, PairsPulled: 1,
		Notes: []string{"a note"}, Why: []string{"a reason"}, Reruns: 1,
		Broadcasts: []*api.Spreaded{
			{Name: "program", Size: 9_800_000, Reached: 4, Kernel: 4, Sent: 10_300_000, ElapsedUs: 12_345},
			{Name: "side input stations\x1b[1m", Size: 12_000_000, Reached: 3, Kernel: 2, Had: 1, Failed: 1, Sent: 700_000, ElapsedUs: 40_000, Error: "no room\nat all"},
		},
	}
	if state == api.JobState_JOB_DONE {
		s.Rows = 7
		s.Result = []byte(`{"Job":"wordcount","Files":2,"Bytes":1000,"Audit":{"pairs_emitted":40,"rows":7},"Notes":["a note"]}`)
	}
	return s
}

// failedStatus is the status of a job that failed.
func failedStatus(why string) *api.JobStatus {
	s := fakeStatus(api.JobState_JOB_FAILED)
	s.Error = why
	return s
}

func (f *fakeMaster) About(context.Context, *api.AboutRequest) (*api.AboutReply, error) {
	return &api.AboutReply{Cluster: "c", Protocol: f.protocol, Version: f.version, Workers: 2, Slots: 4}, nil
}

func (f *fakeMaster) Submit(_ context.Context, r *api.SubmitRequest) (*api.SubmitReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away--; f.away >= 0 {
		return nil, status.Error(codes.Unavailable, "stopping")
	}
	f.requests = append(f.requests, r)
	return &api.SubmitReply{Job: fakeJob}, nil
}

// submitted is the one request there was.
func (f *fakeMaster) submitted(t *testing.T) *api.SubmitRequest {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.requests) != 1 {
		t.Fatalf("%d submissions, want 1", len(f.requests))
	}
	return f.requests[0]
}

func (f *fakeMaster) known(job string) error {
	if job == "8" {
		return status.Error(codes.InvalidArgument, `"8" begins 2 jobs (81, 82 ...): give more of the id`)
	}
	if !strings.HasPrefix(fakeJob, job) {
		return status.Errorf(codes.NotFound, "there is no job %q", job)
	}
	return nil
}

func (f *fakeMaster) Watch(r *api.WatchRequest, stream grpc.ServerStreamingServer[api.JobStatus]) error {
	if err := f.known(r.GetJob()); err != nil {
		return err
	}
	for _, s := range f.statuses {
		if err := stream.Send(s); err != nil {
			return err
		}
	}
	f.mu.Lock()
	if f.looks--; f.looks == -1 {
		close(f.watched)
	}
	f.mu.Unlock()
	if f.hang != nil {
		select {
		case <-f.hang:
		case <-stream.Context().Done():
		}
	}
	return nil
}

func (f *fakeMaster) Jobs(_ context.Context, r *api.JobsRequest) (*api.JobsReply, error) {
	reply := &api.JobsReply{}
	for _, j := range f.jobs {
		if !r.GetRunningOnly() || j.GetState() < api.JobState_JOB_DONE {
			reply.Jobs = append(reply.Jobs, j)
		}
	}
	return reply, nil
}

func (f *fakeMaster) Cancel(_ context.Context, r *api.CancelRequest) (*api.CancelReply, error) {
	if err := f.known(r.GetJob()); err != nil {
		return nil, err
	}
	return &api.CancelReply{Job: &api.JobStatus{Job: fakeJob, State: api.JobState_JOB_CANCELLED, Error: r.GetReason()}}, nil
}

func (f *fakeMaster) Tasks(r *api.TasksRequest, stream grpc.ServerStreamingServer[api.TasksPage]) error {
	for i := range uint32(2) {
		err := stream.Send(&api.TasksPage{Attempts: []*api.AttemptStatus{{Attempt: &api.Attempt{Job: r.GetJob(), Stage: "map", Task: i}, Worker: "id1", State: "running", Done: 0.5, ElapsedMs: 250, Error: "exit\tstatus 3\r\nsecond line"}}})
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeMaster) Logs(r *api.LogsRequest, stream grpc.ServerStreamingServer[api.LogChunk]) error {
	if err := f.known(r.GetJob()); err != nil {
		return err
	}
	for i, text := range []string{"one\n", "two\n", "three\n", "", ""} {
		at := &api.Attempt{Stage: "map", Task: uint32(i / 2)}
		if r.GetTask() != "" && r.GetTask() != taskName(at) {
			continue
		}
		if err := stream.Send(&api.LogChunk{Attempt: at, Worker: "id1", Text: []byte(text)}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeMaster) Workers(context.Context, *api.WorkersRequest) (*api.WorkersReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	reply := &api.WorkersReply{}
	all := f.workers
	if len(f.drained) > 0 {
		all = slices.Concat(all, f.come)
	}
	for _, w := range all {
		if !slices.Contains(f.drained, w.GetWorker()) {
			reply.Workers = append(reply.Workers, w)
		}
	}
	return reply, nil
}

func (f *fakeMaster) Drain(_ context.Context, r *api.DrainRequest) (*api.DrainReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drained = append(f.drained, r.GetWorker())
	return &api.DrainReply{}, nil
}

func (f *fakeMaster) HasBlobs(_ context.Context, r *api.HasBlobsRequest) (*api.HasBlobsReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	reply := &api.HasBlobsReply{}
	for _, d := range r.GetDigests() {
		if _, ok := f.blobs[d]; !ok {
			reply.Missing = append(reply.Missing, d)
		}
	}
	return reply, nil
}

func (f *fakeMaster) PutBlob(stream grpc.ClientStreamingServer[api.BlobChunk, api.PutBlobReply]) error {
	digest, size := "", int64(0)
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		digest += m.GetDigest()
		size += int64(len(m.GetData()))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blobs[digest] = size
	return stream.SendAndClose(&api.PutBlobReply{Digest: digest})
}
