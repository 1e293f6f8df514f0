// SPDX-License-Identifier: Apache-2.0

package objectlab

import (
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
)

// Fault is what becomes of a request. The zero value lets it pass.
type Fault struct {
	// Status answers it with that code, and the server never sees it.
	Status int
	// Lose cuts the connection after the server has done what was asked. With a
	// Status, that is the answer then.
	Lose bool
	// Cut cuts the connection after so many bytes of the answer's body, if
	// it is not 0.
	Cut int64
	// Stall sends no more after Cut bytes, but keeps the connection.
	Stall bool
}

// Proxy stands between clients and the server.
type Proxy struct {
	Address string

	mu    sync.Mutex
	fault func(n int, r *http.Request) Fault
	count int
	seen  []string
}

// Set has fault decide about all further requests; n counts them from 1. It is
// called by several goroutines and may take its time. Nil lets all pass.
func (p *Proxy) Set(fault func(n int, r *http.Request) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.count, p.seen = fault, 0, nil
}

// Seen returns the requests since Set: method, path and query.
func (p *Proxy) Seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.seen...)
}

func (p *Proxy) decide(r *http.Request) Fault {
	p.mu.Lock()
	p.count++
	n, fault := p.count, p.fault
	p.seen = append(p.seen, r.Method+" "+r.URL.RequestURI())
	p.mu.Unlock()
	if fault == nil {
		return Fault{}
	}
	return fault(n, r)
}

type faulty struct {
	http.ResponseWriter
	fault Fault
	left  int64
	gone  <-chan struct{}
}

func (f *faulty) Write(b []byte) (int, error) {
	if f.fault.Cut == 0 {
		return f.ResponseWriter.Write(b)
	}
	if int64(len(b)) < f.left {
		f.left -= int64(len(b))
		return f.ResponseWriter.Write(b)
	}
	_, _ = f.ResponseWriter.Write(b[:f.left])
	if flusher, ok := f.ResponseWriter.(http.Flusher); ok {
		flusher.Flush()
	}
	if f.fault.Stall {
		<-f.gone
	}
	panic(http.ErrAbortHandler)
}

func (f *faulty) Flush() {
	if flusher, ok := f.ResponseWriter.(http.Flusher); ok {
		flusher.Flush()
	}
}

// dropped takes an answer that nobody gets.
type dropped struct{ header http.Header }

func (d *dropped) Header() http.Header         { return d.header }
func (d *dropped) Write(b []byte) (int, error) { return len(b), nil }
func (d *dropped) WriteHeader(int)             {}

func newProxy(t testing.TB, server string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Address: l.Addr().String()}
	transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	forward := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: server})
			r.Out.Host = r.In.Host // it is signed
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	h := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := p.decide(r)
		switch {
		case f.Status != 0 && !f.Lose:
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(f.Status)
		case f.Lose:
			forward.ServeHTTP(&dropped{http.Header{}}, r)
			if f.Status != 0 {
				w.WriteHeader(f.Status)
				return
			}
			panic(http.ErrAbortHandler)
		default:
			forward.ServeHTTP(&faulty{ResponseWriter: w, fault: f, left: f.Cut, gone: r.Context().Done()}, r)
		}
	})}
	var wg sync.WaitGroup
	wg.Go(func() { _ = h.Serve(l) }) // it ends when it is closed
	t.Cleanup(func() {
		_ = h.Close()
		wg.Wait()
		transport.CloseIdleConnections()
	})
	return p
}
