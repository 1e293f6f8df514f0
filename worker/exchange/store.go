// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"cmp"
	"container/list"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/shuffle/spill"
)

// maxOpen is how many runs stay open while nobody reads them: opening one reads its
// index, and with thousands of partitions each is asked for as often.
const maxOpen = 128

// attemptID is an api.Attempt that can be compared.
type attemptID struct {
	job, stage           string
	stageAttempt, number uint32
	task                 uint32
	epoch                uint64
}

func idOf(a *api.Attempt) attemptID {
	return attemptID{a.GetJob(), a.GetStage(), a.GetStageAttempt(), a.GetNumber(), a.GetTask(), a.GetEpoch()}
}

// store keeps the outputs of map attempts.
type store struct {
	dir string

	mu     sync.Mutex
	closed bool
	names  int
	kept   map[attemptID]*kept
	idle   *list.List // of *kept whose run is open and not in use, the latest first
}

// kept is an output that is kept.
type kept struct {
	Output
	damaged atomic.Bool

	// Guarded by the store's lock.
	run     *spill.Run // nil: not open
	opening sync.Mutex // held by who opens it
	users   int
	at      *list.Element // in idle
	dropped bool
}

func newStore(dir string) (*store, error) {
	dir, err := os.MkdirTemp(dir, "outputs-")
	if err != nil {
		return nil, fmt.Errorf("exchange: no folder for map outputs: %w; set another one (--temp)", err)
	}
	return &store{dir: dir, kept: map[attemptID]*kept{}, idle: list.New()}, nil
}

// Keep takes the output of a map attempt; its file is moved away. It is there until Drop or
// Close. Keeping the same attempt's again replaces it.
func (x *Exchange) Keep(out Output) error {
	if out.Attempt == nil || out.Constants == nil {
		return errors.New("exchange: an output without an attempt, or without its job's constants")
	}
	return x.store.keep(out)
}

func (s *store) keep(out Output) (err error) {
	k := &kept{Output: out}
	name := out.Attempt.GetJob()
	if name == "" || strings.ContainsFunc(name, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		return fmt.Errorf("exchange: %q is no job's id", name)
	}
	if out.Path != "" {
		if k.Path, err = s.take(out.Path, name, out.Attempt.GetTask()); err != nil {
			return fmt.Errorf("exchange: keep a map output: %w", err)
		}
		defer func() {
			if err != nil {
				_ = os.Remove(k.Path) // the error says more
			}
		}()
		if k.run, err = spill.Open(k.Path); err != nil {
			return fmt.Errorf("exchange: keep a map output: %w", err)
		}
	}
	if err = k.check(); err != nil {
		return errors.Join(err, k.close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.Join(ErrClosed, k.close())
	}
	id := idOf(out.Attempt)
	old := s.kept[id]
	s.kept[id] = k
	if k.run != nil {
		k.at = s.idle.PushFront(k)
	}
	if old != nil {
		err = s.forget(old)
	}
	return errors.Join(err, s.trim())
}

// take moves a file into the folder of its job, which is not removed meanwhile.
func (s *store) take(path, job string, task uint32) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", ErrClosed
	}
	dir := filepath.Join(s.dir, job)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	s.names++
	to := filepath.Join(dir, fmt.Sprintf("map%d-%d.run", task, s.names))
	return to, move(path, to)
}

// check compares a run with what its maker says of it.
func (k *kept) check() error {
	for p := range k.Parts {
		have := int64(0)
		if k.run != nil {
			have = k.run.PartPairs(p)
		}
		if have != k.Parts[p].Pairs {
			return fmt.Errorf("exchange: the output of map task %d has %d pairs for partition %d; its manifest says %d", k.Attempt.GetTask(), have, p, k.Parts[p].Pairs)
		}
	}
	if k.run != nil && len(k.run.Parts()) > 0 {
		if last := slices.Max(k.run.Parts()); last >= len(k.Parts) {
			return fmt.Errorf("exchange: the output of map task %d has pairs for partition %d; its manifest knows %d", k.Attempt.GetTask(), last, len(k.Parts))
		}
	}
	return nil
}

func (k *kept) close() error {
	if k.run == nil {
		return nil
	}
	err := k.run.Close()
	k.run = nil
	return err
}

// move renames a file, or copies it to another file system.
func move(from, to string) error {
	err := os.Rename(from, to)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	return os.Remove(from)
}

// Held lists the outputs that are kept and in order.
func (x *Exchange) Held() []*api.Held {
	s := x.store
	s.mu.Lock()
	defer s.mu.Unlock()
	held := make([]*api.Held, 0, len(s.kept))
	for _, k := range s.kept {
		if !k.damaged.Load() {
			held = append(held, &api.Held{Job: k.Attempt.GetJob(), Task: k.Attempt.GetTask(), Attempt: k.Attempt})
		}
	}
	slices.SortFunc(held, func(a, b *api.Held) int {
		x, y := a.GetAttempt(), b.GetAttempt()
		return cmp.Or(cmp.Compare(a.GetJob(), b.GetJob()), cmp.Compare(a.GetTask(), b.GetTask()), cmp.Compare(x.GetEpoch(), y.GetEpoch()),
			cmp.Compare(x.GetStageAttempt(), y.GetStageAttempt()), cmp.Compare(x.GetNumber(), y.GetNumber()))
	})
	return held
}

// Drop removes all outputs of a job. Those being read go when that has ended.
func (x *Exchange) Drop(job string) error {
	s := x.store
	s.mu.Lock()
	defer s.mu.Unlock()
	var failed error
	for id, k := range s.kept {
		if id.job == job {
			delete(s.kept, id)
			failed = errors.Join(failed, s.forget(k))
		}
	}
	// The folder goes with its last file.
	if job != "" && filepath.Base(job) == job {
		_ = os.Remove(filepath.Join(s.dir, job))
	}
	return failed
}

// forget removes an output that is not in kept any more. mu is held.
func (s *store) forget(k *kept) error {
	k.dropped = true
	if k.users > 0 {
		return nil
	}
	return s.remove(k)
}

func (s *store) remove(k *kept) error {
	if k.at != nil {
		s.idle.Remove(k.at)
		k.at = nil
	}
	err := k.close()
	if k.Path != "" {
		if e := os.Remove(k.Path); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
		_ = os.Remove(filepath.Dir(k.Path)) // if it was the last one
	}
	if err != nil {
		return fmt.Errorf("exchange: remove a map output: %w", err)
	}
	return nil
}

// use returns an output for reading, nil if there is none. done must be called.
func (s *store) use(a *api.Attempt) (k *kept, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k = s.kept[idOf(a)]
	if k == nil || s.closed {
		return nil, func() {}
	}
	k.users++
	if k.at != nil {
		s.idle.Remove(k.at)
		k.at = nil
	}
	return k, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if k.users--; k.users > 0 {
			return
		}
		if k.dropped {
			_ = s.remove(k) // Close removes the whole folder
			return
		}
		if k.run != nil {
			k.at = s.idle.PushFront(k)
			_ = s.trim() // a run that was read does not fail to close
		}
	}
}

// trim closes runs that nobody has read for long. mu is held.
func (s *store) trim() (failed error) {
	for s.idle.Len() > maxOpen {
		k := s.idle.Remove(s.idle.Back()).(*kept)
		k.at = nil
		failed = errors.Join(failed, k.close())
	}
	return failed
}

// open returns the run of an output that is in use.
func (s *store) open(k *kept) (*spill.Run, error) {
	k.opening.Lock()
	defer k.opening.Unlock()
	s.mu.Lock()
	run := k.run
	s.mu.Unlock()
	if run != nil {
		return run, nil
	}
	run, err := spill.Open(k.Path)
	if err != nil {
		return nil, fmt.Errorf("exchange: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k.run = run
	return run, nil
}

func (s *store) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var failed error
	for _, k := range s.kept {
		failed = errors.Join(failed, k.close())
	}
	s.kept = nil
	if err := os.RemoveAll(s.dir); err != nil {
		failed = errors.Join(failed, fmt.Errorf("exchange: remove map outputs: %w", err))
	}
	return failed
}
