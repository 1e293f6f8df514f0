// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/schedule"
)

func mustOpen(t testing.TB, dir string) *Journal {
	t.Helper()
	j, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	j.DontSync()
	return j
}

func write(t testing.TB, j *Journal, e ...Entry) {
	t.Helper()
	if err := j.Write(e...); err != nil {
		t.Fatal(err)
	}
}

func load(t testing.TB, j *Journal) *Content {
	t.Helper()
	c, err := j.Load()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func allMaps(t testing.TB, j *Journal, job string) (list []Map) {
	t.Helper()
	if err := j.Maps(job, func(m *Map) error { list = append(list, *m); return nil }); err != nil {
		t.Fatal(err)
	}
	return list
}

func attempt(job string, s schedule.Stage, n uint32) schedule.Attempt {
	return schedule.Attempt{Job: job, Stage: s, Task: n, Number: 3, Epoch: 2, StageAttempt: 1}
}

// Whatever was written is there after the journal was opened again, in the order that is promised.
func TestContent(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir)
	if j.Epoch() != 1 || len(j.Cluster()) != 32 {
		t.Errorf("epoch %d, cluster %q", j.Epoch(), j.Cluster())
	}
	cluster := j.Cluster()
	now := time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC)
	one := Job{ID: "b", Seq: 1, Key: "k", User: "u", Submitted: now, Secret: []byte{1}, Seed: [2]uint64{1, 1 << 63}, Submit: []byte("submit")}
	two := Job{ID: "a", Seq: 2, Submitted: now, Secret: []byte{2}}
	plan := Plan{attempt("b", schedule.Plan, 0), "w", task.PlanResult{Name: "n", Partitions: 3, Plan: []byte(`{"a":1}`), Ticket: []byte("t")}}
	mapped := func(n uint32, digest uint64) Map {
		return Map{attempt("b", schedule.Map, n), "w", digest != 7, task.MapResult{
			Run: "r", Counters: map[string]int64{"c": 1}, Sample: []byte{9},
			Parts: []task.Manifest{{Pairs: 1, Digest: digest, Check: []uint64{5}, SumAbs: [][2]uint64{{1, 2}}, Keys: [5]uint64{1}}, {}},
		}}
	}
	reduced := func(n uint32) Reduce {
		return Reduce{attempt("b", schedule.Reduce, n), "w", task.ReduceResult{Name: fmt.Sprint(n), Check: []uint64{1}}, 1, 2, 3, []uint8{4}}
	}
	totals := Totals{Scale: []uint8{2}, Cuts: [][]byte{{1}, {2}}, Cut: true, Mapped: now}
	write(t, j, JobAdded{one}, JobAdded{two}, WorkerSeen{Worker{"w", []byte("hello"), true, true}}, WorkerSeen{Worker{ID: "gone"}})
	write(t, j, Planned{"b", plan})
	write(t, j, Mapped{Job: "b", Map: mapped(256, 7)}, Mapped{Job: "b", Map: mapped(1, 7)}, Settled{"b", totals})
	write(t, j, Reduced{"b", reduced(0)}, Reduced{"b", reduced(2)}, WorkerGone{"gone"})
	// Map 1 has changed: parts 0 and 1 begin anew, 1 twice.
	write(t, j, Mapped{Job: "b", Map: mapped(1, 8), Reset: []uint32{0, 1}})
	write(t, j, Mapped{Job: "b", Map: mapped(1, 9), Reset: []uint32{1}})
	write(t, j, Broadcast{"b", 0, []byte("first")})
	write(t, j, Broadcast{"b", 1, []byte("second")}, Broadcast{"b", 2, nil})
	write(t, j, Ends{"a", Ending{Reason: "why", Cause: "cause", Cancelled: true, Aborting: true}})
	write(t, j, Kept{"b", State{Rounds: 10, Digest: "older"}}, Kept{"b", State{20, true, "digest", 7, "older"}})

	check := func(j *Journal) {
		t.Helper()
		c := load(t, j)
		if got, want := allMaps(t, j, "b"), []Map{mapped(1, 9), mapped(256, 7)}; !reflect.DeepEqual(got, want) {
			t.Errorf("maps %+v\nwant %+v", got, want)
		}
		want := &Content{
			Running: []*Running{
				{
					Job: one, Plan: &plan, Reduces: []Reduce{reduced(2)}, Totals: totals, State: &State{20, true, "digest", 7, "older"},
					Resets: map[uint32]uint32{0: 1, 1: 2}, Broadcasts: [][]byte{[]byte("first"), []byte("second"), {}},
				},
				{Job: two, Resets: map[uint32]uint32{}, Ending: &Ending{"why", "cause", true, true}},
			},
			Workers: []Worker{{"w", []byte("hello"), true, true}},
		}
		if !reflect.DeepEqual(c, want) {
			t.Errorf("content\n%+v\nwant\n%+v", c.Running[0], want.Running[0])
		}
	}
	check(j)
	if m, err := j.Map("b", 1); err != nil || m.Result.Parts[0].Digest != 9 {
		t.Errorf("map 1: %+v, %v", m, err)
	}
	if _, err := j.Map("b", 2); err == nil {
		t.Error("a map that was never there is")
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = mustOpen(t, dir)
	if j.Epoch() != 2 || j.Cluster() != cluster {
		t.Errorf("epoch %d, cluster %q", j.Epoch(), j.Cluster())
	}
	check(j)
	write(t, j, Committed{"b", attempt("b", schedule.Commit, 0), task.CommitResult{Notes: []string{"n"}}})
	if c := load(t, j); c.Running[0].Commit == nil || c.Running[0].Commit.Notes[0] != "n" || c.Running[0].CommitBy.Stage != schedule.Commit {
		t.Errorf("commit: %+v", c.Running[0])
	}
	ended := History{ID: "b", Seq: 1, Key: "k", User: "u", Ended: now, Status: []byte("status"), Attempts: []Attempt{{Worker: "w", State: "lost"}}}
	write(t, j, Ended{ended, &Leftover{Job: one, Ticket: []byte("ticket")}})
	c := load(t, j)
	if len(c.Running) != 1 || c.Running[0].Job.ID != "a" || len(c.History) != 1 || !reflect.DeepEqual(c.History[0], ended) {
		t.Errorf("after the end: %+v", c)
	}
	if len(c.Left) != 1 || !reflect.DeepEqual(c.Left[0], Leftover{one, []byte("ticket")}) {
		t.Errorf("left: %+v", c.Left)
	}
	write(t, j, Cleared{"b"})
	if c := load(t, j); len(c.Left) != 0 {
		t.Errorf("left: %+v", c.Left)
	}
	write(t, j, Ended{ended, &Leftover{Job: one}})
	write(t, j, Forgotten{[]History{ended}})
	if c := load(t, j); len(c.History) != 0 || len(c.Left) != 0 {
		t.Errorf("history: %+v, left %+v", c.History, c.Left)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// A write that can't be done wholly is not done at all.
func TestAllOrNothing(t *testing.T) {
	j := mustOpen(t, t.TempDir())
	defer j.Close()
	if err := j.Write(JobAdded{Job{ID: "a"}}, Planned{Job: "nosuch"}); err == nil {
		t.Error("a plan of no job is taken")
	}
	if c := load(t, j); len(c.Running) != 0 {
		t.Errorf("half of it is there: %+v", c.Running)
	}
	refuse := errors.New("refuse")
	j.Watch(func() error { return refuse }, nil)
	if err := j.Write(JobAdded{Job{ID: "a"}}); !errors.Is(err, refuse) {
		t.Errorf("%v", err)
	}
	j.Watch(nil, nil)
	if c := load(t, j); len(c.Running) != 0 {
		t.Errorf("it is there: %+v", c.Running)
	}
}

func TestLocked(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir)
	defer j.Close()
	if _, err := Open(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("%v", err)
	}
}

func TestOtherFormat(t *testing.T) {
	for name, change := range map[string]func(tx *bbolt.Tx) error{
		"newer": func(tx *bbolt.Tx) error {
			return tx.Bucket(metaBucket).Put(formatKey, []byte(strconv.Itoa(Format+1)))
		},
		"none": func(tx *bbolt.Tx) error { return tx.Bucket(metaBucket).Delete(formatKey) },
		"not ours": func(tx *bbolt.Tx) error {
			if err := tx.DeleteBucket(metaBucket); err != nil {
				return err
			}
			_, err := tx.CreateBucketIfNotExists([]byte("jobs"))
			return err
		},
	} {
		dir := t.TempDir()
		j := mustOpen(t, dir)
		if err := j.db.Update(change); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A journal with wrong bytes, of these kinds and places, is an error that says so, or is read as it was: never a
// panic, and never other content.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir)
	for i := range 20 {
		id := fmt.Sprint("job ", i)
		write(t, j, JobAdded{Job{ID: id, Seq: uint64(i), Submit: bytes.Repeat([]byte{byte(i)}, 3000)}})
		write(t, j, Mapped{Job: id, Map: Map{Worker: "w", Result: task.MapResult{Parts: make([]task.Manifest, 50)}}})
	}
	older := load(t, j)
	write(t, j, Ended{History: History{ID: "job 3", Seq: 3}})
	want := load(t, j)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, File))
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	refused := 0
	try := func(name string, b []byte) {
		t.Helper()
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, File), b, 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := Open(dir)
		if err != nil {
			refused++
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrFormat) {
				t.Errorf("%s: %v", name, err)
			}
			return
		}
		j.DontSync()
		c, err := j.Load()
		for i := 0; err == nil && i < len(c.Running); i++ {
			err = j.Maps(c.Running[i].Job.ID, func(*Map) error { return nil })
		}
		if err != nil {
			refused++
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%s: %v", name, err)
			}
		} else if !reflect.DeepEqual(c, want) && !reflect.DeepEqual(c, older) {
			// Without one of its two heads the journal is that of one write before.
			t.Errorf("%s: other content", name)
		}
		_ = j.Close()
	}
	for i := range 60 {
		b := bytes.Clone(whole)
		at := rng.IntN(len(b)/4096) * 4096
		switch i % 3 {
		case 0:
			for k := range 4096 {
				b[at+k] = byte(rng.Uint32())
			}
		case 1:
			clear(b[at : at+4096])
		case 2:
			at += rng.IntN(4096)
			b[at] ^= 1 << rng.IntN(8)
		}
		try(fmt.Sprintf("%d: page at %d", i, at), b)
	}
	for _, n := range []int{1, 100, 4096, 8192, len(whole) / 2, len(whole) - 4096} {
		try(fmt.Sprintf("cut at %d", n), whole[:n])
	}
	if refused < 10 {
		t.Errorf("only %d damaged journals were refused", refused)
	}
	try("text", []byte(strings.Repeat("this is no journal\n", 1000)))
	// An empty file is one that was never written.
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, File), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j = mustOpen(t, dir)
	if j.Epoch() != 1 {
		t.Errorf("epoch %d", j.Epoch())
	}
	_ = j.Close()
}

func genMap() *rapid.Generator[Map] {
	return rapid.Custom(func(t *rapid.T) Map {
		m := Map{
			Attempt: attempt(rapid.String().Draw(t, "job"), schedule.Map, rapid.Uint32().Draw(t, "task")),
			Worker:  rapid.StringMatching("[a-z]*").Draw(t, "worker"), Moved: rapid.Bool().Draw(t, "moved"),
		}
		for range rapid.SampledFrom([]int{0, 1, 100}).Draw(t, "counters") {
			if m.Result.Counters == nil {
				m.Result.Counters = map[string]int64{}
			}
			m.Result.Counters[rapid.StringMatching("[a-z]{1,20}").Draw(t, "counter")]++
		}
		m.Result.Records = rapid.Int64().Draw(t, "records")
		lanes := rapid.IntRange(0, 4).Draw(t, "lanes")
		for range rapid.IntRange(0, 20).Draw(t, "parts") {
			p := task.Manifest{
				Pairs: rapid.Int64Min(0).Draw(t, "pairs"), Bytes: rapid.Int64Min(0).Draw(t, "bytes"), Digest: rapid.Uint64().Draw(t, "digest"),
			}
			for k := range p.Keys {
				p.Keys[k] = rapid.Uint64().Draw(t, "keys")
			}
			for range lanes {
				p.Check = append(p.Check, rapid.Uint64().Draw(t, "check"))
				p.SumAbs = append(p.SumAbs, [2]uint64{rapid.Uint64().Draw(t, "high"), rapid.Uint64().Draw(t, "low")})
			}
			m.Result.Parts = append(m.Result.Parts, p)
		}
		return m
	})
}

func TestMapRecord(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := genMap().Draw(rt, "map")
		b, err := encodeMap(&m)
		if err != nil {
			rt.Fatal(err)
		}
		got, err := decodeMap(b)
		if err != nil {
			rt.Fatal(err)
		}
		// JSON replaces what is no UTF-8.
		got.Attempt.Job = m.Attempt.Job
		if !reflect.DeepEqual(*got, m) {
			rt.Fatalf("got %+v\nwant %+v", *got, m)
		}
		for n := range b {
			if _, err := decodeMap(b[:n]); err == nil {
				rt.Fatalf("%d of %d bytes are a record, too", n, len(b))
			}
		}
	})
}

// Manifests are what there are millions of.
func TestMapRecordIsSmall(t *testing.T) {
	m := Map{Worker: "w"}
	for i := range 1000 {
		m.Result.Parts = append(m.Result.Parts, task.Manifest{
			Pairs: 1000, Bytes: 20_000, Digest: uint64(i) * 0x9e3779b97f4a7c15, Check: []uint64{uint64(i) * 0x9e3779b97f4a7c15},
			SumAbs: [][2]uint64{{0, 5000}}, Keys: [5]uint64{500, 400, 100},
		})
	}
	b, err := encodeMap(&m)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(b) / 1000; n > 45 {
		t.Errorf("%d bytes a manifest", n)
	}
}

func FuzzMapRecord(f *testing.F) {
	for _, m := range []Map{{}, {Worker: "w", Result: task.MapResult{Parts: make([]task.Manifest, 3)}}, {
		Attempt: attempt("job", schedule.Map, 1),
		Result:  task.MapResult{Run: strings.Repeat("run", 1000), Parts: []task.Manifest{{Pairs: 1, Check: []uint64{1, 2}, SumAbs: [][2]uint64{{1, 2}, {3, 4}}}}},
	}} {
		b, err := encodeMap(&m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{})
	f.Add([]byte{1, 2, 2, '{', '}', 255, 255, 255, 255, 15})
	f.Add([]byte{1, 255, 255, 255, 15, 5, 255, 255, 255, 15, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMap(b)
		if err != nil {
			return
		}
		again, err := encodeMap(m)
		if err != nil {
			t.Fatal(err)
		}
		second, err := decodeMap(again)
		if err != nil || !reflect.DeepEqual(m, second) {
			t.Fatalf("%+v becomes %+v: %v", m, second, err)
		}
	})
}

func FuzzSealed(f *testing.F) {
	f.Add([]byte("abcd"))
	f.Add(seal([]byte(`{"id":"x"}`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h History
		if err := openJSON(b, &h); err == nil {
			return
		}
		got, err := open(seal(b))
		if err != nil || !bytes.Equal(got, b) {
			t.Fatalf("%q, %v", got, err)
		}
		bad := seal(b)
		bad[len(bad)-1] ^= 1
		if _, err := open(bad); err == nil {
			t.Fatal("a wrong bit is not seen")
		}
	})
}
