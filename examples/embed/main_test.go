// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quernmr/quern/mapreduce"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testService(t *testing.T, folder string) *service {
	t.Helper()
	s, err := newService(folder, 64<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func testServer(t *testing.T, s *service) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return srv
}

// do sends a request and returns status and body.
func do(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	return res.StatusCode, string(text)
}

// The rows were counted by hand in testdata.
func TestQueries(t *testing.T) {
	srv := testServer(t, testService(t, "testdata"))
	for name, c := range map[string]struct{ query, want string }{
		"all": {
			`{"field":2,"separator":","}`,
			"{\"key\":\"blue\",\"value\":2}\n{\"key\":\"green\",\"value\":1}\n{\"key\":\"red\",\"value\":3}\n",
		},
		"top": {
			`{"field":2,"separator":",","top":2}`,
			"{\"key\":\"red\",\"value\":3}\n{\"key\":\"blue\",\"value\":2}\n",
		},
		"one file": {
			`{"files":["a.csv"],"field":2,"separator":","}`,
			"{\"key\":\"blue\",\"value\":1}\n{\"key\":\"red\",\"value\":2}\n",
		},
		"first field, tabs": {
			`{"files":["a.csv"],"field":1}`,
			"{\"key\":\"ann,red,1\",\"value\":1}\n{\"key\":\"ben,blue,2\",\"value\":1}\n{\"key\":\"cat,red,3\",\"value\":1}\n",
		},
		"no such field": {`{"field":4,"separator":","}`, ""},
	} {
		if status, got := do(t, "POST", srv.URL+"/queries/q", c.query); status != http.StatusOK || got != c.want {
			t.Errorf("%s: %d, got\n%swant\n%s", name, status, got, c.want)
		}
	}
}

func TestBadQueries(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{"ok.txt": "a\n", "outside.txt": "b\n"} {
		at := filepath.Join(folder, name)
		if name == "ok.txt" {
			at = filepath.Join(folder, "served", name)
			if err := os.Mkdir(filepath.Dir(at), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Where links cannot be made there is no file of that name, which is as good.
	_ = os.Symlink(filepath.Join(folder, "outside.txt"), filepath.Join(folder, "served", "link.txt"))
	srv := testServer(t, testService(t, filepath.Join(folder, "served")))
	for name, query := range map[string]string{
		"no JSON":       "field 2",
		"unknown key":   `{"field":1,"colour":"red"}`,
		"no field":      `{}`,
		"separator":     `{"field":1,"separator":"ab"}`,
		"top":           `{"field":1,"top":-1}`,
		"missing file":  `{"field":1,"files":["missing.txt"]}`,
		"pattern":       `{"field":1,"files":["*.txt"]}`,
		"folder above":  `{"field":1,"files":["../outside.txt"]}`,
		"pattern above": `{"field":1,"files":["{..,x}/outside.txt"]}`,
		"absolute":      `{"field":1,"files":["/etc/hostname"]}`,
		"link":          `{"field":1,"files":["link.txt"]}`,
		"too long":      `{"field":1,"files":["` + strings.Repeat("x", maxBody) + `"]}`,
	} {
		if status, got := do(t, "POST", srv.URL+"/queries/q", query); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, status, got)
		}
	}
	if status, _ := do(t, "GET", srv.URL+"/queries/q", ""); status != http.StatusNotFound {
		t.Errorf("progress of nothing: %d", status)
	}
}

// A job that fails has an error's status and no rows.
func TestFailedJob(t *testing.T) {
	s := testService(t, "testdata")
	s.job = func(query) mapreduce.Runnable {
		return &mapreduce.Job[string, int64, int64]{
			Map: func(mapreduce.Record, *mapreduce.Emitter[string, int64]) error {
				return errors.New("boom")
			},
			Fold: mapreduce.Sum[int64](),
		}
	}
	status, got := do(t, "POST", testServer(t, s).URL+"/queries/q", `{"field":1}`)
	if status != http.StatusInternalServerError || !strings.Contains(got, "a.csv:1: boom") {
		t.Errorf("%d %s", status, got)
	}
}

// gate is a job whose first Map waits until it is let through or cancelled.
type gate struct {
	mapreduce.Runnable
	started chan struct{}
	release chan struct{}
	result  chan error
}

func newGate() *gate {
	return &gate{started: make(chan struct{}), release: make(chan struct{}), result: make(chan error, 1)}
}

func (g *gate) Run(ctx context.Context, opts mapreduce.Options) (*mapreduce.Result, error) {
	var once sync.Once
	job := &mapreduce.Job[string, int64, int64]{
		Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
			once.Do(func() { close(g.started) })
			select {
			case <-g.release:
			case <-ctx.Done():
			}
			emit.Emit("lines", 1)
			return nil
		},
		Fold: mapreduce.Sum[int64](),
	}
	res, err := job.Run(ctx, opts)
	g.result <- err
	return res, err
}

func (g *gate) job(query) mapreduce.Runnable { return g }

func TestProgressAndLimits(t *testing.T) {
	s := testService(t, "testdata")
	g := newGate()
	s.job = g.job
	srv := testServer(t, s)
	var wg sync.WaitGroup
	wg.Go(func() {
		status, got := do(t, "POST", srv.URL+"/queries/slow", `{"field":1}`)
		if status != http.StatusOK || got != "{\"key\":\"lines\",\"value\":7}\n" {
			t.Errorf("%d %s", status, got)
		}
	})
	<-g.started
	status, got := do(t, "GET", srv.URL+"/queries/slow", "")
	var p struct{ Phase string }
	if err := json.Unmarshal([]byte(got), &p); status != http.StatusOK || err != nil || p.Phase != "plan" && p.Phase != "map" {
		t.Errorf("progress: %d %s %v", status, got, err)
	}
	if status, _ := do(t, "POST", srv.URL+"/queries/slow", `{"field":1}`); status != http.StatusConflict {
		t.Errorf("same name: %d", status)
	}
	if status, _ := do(t, "POST", srv.URL+"/queries/other", `{"field":1}`); status != http.StatusServiceUnavailable {
		t.Errorf("one too many: %d", status)
	}
	close(g.release)
	wg.Wait()
}

func TestClientLeaves(t *testing.T) {
	s := testService(t, "testdata")
	g := newGate()
	s.job = g.job
	srv := testServer(t, s)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var wg sync.WaitGroup
	wg.Go(func() {
		req, err := http.NewRequestWithContext(ctx, "POST", srv.URL+"/queries/q", strings.NewReader(`{"field":1}`))
		if err != nil {
			t.Error(err)
			return
		}
		if _, err = srv.Client().Do(req); !errors.Is(err, context.Canceled) {
			t.Errorf("client: %v", err)
		}
	})
	<-g.started
	leave()
	wg.Wait()
	if err := <-g.result; !errors.Is(err, context.Canceled) {
		t.Errorf("job: %v", err)
	}
}

// An answer that breaks off is not one that ends.
func TestBrokenAnswer(t *testing.T) {
	s := testService(t, "testdata")
	defer func() {
		if v := recover(); v != http.ErrAbortHandler {
			t.Errorf("panic %v", v)
		}
	}()
	w := &shortWriter{httptest.NewRecorder()}
	s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", "/queries/q", strings.NewReader(`{"field":1}`)))
}

// shortWriter takes no more than three bytes of an answer.
type shortWriter struct{ *httptest.ResponseRecorder }

func (w *shortWriter) Write(p []byte) (int, error) {
	return min(3, len(p)), io.ErrShortWrite
}

// start serves s until stop is called; post sends a query to it.
func start(t *testing.T, s *service, grace time.Duration) (post func() (string, error), stop func(), stopped <-chan error) {
	t.Helper()
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	end := make(chan error, 1)
	go func() { end <- serve(ctx, l, s, grace) }()
	return func() (string, error) {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return "", err
		}
		defer conn.Close()
		req := httptest.NewRequestWithContext(t.Context(), "POST", "/queries/q", strings.NewReader(`{"field":1}`))
		if err := req.Write(conn); err != nil {
			return "", err
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), req)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return res.Status + " " + string(text), err
	}, stop, end
}

func TestShutdown(t *testing.T) {
	for name, c := range map[string]struct {
		grace  time.Duration
		answer string
		job    error
	}{
		"within grace": {time.Hour, "200 OK {\"key\":\"lines\",\"value\":7}\n", nil},
		"after grace":  {0, "503 Service Unavailable the query was cancelled\n", context.Canceled},
	} {
		s := testService(t, "testdata")
		g := newGate()
		s.job = g.job
		post, stop, stopped := start(t, s, c.grace)
		answer := make(chan string, 1)
		go func() {
			text, err := post()
			if err != nil {
				t.Errorf("%s: client: %v", name, err)
			}
			answer <- text
		}()
		<-g.started
		stop()
		if c.job == nil {
			close(g.release)
		}
		if got := <-answer; got != c.answer {
			t.Errorf("%s: answer %q", name, got)
		}
		if err := <-g.result; !errors.Is(err, c.job) {
			t.Errorf("%s: job: %v", name, err)
		}
		if err := <-stopped; err != nil {
			t.Errorf("%s: server: %v", name, err)
		}
	}
}

func TestListenErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	if err := listen(t.Context(), "localhost:0", missing, 1<<20, 1); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("missing folder: %v", err)
	}
	if err := listen(t.Context(), "localhost:0", "testdata", 1<<20, 0); err == nil {
		t.Error("no queries are accepted")
	}
	if err := listen(t.Context(), "nowhere:-1", "testdata", 1<<20, 1); err == nil {
		t.Error("a bad address is accepted")
	}
}
