// SPDX-License-Identifier: Apache-2.0

package master

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
)

const (
	// logWorkers is how many workers are asked for logs at once.
	logWorkers = 16
	// logTimeout is how long one worker may take to send its logs.
	logTimeout = 2 * time.Minute
)

// Logs implements api.ClusterServer: it asks the workers that are there.
func (c clusterService) Logs(r *api.LogsRequest, stream grpc.ServerStreamingServer[api.LogChunk]) error {
	m := c.m
	type place struct{ id, address string }
	var places []place
	var id string
	var err error
	if e := m.do(stream.Context(), func() {
		j, h, e := m.find(r.Job)
		switch {
		case e != nil:
			err = e
			return
		case j != nil:
			id = j.rec.ID
		default:
			id = h.ID
		}
		for _, w := range m.workers {
			if w.session != nil {
				places = append(places, place{w.id, w.hello.Address})
			}
		}
	}); e != nil {
		return e
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	var mu sync.Mutex // of Send and failures
	var failures []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, logWorkers)
	for _, p := range places {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			err := m.workerLog(ctx, p.address, &api.LogsRequest{Job: id, Task: r.Task, FailedOnly: r.FailedOnly}, func(chunk *api.LogChunk) error {
				if chunk.Worker == "" {
					chunk.Worker = p.id
				}
				mu.Lock()
				defer mu.Unlock()
				if err := stream.Send(chunk); err != nil {
					cancel() // nobody listens any more
					return err
				}
				return nil
			})
			if err != nil {
				mu.Lock()
				failures = append(failures, fmt.Errorf("worker %s at %s: %w", p.id, p.address, err))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failures...); err != nil {
		return status.Errorf(codes.Unavailable, "not all logs can be had: %v", err)
	}
	return nil
}

// workerLog passes on the logs of one worker. That it has none is no error.
func (m *Master) workerLog(ctx context.Context, address string, r *api.LogsRequest, pass func(*api.LogChunk) error) error {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
	}, m.opts.Peer...)...)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // there is nothing to lose
	stream, err := api.NewPeerClient(conn).Log(ctx, r)
	for err == nil {
		var chunk *api.LogChunk
		if chunk, err = stream.Recv(); err == nil {
			err = pass(chunk)
		}
	}
	if err == io.EOF || status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}
