// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

func TestBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total, perJob := rapid.Int64Range(1, 1000).Draw(t, "total"), rapid.Int64Range(1, 1000).Draw(t, "per job")
		b := &budget{total: total, perJob: perJob, byJob: map[shuffle.JobID]int64{}}
		type share struct {
			job   byte
			bytes int64
		}
		var held []share
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(t, "give") {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				b.give(job(held[i].job), held[i].bytes)
				held = append(held[:i], held[i+1:]...)
				continue
			}
			s := share{byte(rapid.IntRange(1, 3).Draw(t, "job")), rapid.Int64Range(1, 1200).Draw(t, "bytes")}
			var all, jobs int64
			for _, h := range held {
				all += h.bytes
				if h.job == s.job {
					jobs += h.bytes
				}
			}
			err := b.take(job(s.job), s.bytes)
			switch {
			case s.bytes > min(total, perJob):
				if !errors.Is(err, shuffle.ErrRefused) {
					t.Fatalf("%d of %d, %d a job: %v", s.bytes, total, perJob, err)
				}
			case all+s.bytes > total || jobs+s.bytes > perJob:
				if !errors.Is(err, shuffle.ErrBusy) || errors.Is(err, shuffle.ErrRefused) {
					t.Fatalf("%d more: %v", s.bytes, err)
				}
			case err != nil:
				t.Fatalf("%d more, %d and %d of the job in use: %v", s.bytes, all, jobs, err)
			default:
				held = append(held, s)
			}
		}
		for _, h := range held {
			b.give(job(h.job), h.bytes)
		}
		if b.used != 0 || len(b.byJob) != 0 {
			t.Fatalf("%d in use at the end, %v", b.used, b.byJob)
		}
	})
}

// Nobody is inside once shut has returned, and nobody gets in.
func TestGate(t *testing.T) {
	for range 200 {
		g := newGate()
		var inside, after atomic.Int64
		var shut atomic.Bool
		var wg sync.WaitGroup
		for range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for range 100 {
					if g.enter() {
						inside.Add(1)
						if shut.Load() {
							after.Add(1)
						}
						inside.Add(-1)
						g.leave()
					} else if !shut.Load() && g.inside.Load() >= 0 {
						after.Add(1)
					}
				}
			}()
		}
		g.shut()
		n := inside.Load()
		shut.Store(true)
		wg.Wait()
		if n != 0 || after.Load() != 0 || g.enter() {
			t.Fatalf("%d inside when it was shut, %d got in after that", n, after.Load())
		}
	}
}

// What is retained stays, can be read by others, can't be written by them, and counts until it is closed.
func TestRetain(t *testing.T) {
	h := newHost(t, setting{})
	s := &keeper{}
	h.take = func(Offer) (Sink, error) { return s, nil }
	source := newHost(t, setting{})
	data := noise(4, 10_000)
	spread(t, source, []Member{h.member("it")}, data, 1, 0)
	if s.kept == nil {
		t.Fatal("nothing was kept")
	}
	<-s.ended
	if got := make([]byte, len(data)); true {
		if _, err := s.kept.File.ReadAt(got, s.kept.Offset); err != nil || string(got) != string(data) || s.kept.Size != int64(len(data)) {
			t.Errorf("file with %d bytes at %d: %v", s.kept.Size, s.kept.Offset, err)
		}
	}
	if string(s.m.Bytes()) != string(data) {
		t.Error("the message is not what it was")
	}
	if _, err := s.kept.File.WriteAt([]byte{1}, 0); err == nil {
		t.Error("who was handed the file can write it")
	}
	eventually(t, "only what is retained counts", func() bool { return h.inUse() == costOf(chunksOf(int64(len(data)))) })
	if err := s.kept.Close(); err != nil {
		t.Error(err)
	}
	if err := s.kept.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	// The region has the same memory until it is closed, which is after the end that was told.
	eventually(t, "nothing is in use at the end", func() bool { return h.inUse() == 0 })
	if _, err := s.kept.File.Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) && err != io.EOF {
		t.Errorf("a closed mapping's file: %v", err)
	}
	if _, err := s.m.Retain(); err == nil {
		t.Error("memory that is gone can be retained")
	}
}

func (h *host) inUse() int64 {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	return h.budget.used
}

// keeper retains what it gets.
type keeper struct {
	m     *Message
	kept  *Mapping
	ended chan struct{}
}

func (k *keeper) Message(m *Message) (err error) {
	k.ended = make(chan struct{})
	k.m = m
	k.kept, err = m.Retain()
	return err
}

func (k *keeper) End(error) { close(k.ended) }

// The bytes of a content that was freed are nobody's any more, those of a new one are zeros.
func TestContentsAreZeros(t *testing.T) {
	for range 3 {
		c, free, err := newContent(3)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Data) != 3*wire.ChunkSize || len(c.Marks) != 3 {
			t.Fatalf("%d bytes, %d marks", len(c.Data), len(c.Marks))
		}
		for i := range c.Data {
			if c.Data[i] != 0 {
				t.Fatalf("byte %d is not zero", i)
			}
			c.Data[i] = 1
		}
		c.Marks[2] = 7
		if err := free(); err != nil {
			t.Error(err)
		}
	}
}
