// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
)

// maxBody is the longest query in bytes.
const maxBody = 1 << 16

// query is the body of a request: count the lines of files by one of their fields.
type query struct {
	Files     []string `json:"files"`     // names within the folder; none: the whole folder
	Field     int      `json:"field"`     // 1 is the first
	Separator string   `json:"separator"` // one byte; "": a tab
	Top       int      `json:"top"`       // only that many, the most frequent first; 0: all, by field
}

// service answers
//
//	POST /queries/{name}   runs a query and answers with its rows as JSON lines
//	GET  /queries/{name}   says how far a running query is
//
// Names are chosen by the client, so that it can ask for progress before it
// has got an answer.
type service struct {
	folder string
	root   *os.Root // the folder, to keep queries inside
	memory int64
	slots  chan struct{}

	mu      sync.Mutex
	running map[string]*atomic.Pointer[mapreduce.Progress]

	mux http.ServeMux
	job func(q query) mapreduce.Runnable
}

// newService makes a service over the files of folder, which runs that many
// queries at the same time, each within memory bytes.
func newService(folder string, memory int64, queries int) (*service, error) {
	if queries < 1 {
		return nil, fmt.Errorf("%d queries at the same time: at least 1 is needed", queries)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, err
	}
	s := &service{
		folder: folder, root: root, memory: memory,
		slots:   make(chan struct{}, queries),
		running: map[string]*atomic.Pointer[mapreduce.Progress]{},
		job:     countField,
	}
	s.mux.HandleFunc("POST /queries/{name}", s.post)
	s.mux.HandleFunc("GET /queries/{name}", s.progress)
	return s, nil
}

// Close lets go of the folder.
func (s *service) Close() error { return s.root.Close() }

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// countField makes the job of a query. Lines without the field are left out.
func countField(q query) mapreduce.Runnable {
	separator := []byte(q.Separator)
	return &mapreduce.Job[[]byte, int64, int64]{
		Name: "count",
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
			rest, more := rec.Value, true
			var field []byte
			for range q.Field {
				if !more {
					return nil
				}
				field, rest, more = bytes.Cut(rest, separator)
			}
			emit.Emit(field, 1)
			return nil
		},
		Fold: mapreduce.Sum[int64](),
		Top:  q.Top,
		Rank: func(a, b int64) int { return cmp.Compare(b, a) },
	}
}

func (s *service) post(w http.ResponseWriter, r *http.Request) {
	q, inputs, err := s.read(w, r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name := r.PathValue("name")
	state, ok := s.enter(name)
	if !ok {
		http.Error(w, "a query of that name runs; choose another one", http.StatusConflict)
		return
	}
	defer s.leave(name)
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "as many queries run as may; try again later", http.StatusServiceUnavailable)
		return
	}

	// Rows are written once the job has succeeded, the large part of them
	// from disk, so an answer is whole or has an error's status. A client that
	// leaves ends the request's context and with it the job.
	w.Header().Set("Content-Type", "application/jsonl")
	answer := &countingWriter{w: w}
	_, err = mapreduce.Run(r.Context(), s.job(q), mapreduce.Options{
		Inputs:   inputs,
		Output:   output.Stream(answer, output.StreamOptions{Format: output.JSONL}),
		Memory:   s.memory,
		Progress: func(p mapreduce.Progress) { state.Store(&p) },
	})
	switch {
	case err == nil:
	case answer.n > 0:
		// Too late for a status: break the connection, so that what was sent
		// cannot be taken for all.
		log.Printf("query %q: %v", name, err)
		panic(http.ErrAbortHandler)
	case errors.Is(err, context.Canceled):
		http.Error(w, "the query was cancelled", http.StatusServiceUnavailable)
	default:
		log.Printf("query %q: %v", name, err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// read reads a request to its end, without which the server could not notice
// that the client leaves, and says which files to read.
func (s *service) read(w http.ResponseWriter, r *http.Request) (q query, inputs []string, err error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return q, nil, err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		return q, nil, fmt.Errorf("the query is not understood: %w", err)
	}
	if q.Separator == "" {
		q.Separator = "\t"
	}
	switch {
	case q.Field < 1:
		return q, nil, fmt.Errorf("field %d: the first is 1", q.Field)
	case len(q.Separator) != 1:
		return q, nil, fmt.Errorf("separator %q: one byte is needed", q.Separator)
	case q.Top < 0:
		return q, nil, fmt.Errorf("top %d: it cannot be negative", q.Top)
	case len(q.Files) == 0:
		return q, []string{s.folder}, nil
	}
	for _, name := range q.Files {
		// A name that exists is never taken for a pattern; the root refuses
		// names and links that lead out of the folder.
		if info, err := s.root.Stat(name); err != nil || !info.Mode().IsRegular() {
			return q, nil, fmt.Errorf("file %q: there is no such file in the folder", name)
		}
		inputs = append(inputs, filepath.Join(s.folder, name))
	}
	return q, inputs, nil
}

func (s *service) enter(name string) (state *atomic.Pointer[mapreduce.Progress], ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[name] != nil {
		return nil, false
	}
	state = &atomic.Pointer[mapreduce.Progress]{}
	state.Store(&mapreduce.Progress{Phase: "plan"})
	s.running[name] = state
	return state, true
}

func (s *service) leave(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, name)
}

func (s *service) progress(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	state := s.running[r.PathValue("name")]
	s.mu.Unlock()
	if state == nil {
		http.Error(w, "no query of that name runs", http.StatusNotFound)
		return
	}
	p := state.Load()
	w.Header().Set("Content-Type", "application/json")
	err := json.NewEncoder(w).Encode(map[string]any{
		"phase": p.Phase, "bytes": p.Bytes, "total_bytes": p.TotalBytes,
		"records": p.Records, "rows": p.Rows, "seconds": p.Elapsed.Seconds(),
	})
	if err != nil {
		log.Printf("progress: %v", err)
	}
}

// countingWriter knows whether anything was written.
type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
