// SPDX-License-Identifier: Apache-2.0

// Command embed serves counts over the files of a folder by HTTP: a job is a
// function call, so a service can answer a request with one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// grace is how long requests that run may take to end once the service is told to.
const grace = 10 * time.Second

// farewell is how long they may take to end once their jobs are cancelled.
const farewell = 5 * time.Second

func main() {
	address := flag.String("listen", "localhost:8080", "address to listen on")
	folder := flag.String("folder", ".", "folder whose files can be queried")
	memory := flag.Int64("memory", 256<<20, "bytes that one query may use")
	queries := flag.Int("queries", 2, "queries that may run at the same time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := listen(ctx, *address, *folder, *memory, *queries); err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1)
	}
}

func listen(ctx context.Context, address, folder string, memory int64, queries int) error {
	s, err := newService(folder, memory, queries)
	if err != nil {
		return err
	}
	defer s.Close()
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	log.Printf("serving %s on http://%s", folder, l.Addr())
	return serve(ctx, l, s, grace)
}

// serve answers requests until ctx ends. Then no further ones are taken, and
// those that run may end by themselves within grace; after that their jobs are
// cancelled.
func serve(ctx context.Context, l net.Listener, h http.Handler, grace time.Duration) error {
	jobs, cancelJobs := context.WithCancel(context.Background())
	defer cancelJobs()
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return jobs },
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	patience, done := context.WithTimeout(context.Background(), grace)
	defer done()
	err := srv.Shutdown(patience)
	if errors.Is(err, context.DeadlineExceeded) {
		cancelJobs()
		// Jobs end soon after their context does; their answers say why.
		again, done := context.WithTimeout(context.Background(), farewell)
		defer done()
		err = errors.Join(srv.Shutdown(again), srv.Close())
	}
	<-failed
	return err
}
