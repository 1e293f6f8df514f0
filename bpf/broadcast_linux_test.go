// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// needBroadcasts fails where a kernel that should have them has none.
func needBroadcasts(t testing.TB, h *Host) {
	t.Helper()
	if _, err := h.Broadcasts(); err != nil {
		for _, f := range []*feature{ringBuffers, sizedArrays} {
			if errors.Is(f.Have(), ebpf.ErrNotSupported) {
				t.Skip(err)
			}
		}
		t.Fatal(err)
	}
}

// openCasting is open of a Host that has broadcasts.
func openCasting(t testing.TB, o Options) *Host {
	t.Helper()
	if o.Limits == (shuffle.Limits{}) {
		o.Limits = small()
	}
	h := open(t, o)
	needBroadcasts(t, h)
	return h
}

func newContent(t testing.TB, h *Host, chunks int) *shuffle.Content {
	t.Helper()
	c, err := h.NewContent(chunks)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// idIn returns the number of the map that programs find in a slot of "contents", 0 if there is none.
func idIn(h *Host, slot uint32) (id uint32) {
	_ = h.loader.shared["contents"].Lookup(slot, &id)
	return id
}

func TestEnds(t *testing.T) {
	needRoot(t)
	h := openCasting(t, Options{})
	e := h.Ends()
	if len(e.Regions) != 4 || len(e.Casts) != 2 || len(h.Groups()) != 3 || len(h.casting.marks) != 1000 {
		t.Fatalf("there are %d regions, %d casts, %d groups, %d marks", len(e.Regions), len(e.Casts), len(h.Groups()), len(h.casting.marks))
	}
	// Another view of the same memory: that which programs look at.
	e.Regions[3].Hops[1].Spare = 0x77
	e.Casts[1].Heads[wire.MaxChains-1].Spare = 0x88
	h.Groups()[2].Hops[1].Spare = 0x66
	h.casting.marks[999] = 0x99
	var raw []byte
	for name, want := range map[string]struct {
		at   uint32
		last byte
	}{"regions": {3, 0x77}, "casts": {1, 0x88}, "groups": {2, 0x66}, "marks": {999, 0x99}} {
		if err := h.loader.shared[name].Lookup(want.at, &raw); err != nil {
			t.Fatal(err)
		}
		if raw[len(raw)-8] != want.last {
			t.Errorf("the last word of %s begins with %#x, want %#x", name, raw[len(raw)-8], want.last)
		}
	}
	for i, name := range []string{chunkProgram, collectProgram, pumpProgram, reduceProgram, completeProgram, reducedProgram} {
		var id uint32
		info, err := h.programs[name].Info()
		if err != nil {
			t.Fatal(err)
		}
		want, _ := info.ID()
		if err := h.loader.shared["chain"].Lookup(uint32(2+i), &id); err != nil || id != uint32(want) {
			t.Errorf("program %d is at place %d of the chain, want %s (%d): %v", id, 2+i, name, want, err)
		}
	}
}

func TestContents(t *testing.T) {
	needRoot(t)
	h := openCasting(t, Options{})
	a := newContent(t, h, 3)
	b := newContent(t, h, 500)
	for i, c := range []struct {
		c        *shuffle.Content
		id, mark uint32
		chunks   int
	}{{a, 0, 0, 3}, {b, 1, 3, 500}} {
		if c.c.ID != c.id || c.c.Mark != c.mark || len(c.c.Data) != c.chunks*1344 || len(c.c.Marks) != c.chunks {
			t.Errorf("content %d has number %d, marks from %d on, %d bytes, %d marks", i, c.c.ID, c.c.Mark, len(c.c.Data), len(c.c.Marks))
		}
		if !allZero(c.c.Data) {
			t.Errorf("content %d is not zero", i)
		}
	}
	if &b.Marks[0] != &h.casting.marks[3] {
		t.Error("marks are not those that programs look at")
	}
	// What programs find by its number is what is mapped.
	inner, err := ebpf.NewMapFromID(ebpf.MapID(idIn(h, b.ID)))
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	if inner.MaxEntries() != 500 {
		t.Errorf("programs find room for %d chunks", inner.MaxEntries())
	}
	for i := range b.Data {
		b.Data[i] = byte(i / 1344)
	}
	var raw []byte
	for _, i := range []int{0, 1, 255, 499} {
		if err := inner.Lookup(uint32(i), &raw); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(raw, bytes.Repeat([]byte{byte(i)}, 1344)) {
			t.Errorf("chunk %d is not where it should be", i)
		}
	}

	// The rest goes in one piece; then nothing does.
	c := newContent(t, h, 497)
	if _, err := h.NewContent(1); !errors.Is(err, shuffle.ErrBusy) || !strings.Contains(err.Error(), "0 of 1000") {
		t.Errorf("more than there is: %v", err)
	}
	for _, n := range []int{0, -1, 1001} {
		if _, err := h.NewContent(n); !errors.Is(err, shuffle.ErrRefused) {
			t.Errorf("%d chunks: %v", n, err)
		}
	}
	// One that an open end names is in use. One that a closed end names is not.
	e := h.Ends()
	e.Regions[1].Content, e.Regions[1].Token = a.ID, 5
	if err := h.FreeContent(a); err == nil || !strings.Contains(err.Error(), "region 1") {
		t.Errorf("a region's content was freed: %v", err)
	}
	e.Regions[1].Token = 0
	e.Casts[1].Content, e.Casts[1].Token = a.ID, 5
	if err := h.FreeContent(a); err == nil || !strings.Contains(err.Error(), "cast 1") {
		t.Errorf("a cast's content was freed: %v", err)
	}
	e.Casts[1].Token = 0
	for i := range a.Marks {
		a.Marks[i] = 1<<64 - 1
	}
	copy(a.Data, "secret")
	if err := h.FreeContent(a); err != nil {
		t.Fatal(err)
	}
	if id := idIn(h, 0); id != 0 {
		t.Errorf("programs find map %d where a content was freed", id)
	}
	if err := h.FreeContent(a); err == nil {
		t.Error("a content was freed twice")
	}
	if _, err := a.Open(); err == nil {
		t.Error("a freed content was opened")
	}
	// Room that is free, but in pieces, is not enough.
	if err := h.FreeContent(c); err != nil {
		t.Fatal(err)
	}
	if _, err := h.NewContent(498); !errors.Is(err, shuffle.ErrBusy) {
		t.Errorf("498 chunks in pieces of 3 and 497: %v", err)
	}
	again := newContent(t, h, 2)
	if again.ID != 0 || again.Mark != 0 || again.Marks[0] != 0 || again.Marks[1] != 0 || !allZero(again.Data) {
		t.Errorf("what was freed comes back as number %d, marks %v from %d on, data %q", again.ID, again.Marks, again.Mark, again.Data[:8])
	}

	// There is an end of numbers, too.
	made := 0
	for ; ; made++ {
		if _, err = h.NewContent(1); err != nil {
			break
		}
	}
	if want := h.loader.contents() - 2; made != want || !errors.Is(err, shuffle.ErrBusy) {
		t.Errorf("after %d more, want %d: %v", made, want, err)
	}
}

func allZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// Whoever makes and frees contents at the same time gets what is nobody else's, and shares waits.
func TestContentsAtOnce(t *testing.T) {
	needRoot(t)
	l := small()
	l.Regions = 64
	h := openCasting(t, Options{Limits: l})
	var all sync.WaitGroup
	for worker := range 16 {
		all.Go(func() {
			for round := range 4 {
				n := 1 + (worker*7+round*13)%40
				c, err := h.NewContent(n)
				if err != nil {
					t.Error(err)
					return
				}
				if !allZero(c.Data) {
					t.Error("data is not zero")
				}
				for i := range c.Marks {
					if !atomic.CompareAndSwapUint64(&c.Marks[i], 0, uint64(worker)+1) {
						t.Error("a mark is somebody else's")
					}
				}
				for i := range c.Data {
					c.Data[i] = byte(worker)
				}
				if id := idIn(h, c.ID); id == 0 {
					t.Error("programs don't find it")
				}
				for i := range c.Marks {
					if !atomic.CompareAndSwapUint64(&c.Marks[i], uint64(worker)+1, 9999) {
						t.Error("a mark was given to somebody else")
					}
				}
				if err := h.FreeContent(c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if left := h.casting.room.left(); left != 1000 || len(h.casting.room.free) != 1 || len(h.casting.open) != 0 {
		t.Errorf("%d marks are left in %d pieces, and %d contents", left, len(h.casting.room.free), len(h.casting.open))
	}
}

const contentVar = "QUERN_BPF_CONTENT"

// childRead maps what it has inherited as descriptor 3, and says what it can do with it.
func childRead() error {
	n, err := strconv.Atoi(os.Getenv(contentVar))
	if err != nil {
		return err
	}
	b, err := unix.Mmap(3, 0, pageAlign(n), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map to read: %w", err)
	}
	fmt.Printf("%q\n", b[:8])
	if err := cannotWrite(3, b); err != nil {
		return err
	}
	// The parent frees the content, and closes its Host.
	_, _ = os.Stdin.Read(make([]byte, 1))
	fmt.Printf("%q\n", b[n-8:n])
	return unix.Munmap(b)
}

// cannotWrite says what can be done with a content that shall be read alone.
func cannotWrite(fd int, b []byte) error {
	if _, err := unix.Mmap(fd, 0, len(b), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("mapped to write: %w", err)
	}
	if err := unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE); !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("made writable: %w", err)
	}
	if _, err := unix.Pwrite(fd, []byte("x"), 0); err == nil {
		return errors.New("written")
	}
	another, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	m, err := ebpf.NewMapFromFD(another)
	if err != nil {
		return nil // a copy
	}
	defer m.Close()
	if err := m.Update(uint32(0), make([]byte, wire.ChunkSize), ebpf.UpdateAny); !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("updated: %w", err)
	}
	return nil
}

// Other processes map contents to read them, and nothing else, as long as they like. What is whole is
// not copied.
func TestContentForOthers(t *testing.T) {
	for _, whole := range []bool{true, false} {
		t.Run(fmt.Sprintf("whole %v", whole), func(t *testing.T) {
			needRoot(t)
			h := openCasting(t, Options{})
			c := newContent(t, h, 7)
			copy(c.Data, "the head")
			copy(c.Data[len(c.Data)-8:], "the tail")
			r := &h.Ends().Regions[1]
			r.Token, r.Content, r.Marks, r.Chunks = 5, c.ID, c.Mark, 7
			for i := range c.Marks {
				if !whole && i == 3 {
					continue
				}
				wire.ClaimMark(&c.Marks[i])
				wire.SetMark(&c.Marks[i], wire.MarkStored)
			}
			f, err := c.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			b, err := unix.Mmap(int(f.Fd()), 0, pageAlign(len(c.Data)), unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := unix.Munmap(b); err != nil {
					t.Error(err)
				}
			}()
			if !bytes.Equal(b[:len(c.Data)], c.Data) {
				t.Error("what is mapped is something else")
			}
			if err := cannotWrite(int(f.Fd()), b); err != nil {
				t.Error(err)
			}
			cmd := child(t, "read", contentVar+"="+strconv.Itoa(len(c.Data)))
			cmd.ExtraFiles = []*os.File{f}
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			var out lines
			cmd.Stdout = &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			out.wait(t, "\"the head\"\n")
			const tail = "the tail"
			if whole {
				// Programs could still write, and it would show everywhere: it is no copy.
				h.mu.Lock()
				own := h.casting.open[c].own
				h.mu.Unlock()
				if err := own.Update(uint32(6), make([]byte, wire.ChunkSize), ebpf.UpdateAny); !errors.Is(err, unix.EPERM) {
					t.Errorf("the process itself can write: %v", err)
				}
				again, err := c.Open()
				if err != nil {
					t.Fatal(err)
				}
				if id := mapID(t, again); id != idIn(h, c.ID) {
					t.Errorf("the descriptor is of map %d, and programs write to %d", id, idIn(h, c.ID))
				}
			} else {
				// What is not whole can still be written, which a copy does not show.
				copy(c.Data[len(c.Data)-8:], "the end!")
			}
			r.Token = 0
			if err := h.FreeContent(c); err != nil {
				t.Error(err)
			}
			if err := h.Close(); err != nil {
				t.Error(err)
			}
			if err := in.Close(); err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("the child: %v", err)
			}
			out.wait(t, fmt.Sprintf("\"the head\"\n%q\n", tail))
			if got := string(b[7*1344-8 : 7*1344]); got != tail {
				t.Errorf("what was mapped before Close ends with %q", got)
			}
		})
	}
}

// A source fills its contents while it is open, and its marks say what members have.
func TestSourcesContentIsCopied(t *testing.T) {
	needRoot(t)
	h := openCasting(t, Options{})
	c := newContent(t, h, 2)
	s := &h.Ends().Casts[1]
	s.Token, s.Content, s.Marks, s.Chunks = 5, c.ID, c.Mark, 2
	c.Marks[0], c.Marks[1] = wire.MarkStored, wire.MarkStored // chain 1 has both
	f, err := c.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c.Data[0] = 1 // still possible
	got := make([]byte, len(c.Data))
	if _, err := f.ReadAt(got, 0); err != nil || !allZero(got) {
		t.Errorf("the copy: %v", err)
	}
}

// mapID returns the number of the map that a descriptor is of, and closes that.
func mapID(t *testing.T, f *os.File) uint32 {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMapFromFD(fd)
	if err != nil {
		t.Fatal(err)
	}
	info, err := m.Info()
	if err := errors.Join(err, m.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	id, _ := idOf(info)
	return id
}

// lines is what a process has written so far.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) wait(t testing.TB, want string) {
	t.Helper()
	eventually(t, func() string {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.b.String() == want {
			return ""
		}
		return fmt.Sprintf("it says %q, want %q", l.b.String(), want)
	})
}

func logTo(l *lines) *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// eventually waits until f has nothing to complain about.
func eventually(t testing.TB, f func() string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		why := f()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(why)
		}
	}
}

// Whoever can load programs needs no other right for that.
func TestContentWithoutMoreRights(t *testing.T) {
	needRoot(t)
	h := openCasting(t, Options{})
	t.Run("without CAP_SYS_ADMIN", func(t *testing.T) {
		dropRights(t, "CAP_SYS_ADMIN")
		c := newContent(t, h, 1)
		c.Marks[0] = wire.MarkStored
		f, err := c.Open()
		if err != nil {
			t.Fatal(err)
		}
		if id := mapID(t, f); id == 0 {
			t.Error("it is a copy")
		}
		if err := h.FreeContent(c); err != nil {
			t.Error(err)
		}
	})
}

func TestTokens(t *testing.T) {
	needRoot(t)
	h := openCasting(t, Options{})
	find := func(token uint64) int {
		var slot uint32
		if err := h.loader.shared["tokens"].Lookup(token, &slot); err != nil {
			return -1
		}
		return int(slot)
	}
	// As many as there are regions and groups, time and again.
	for round := range uint64(50) {
		for i := range 4 + 3 {
			if err := h.SetToken(round<<32+uint64(i)+1, i%4); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.SetToken(1<<63+round, 0); err == nil {
			t.Error("there are more tokens than ends")
		}
		for i := range 4 + 3 {
			token := round<<32 + uint64(i) + 1
			if got := find(token); got != i%4 {
				t.Fatalf("token %#x is of slot %d, want %d", token, got, i%4)
			}
			if i == 2 {
				if err := h.SetToken(token, 1); err == nil {
					t.Error("a token is of two regions")
				}
			}
			if err := h.ClearToken(token); err != nil {
				t.Fatal(err)
			}
			if got := find(token); got != -1 {
				t.Fatalf("token %#x is of slot %d still", token, got)
			}
		}
	}
	if err := h.ClearToken(12345); err != nil {
		t.Errorf("a token that is not there: %v", err)
	}
	for _, bad := range []struct {
		token uint64
		slot  int
	}{{0, 1}, {1, -1}, {1, 4}} {
		if err := h.SetToken(bad.token, bad.slot); err == nil {
			t.Errorf("token %d of slot %d was set", bad.token, bad.slot)
		}
	}
}

// After Close all calls say so, and nothing is left in the kernel.
func TestBroadcastsClose(t *testing.T) {
	needRoot(t)
	h := openCasting(t, Options{})
	if err := h.OnEvent(func(wire.Event) {}); err != nil {
		t.Fatal(err)
	}
	if err := h.OnEvent(func(wire.Event) {}); err == nil {
		t.Error("two are told of events")
	}
	if err := h.OnRound(func(wire.Event) {}); err != nil {
		t.Fatal(err)
	}
	c := newContent(t, h, 3)
	freed := newContent(t, h, 3)
	left := map[string]ebpf.MapID{
		"content":       ebpf.MapID(idIn(h, c.ID)),
		"freed content": ebpf.MapID(idIn(h, freed.ID)),
	}
	for _, name := range []string{"regions", "tokens", "casts", "contents", "marks", "events", "groups", "rounds"} {
		info, err := h.loader.shared[name].Info()
		if err != nil {
			t.Fatal(err)
		}
		left[name], _ = info.ID()
	}
	if err := h.FreeContent(freed); err != nil {
		t.Fatal(err)
	}
	gone := func(name string) {
		t.Helper()
		eventually(t, func() string {
			m, err := ebpf.NewMapFromID(left[name])
			if errors.Is(err, os.ErrNotExist) {
				return ""
			}
			if err == nil {
				_ = m.Close()
			}
			return fmt.Sprintf("map %s is there: %v", name, err)
		})
	}
	gone("freed content")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	for name := range left {
		gone(name)
	}
	_, newErr := h.NewContent(1)
	_, openErr := c.Open()
	_, hopErr := h.Hop(netip.MustParseAddrPort("192.0.2.1:7"))
	_, castErr := h.Broadcasts()
	_, reduceErr := h.Reduces()
	for what, err := range map[string]error{
		"NewContent": newErr, "FreeContent": h.FreeContent(c), "Open": openErr, "Hop": hopErr, "Broadcasts": castErr, "Reduces": reduceErr,
		"SetToken": h.SetToken(1, 1), "ClearToken": h.ClearToken(1), "OnEvent": h.OnEvent(func(wire.Event) {}),
		"OnRound": h.OnRound(func(wire.Event) {}),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
	if h.Clones() || h.Pumps() || len(h.Ends().Regions) != 0 || len(h.Groups()) != 0 {
		t.Error("a closed Host offers help with broadcasts")
	}
}

// storeByRun has programs store a message of one chunk in a region, without an interface.
func storeByRun(t testing.TB, h *Host, tags *wire.Tags, token uint64, place uint32) {
	t.Helper()
	f, err := wire.PutChunk(make([]byte, wire.FrameSize), wire.Head{Token: token}, wire.Chunk{Place: place, First: place, Total: 1}, []byte("x"), tags)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Run(append(h.selfHeaders(len(f)), f...)); err != nil {
		t.Fatal(err)
	}
}

// regionByRun opens a region for that.
func regionByRun(t testing.TB, h *Host, token uint64, slot int) *shuffle.Content {
	t.Helper()
	c := newContent(t, h, 10)
	h.Ends().Regions[slot] = wire.Region{Token: token, Content: c.ID, Marks: c.Mark, Chunks: 10}
	if err := h.SetToken(token, slot); err != nil {
		t.Fatal(err)
	}
	return c
}

// Events of regions that are open are told in order, and those of others not at all.
func TestEvents(t *testing.T) {
	needRoot(t)
	h := openCasting(t, Options{})
	tags := wire.NewTags([16]byte{8})
	if err := h.SetJob(0, tags.Job()); err != nil {
		t.Fatal(err)
	}
	regionByRun(t, h, 11, 0)
	regionByRun(t, h, 22, 3)
	// Before anybody listens; one of the regions is closed by then, and its slot another's.
	storeByRun(t, h, tags, 22, 4)
	storeByRun(t, h, tags, 11, 5)
	storeByRun(t, h, tags, 22, 4) // it was there before
	if err := h.ClearToken(11); err != nil {
		t.Fatal(err)
	}
	h.Ends().Regions[0].Token = 33
	told := make(chan wire.Event, 10)
	if err := h.OnEvent(func(e wire.Event) { told <- e }); err != nil {
		t.Fatal(err)
	}
	storeByRun(t, h, tags, 22, 0)
	for _, want := range []wire.Event{{Token: 22, Slot: 3, First: 4}, {Token: 22, Slot: 3, First: 0}} {
		select {
		case e := <-told:
			if e != want {
				t.Errorf("told of %+v, want %+v", e, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("nobody is told of %+v", want)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if len(told) > 0 {
		t.Errorf("told of %+v, too", <-told)
	}
}

// Closing waits for who is told of an event, whose calls fail and do not wait for it.
func TestCloseInEvent(t *testing.T) {
	needRoot(t)
	h := openCasting(t, Options{})
	tags := wire.NewTags([16]byte{8})
	if err := h.SetJob(0, tags.Job()); err != nil {
		t.Fatal(err)
	}
	regionByRun(t, h, 11, 0)
	began, closing, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	if err := h.OnEvent(func(wire.Event) {
		close(began)
		<-closing
		var err error
		for err == nil { // until Close has begun
			err = h.SetJob(1, tags.Job())
		}
		_, newErr := h.NewContent(1)
		if !errors.Is(err, ErrClosed) || !errors.Is(newErr, ErrClosed) {
			t.Errorf("while it closes: %v, %v", err, newErr)
		}
		ended <- nil
	}); err != nil {
		t.Fatal(err)
	}
	storeByRun(t, h, tags, 11, 0)
	<-began
	close(closing)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if len(ended) != 1 {
		t.Error("it is closed while somebody is told of an event")
	}
	if err := h.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

// Where broadcasts can't be, the fold works, and it is said why. That is kept over a restart.
func TestWithoutBroadcasts(t *testing.T) {
	newLab(t)
	var log lines
	o := Options{Interfaces: []string{"a0"}, Limits: small(), Dir: filepath.Join(instances(t), "one"), Log: logTo(&log)}
	o.Limits.Chunks = math.MaxInt - math.MaxUint32 // the number's low half is 0, and so many elements no map can have
	for _, resumed := range []bool{false, true} {
		h := open(t, o)
		if h.Resumed() != resumed {
			t.Fatalf("resumed %v: %s", h.Resumed(), h.Note())
		}
		b, err := h.Broadcasts()
		if b != nil || !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "make map") {
			t.Fatalf("broadcasts are %v: %v", b, err)
		}
		_, newErr := h.NewContent(1)
		_, reduceErr := h.Reduces()
		for what, err := range map[string]error{
			"NewContent": newErr, "SetToken": h.SetToken(1, 1), "OnEvent": h.OnEvent(func(wire.Event) {}),
			"Reduces": reduceErr, "OnRound": h.OnRound(func(wire.Event) {}),
		} {
			if !errors.Is(err, ErrUnsupported) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if h.Clones() || h.Pumps() || len(h.Ends().Regions) != 0 || len(h.Ends().Casts) != 0 || len(h.Groups()) != 0 {
			t.Error("it offers help with broadcasts")
		}
		if _, err := h.NewTables(narrow, 1); err != nil {
			t.Error(err)
		}
		if _, name := onDevice(t, "a0"); name != dispatchProgram {
			t.Errorf("on a0 is %q", name)
		}
		if times, err := h.Times(); err != nil || len(times) != 2 {
			t.Errorf("times are %v: %v", times, err)
		}
		if resumed {
			continue
		}
		if err := h.Release(); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(log.b.String(), "user space alone") {
		t.Errorf("the log says %q", log.b.String())
	}
}

func TestHop(t *testing.T) {
	l := newLab(t)
	h := openCasting(t, Options{Interfaces: []string{"a0"}, Port: 7200})
	near, err := net.InterfaceByName("a0")
	if err != nil {
		t.Fatal(err)
	}
	var far net.HardwareAddr
	if far, err = net.ParseMAC(hardwareOf(t, l)); err != nil {
		t.Fatal(err)
	}
	router, _ := net.ParseMAC("02:00:00:00:00:99")
	sh(t, "ip link add c0 type veth peer name c1")
	sh(t, "ip addr add 10.78.0.1/24 dev c0")
	sh(t, "ip link set c1 up")
	sh(t, "ip link set c0 up")
	sh(t, "ip link set c0 mtu 1400")

	hop := func(to string) (wire.Hop, error) { return h.Hop(netip.MustParseAddrPort(to)) }
	// Nobody has asked for hardware addresses yet.
	for _, to := range []string{l.addrB + ":7117", "[" + l.sixB + "]:7117"} {
		if _, err := hop(to); !errors.Is(err, shuffle.ErrNotNow) {
			t.Errorf("%s, an unknown neighbour: %v", to, err)
		}
		// What a socket sends there has the system ask.
		c, err := net.Dial("udp", to)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Error(err)
		}
		eventually(t, func() string {
			if _, err := hop(to); err != nil {
				return err.Error()
			}
			return ""
		})
		c.Close()
	}
	sh(t, "ip neigh replace 10.77.0.99 dev a0 lladdr %s", router)
	sh(t, "ip neigh replace fd77::99 dev a0 lladdr %s", router)
	sh(t, "ip route add 192.0.2.0/24 via 10.77.0.99 src %s", l.addrA)
	sh(t, "ip route add 198.51.100.0/24 via inet6 fd77::99 dev a0 src %s", l.addrA)
	sh(t, "ip route add 203.0.113.0/24 via 10.77.0.99 mtu 1300")
	sh(t, "ip -6 route add fd79::/64 via fd77::99")
	sh(t, "ip route add blackhole 203.0.114.0/24")
	link := "[fe80::77%a0]:9"
	sh(t, "ip neigh replace fe80::77 dev a0 lladdr %s", router)

	for to, want := range map[string]struct {
		mac  net.HardwareAddr
		from string
	}{
		l.addrB + ":7117":            {far, l.addrA},
		"[::ffff:" + l.addrB + "]:9": {far, l.addrA},
		"192.0.2.7:1000":             {router, l.addrA},
		"198.51.100.7:65535":         {router, l.addrA}, // IPv4 by a router that has IPv6
		"[" + l.sixB + "]:7117":      {far, l.sixA},
		"[fd79::5]:7117":             {router, l.sixA},
		link:                         {router, linkLocal(t, near)},
	} {
		got, err := hop(to)
		if err != nil {
			t.Errorf("%s: %v", to, err)
			continue
		}
		a := netip.MustParseAddrPort(to)
		addr := a.Addr().Unmap().WithZone("")
		w := wire.Hop{
			MACTo: [6]byte(want.mac), MACFrom: [6]byte(near.HardwareAddr), Interface: uint32(near.Index),
			PortTo: [2]byte{byte(a.Port() >> 8), byte(a.Port())}, PortFrom: [2]byte{7200 >> 8, 7200 & 0xff},
		}
		copy(w.To[:], addr.AsSlice())
		copy(w.From[:], netip.MustParseAddr(want.from).AsSlice())
		if addr.Is6() {
			w.V6 = 1
		}
		if got != w {
			t.Errorf("%s:\ngot  %+v\nwant %+v", to, got, w)
		}
	}
	for what, c := range map[string]struct {
		to   string
		want error
	}{
		"no such host":           {"10.77.0.9:7", shuffle.ErrNotNow},
		"no route":               {"198.18.0.1:7", shuffle.ErrNotNow},
		"a black hole":           {"203.0.114.1:7", nil},
		"ourselves":              {l.addrA + ":7", ErrUnsupported},
		"ourselves by IPv6":      {"[" + l.sixA + "]:7", ErrUnsupported},
		"an interface of others": {"10.78.0.2:7", ErrUnsupported},
		"a narrow way":           {"203.0.113.1:7", ErrUnsupported},
		"no port":                {l.addrB + ":0", nil},
	} {
		if got, err := hop(c.to); err == nil || c.want != nil && !errors.Is(err, c.want) || got != (wire.Hop{}) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	if _, err := h.Hop(netip.AddrPort{}); err == nil {
		t.Error("there is a way to nowhere")
	}
	// From wherever: the ways are those of the Host's namespace.
	l.far(func() {
		if got, err := hop(l.addrB + ":7"); err != nil || got.Interface != uint32(near.Index) {
			t.Errorf("from another namespace: %+v, %v", got, err)
		}
	})
	// Every time anew.
	sh(t, "ip neigh replace %s dev a0 lladdr %s", l.addrB, router)
	if got, err := hop(l.addrB + ":7"); err != nil || got.MACTo != [6]byte(router) {
		t.Errorf("the neighbour has moved: %+v, %v", got, err)
	}
	sh(t, "ip neigh del %s dev a0", l.addrB)
	if _, err := hop(l.addrB + ":7"); !errors.Is(err, shuffle.ErrNotNow) {
		t.Errorf("the neighbour is gone: %v", err)
	}
}

// linkLocal returns an interface's address of its own link, once it may be used.
func linkLocal(t *testing.T, i *net.Interface) (addr string) {
	t.Helper()
	eventually(t, func() string {
		if out := sh(t, "ip -6 addr show dev %s tentative", i.Name); out != "" {
			return out
		}
		list, err := i.Addrs()
		if err != nil {
			return err.Error()
		}
		for _, a := range list {
			if n, ok := a.(*net.IPNet); ok && n.IP.IsLinkLocalUnicast() {
				addr = n.IP.String()
				return ""
			}
		}
		return "it has none"
	})
	return addr
}

func TestHopNarrowInterface(t *testing.T) {
	l := newLab(t)
	h := openCasting(t, Options{Interfaces: []string{"a0"}})
	sh(t, "ip neigh replace %s dev a0 lladdr 02:00:00:00:00:99", l.addrB)
	sh(t, "ip neigh replace %s dev a0 lladdr 02:00:00:00:00:99", l.sixB)
	for _, c := range []struct {
		mtu    int
		v4, v6 bool
	}{{1488, true, true}, {1487, true, false}, {1468, true, false}, {1467, false, false}} {
		sh(t, "ip link set a0 mtu %d", c.mtu)
		_, err4 := h.Hop(netip.AddrPortFrom(netip.MustParseAddr(l.addrB), 7))
		_, err6 := h.Hop(netip.AddrPortFrom(netip.MustParseAddr(l.sixB), 7))
		if (err4 == nil) != c.v4 || (err6 == nil) != c.v6 {
			t.Errorf("with an MTU of %d: %v; %v", c.mtu, err4, err6)
		}
	}
}

// What clones chunks is attached when it is first asked for, and gone with the Host.
func TestClonesAttach(t *testing.T) {
	ways := []bool{true}
	if tcx.Have() == nil {
		ways = append(ways, false)
	}
	for _, filter := range ways {
		t.Run(fmt.Sprintf("filter %v", filter), func(t *testing.T) {
			l := newLab(t)
			dir := filepath.Join(instances(t), "one")
			o := Options{Interfaces: []string{"a0"}, Limits: small(), Dir: dir}
			attached := func() bool { return cloning(t) }
			h := openCasting(t, o)
			if attached() {
				t.Error("it is attached before it is asked for")
			}
			if filter { // as where there is no tcx
				h.mu.Lock()
				err := h.attachHook(&h.clones, true)
				h.mu.Unlock()
				if err != nil {
					t.Fatal(err)
				}
			}
			// From wherever: the numbers of devices are those of the Host's namespace.
			l.far(func() {
				for range 2 {
					if !h.Clones() {
						t.Fatal("it does not clone")
					}
				}
			})
			if !attached() || h.clones.filter != filter || (len(h.clones.links) == 1) == filter {
				t.Errorf("attached %v, filter %v, %d links", attached(), h.clones.filter, len(h.clones.links))
			}
			if h.answers.attached() || strings.Contains(sh(t, "tc filter show dev a0 ingress"), "quern") {
				t.Error("something is on the other side, too")
			}
			if err := h.Release(); err != nil {
				t.Fatal(err)
			}
			if !attached() {
				t.Error("it is gone after Release")
			}
			h = openCasting(t, o)
			if !h.Resumed() || h.clones.filter != filter || h.casting.clones.Load() != clonesYes || !h.Clones() {
				t.Errorf("resumed %v (%s), filter %v, clones %d", h.Resumed(), h.Note(), h.clones.filter, h.casting.clones.Load())
			}
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
			if attached() {
				t.Error("it is attached after Close")
			}
			// The same for what another process has left.
			h = openCasting(t, o)
			if filter {
				h.mu.Lock()
				err := h.attachHook(&h.clones, true)
				h.mu.Unlock()
				if err != nil {
					t.Fatal(err)
				}
			}
			if !h.Clones() {
				t.Fatal("it does not clone")
			}
			if err := h.Release(); err != nil {
				t.Fatal(err)
			}
			removed, err := Clean(dir)
			if err != nil {
				t.Fatal(err)
			}
			want := "link clone-0 on a0"
			if filter {
				want = "filter on a0"
			}
			if all := strings.Join(removed, "\n"); !strings.Contains(all, want) || attached() {
				t.Errorf("attached %v, and it says:\n%s", attached(), all)
			}
		})
	}
}

// cloning says whether the program that clones chunks is at a0.
func cloning(t testing.TB) bool {
	t.Helper()
	return strings.Contains(sh(t, "tc filter show dev a0 egress"), cloneProgram) || tcxOn(t, "a0", ebpf.AttachTCXEgress, cloneProgram)
}

// tcxOn says whether a program is at a device by tcx.
func tcxOn(t testing.TB, name string, at ebpf.AttachType, program string) bool {
	t.Helper()
	if tcx.Have() != nil {
		return false
	}
	d, err := findDevice(name)
	if err != nil {
		t.Fatal(err)
	}
	list, err := link.QueryPrograms(link.QueryOptions{Target: d.Index, Attach: at})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list.Programs {
		p, err := ebpf.NewProgramFromID(a.ID)
		if err != nil {
			continue
		}
		info, err := p.Info()
		_ = p.Close()
		if err == nil && info.Name == program[:min(len(program), 15)] {
			return true
		}
	}
	return false
}

// Where it can't be attached, heads are sent to one by one, and the log says why.
func TestClonesNot(t *testing.T) {
	newLab(t)
	var log lines
	h := openCasting(t, Options{Interfaces: []string{"a0"}, Log: logTo(&log)})
	sh(t, "ip link del a0")
	for range 2 {
		if h.Clones() {
			t.Error("it clones without an interface")
		}
	}
	if n := strings.Count(log.b.String(), "not cloned"); n != 1 || !strings.Contains(log.b.String(), "a0") {
		t.Errorf("the log says %q", log.b.String())
	}
	if h := openCasting(t, Options{}); h.Clones() || h.Pumps() {
		t.Error("without an interface it clones or pumps")
	}
}

func TestPumps(t *testing.T) {
	newLab(t)
	h := openCasting(t, Options{Interfaces: []string{"a0"}})
	for mode, want := range map[wire.AnswerMode]bool{wire.AnswerTX: true, wire.AnswerTC: true, wire.AnswerUser: false} {
		if err := h.SetAnswer(mode); err != nil {
			t.Fatal(err)
		}
		if h.Pumps() != want {
			t.Errorf("where answers leave by %s it pumps: %v", answerName(mode), h.Pumps())
		}
	}
}

// The same for a process that was killed, whose clones go on until then.
func TestResumeBroadcastsOfKilled(t *testing.T) {
	newLab(t)
	dir := filepath.Join(instances(t), "one")
	startHold(t, dir, tcVar+"=clones")()
	if !cloning(t) {
		t.Error("nothing clones chunks any more")
	}
	h := openCasting(t, holdOptions(dir))
	if !h.Resumed() || h.Ends().Regions[1] != (wire.Region{}) || idIn(h, 0) != 0 || h.casting.marks[0] != 0 {
		t.Errorf("resumed %v (%s); region %+v, content %d, mark %d", h.Resumed(), h.Note(), h.Ends().Regions[1], idIn(h, 0), h.casting.marks[0])
	}
	if !h.clones.attached() || !h.Clones() {
		t.Error("it does not clone")
	}
	if err := h.SetToken(holdToken, 2); err != nil {
		t.Errorf("the token is still there: %v", err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if cloning(t) {
		t.Error("chunks are cloned after Close")
	}
}

// A process that takes an instance up goes on folding, and begins anew with broadcasts.
func TestResumeBroadcasts(t *testing.T) {
	newLab(t)
	o := Options{Interfaces: []string{"a0"}, Limits: small(), Dir: filepath.Join(instances(t), "one")}
	h := openCasting(t, o)
	var ids []ebpf.MapID
	for i := range 6 {
		c := newContent(t, h, 100)
		ids = append(ids, ebpf.MapID(idIn(h, c.ID)))
		c.Data[0], c.Marks[99] = 1, 7
		if i < 4 {
			r := &h.Ends().Regions[i]
			r.Token, r.Content, r.Marks, r.Chunks, r.Stored = uint64(i+1), c.ID, c.Mark, 100, 5
			if err := h.SetToken(r.Token, i); err != nil {
				t.Fatal(err)
			}
		} else {
			s := &h.Ends().Casts[i-4]
			s.Token, s.Content, s.Marks, s.Chunks, s.Total = uint64(i+1), c.ID, c.Mark, 100, 9
		}
	}
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	h = openCasting(t, o)
	if !h.Resumed() {
		t.Fatal(h.Note())
	}
	for i := range h.Ends().Regions {
		if h.Ends().Regions[i] != (wire.Region{}) {
			t.Errorf("region %d is %+v", i, h.Ends().Regions[i])
		}
		var slot uint32
		if err := h.loader.shared["tokens"].Lookup(uint64(i+1), &slot); !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Errorf("token %d is of region %d: %v", i+1, slot, err)
		}
	}
	for i := range h.Ends().Casts {
		if h.Ends().Casts[i] != (wire.Cast{}) {
			t.Errorf("cast %d is %+v", i, h.Ends().Casts[i])
		}
	}
	for i, m := range h.casting.marks {
		if m != 0 {
			t.Fatalf("mark %d is %d", i, m)
		}
	}
	for _, id := range ids {
		eventually(t, func() string {
			m, err := ebpf.NewMapFromID(id)
			if err == nil {
				_ = m.Close()
				return fmt.Sprintf("content %d is there", id)
			}
			return ""
		})
	}
	if c := newContent(t, h, 1000); c.ID != 0 || c.Mark != 0 || !allZero(c.Data) {
		t.Errorf("the first content has number %d and marks from %d on", c.ID, c.Mark)
	}
}
