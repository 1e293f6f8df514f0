// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
)

// fake is a master that knows a token, keeps blobs, and tells of jobs what the test says.
type fake struct {
	api.UnimplementedClusterServer
	token    string
	protocol uint32
	version  string

	mu      sync.Mutex
	blobs   map[string][]byte
	jobs    map[string]*api.SubmitRequest // by key
	watch   func(job string, send func(*api.JobStatus) error) error
	submits int
	drop    int    // answers of Submit that get lost
	dies    string // the call at which it goes away

	address string
	server  *grpc.Server
}

// newFake starts a master on a free port, after configure (if it is not nil) has changed it.
func newFake(t *testing.T, configure func(*fake)) *fake {
	t.Helper()
	f := &fake{protocol: api.Protocol, version: buildVersion(), blobs: map[string][]byte{}, jobs: map[string]*api.SubmitRequest{}}
	if configure != nil {
		configure(f)
	}
	f.listen(t, "127.0.0.1:0")
	t.Cleanup(func() { f.server.Stop() })
	return f
}

func (f *fake) listen(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	api.RegisterClusterServer(server, f)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.address, f.server = l.Addr().String(), server
	go func() { _ = server.Serve(l) }()
}

func (f *fake) check(ctx context.Context) error {
	if f.token == "" {
		return nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	if !slices.Contains(md.Get("authorization"), "Bearer "+f.token) {
		return status.Error(codes.Unauthenticated, "token refused: give one of the master's")
	}
	return nil
}

// die ends the server if that is the call at which it does. f is locked.
func (f *fake) die(call string) error {
	if f.dies != call {
		return nil
	}
	f.dies = ""
	server := f.server
	go server.Stop() // which waits for the call
	return status.Error(codes.Unavailable, "stopping")
}

func (f *fake) About(ctx context.Context, _ *api.AboutRequest) (*api.AboutReply, error) {
	return &api.AboutReply{Cluster: "c1", Protocol: f.protocol, Version: f.version, Workers: 2, Slots: 4}, f.check(ctx)
}

func (f *fake) Submit(ctx context.Context, r *api.SubmitRequest) (*api.SubmitReply, error) {
	if err := f.check(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.die("Submit"); err != nil {
		return nil, err
	}
	f.submits++
	f.jobs[r.GetKey()] = r
	if f.drop > 0 {
		f.drop--
		return nil, status.Error(codes.Unavailable, "gone")
	}
	if r.GetProgram().GetName() == "exists" {
		return nil, status.Error(codes.InvalidArgument, "no such thing")
	}
	return &api.SubmitReply{Job: "job-1"}, nil
}

func (f *fake) Watch(r *api.WatchRequest, stream grpc.ServerStreamingServer[api.JobStatus]) error {
	if err := f.check(stream.Context()); err != nil {
		return err
	}
	if r.GetJob() == "" {
		return status.Error(codes.InvalidArgument, "it begins 2 jobs")
	}
	if !strings.HasPrefix("job-1", r.GetJob()) {
		return status.Errorf(codes.NotFound, "job %s", r.GetJob())
	}
	f.mu.Lock()
	watch := f.watch
	f.mu.Unlock()
	return watch(r.GetJob(), stream.Send)
}

// watched sets what Watch does.
func (f *fake) watched(watch func(job string, send func(*api.JobStatus) error) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watch = watch
}

func (f *fake) HasBlobs(_ context.Context, r *api.HasBlobsRequest) (*api.HasBlobsReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.die("HasBlobs"); err != nil {
		return nil, err
	}
	reply := &api.HasBlobsReply{}
	for _, d := range r.GetDigests() {
		if _, ok := f.blobs[d]; !ok {
			reply.Missing = append(reply.Missing, d)
		}
	}
	return reply, nil
}

func (f *fake) PutBlob(stream grpc.ClientStreamingServer[api.BlobChunk, api.PutBlobReply]) error {
	var digest string
	var size int64
	var data []byte
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if digest == "" {
			digest, size = m.GetDigest(), m.GetSize()
		} else if m.GetDigest() != "" {
			return status.Error(codes.InvalidArgument, "digest twice")
		}
		data = append(data, m.GetData()...)
	}
	sum := sha256.Sum256(data)
	if hex.EncodeToString(sum[:]) != digest || int64(len(data)) != size {
		return status.Error(codes.DataLoss, "the blob is not what its digest says")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.die("PutBlob"); err != nil {
		return err
	}
	f.blobs[digest] = data
	return stream.SendAndClose(&api.PutBlobReply{Digest: digest})
}

func (f *fake) Cancel(_ context.Context, r *api.CancelRequest) (*api.CancelReply, error) {
	if r.GetJob() != "job-1" {
		return nil, status.Errorf(codes.NotFound, "job %s", r.GetJob())
	}
	return &api.CancelReply{Job: &api.JobStatus{Job: "job-1", State: api.JobState_JOB_CANCELLED, Error: r.GetReason()}}, nil
}

func (f *fake) Logs(r *api.LogsRequest, stream grpc.ServerStreamingServer[api.LogChunk]) error {
	if r.GetJob() != "job-1" {
		return status.Errorf(codes.NotFound, "job %s", r.GetJob())
	}
	for _, text := range []string{"one\n", "two\n"} {
		if err := stream.Send(&api.LogChunk{Text: []byte(text), Worker: "w"}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) Drain(_ context.Context, r *api.DrainRequest) (*api.DrainReply, error) {
	if r.GetWorker() != "w" {
		return nil, status.Errorf(codes.NotFound, "worker %s", r.GetWorker())
	}
	return &api.DrainReply{}, nil
}

func (f *fake) Jobs(context.Context, *api.JobsRequest) (*api.JobsReply, error) {
	// More than the 4 MiB that gRPC takes by itself.
	return &api.JobsReply{Jobs: []*api.JobStatus{{Job: "job-1", Error: strings.Repeat("x", 5<<20)}}}, nil
}

func (f *fake) Workers(context.Context, *api.WorkersRequest) (*api.WorkersReply, error) {
	return &api.WorkersReply{Workers: []*api.WorkerStatus{{Worker: "1", Name: "w"}}}, nil
}

// dial connects to the fake, and ends that with the test.
func (f *fake) dial(t *testing.T, o DialOptions) *Client {
	t.Helper()
	c, err := Dial(t.Context(), f.address, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// soon is the patience of tests that want to see it end.
const soon = 300 * time.Millisecond
