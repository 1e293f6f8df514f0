// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const testJob = "00c0ffee"

// writeAttempt writes a part as a reduce attempt does.
func writeAttempt(s Shared, info Info, ticket []byte, index int, attempt string, rows ...Row) (string, error) {
	a, err := s.Attempt(info, ticket, index, attempt)
	if err != nil {
		return "", err
	}
	if err := writePart(onePart{a}, index, rows...); err != nil {
		return "", errors.Join(err, a.Abort())
	}
	return a.Commit()
}

// onePart makes a transaction of an attempt, for writePart.
type onePart struct{ a SharedAttempt }

func (o onePart) Part(int) (Part, error) { return o.a.Part(), nil }
func (o onePart) Commit([]byte) error    { return nil }
func (o onePart) Abort() error           { return nil }

var testRows = [][]Row{
	{wordRow("a", 1), wordRow("b", 2)},
	nil,
	{wordRow("c", 3)},
}

// localTree is what the local engine makes of testRows.
func localTree(t *testing.T, opts DirOptions) map[string]string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	tx := begin(t, Dir(out, opts), wordInfo(len(testRows)))
	for i, rows := range testRows {
		must(t, writePart(tx, i, rows...))
	}
	must(t, tx.Commit([]byte(`{"rows":3}`)))
	return tree(t, out)
}

func shared(path string, opts DirOptions) *dirTarget { return Dir(path, opts).(*dirTarget) }

// under returns a tree with its names below a folder.
func under(dir string, files map[string]string) map[string]string {
	all := map[string]string{dir: "/"}
	for name, content := range files {
		all[dir+"/"+name] = content
	}
	return all
}

func TestSharedDirEqualsLocal(t *testing.T) {
	for _, opts := range []DirOptions{
		{},
		{Format: CSV, Compression: Gzip},
		{Format: JSONL, Compression: Zstd},
		{Format: Parquet},
	} {
		want := localTree(t, opts)
		root := t.TempDir()
		out := filepath.Join(root, "new", "out")
		info := wordInfo(len(testRows))
		// Every call by a target of its own, as in different processes.
		ticket, err := shared(out, opts).Prepare(info, testJob)
		must(t, err)
		again, err := shared(out, opts).Prepare(info, testJob)
		must(t, err)
		if string(again) != string(ticket) {
			t.Errorf("a second ticket: %s, not %s", again, ticket)
		}
		names := make([]string, len(testRows))
		for i, rows := range testRows {
			if rows == nil {
				continue // a part without a winner is written when it is published
			}
			names[i], err = writeAttempt(shared(out, opts), info, ticket, i, "1-7", rows...)
			must(t, err)
			_, err = writeAttempt(shared(out, opts), info, ticket, i, "1-8", wordRow("loser", 1))
			must(t, err)
		}
		aborted, err := shared(out, opts).Attempt(info, ticket, 0, "1-9")
		must(t, err)
		must(t, aborted.Abort())
		must(t, aborted.Abort())
		if _, err := os.Stat(out); err == nil {
			t.Error("the target is there before Publish")
		}
		for range 2 { // again after it has succeeded
			notes, err := shared(out, opts).Publish(info, ticket, names, []byte(`{"rows":3}`))
			if err != nil || len(notes) > 0 {
				t.Fatalf("publish: %v, %v", notes, err)
			}
			same(t, root, map[string]string{"new": "/"}, under("new/out", want))
		}
		for range 2 { // what was published stays
			must(t, shared(out, opts).Discard(ticket))
			same(t, root, map[string]string{"new": "/"}, under("new/out", want))
		}
		for _, name := range []string{"", "/part-00000", "/_SUCCESS"} {
			if name == "/part-00000" {
				name = "/" + PartName(0, opts.Format, opts.Compression)
			}
			local := filepath.Join(t.TempDir(), "out")
			tx := begin(t, Dir(local, opts), wordInfo(1))
			must(t, tx.Commit(nil))
			a, err := os.Stat(local + name)
			must(t, err)
			b, err := os.Stat(out + name)
			must(t, err)
			if a.Mode() != b.Mode() {
				t.Errorf("%s has mode %v, the local engine's %v", name, b.Mode(), a.Mode())
			}
		}
	}
}

func TestSharedDirDiscard(t *testing.T) {
	root := t.TempDir()
	must(t, os.Mkdir(filepath.Join(root, "a"), 0o755))
	out := filepath.Join(root, "a", "b", "c", "out")
	info := wordInfo(2)
	target := shared(out, DirOptions{})
	ticket, err := target.Prepare(info, testJob)
	must(t, err)
	name, err := writeAttempt(target, info, ticket, 0, "1")
	must(t, err)
	zombie, err := target.Attempt(info, ticket, 1, "2")
	must(t, err)
	must(t, target.Discard(ticket))
	must(t, target.Discard(ticket))
	same(t, root, map[string]string{"a": "/"})
	// Whoever missed that is told, and leaves nothing.
	must(t, zombie.Part().Close())
	if _, err := zombie.Commit(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an attempt committed after the end: %v", err)
	}
	must(t, zombie.Abort())
	if _, err := target.Attempt(info, ticket, 1, "3"); !errors.Is(err, ErrState) {
		t.Errorf("an attempt begun after the end: %v", err)
	}
	if _, err := target.Publish(info, ticket, []string{name, name}, nil); !errors.Is(err, ErrState) {
		t.Errorf("wrong names: %v", err)
	}
	if _, err := target.Publish(info, ticket, []string{name, ""}, nil); !errors.Is(err, ErrState) {
		t.Errorf("published after the end: %v", err)
	}
	same(t, root, map[string]string{"a": "/"})
}

func TestSharedDirRefuses(t *testing.T) {
	root := t.TempDir()
	out := filepath.Join(root, "out")
	must(t, os.Mkdir(out, 0o750))
	must(t, os.WriteFile(filepath.Join(out, "old"), []byte("old"), 0o644))
	before := under("out", map[string]string{"old": "old"})
	info := wordInfo(1)
	if _, err := shared(out, DirOptions{}).Prepare(info, testJob); !errors.Is(err, ErrExists) {
		t.Errorf("a target with content: %v", err)
	}
	if _, err := shared(out, DirOptions{Overwrite: true}).Prepare(wordInfo(1, filepath.Join(out, "old")), testJob); !errors.Is(err, ErrOverlap) {
		t.Errorf("a target with input: %v", err)
	}
	for _, job := range []string{"", "a/b", "..", strings.Repeat("a", 65)} {
		if _, err := shared(out, DirOptions{Overwrite: true}).Prepare(info, job); !errors.Is(err, ErrState) {
			t.Errorf("job %q: %v", job, err)
		}
	}
	for _, ticket := range []string{"", "{}", `{"version":1,"job":"../x","real":"/a"}`, `{"version":1,"job":"x","real":"a"}`, `{"version":2,"job":"x","real":"/a"}`} {
		if err := shared(out, DirOptions{}).Discard([]byte(ticket)); err == nil || !strings.Contains(err.Error(), out) {
			t.Errorf("ticket %q: %v", ticket, err)
		}
	}
	same(t, root, before)

	// It gets content while the job runs.
	must(t, os.Remove(filepath.Join(out, "old")))
	target := shared(out, DirOptions{})
	ticket, err := target.Prepare(info, testJob)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(out, "old"), []byte("old"), 0o644))
	if _, err := target.Attempt(info, ticket, 1, "1"); !errors.Is(err, ErrState) {
		t.Errorf("a part too many: %v", err)
	}
	if _, err := target.Attempt(info, ticket, 0, "../1"); !errors.Is(err, ErrState) {
		t.Errorf("an attempt's name: %v", err)
	}
	name, err := writeAttempt(target, info, ticket, 0, "1", wordRow("a", 1))
	must(t, err)
	for _, names := range [][]string{nil, {"part-00000"}, {"part-00000."}, {"part-00000.a/b"}, {"part-00001.1"}, {"part-00000.csv.1"}, {name, name}} {
		if _, err := target.Publish(info, ticket, names, nil); !errors.Is(err, ErrState) {
			t.Errorf("names %q: %v", names, err)
		}
	}
	for range 2 {
		if _, err := target.Publish(info, ticket, []string{name}, nil); !errors.Is(err, ErrExists) {
			t.Errorf("over content: %v", err)
		}
	}
	if _, err := target.Publish(info, ticket, []string{""}, nil); !errors.Is(err, ErrState) {
		t.Errorf("with other winners: %v", err)
	}
	must(t, target.Discard(ticket))
	same(t, root, before)

	// A winner that is not there.
	target = shared(out, DirOptions{Overwrite: true})
	ticket, err = target.Prepare(info, testJob)
	must(t, err)
	if _, err := target.Publish(info, ticket, []string{"part-00000.9"}, nil); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "part 0") {
		t.Errorf("a missing winner: %v", err)
	}
	must(t, target.Discard(ticket))
	same(t, root, before)
}

var errKilled = errors.New("killed")

// inMemory has a test's files where syncing costs nothing, if there is such a place.
func inMemory(t *testing.T) {
	const shm = "/dev/shm"
	if info, err := os.Stat(shm); err == nil && info.IsDir() {
		t.Setenv("TMPDIR", shm)
	}
}

// killAt lets a process die at its n-th step, counted from 0: what that step
// does in several pieces is begun.
func killAt(n int) func(op, path string) error {
	count := 0
	return func(op, path string) error {
		count++
		if count <= n {
			return nil
		}
		if count == n+1 {
			beginStep(op, path)
		}
		return errKilled
	}
}

// beginStep does a piece of a step that is not whole at once.
func beginStep(op, path string) {
	switch op {
	case "write", "create":
		_ = os.WriteFile(path, []byte("{"), 0o666)
	case "remove all":
		_ = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				_ = os.Remove(name)
				return fs.SkipAll
			}
			return err
		})
	}
}

// scene is a target before a job.
type scene struct {
	name       string
	opts       DirOptions
	before     map[string]string // of the target; nil: it is missing
	noExchange bool
}

var scenes = []scene{
	{"missing", DirOptions{}, nil, false},
	{"empty", DirOptions{Format: CSV}, map[string]string{}, false},
	{"replace", DirOptions{Overwrite: true}, map[string]string{"_SUCCESS": "old", "part-00000": "x", "sub": "/", "sub/more": "y"}, false},
	{"replace in two steps", DirOptions{Overwrite: true, Format: JSONL}, map[string]string{"_SUCCESS": "old", "part-00000": "x"}, true},
}

// set makes the scene and returns the target's path and what is around it.
func (s *scene) set(t *testing.T) (root, out string, before map[string]string) {
	t.Helper()
	root = t.TempDir()
	out = filepath.Join(root, "new", "out")
	if s.before == nil {
		return root, out, nil
	}
	must(t, os.MkdirAll(out, 0o750))
	before = map[string]string{"new": "/"}
	maps.Copy(before, under("new/out", s.before))
	for name, content := range s.before {
		if content == "/" {
			must(t, os.MkdirAll(filepath.Join(out, name), 0o755))
		}
	}
	for name, content := range s.before {
		if content != "/" {
			must(t, os.WriteFile(filepath.Join(out, name), []byte(content), 0o644))
		}
	}
	return root, out, before
}

// process returns a target as a process of its own has it.
func (s *scene) process(out string, hook func(op, path string) error) *dirTarget {
	d := shared(out, s.opts)
	d.pause = func(int) {}
	d.steps.before = func(op, path string) error {
		if hook != nil {
			if err := hook(op, path); err != nil {
				return err
			}
		}
		if op == "exchange" && s.noExchange {
			return errors.ErrUnsupported
		}
		return nil
	}
	return d
}

func (s *scene) attempts(t *testing.T, out string, ticket []byte) []string {
	t.Helper()
	names := make([]string, len(testRows))
	for i, rows := range testRows {
		if i == 1 {
			continue
		}
		var err error
		names[i], err = writeAttempt(s.process(out, nil), wordInfo(len(testRows)), ticket, i, "1-1", rows...)
		must(t, err)
	}
	return names
}

// after is what is around the target after a job.
func (s *scene) after(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"new": "/"}
	maps.Copy(all, under("new/out", localTree(t, s.opts)))
	return all
}

// TestSharedDirKilled kills every call between any two of its steps. Whoever
// calls again ends as if nothing had happened.
func TestSharedDirKilled(t *testing.T) {
	inMemory(t)
	success := []byte(`{"rows":3}`)
	info := wordInfo(len(testRows))
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			t.Run("prepare", func(t *testing.T) {
				for n := 0; ; n++ {
					root, out, before := s.set(t)
					_, err := s.process(out, killAt(n)).Prepare(info, testJob)
					if err != nil && !errors.Is(err, errKilled) {
						t.Fatalf("step %d: %v", n, err)
					}
					ticket, failed := s.process(out, nil).Prepare(info, testJob)
					must(t, failed)
					s.attempts(t, out, ticket)
					must(t, s.process(out, nil).Discard(ticket))
					if before == nil && n > 0 {
						before = map[string]string{"new": "/"} // made by one that was killed before it could note that
						if _, err := os.Stat(filepath.Join(root, "new")); err != nil {
							before = nil
						}
					}
					same(t, root, before)
					if err == nil {
						return
					}
				}
			})
			t.Run("attempt", func(t *testing.T) {
				root, out, before := s.set(t)
				ticket, err := s.process(out, nil).Prepare(info, testJob)
				must(t, err)
				for n := 0; ; n++ {
					_, err := writeAttempt(s.process(out, killAt(n)), info, ticket, 0, "1-1", testRows[0]...)
					if err == nil {
						break
					}
					if !errors.Is(err, errKilled) {
						t.Fatalf("step %d: %v", n, err)
					}
				}
				must(t, s.process(out, nil).Discard(ticket))
				same(t, root, before)
			})
			t.Run("publish", func(t *testing.T) {
				for n := 0; ; n++ {
					root, out, _ := s.set(t)
					ticket, err := s.process(out, nil).Prepare(info, testJob)
					must(t, err)
					names := s.attempts(t, out, ticket)
					_, err = s.process(out, killAt(n)).Publish(info, ticket, names, success)
					if err != nil && !errors.Is(err, errKilled) {
						t.Fatalf("step %d: %v", n, err)
					}
					// A second one may be killed as well.
					_, err2 := s.process(out, killAt(n/2)).Publish(info, ticket, names, success)
					if err2 != nil && !errors.Is(err2, errKilled) {
						t.Fatalf("step %d, then %d: %v", n, n/2, err2)
					}
					_, failed := s.process(out, nil).Publish(info, ticket, names, success)
					if failed != nil {
						t.Fatalf("step %d: %v", n, failed)
					}
					same(t, root, s.after(t))
					if s.before != nil {
						if st, err := os.Stat(out); err != nil || st.Mode().Perm() != 0o750 {
							t.Errorf("step %d: the folder's rights changed: %v, %v", n, st.Mode(), err)
						}
					}
					if err == nil {
						return
					}
				}
			})
			t.Run("publish, then discard", func(t *testing.T) {
				for n := 0; ; n++ {
					for m := 0; ; m++ {
						root, out, before := s.set(t)
						ticket, err := s.process(out, nil).Prepare(info, testJob)
						must(t, err)
						names := s.attempts(t, out, ticket)
						_, err = s.process(out, killAt(n)).Publish(info, ticket, names, success)
						err2 := s.process(out, killAt(m)).Discard(ticket)
						if err2 != nil && !errors.Is(err2, errKilled) {
							t.Fatalf("steps %d, %d: %v", n, m, err2)
						}
						must(t, s.process(out, nil).Discard(ticket))
						if sameFile(filepath.Join(out, "_SUCCESS"), success) {
							same(t, root, s.after(t))
						} else {
							same(t, root, before)
							if err == nil {
								t.Fatalf("steps %d, %d: published, and gone", n, m)
							}
						}
						if t.Failed() {
							t.Fatalf("steps %d, %d", n, m)
						}
						if err2 == nil {
							if err == nil {
								return
							}
							break
						}
					}
				}
			})
		})
	}
}

// schedule lets processes take their steps one at a time, in an order of its own.
type schedule struct {
	rand  *rand.Rand
	ready chan int    // a process waits for its turn, or (as -1-i) has ended
	turns []chan bool // false: it is killed
	trace []string
}

func (s *schedule) hook(i int) func(op, path string) error {
	dead := false
	return func(op, path string) error {
		if dead {
			return errKilled
		}
		s.ready <- i
		if !<-s.turns[i] {
			dead = true
			return errKilled
		}
		s.trace = append(s.trace, fmt.Sprintf("%d: %s %s", i, op, filepath.Base(path)))
		return nil
	}
}

func (s *schedule) run(kills int, processes ...func(hook func(op, path string) error)) {
	s.ready = make(chan int)
	var wg sync.WaitGroup
	for i, do := range processes {
		s.turns = append(s.turns, make(chan bool))
		wg.Go(func() {
			do(s.hook(i))
			s.ready <- -1 - i
		})
	}
	waiting := map[int]bool{}
	alive := len(processes)
	for {
		for len(waiting) < alive {
			if i := <-s.ready; i >= 0 {
				waiting[i] = true
			} else {
				alive--
			}
		}
		if alive == 0 {
			break
		}
		var who []int
		for i := range processes {
			if waiting[i] {
				who = append(who, i)
			}
		}
		i := who[s.rand.IntN(len(who))]
		delete(waiting, i)
		kill := kills > 0 && s.rand.IntN(20) == 0
		if kill {
			kills--
			s.trace = append(s.trace, fmt.Sprintf("%d: killed", i))
		}
		s.turns[i] <- !kill
	}
	wg.Wait()
}

// TestSharedDirTogether lets processes publish at the same time, some of which
// are killed, and one discard, in random orders of their steps.
func TestSharedDirTogether(t *testing.T) {
	inMemory(t)
	runs := 100
	if os.Getenv("QUERN_LONG") != "" {
		runs = 2_000
	}
	success := []byte(`{"rows":3}`)
	info := wordInfo(len(testRows))
	for _, s := range scenes {
		for _, discards := range []bool{false, true} {
			for seed := range runs {
				root, out, before := s.set(t)
				ticket, err := s.process(out, nil).Prepare(info, testJob)
				must(t, err)
				names := s.attempts(t, out, ticket)
				plan := schedule{rand: rand.New(rand.NewPCG(uint64(seed), 7))}
				errs := make([]error, 3)
				var procs []func(func(op, path string) error)
				for i := range errs {
					procs = append(procs, func(hook func(op, path string) error) {
						p := s.process(out, hook)
						p.pause = func(int) { _ = hook("pause", "") }
						if discards && i == 2 {
							errs[i] = p.Discard(ticket)
						} else {
							_, errs[i] = p.Publish(info, ticket, names, success)
						}
					})
				}
				plan.run(seed%3, procs...)
				published := false
				for i, err := range errs {
					switch {
					case discards && i == 2:
						if err != nil && !errors.Is(err, errKilled) {
							t.Errorf("discard: %v", err)
						}
					case err == nil:
						published = true
					case errors.Is(err, errKilled):
					case discards && errors.Is(err, ErrState):
					case errors.Is(err, errLost): // it gave up: the others have the turn
					default:
						t.Errorf("publish: %v", err)
					}
				}
				if discards {
					must(t, s.process(out, nil).Discard(ticket))
				} else {
					_, err := s.process(out, nil).Publish(info, ticket, names, success)
					must(t, err)
					published = true
				}
				if published || sameFile(filepath.Join(out, "_SUCCESS"), success) {
					same(t, root, s.after(t))
				} else {
					same(t, root, before)
				}
				if t.Failed() {
					t.Fatalf("%s, seed %d, discards %v, %v:\n%s", s.name, seed, discards, errs, strings.Join(plan.trace, "\n"))
				}
			}
		}
	}
}
