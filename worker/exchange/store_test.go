// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quernmr/quern/mapreduce/cluster/api"
)

// held lists what a worker holds.
func held(w *worker) string {
	var list []string
	for _, h := range w.x.Held() {
		list = append(list, fmt.Sprintf("%d.%d", h.Task, h.Attempt.Number))
	}
	return strings.Join(list, " ")
}

func TestKeep(t *testing.T) {
	w := start(t, "a", settings{})
	j, k := words(2, 4, 50), words(1, 1, 50)
	for _, a := range [][2]int{{1, 0}, {0, 3}, {0, 2}, {1, 0}} { // the last one again
		j.keep(t, w, a[0], uint32(a[1]))
	}
	if got := held(w); got != "0.2 0.3 1.0" {
		t.Errorf("held: %s", got)
	}
	files, err := filepath.Glob(filepath.Join(w.dir, "outputs-*", j.id(), "*"))
	if err != nil || len(files) != 3 {
		t.Errorf("files %q, %v", files, err)
	}
	k.keep(t, w, 0, 0)
	if err := w.x.Drop(j.id()); err != nil {
		t.Error(err)
	}
	if got := held(w); got != "0.0" {
		t.Errorf("held after one job was dropped: %s", got)
	}
	if left, _ := filepath.Glob(filepath.Join(w.dir, "outputs-*", "*")); len(left) != 1 {
		t.Errorf("folders %q", left)
	}
	if err := w.x.Drop("no such job"); err != nil {
		t.Error(err)
	}
	// An output without pairs has no file.
	o := k.keep(t, w, 0, 7)
	o.Attempt, o.Path, o.Parts = k.attempt(3, 0), "", o.Parts[:0]
	if err := w.x.Keep(o); err != nil {
		t.Error(err)
	}
}

// TestKeepRefuses has outputs that are not what is said of them.
func TestKeepRefuses(t *testing.T) {
	w := start(t, "a", settings{})
	j := words(2, 1, 50)
	for name, change := range map[string]func(*Output){
		"pairs":      func(o *Output) { o.Parts[1].Pairs++ },
		"partitions": func(o *Output) { o.Parts = o.Parts[:1] },
		"no file":    func(o *Output) { o.Path += "x" },
		"path":       func(o *Output) { o.Attempt.Job = "../j" },
		"no job":     func(o *Output) { o.Attempt.Job = "" },
		"damage": func(o *Output) {
			if err := os.Truncate(o.Path, 100); err != nil {
				t.Fatal(err)
			}
		},
		"attempt":   func(o *Output) { o.Attempt = nil },
		"constants": func(o *Output) { o.Constants = nil },
	} {
		o, err := j.write(t.TempDir(), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		change(&o)
		if err := w.x.Keep(o); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if got := held(w); got != "" {
		t.Errorf("held: %s", got)
	}
	if left, _ := filepath.Glob(filepath.Join(w.dir, "outputs-*", "*", "*")); len(left) != 0 {
		t.Errorf("files %q", left)
	}
}

// TestDropInUse drops an output while it is read: its file goes afterwards.
func TestDropInUse(t *testing.T) {
	w := start(t, "a", settings{})
	j := groups(testRand(1), 1, 1, 100, 10)
	o := j.keep(t, w, 0, 0)
	k, done := w.x.store.use(o.Attempt)
	run, err := w.x.store.open(k)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.x.Drop(j.id()); err != nil {
		t.Fatal(err)
	}
	if gone, _ := w.x.store.use(o.Attempt); gone != nil {
		t.Error("it is still given out")
	}
	c := run.Cursor(0, nil, nil)
	n := 0
	for c.Next() {
		n++
	}
	if c.Err() != nil || n != 100 {
		t.Errorf("%d pairs, %v", n, c.Err())
	}
	c.Close()
	done()
	if left, _ := filepath.Glob(filepath.Join(w.dir, "outputs-*", "*")); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// TestOpenRuns keeps more outputs than stay open; all can be read.
func TestOpenRuns(t *testing.T) {
	w := start(t, "a", settings{})
	j := groups(testRand(1), 1, maxOpen+20, 3, 10)
	for m := range j.grouped {
		j.keep(t, w, m, 0)
	}
	open := func() (n int) {
		w.x.store.mu.Lock()
		defer w.x.store.mu.Unlock()
		for _, k := range w.x.store.kept {
			if k.run != nil {
				n++
			}
		}
		return n
	}
	for round := range 2 {
		for m := range j.grouped {
			pairs := uint32(0)
			err := w.x.fetch(testContext(t), &api.FetchRequest{Job: j.id(), MapTask: uint32(m), Attempt: j.attempt(m, 0)}, true, func(b *api.FetchBlock) error {
				pairs += b.Pairs
				return nil
			})
			if err != nil || pairs != 3 {
				t.Fatalf("map task %d: %d pairs, %v", m, pairs, err)
			}
		}
		if n := open(); n != maxOpen {
			t.Errorf("round %d: %d runs are open, want %d", round, n, maxOpen)
		}
	}
}

// TestFetchServer asks for what is not there.
func TestFetchServer(t *testing.T) {
	ctx := testContext(t)
	w := start(t, "a", settings{})
	j := groups(testRand(1), 1, 1, 10, 10)
	j.keep(t, w, 0, 0)
	good := func() *api.FetchRequest {
		return &api.FetchRequest{Job: j.id(), Attempt: j.attempt(0, 0)}
	}
	pairs := 0
	fetch := func(r *api.FetchRequest) error {
		pairs = 0
		return w.x.fetch(ctx, r, false, func(b *api.FetchBlock) error {
			pairs += int(b.Pairs)
			return nil
		})
	}
	r := good()
	r.Skip = 4
	if err := fetch(r); err != nil || pairs != 6 {
		t.Errorf("skip: %d pairs, %v", pairs, err)
	}
	r.Skip = 10
	if err := fetch(r); err != nil || pairs != 0 {
		t.Errorf("skip all: %d pairs, %v", pairs, err)
	}
	r = good()
	r.MapTask = 1
	if err := fetch(r); !errors.Is(err, errGone) {
		t.Errorf("another task: %v", err)
	}
	r = good()
	r.Attempt.Number = 1
	if err := fetch(r); !errors.Is(err, errGone) {
		t.Errorf("another attempt: %v", err)
	}
	r = good()
	r.Partition = 5
	if err := fetch(r); err != nil || pairs != 0 {
		t.Errorf("another partition: %d pairs, %v", pairs, err)
	}
	r = good()
	r.Skip = 11
	if err := fetch(r); !errors.Is(err, errDamaged) {
		t.Errorf("skip more than there is: %v", err)
	}
	for _, err := range []error{errGone, errDamaged, errFatal} {
		if got := fetchError(fetchStatus(fmt.Errorf("x: %w", err))); !errors.Is(got, err) {
			t.Errorf("%v became %v", err, got)
		}
	}
}
