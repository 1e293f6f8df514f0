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
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/broadcast"
)

var jobA, jobB = shuffle.JobID{1, 15: 2}, shuffle.JobID{3, 15: 4}

// cast is a blob, its digest, and what a source says of it.
func (s *store) cast(text, kind string) broadcast.Offer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return broadcast.Offer{Job: jobA, Name: s.put(text), Kind: kind, Size: int64(len(text))}
}

func (s *store) fetched() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.offsets)
}

// shared counts the memory that is retained.
type shared struct {
	t     *testing.T
	open  int
	wrong error // Retain fails with it
}

// retain puts text where a region would have it: in memory that can be mapped, not at its beginning.
func (m *shared) retain(text string) func() (*region, error) {
	return func() (*region, error) {
		if m.wrong != nil {
			return nil, m.wrong
		}
		fd, err := unix.MemfdCreate("region", 0)
		if err != nil {
			return nil, err
		}
		f := os.NewFile(uintptr(fd), "region")
		if _, err := f.WriteAt([]byte(text), 5000); err != nil {
			return nil, err
		}
		m.open++
		return &region{f, 5000, int64(len(text)), func() error {
			m.open--
			return f.Close()
		}}, nil
	}
}

// mapped is how many bytes of blobs are in memory.
func (s *blobs) mapped() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.byName {
		if b.region != nil {
			n += b.region.size
		}
	}
	return n
}

// never is for what is not to be retained.
func never() (*region, error) { return nil, errors.New("not to be retained") }

func accept(t *testing.T, b *blobs, o broadcast.Offer) *sink {
	t.Helper()
	k, err := b.offered(o)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// send has a window come.
func send(t *testing.T, b *blobs, o broadcast.Offer, at int, text string) {
	t.Helper()
	o.Offset = int64(at)
	k := accept(t, b, o)
	if err := k.take([]byte(text), never); err != nil {
		t.Fatal(err)
	}
	k.End(nil)
}

// wanting gets a blob meanwhile.
func wanting(t *testing.T, b *blobs, digest, coming string) (text func() string) {
	t.Helper()
	type got struct {
		text string
		err  error
	}
	done := make(chan got, 1)
	go func() {
		path, release, err := b.get(context.Background(), digest, coming)
		if err != nil {
			done <- got{err: err}
			return
		}
		text, err := os.ReadFile(path)
		release()
		done <- got{string(text), err}
	}()
	wait(t, "somebody wants it", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.byName[digest] != nil
	})
	return func() string {
		t.Helper()
		select {
		case g := <-done:
			if g.err != nil {
				t.Error(g.err)
			}
			return g.text
		case <-time.After(deadline):
			t.Fatal("it is not to be had")
			return ""
		}
	}
}

// left checks that no file is there but those of blobs.
func left(t *testing.T, b *blobs, digests ...string) {
	t.Helper()
	files, _ := os.ReadDir(b.dir)
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	slices.Sort(digests)
	if !slices.Equal(names, digests) {
		t.Errorf("files %v are there, want %v", names, digests)
	}
}

func TestBroadcastBeforeAnybodyWantsIt(t *testing.T) {
	t.Parallel()
	s, b := newStore(t, 100)
	o := s.cast("0123456789", kindFile)
	send(t, b, o, 0, "0123456789")
	if text := wanting(t, b, o.Name, "")(); text != "0123456789" || s.fetched() != 0 {
		t.Errorf("got %q, fetched %d times", text, s.fetched())
	}
	if st, err := os.Stat(filepath.Join(b.dir, o.Name)); err != nil || st.Mode().Perm() != 0o500 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	if _, err := b.incoming(o); !errors.Is(err, broadcast.ErrHave) {
		t.Errorf("once more: %v", err)
	}
	left(t, b, o.Name)
}

// TestBroadcastWhileSomebodyWaits has windows come in all orders.
func TestBroadcastWhileSomebodyWaits(t *testing.T) {
	t.Parallel()
	text := "abcdefghij"
	for _, order := range [][]int{{0, 4, 8}, {0, 8, 4}, {4, 0, 8}, {8, 4, 0}, {8, 0, 4}, {4, 8, 0}} {
		for _, kind := range []string{kindFile, kindMapped} {
			s, b := newStore(t, 100)
			o := s.cast(text, kind)
			// The first window is always the first one to be offered; what comes whole first is another matter.
			var sinks []*sink
			for _, at := range []int64{0, 4, 8} {
				o.Offset = at
				sinks = append(sinks, accept(t, b, o))
			}
			got := wanting(t, b, o.Name, "")
			for _, at := range order {
				k := sinks[at/4]
				if err := k.take([]byte(text[at:min(at+4, len(text))]), never); err != nil {
					t.Fatal(err)
				}
				k.End(nil)
			}
			if text := got(); text != "abcdefghij" || s.fetched() != 0 {
				t.Errorf("%v: got %q, fetched %d times", order, text, s.fetched())
			}
			left(t, b, o.Name)
		}
	}
}

// TestBroadcastInMessages has a window come as several messages, which follow each other.
func TestBroadcastInMessages(t *testing.T) {
	t.Parallel()
	s, b := newStore(t, 100)
	o := s.cast("abcdefghij", kindMapped)
	k := accept(t, b, o)
	for _, text := range []string{"", "abc", "", "defghi", "j"} {
		if err := k.take([]byte(text), never); err != nil {
			t.Fatal(err)
		}
	}
	if text := wanting(t, b, o.Name, "")(); text != "abcdefghij" || s.fetched() != 0 {
		t.Errorf("got %q, fetched %d times", text, s.fetched())
	}
}

// TestBroadcastOfferedAnew has a source take windows back, and offer others.
func TestBroadcastOfferedAnew(t *testing.T) {
	t.Parallel()
	s, b := newStore(t, 100)
	b.patience, b.quiet = time.Hour, time.Hour
	o := s.cast("abcdefghij", kindMapped)
	withdrawn := fmt.Errorf("the source: %w", broadcast.ErrEnded)
	first := accept(t, b, o)
	got := wanting(t, b, o.Name, "")
	first.End(withdrawn)
	first = accept(t, b, o)
	if err := first.take([]byte("abcdef"), never); err != nil {
		t.Fatal(err)
	}
	o.Offset = 6
	second := accept(t, b, o)
	second.End(withdrawn) // it was too early
	first.End(nil)
	second = accept(t, b, o)
	if err := second.take([]byte("ghij"), never); err != nil {
		t.Fatal(err)
	}
	second.End(nil)
	if text := got(); text != "abcdefghij" || s.fetched() != 0 {
		t.Errorf("got %q, fetched %d times", text, s.fetched())
	}
	left(t, b, o.Name)
}

func TestBroadcastOfNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{kindFile, kindMapped} {
		s, b := newStore(t, 100)
		m := &shared{t: t}
		o := s.cast("", kind)
		if err := accept(t, b, o).take(nil, m.retain("")); err != nil {
			t.Fatal(err)
		}
		if c, err := b.open(t.Context(), o.Name, "x", false); err != nil || c.size != 0 || s.fetched() != 0 {
			t.Errorf("%s: %+v %v, fetched %d times", kind, c, err, s.fetched())
		} else {
			c.release()
		}
		b.close()
		if m.open != 0 {
			t.Error("memory is retained")
		}
	}
}

// TestBroadcastThatFails has one fail in all ways while somebody waits for it: it is fetched.
func TestBroadcastThatFails(t *testing.T) {
	t.Parallel()
	text := "abcdefghij"
	for name, c := range map[string]func(t *testing.T, b *blobs, o broadcast.Offer, k *sink){
		"before anything": func(_ *testing.T, _ *blobs, _ broadcast.Offer, k *sink) { k.End(errors.New("the source is gone")) },
		"half-way": func(t *testing.T, _ *blobs, _ broadcast.Offer, k *sink) {
			if err := k.take([]byte("abcde"), never); err != nil {
				t.Error(err)
			}
			k.End(errors.New("the source is gone"))
		},
		"wrong": func(t *testing.T, b *blobs, o broadcast.Offer, k *sink) {
			if err := k.take([]byte("abcdefghiX"), never); !errors.Is(err, shuffle.ErrDigest) {
				t.Errorf("wrong: %v", err)
			}
		},
		"wrong in windows": func(t *testing.T, b *blobs, o broadcast.Offer, k *sink) {
			send(t, b, o, 5, "fghij")
			if err := k.take([]byte("Xbcde"), never); !errors.Is(err, shuffle.ErrDigest) {
				t.Errorf("wrong: %v", err)
			}
		},
		"too long": func(t *testing.T, b *blobs, o broadcast.Offer, k *sink) {
			if err := k.take([]byte("abcdefghijk"), never); err == nil {
				t.Error("too much is taken")
			}
		},
		"twice": func(t *testing.T, b *blobs, o broadcast.Offer, k *sink) {
			send(t, b, o, 4, "efg")
			if err := k.take([]byte("abcde"), never); err == nil {
				t.Error("a byte is taken twice")
			}
			if err := k.take([]byte("fghij"), never); !errors.Is(err, errWanted) {
				t.Errorf("it goes on: %v", err)
			}
		},
		"then silent": func(t *testing.T, b *blobs, o broadcast.Offer, k *sink) {
			b.quiet = 10 * time.Millisecond
			send(t, b, o, 0, "abc")
			time.Sleep(5 * b.quiet)
			b.mu.Lock()
			if k.a.over {
				t.Error("it is given up while a window is open")
			}
			b.mu.Unlock()
			k.End(nil)
		},
		"then withdrawn": func(t *testing.T, b *blobs, o broadcast.Offer, k *sink) {
			b.quiet, b.patience = time.Hour, 10*time.Millisecond
			k.End(fmt.Errorf("the source: %w", broadcast.ErrEnded))
		},
		"withdrawn half-way": func(t *testing.T, b *blobs, o broadcast.Offer, k *sink) {
			b.quiet, b.patience = time.Hour, time.Hour
			if err := k.take([]byte("abcde"), never); err != nil {
				t.Error(err)
			}
			k.End(fmt.Errorf("the source: %w", broadcast.ErrEnded))
		},
		"job ends": func(_ *testing.T, b *blobs, o broadcast.Offer, k *sink) { b.forget(o.Job.String()) },
	} {
		for _, kind := range []string{kindFile, kindMapped} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				s, b := newStore(t, 100)
				o := s.cast(text, kind)
				k := accept(t, b, o)
				got := wanting(t, b, o.Name, "")
				if n := s.fetched(); n != 0 {
					t.Errorf("it is fetched %d times while it comes", n)
				}
				c(t, b, o, k)
				if text := got(); text != "abcdefghij" || s.fetched() != 1 {
					t.Errorf("got %q, fetched %d times", text, s.fetched())
				}
				k.End(nil)
				wait(t, "what came is removed", func() bool {
					files, _ := os.ReadDir(b.dir)
					return len(files) == 1
				})
				left(t, b, o.Name)
				// It is here by now, whatever job offers it.
				if o.Job = jobB; true {
					if _, err := b.offered(o); !errors.Is(err, broadcast.ErrHave) {
						t.Errorf("once more: %v", err)
					}
				}
			})
		}
	}
}

// TestSourceGone has the master say that a source is gone, while its blob comes, before it does, and when it
// came from elsewhere.
func TestSourceGone(t *testing.T) {
	t.Parallel()
	text := "abcdefghij"
	gone := func(b *blobs, job shuffle.JobID, digest string) { b.sourceGone(job.String(), digest)() }
	// Nothing ends by itself in these.
	slow := func(t *testing.T) (*store, *blobs) {
		s, b := newStore(t, 100)
		b.quiet, b.patience = time.Hour, time.Hour
		return s, b
	}
	back := func(t *testing.T, b *blobs, o broadcast.Offer) {
		t.Helper()
		for _, o.Offset = range []int64{0, 5} {
			if _, err := b.offered(o); !errors.Is(err, broadcast.ErrHave) {
				t.Errorf("the source is back, at %d: %v", o.Offset, err)
			}
		}
	}
	for _, kind := range []string{kindFile, kindMapped} {
		t.Run("half-way "+kind, func(t *testing.T) {
			t.Parallel()
			s, b := slow(t)
			o := s.cast(text, kind)
			k := accept(t, b, o)
			if err := k.take([]byte("abcde"), never); err != nil {
				t.Fatal(err)
			}
			got := wanting(t, b, o.Name, jobA.String())
			gone(b, jobA, strings.Repeat("ab", 32)) // another blob's
			gone(b, jobB, o.Name)                   // another job's
			if n := s.fetched(); n != 0 {
				t.Errorf("fetched %d times while it comes", n)
			}
			gone(b, jobA, o.Name)
			back(t, b, o)
			if got := got(); got != text || s.fetched() != 1 {
				t.Errorf("got %q, fetched %d times", got, s.fetched())
			}
			if err := k.take([]byte("fghij"), never); !errors.Is(err, errWanted) {
				t.Errorf("its region goes on: %v", err)
			}
			k.End(nil)
			gone(b, jobA, o.Name) // once more
			left(t, b, o.Name)
			if files, _ := os.ReadDir(b.dir); len(files) != 1 {
				t.Errorf("left: %v", files)
			}
		})
	}
	t.Run("before it began", func(t *testing.T) {
		t.Parallel()
		s, b := slow(t)
		o := s.cast(text, kindFile)
		early := wanting(t, b, o.Name, jobA.String())
		gone(b, jobA, o.Name)
		if got := early(); got != text || s.fetched() != 1 {
			t.Errorf("got %q, fetched %d times", got, s.fetched())
		}
		o = s.cast("and more", kindFile)
		gone(b, jobA, o.Name)
		back(t, b, o)
		if got := wanting(t, b, o.Name, jobA.String())(); got != "and more" || s.fetched() != 2 {
			t.Errorf("got %q, fetched %d times", got, s.fetched())
		}
	})
	t.Run("another job's goes on", func(t *testing.T) {
		t.Parallel()
		s, b := slow(t)
		o := s.cast(text, kindFile)
		gone(b, jobA, o.Name)
		o.Job = jobB
		k := accept(t, b, o)
		gone(b, jobA, o.Name)
		got := wanting(t, b, o.Name, jobA.String())
		if err := k.take([]byte(text), never); err != nil {
			t.Fatal(err)
		}
		k.End(nil)
		if got := got(); got != text || s.fetched() != 0 {
			t.Errorf("got %q, fetched %d times", got, s.fetched())
		}
	})
	t.Run("its job has ended", func(t *testing.T) {
		t.Parallel()
		s, b := slow(t)
		o := s.cast(text, kindFile)
		gone(b, jobA, "no digest")
		b.forget(jobA.String())
		gone(b, jobA, o.Name)
		if jobs := b.known(); len(jobs) != 0 {
			t.Errorf("jobs %q have something here", jobs)
		}
	})
	t.Run("a worker is told", func(t *testing.T) {
		t.Parallel()
		m := newMaster(t)
		w := m.startWorker(nil)
		digest := m.put([]byte(text))
		accept(t, w.blobs, broadcast.Offer{Job: jobA, Name: digest, Kind: kindFile, Size: int64(len(text))})
		got := wanting(t, w.blobs, digest, jobA.String())
		m.send(w.ID(), &api.MasterMessage{SpreadOver: []*api.SpreadOver{{Job: jobA.String(), Blob: digest}}})
		if got := got(); got != text {
			t.Errorf("got %q", got)
		}
	})
}

// TestBroadcastAfterFetchBegan leaves alone what is fetched already.
func TestBroadcastAfterFetchBegan(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan bool), make(chan bool)
	b, err := newBlobs(filepath.Join(t.TempDir(), "blobs"), 100, func(_ context.Context, _ string, _ int64, w io.Writer) error {
		close(begun)
		<-goOn
		_, err := io.WriteString(w, "text")
		return err
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &store{content: map[string][]byte{}}
	o := s.cast("text", kindFile)
	got := wanting(t, b, o.Name, "")
	<-begun
	for range 2 {
		if _, err := b.offered(o); !errors.Is(err, broadcast.ErrHave) {
			t.Errorf("while it is fetched: %v", err)
		}
	}
	close(goOn)
	if got() != "text" {
		t.Error("it is not what was fetched")
	}
}

// TestLateBroadcast has a broadcast that was given up come after all: it changes nothing, and leaves nothing.
func TestLateBroadcast(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{kindFile, kindMapped} {
		s, b := newStore(t, 100)
		m := &shared{t: t}
		o := s.cast("text", kind)
		k := accept(t, b, o)
		got := wanting(t, b, o.Name, "")
		k.a.fail(errQuiet)
		got()
		if err := k.take([]byte("text"), m.retain("text")); !errors.Is(err, errWanted) {
			t.Errorf("late: %v", err)
		}
		k.End(nil)
		if s.fetched() != 1 || m.open != 0 {
			t.Errorf("fetched %d times, %d regions", s.fetched(), m.open)
		}
		left(t, b, o.Name)
	}
}

// TestComing waits for what was announced.
func TestComing(t *testing.T) {
	t.Parallel()
	job := jobA.String()
	t.Run("no sign", func(t *testing.T) {
		t.Parallel()
		s, b := newStore(t, 100)
		b.patience = 50 * time.Millisecond
		o := s.cast("text", kindFile)
		began := time.Now()
		if text := wanting(t, b, o.Name, job)(); text != "text" || s.fetched() != 1 || time.Since(began) < b.patience {
			t.Errorf("got %q after %v, fetched %d times", text, time.Since(began), s.fetched())
		}
	})
	t.Run("comes", func(t *testing.T) {
		t.Parallel()
		s, b := newStore(t, 100)
		b.patience = time.Hour
		o := s.cast("text", kindFile)
		got := wanting(t, b, o.Name, job)
		send(t, b, o, 0, "text")
		if text := got(); text != "text" || s.fetched() != 0 {
			t.Errorf("got %q, fetched %d times", text, s.fetched())
		}
	})
	t.Run("has failed before", func(t *testing.T) {
		t.Parallel()
		s, b := newStore(t, 100)
		b.patience = time.Hour
		o := s.cast("text", kindFile)
		accept(t, b, o).End(errors.New("the source is gone"))
		if text := wanting(t, b, o.Name, job)(); text != "text" || s.fetched() != 1 {
			t.Errorf("got %q, fetched %d times", text, s.fetched())
		}
	})
	t.Run("after others", func(t *testing.T) {
		t.Parallel()
		s, b := newStore(t, 100)
		b.patience = 20 * time.Millisecond
		first, second := s.cast("first", kindFile), s.cast("second", kindFile)
		k := accept(t, b, first)
		got := wanting(t, b, second.Name, job)
		time.Sleep(4 * b.patience)
		if n := s.fetched(); n != 0 {
			t.Errorf("fetched %d times while another one is under way", n)
		}
		b.mu.Lock()
		b.patience = time.Hour
		b.mu.Unlock()
		if err := k.take([]byte("first"), never); err != nil {
			t.Fatal(err)
		}
		send(t, b, second, 0, "second")
		if text := got(); text != "second" || s.fetched() != 0 {
			t.Errorf("got %q, fetched %d times", text, s.fetched())
		}
	})
	t.Run("is stopped", func(t *testing.T) {
		t.Parallel()
		s, b := newStore(t, 100)
		b.patience = time.Hour
		o := s.cast("text", kindFile)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errStopped)
		if _, _, err := b.get(ctx, o.Name, job); !errors.Is(err, errStopped) {
			t.Errorf("got %v", err)
		}
		// Who waits as well goes on by itself.
		ctx, cancel = context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, _, err := b.get(ctx, o.Name, job); !errors.Is(err, errStopped) {
				t.Errorf("the first got %v", err)
			}
		})
		refs := func(n int) func() bool {
			return func() bool {
				b.mu.Lock()
				defer b.mu.Unlock()
				return b.byName[o.Name] != nil && b.byName[o.Name].refs == n
			}
		}
		wait(t, "one waits", refs(1))
		got := wanting(t, b, o.Name, job)
		wait(t, "two wait", refs(2))
		cancel(errStopped)
		wg.Wait()
		send(t, b, o, 0, "text")
		if text := got(); text != "text" || s.fetched() != 0 {
			t.Errorf("got %q, fetched %d times", text, s.fetched())
		}
	})
}

// TestMapped keeps what came into memory as long as jobs that use it.
func TestMapped(t *testing.T) {
	t.Parallel()
	s, b := newStore(t, 12) // of which what is in memory is no part
	m := &shared{t: t}
	o := s.cast("side input", kindMapped)
	if err := accept(t, b, o).take([]byte("side input"), m.retain("side input")); err != nil {
		t.Fatal(err)
	}
	left(t, b)
	c, err := b.open(t.Context(), o.Name, jobB.String(), false)
	if err != nil {
		t.Fatal(err)
	}
	text := make([]byte, c.size)
	if _, err := c.file.ReadAt(text, c.offset); err != nil || string(text) != "side input" || s.fetched() != 0 {
		t.Errorf("got %q, fetched %d times: %v", text, s.fetched(), err)
	}
	if b.mapped() != 10 || m.open != 1 {
		t.Errorf("%d bytes are mapped in %d regions", b.mapped(), m.open)
	}
	// Files come and go beside it.
	var others []string
	for i := range 3 {
		other := s.cast(strings.Repeat(fmt.Sprint(i), 6), kindFile)
		send(t, b, other, 0, strings.Repeat(fmt.Sprint(i), 6))
		others = append(others, other.Name)
	}
	left(t, b, others[1:]...)
	if b.mapped() != 10 {
		t.Error("it is not in memory any more")
	}
	c.release()
	// It is needed as a file, too, which goes when another one needs the room; the memory stays.
	if got := wanting(t, b, o.Name, "")(); got != "side input" || s.fetched() != 0 {
		t.Errorf("got %q, fetched %d times", got, s.fetched())
	}
	left(t, b, o.Name)
	other := s.cast("0123456789ab", kindFile)
	send(t, b, other, 0, "0123456789ab")
	left(t, b, other.Name)
	from, size, release, err := b.reader(t.Context(), o.Name)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(io.NewSectionReader(from, 0, size))
	if err != nil || string(got) != "side input" {
		t.Errorf("read %q: %v", got, err)
	}
	release()

	if c, err = b.open(t.Context(), o.Name, jobB.String(), false); err != nil {
		t.Fatal(err)
	}
	b.forget(jobA.String())
	if m.open != 1 {
		t.Error("it is gone while a job uses it")
	}
	b.forget(jobB.String())
	if m.open != 1 {
		t.Error("it is gone while an attempt uses it")
	}
	c.release()
	if m.open != 0 || b.mapped() != 0 {
		t.Errorf("%d bytes are kept for nobody", b.mapped())
	}
	if _, err := b.open(t.Context(), o.Name, "c", false); err != nil || s.fetched() != 1 {
		t.Errorf("fetched %d times: %v", s.fetched(), err)
	}
}

// TestMappedIsKeptForOffers keeps it for a job whose source finds that it is here.
func TestMappedIsKeptForOffers(t *testing.T) {
	t.Parallel()
	s, b := newStore(t, 100)
	m := &shared{t: t}
	o := s.cast("text", kindMapped)
	if err := accept(t, b, o).take([]byte("text"), m.retain("text")); err != nil {
		t.Fatal(err)
	}
	o.Job = jobB
	if _, err := b.offered(o); !errors.Is(err, broadcast.ErrHave) {
		t.Errorf("once more: %v", err)
	}
	b.forget(jobA.String())
	if known := b.known(); m.open != 1 || !slices.Equal(known, []string{jobB.String()}) {
		t.Errorf("%d regions, of %v", m.open, known)
	}
	b.close()
	if m.open != 0 {
		t.Error("it outlives the worker")
	}
}

// TestMappedOfJobThatHasEnded: what an attempt that ends late still uses of its job stays no longer than that.
func TestMappedOfJobThatHasEnded(t *testing.T) {
	t.Parallel()
	s, b := newStore(t, 100)
	m := &shared{t: t}
	o := s.cast("text", kindMapped)
	if err := accept(t, b, o).take([]byte("text"), m.retain("text")); err != nil {
		t.Fatal(err)
	}
	first, err := b.open(t.Context(), o.Name, jobA.String(), false)
	if err != nil {
		t.Fatal(err)
	}
	b.forget(jobA.String())
	second, err := b.open(t.Context(), o.Name, jobA.String(), false)
	if err != nil || m.open != 1 {
		t.Fatalf("%d regions: %v", m.open, err)
	}
	first.release()
	second.release()
	if known := b.known(); m.open != 0 || len(known) != 0 {
		t.Errorf("%d regions, of %v", m.open, known)
	}
}

// TestArrivalOfJobThatHasEnded has something come between a job's end and that of its broadcast.
func TestArrivalOfJobThatHasEnded(t *testing.T) {
	t.Parallel()
	s, b := newStore(t, 100)
	o := s.cast("text", kindFile)
	k := accept(t, b, o)
	b.mu.Lock()
	b.ended.add(jobA.String())
	delete(b.jobs, jobA.String())
	b.mu.Unlock()
	if err := k.take([]byte("te"), never); err != nil {
		t.Fatal(err)
	}
	k.End(broadcast.ErrEnded)
	if known := b.known(); len(known) != 0 {
		t.Errorf("something is kept of %v", known)
	}
	left(t, b)
}

// TestPut has a file taken over that is larger than what is kept: it is there as long as it is needed.
func TestPut(t *testing.T) {
	t.Parallel()
	s, b := newStore(t, 3)
	o := s.cast("text", kindFile)
	put := func() (path string, release func()) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
		path, release, err := b.put(o.Name, file, 4)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != "text" {
			t.Errorf("%q %v", text, err)
		}
		return path, release
	}
	one, first := put()
	two, second := put()
	if one != two || one != filepath.Join(b.dir, o.Name) {
		t.Errorf("%s and %s", one, two)
	}
	first()
	left(t, b, o.Name)
	second()
	left(t, b)
}

// TestHelloTellsOfBroadcasts has a master hear of which jobs there is something: it may have forgotten this worker when
// they ended.
func TestHelloTellsOfBroadcasts(t *testing.T) {
	t.Parallel()
	s, b := newStore(t, 100)
	m := &shared{t: t}
	if err := accept(t, b, s.cast("text", kindMapped)).take([]byte("text"), m.retain("text")); err != nil {
		t.Fatal(err)
	}
	w := &Worker{ex: &keeping{}, blobs: b}
	w.casts, w.gangs = newSpreads(w), newGangs(w)
	w.casts.byID["x"] = &spread{order: &api.Spread{Job: jobB.String()}}
	w.casts.byID["y"] = &spread{order: &api.Spread{Job: jobA.String()}}
	if got, want := w.hello().GetHello().GetJobs(), []string{jobA.String(), jobB.String()}; !slices.Equal(got, want) {
		t.Errorf("jobs %v, want %v", got, want)
	}
	b.close()
}

// TestMappedWithoutRoom writes to a file what can't be kept.
func TestMappedWithoutRoom(t *testing.T) {
	t.Parallel()
	s, b := newStore(t, 100)
	m := &shared{t: t, wrong: shuffle.ErrBusy}
	o := s.cast("text", kindMapped)
	if err := accept(t, b, o).take([]byte("text"), m.retain("text")); err != nil {
		t.Fatal(err)
	}
	c, err := b.open(t.Context(), o.Name, jobA.String(), false)
	if err != nil || c.offset != 0 || c.size != 4 || s.fetched() != 0 {
		t.Fatalf("%+v, fetched %d times: %v", c, s.fetched(), err)
	}
	text, err := io.ReadAll(c.file)
	if _, werr := c.file.Write([]byte("x")); werr == nil || err != nil || string(text) != "text" {
		t.Errorf("%q %v, written: %v", text, err, werr)
	}
	c.release()
}

// TestClosedBlobs has a broadcast end after the worker.
func TestClosedBlobs(t *testing.T) {
	t.Parallel()
	s, b := newStore(t, 100)
	m := &shared{t: t}
	one, two := s.cast("text", kindMapped), s.cast("file", kindFile)
	k, l := accept(t, b, one), accept(t, b, two)
	if err := l.take([]byte("fi"), never); err != nil {
		t.Fatal(err)
	}
	b.close()
	if err := k.take([]byte("text"), m.retain("text")); err == nil || m.open != 0 {
		t.Errorf("%v, %d regions", err, m.open)
	}
	if _, err := b.offered(one); !errors.Is(err, shuffle.ErrRefused) {
		t.Errorf("offered: %v", err)
	}
	if _, _, err := b.get(t.Context(), one.Name, ""); !errors.Is(err, errLeft) {
		t.Errorf("wanted: %v", err)
	}
	left(t, b)
}

func TestOffers(t *testing.T) {
	t.Parallel()
	s, b := newStore(t, 100)
	good := s.cast("abcdefghij", kindFile)
	for name, c := range map[string]struct {
		change func(o *broadcast.Offer)
		want   error
	}{
		"no digest":         {func(o *broadcast.Offer) { o.Name = "../../etc/passwd" }, shuffle.ErrRefused},
		"digest in capital": {func(o *broadcast.Offer) { o.Name = strings.ToUpper(o.Name) }, shuffle.ErrRefused},
		"kind":              {func(o *broadcast.Offer) { o.Kind = "answers" }, shuffle.ErrRefused},
		"endless":           {func(o *broadcast.Offer) { o.Size = -1 }, shuffle.ErrRefused},
		"before":            {func(o *broadcast.Offer) { o.Offset = -1 }, shuffle.ErrRefused},
		"beyond":            {func(o *broadcast.Offer) { o.Offset = 11 }, shuffle.ErrRefused},
		"its end alone":     {func(o *broadcast.Offer) { o.Offset = 5 }, broadcast.ErrHave},
	} {
		o := good
		c.change(&o)
		if _, err := b.incoming(o); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	accept(t, b, good)
	for name, c := range map[string]struct {
		change func(o *broadcast.Offer)
		want   error
	}{
		"another job":  {func(o *broadcast.Offer) { o.Job = jobB }, broadcast.ErrHave},
		"another size": {func(o *broadcast.Offer) { o.Size = 12 }, shuffle.ErrRefused},
		"another kind": {func(o *broadcast.Offer) { o.Kind = kindMapped }, shuffle.ErrRefused},
	} {
		o := good
		c.change(&o)
		if _, err := b.incoming(o); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.forget(jobA.String())
	if _, err := b.incoming(good); !errors.Is(err, shuffle.ErrRefused) {
		t.Errorf("of a job that has ended: %v", err)
	}
	good.Job = jobB
	if _, err := b.incoming(good); err != nil {
		t.Error(err)
	}
	b.close()
}

// TestRandomArrivals cuts blobs into windows and messages that come in any order, some of them
// damaged, doubled, or not at all, while several want the blob: they get it, and nothing is left.
func TestRandomArrivals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		text := rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(r, "text")
		sum := sha256.Sum256(text)
		digest := hex.EncodeToString(sum[:])
		var mu sync.Mutex
		fetches := 0
		b, err := newBlobs(filepath.Join(dir, fmt.Sprint(n)), 1000, func(_ context.Context, _ string, at int64, w io.Writer) error {
			mu.Lock()
			fetches++
			mu.Unlock()
			_, err := w.Write(text[at:])
			return err
		}, nil)
		if err != nil {
			r.Fatal(err)
		}
		defer b.close()
		o := broadcast.Offer{Job: jobA, Name: digest, Kind: rapid.SampledFrom([]string{kindFile, kindMapped}).Draw(r, "kind"), Size: int64(len(text))}
		type window struct{ from, to int }
		var windows []window
		for at := 0; at < len(text) || len(windows) == 0; {
			to := min(len(text), at+rapid.IntRange(1, 30).Draw(r, "window"))
			windows = append(windows, window{at, to})
			at = to
		}
		bad, doubled := false, false
		kept := 0
		var sinks []*sink
		for _, w := range windows {
			o.Offset = int64(w.from)
			k, err := b.offered(o)
			if err != nil {
				r.Fatal(err)
			}
			sinks = append(sinks, k)
		}
		type got struct {
			text []byte
			err  error
		}
		wanted := make(chan got, 3)
		for range cap(wanted) {
			go func() {
				path, release, err := b.get(context.Background(), digest, "")
				if err != nil {
					wanted <- got{err: err}
					return
				}
				text, err := os.ReadFile(path)
				release()
				wanted <- got{text, err}
			}()
		}
		order := rapid.Permutation(sinks).Draw(r, "order")
		what := rapid.SampledFrom([]string{"", "", "damage", "end", "double", "lose"}).Draw(r, "what")
		at := rapid.IntRange(0, len(order)-1).Draw(r, "at")
		for i, k := range order {
			w := windows[slices.Index(sinks, k)]
			data := bytes.Clone(text[w.from:w.to])
			if i == at {
				switch {
				case what == "damage" && len(data) > 0:
					data[rand.IntN(len(data))] ^= 1
					bad = true
				case what == "end":
					k.End(errors.New("it ends"))
					bad = true
				case what == "double" && len(data) > 0 && len(windows) > 1:
					k2 := &sink{a: k.a, at: k.at}
					_ = k2.take(data, never)
					doubled = true
				case what == "lose":
					bad = true
					continue
				}
			}
			for first := true; first || len(data) > 0; first = false {
				m := len(data)
				if rapid.Bool().Draw(r, "in parts") && m > 1 {
					m /= 2
				}
				if k.take(data[:m], func() (*region, error) {
					kept++
					return (&shared{t: t}).retain(string(text))()
				}) != nil {
					break
				}
				data = data[m:]
			}
			k.End(nil)
		}
		if what == "lose" {
			sinks[0].a.fail(errQuiet)
		}
		for range cap(wanted) {
			if g := <-wanted; g.err != nil || !bytes.Equal(g.text, text) {
				r.Fatalf("got %q, want %q: %v", g.text, text, g.err)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if !bad && !doubled && fetches > 0 || fetches > 1 || bad && fetches != 1 {
			r.Fatalf("%d fetches; damaged %v, doubled %v", fetches, bad, doubled)
		}
		if kept > 1 {
			r.Fatalf("retained %d times", kept)
		}
		files, _ := os.ReadDir(b.dir)
		if len(files) != 1 || files[0].Name() != digest {
			r.Fatalf("files: %v", files)
		}
	})
}
