// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/worker/exchange"
)

// store is where blobs come from.
type store struct {
	mu      sync.Mutex
	content map[string][]byte
	offsets []int64 // that were asked for
	breaks  int     // so many transfers break after three bytes
}

func (s *store) put(text string) string {
	sum := sha256.Sum256([]byte(text))
	d := hex.EncodeToString(sum[:])
	s.content[d] = []byte(text)
	return d
}

func (s *store) fetch(ctx context.Context, digest string, offset int64, w io.Writer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	s.offsets = append(s.offsets, offset)
	b := s.content[digest][offset:]
	if s.breaks > 0 {
		s.breaks--
		_, _ = w.Write(b[:3])
		return errBroken
	}
	_, err := w.Write(b)
	return err
}

func newStore(t *testing.T, limit int64) (*store, *blobs) {
	t.Helper()
	s := &store{content: map[string][]byte{}}
	b, err := newBlobs(filepath.Join(t.TempDir(), "blobs"), limit, s.fetch, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, b
}

func TestBlobGoesOn(t *testing.T) {
	t.Parallel()
	s, b := newStore(t, 100)
	d := s.put("0123456789")
	s.breaks = 2
	path, release, err := b.get(t.Context(), d, "")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if text, _ := os.ReadFile(path); string(text) != "0123456789" || !slices.Equal(s.offsets, []int64{0, 3, 6}) {
		t.Errorf("got %q by %v", text, s.offsets)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o500 {
		t.Errorf("%v %v", st.Mode(), err)
	}
}

// TestBlobsFit keeps what is in use, and of the rest what was used last.
func TestBlobsFit(t *testing.T) {
	t.Parallel()
	s, b := newStore(t, 20)
	var digests []string
	var releases []func()
	for i := range 4 {
		d := s.put(strings.Repeat(fmt.Sprint(i), 10))
		_, release, err := b.get(t.Context(), d, "")
		if err != nil {
			t.Fatal(err)
		}
		digests, releases = append(digests, d), append(releases, release)
	}
	there := func() (which string) {
		files, _ := os.ReadDir(b.dir)
		for i, d := range digests {
			if slices.ContainsFunc(files, func(f os.DirEntry) bool { return f.Name() == d }) {
				which += fmt.Sprint(i)
			}
		}
		return which
	}
	for _, c := range []struct {
		release int
		want    string
	}{{2, "0123"}, {0, "0123"}, {3, "013"}, {1, "13"}} {
		releases[c.release]()
		if got := there(); got != c.want {
			t.Errorf("after %d: %s are there, want %s", c.release, got, c.want)
		}
	}
	// One that is gone is fetched again.
	n := len(s.offsets)
	if _, release, err := b.get(t.Context(), digests[2], ""); err != nil || len(s.offsets) != n+1 {
		t.Errorf("%v", err)
	} else {
		release()
	}
}

// TestBlobOfStoppedAttempt has the attempt stopped that fetches a blob for two.
func TestBlobOfStoppedAttempt(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{}, 2)
	var stopped atomic.Bool
	b, err := newBlobs(filepath.Join(t.TempDir(), "blobs"), 100, func(ctx context.Context, _ string, _ int64, w io.Writer) error {
		begun <- struct{}{}
		if !stopped.Swap(true) {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		_, err := io.WriteString(w, "text")
		return err
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("text"))
	digest := hex.EncodeToString(sum[:])
	ctx, cancel := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, _, err := b.get(ctx, digest, ""); !errors.Is(err, errStopped) {
			t.Errorf("the first got %v", err)
		}
	})
	<-begun
	wg.Go(func() {
		path, release, err := b.get(t.Context(), digest, "")
		if err != nil {
			t.Errorf("the second got %v", err)
			return
		}
		defer release()
		if text, _ := os.ReadFile(path); string(text) != "text" {
			t.Errorf("it has %q", text)
		}
	})
	wait(t, "two want it", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.byName[digest] != nil && b.byName[digest].refs == 2
	})
	cancel(errStopped)
	wg.Wait()
}

func TestLogbookFits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := newLogbook(dir, 25)
	at := func(job string, n int) *api.Attempt {
		return &api.Attempt{Job: job, Stage: "map", Task: uint32(n), Number: 1, Epoch: 1}
	}
	add := func(job string, n int, text string, end bool) {
		l := b.begin(at(job, n))
		_, _ = l.Write([]byte(text))
		if end {
			_ = l.Close()
			b.end(at(job, n), n == 1)
		}
	}
	ten := "0123456789"
	add("a", 0, ten, true)
	add("a", 1, ten, true)
	add("a", 2, "", true)
	add("b", 0, ten, false)
	add("b", 1, ten, true)
	list := func(r *api.LogsRequest) (tasks []uint32, text string) {
		for _, l := range b.find(r) {
			tasks = append(tasks, l.attempt.GetTask())
			text += string(l.log.Bytes())
		}
		return tasks, text
	}
	if got, text := list(&api.LogsRequest{Job: "a"}); !slices.Equal(got, []uint32{1}) || text != ten {
		t.Errorf("of a there are %v: %q", got, text)
	}
	if got, text := list(&api.LogsRequest{Job: "b"}); !slices.Equal(got, []uint32{0, 1}) || text != ten+ten {
		t.Errorf("of b there are %v: %q", got, text)
	}
	if got, _ := list(&api.LogsRequest{Job: "b", FailedOnly: true}); !slices.Equal(got, []uint32{1}) {
		t.Errorf("of b %v failed", got)
	}
	if got, _ := list(&api.LogsRequest{Job: "b", Task: "map 0"}); !slices.Equal(got, []uint32{0}) {
		t.Errorf("of b and map 0 there are %v", got)
	}
	if files, _ := os.ReadDir(dir); len(files) != 3 {
		t.Errorf("%d files", len(files))
	}
}

// TestOutputsThatAreNot does not believe what a program says of its folder.
func TestOutputsThatAreNot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	work := filepath.Join(dir, "work")
	if err := errors.Join(os.Mkdir(work, 0o700), os.WriteFile(filepath.Join(work, "run"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "out"), nil, 0o600), os.Symlink("/etc/passwd", filepath.Join(work, "link"))); err != nil {
		t.Fatal(err)
	}
	a := &attempt{launch: &api.Launch{Attempt: &api.Attempt{}, Constants: &api.JobConstants{Partitions: 2}}}
	parts := make([]task.Manifest, 2)
	for run, ok := range map[string]bool{
		"": true, "run": true, "none": false, "../out": false, "/etc/passwd": false, "link": false, ".": false, "..": false, "run/": false, "\x00": false,
	} {
		o, err := a.output(&task.MapResult{Run: run, Parts: parts}, dir)
		if (err == nil) != ok || ok && (o.Path == "") != (run == "") {
			t.Errorf("%q: %v %v", run, o, err)
		}
	}
	for _, n := range []int{0, 1, 3} {
		if _, err := a.output(&task.MapResult{Run: "run", Parts: make([]task.Manifest, n)}, dir); err == nil {
			t.Errorf("%d partitions are taken", n)
		}
	}
}

func TestFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	f, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openFolder(dir); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("belongs to another worker that runs (process %d)", os.Getpid())) {
		t.Errorf("twice: %v", err)
	}
	locked := filepath.Join(f.path, "locked")
	if err := errors.Join(os.MkdirAll(filepath.Join(locked, "in"), 0o700), os.Chmod(locked, 0)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	// What is not a worker's stays.
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600), os.Mkdir(filepath.Join(dir, "run-123"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if f, err = openFolder(dir); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if left, _ := os.ReadDir(dir); len(left) != 1 || left[0].Name() != "mine" {
		t.Errorf("%v are left", left)
	}
}

func TestMoves(t *testing.T) {
	t.Parallel()
	m := newMoves()
	for i := range 100 {
		m.add(&api.MapOutput{Task: uint32(i)})
	}
	ctx, cancel := context.WithCancel(t.Context())
	var got bytes.Buffer
	n := 0
	m.pump(ctx, func(o *api.MapOutput) bool {
		fmt.Fprint(&got, o.GetTask(), " ")
		if n++; n == 100 {
			m.add(&api.MapOutput{Task: 100})
		}
		if n == 101 {
			cancel()
		}
		return true
	})
	if n != 101 || !strings.HasPrefix(got.String(), "0 1 2 3 ") || !strings.HasSuffix(got.String(), " 99 100 ") {
		t.Errorf("%d: %s", n, &got)
	}
}

// TestNews tells what is new once, and to a new master all once more.
func TestNews(t *testing.T) {
	t.Parallel()
	w := &Worker{attempts: map[key]*attempt{}, wake: make(chan struct{}, 1), dropped: []string{"old"}}
	w.casts, w.gangs = newSpreads(w), newGangs(w)
	l := &api.Launch{Attempt: &api.Attempt{Job: "j", Stage: "reduce"}, Reduce: &api.ReduceInput{Pairs: 40}}
	a := &attempt{w: w, key: keyOf(l.GetAttempt()), launch: l, moves: newMoves(), lost: map[uint32]*lostOutput{}}
	w.attempts[a.key] = a
	said := func() string {
		m := w.news()
		if m == nil {
			return ""
		}
		s := fmt.Sprint(m.GetDropped())
		for _, p := range m.GetProgress() {
			s += fmt.Sprintf(" %s %v", p.GetPhase(), p.GetDone())
		}
		for _, o := range m.GetLost() {
			s += fmt.Sprintf(" lost %d", o.GetMapTask())
		}
		return s
	}
	for i, c := range []struct {
		do   func()
		want string
	}{
		{func() {}, "[old]"},
		{func() {}, ""},
		{func() { a.enter("gathering") }, "[] gathering 0"},
		{func() { a.count(exchange.Counts{User: 10}) }, "[] gathering 0.125"}, // a quarter of half of the work
		{func() { a.count(exchange.Counts{User: 10}) }, ""},
		{func() { a.missing(&api.OutputLost{MapTask: 3}) }, "[] lost 3"},
		{func() {}, ""},
		{func() { a.missing(&api.OutputLost{MapTask: 3}) }, "[] lost 3"},
		{func() { a.repeat() }, "[] gathering 0.125 lost 3"},
		{func() { w.relocate(&api.Relocate{Reader: l.GetAttempt(), Output: &api.MapOutput{Task: 3}}); a.repeat() }, "[] gathering 0.125"},
		{func() { a.count(exchange.Counts{Kernel: 30, User: 10}); a.enter("") }, "[]  0.5"},
		{func() { a.report(task.Progress{Phase: "merge", Done: 0.5}) }, "[] merge 0.75"},
		{func() { a.report(task.Progress{Phase: "merge", Done: 0.5}) }, ""},
	} {
		c.do()
		if got := said(); got != c.want {
			t.Errorf("%d: it says %q, want %q", i, got, c.want)
		}
	}
}
