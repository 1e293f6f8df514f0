// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// openReducing is open of a Host that has all-reduces.
func openReducing(t testing.TB, o Options) *Host {
	t.Helper()
	h := openCasting(t, o)
	needReduces(t, h)
	return h
}

// resultByRun has programs store the result of a block of reducer 1, without an interface.
func resultByRun(t testing.TB, h *Host, tags *wire.Tags, token uint64, block uint32) {
	t.Helper()
	f, err := wire.PutPart(make([]byte, wire.FrameSize), wire.Reduced, token, block, wire.Part{What: 1, Reducer: 1}, []byte("abcd"), tags)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Run(append(h.selfHeaders(len(f)), f...)); err != nil {
		t.Fatal(err)
	}
}

// groupByRun opens a group of two, with member 0 here, for that.
func groupByRun(t testing.TB, h *Host, token uint64, slot int) (sums, results *shuffle.Content) {
	t.Helper()
	sums, results = openGroup(t, h, slot, 2, 2, 0)
	h.Groups()[slot].Token = token
	if err := h.SetToken(token, slot); err != nil {
		t.Fatal(err)
	}
	return sums, results
}

// Where there are more processors than programs put together the sums of, none are to add any up.
func TestReduceCPUs(t *testing.T) {
	source, err := os.ReadFile("c/complete.bpf.c")
	if err != nil || !strings.Contains(string(source), fmt.Sprintf("#define ELEMENTS (%d + 1)\n", reduceCPUs)) {
		t.Errorf("programs have another limit: %v", err)
	}
	h := &Host{loader: &loader{cpus: reduceCPUs + 1}, opts: Options{Log: slog.New(slog.DiscardHandler)}}
	h.startReduces()
	if err := h.reducing.err; err == nil || !strings.Contains(err.Error(), "257 processors") {
		t.Error(err)
	}
}

// A content that an open group names is in use, as the one or as the other.
func TestContentsOfGroups(t *testing.T) {
	needRoot(t)
	h := openReducing(t, Options{})
	sums, results := groupByRun(t, h, 5, 2)
	for _, c := range []*shuffle.Content{sums, results} {
		if err := h.FreeContent(c); err == nil || !strings.Contains(err.Error(), "group 2 names it") {
			t.Errorf("a group's content was freed: %v", err)
		}
		// Marks mean something else than at a member of a broadcast, so nothing is taken for whole.
		for i := range c.Marks {
			wire.SetMark(&c.Marks[i], wire.MarkStored)
		}
		f, err := c.Open()
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if h.casting.open[c].sealed {
			t.Error("a group's content can't be written any more")
		}
	}
	h.Groups()[2].Token = 0
	for _, c := range []*shuffle.Content{sums, results} {
		if err := h.FreeContent(c); err != nil {
			t.Error(err)
		}
	}
	// There are enough of them for all groups, and for the ones that come next.
	for range 4*3 + 2*(4+2) {
		newContent(t, h, 1)
	}
}

// Whoever waits is told in order of results of groups that are open, also of those from before it listened.
func TestRounds(t *testing.T) {
	needRoot(t)
	h := openReducing(t, Options{})
	tags := wire.NewTags([16]byte{8})
	if err := h.SetJob(3, tags.Job()); err != nil {
		t.Fatal(err)
	}
	groupByRun(t, h, 11, 0)
	groupByRun(t, h, 22, 2)
	h.Groups()[0].Wake, h.Groups()[2].Wake = 1, 2
	resultByRun(t, h, tags, 22, 4)
	resultByRun(t, h, tags, 11, 4)
	resultByRun(t, h, tags, 22, 5) // the second one
	resultByRun(t, h, tags, 22, 5) // it was there before
	resultByRun(t, h, tags, 22, 6)
	if err := h.ClearToken(11); err != nil {
		t.Fatal(err)
	}
	h.Groups()[0].Token = 33
	told := make(chan wire.Event, 1000)
	if err := h.OnRound(func(e wire.Event) { told <- e }); err != nil {
		t.Fatal(err)
	}
	expect := func(want wire.Event) {
		t.Helper()
		select {
		case e := <-told:
			if e != want {
				t.Errorf("told of %+v, want %+v", e, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("nobody is told of %+v", want)
		}
	}
	expect(wire.Event{Token: 22, Slot: 2, First: 2})
	// One by one, as a member does, and many while nobody reads.
	for n := uint32(4); n < 500; n++ {
		h.Groups()[2].Wake = n
		resultByRun(t, h, tags, 22, n+3)
		if n < 300 {
			expect(wire.Event{Token: 22, Slot: 2, First: n})
		}
	}
	for n := uint32(300); n < 500; n++ {
		expect(wire.Event{Token: 22, Slot: 2, First: n})
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if len(told) > 0 {
		t.Errorf("told of %+v, too", <-told)
	}
}

// A process that takes an instance up begins anew with all-reduces: what an earlier one had is closed.
func TestResumeGroups(t *testing.T) {
	newLab(t)
	o := Options{Interfaces: []string{"a0"}, Limits: small(), Dir: filepath.Join(instances(t), "one")}
	h := openReducing(t, o)
	tags := wire.NewTags([16]byte{8})
	if err := h.SetJob(3, tags.Job()); err != nil {
		t.Fatal(err)
	}
	var ids []ebpf.MapID
	for i := range uint64(3) {
		sums, results := groupByRun(t, h, i+1, int(i))
		ids = append(ids, ebpf.MapID(idIn(h, sums.ID)), ebpf.MapID(idIn(h, results.ID)))
		g := &h.Groups()[i]
		g.Wake, g.Hops[1].Interface = 1, 9
		sums.Marks[0], results.Data[0] = 7, 1
		resultByRun(t, h, tags, i+1, 4)
		if g.Stored != 1 {
			t.Fatalf("group %d: %+v", i, g)
		}
	}
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	h = openReducing(t, o)
	if !h.Resumed() {
		t.Fatal(h.Note())
	}
	for i := range h.Groups() {
		if h.Groups()[i] != (wire.Group{}) {
			t.Errorf("group %d is %+v", i, h.Groups()[i])
		}
		var slot uint32
		if err := h.loader.shared["tokens"].Lookup(uint64(i+1), &slot); !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Errorf("token %d is of group %d: %v", i+1, slot, err)
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
	// Results for tokens of before go up, and nobody is told of what programs said to the other process.
	told := make(chan wire.Event, 10)
	if err := h.OnRound(func(e wire.Event) { told <- e }); err != nil {
		t.Fatal(err)
	}
	before, err := h.Reasons()
	if err != nil {
		t.Fatal(err)
	}
	resultByRun(t, h, tags, 1, 5)
	after, err := h.Reasons()
	if err != nil || after[wire.UpGroup] != before[wire.UpGroup]+1 {
		t.Errorf("a result of an earlier process's group: %s (%v)", notZero(after), err)
	}
	// All of it works again.
	groupByRun(t, h, 99, 1)
	h.Groups()[1].Wake = 1
	resultByRun(t, h, tags, 99, 4)
	select {
	case e := <-told:
		if want := (wire.Event{Token: 99, Slot: 1, First: 1}); e != want {
			t.Errorf("told of %+v, want %+v", e, want)
		}
	case <-time.After(time.Minute):
		t.Error("nobody is told of a result")
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
}

// Where all-reduces can't be, the rest works, and it is said why. That is kept over a restart.
func TestWithoutReduces(t *testing.T) {
	newLab(t)
	var log lines
	o := Options{Interfaces: []string{"a0"}, Limits: small(), Dir: filepath.Join(instances(t), "one"), Log: logTo(&log)}
	_ = digest() // of all objects
	one := objects["complete"]
	delete(objects, "complete")
	t.Cleanup(func() { objects["complete"] = one })
	for _, resumed := range []bool{false, true} {
		h := open(t, o)
		needBroadcasts(t, h)
		if h.Resumed() != resumed {
			t.Fatalf("resumed %v: %s", h.Resumed(), h.Note())
		}
		r, err := h.Reduces()
		if r != nil || !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "no programs") {
			t.Fatalf("all-reduces are %v: %v", r, err)
		}
		if err := h.OnRound(func(wire.Event) {}); !errors.Is(err, ErrUnsupported) {
			t.Errorf("OnRound: %v", err)
		}
		if len(h.Groups()) != 0 {
			t.Error("it offers groups")
		}
		newContent(t, h, 1)
		if resumed {
			continue
		}
		if err := h.Release(); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(log.b.String(), "all-reduces: user space alone") {
		t.Errorf("the log says %q", log.b.String())
	}
}
