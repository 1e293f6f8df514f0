// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

func small() shuffle.Limits {
	return shuffle.Limits{Streams: 4, Targets: 3, Outgoing: 2, Jobs: 5, Regions: 4, Casts: 2, Groups: 3, Chunks: 1000}
}

var narrow = shuffle.TableLayout{Class: 0, Lanes: 1, Bits: 4}

func TestMemory(t *testing.T) {
	needRoot(t)
	h := open(t, Options{Limits: small(), Port: 0x1234})
	m := h.Memory()
	if len(m.Streams) != 4 || len(m.Targets) != 3 || len(m.Cells) != 3*m.CPUs || len(m.Outgoing) != 2 || m.CPUs < 1 {
		t.Fatalf("memory has %d streams, %d targets, %d cells for %d CPUs, %d outgoing", len(m.Streams), len(m.Targets), len(m.Cells), m.CPUs, len(m.Outgoing))
	}
	if h.settings.Port != [2]byte{0x12, 0x34} {
		t.Errorf("port is %v, want network byte order", h.settings.Port)
	}
	// Another view of the same memory: that which programs look at.
	m.Streams[3].Token = 77
	m.Streams[3].Seen[wire.SeenWords-1] = 88
	var raw []byte
	if err := h.loader.shared["streams"].Lookup(uint32(3), &raw); err != nil {
		t.Fatal(err)
	}
	if raw[0] != 77 || raw[len(raw)-8] != 88 {
		t.Errorf("the map holds %d and %d", raw[0], raw[len(raw)-8])
	}
	keys := &wire.Job{Sip0: 5}
	keys.NH[wire.NHWords-1] = 6
	if err := h.SetJob(4, keys); err != nil {
		t.Fatal(err)
	}
	if err := h.loader.shared["jobs"].Lookup(uint32(4), &raw); err != nil {
		t.Fatal(err)
	}
	if raw[0] != 5 || raw[len(raw)-8] != 6 {
		t.Errorf("the job's keys are %v", raw)
	}
	for _, slot := range []int{-1, 5} {
		if err := h.SetJob(slot, keys); err == nil {
			t.Errorf("job slot %d was written", slot)
		}
	}
	if h.Resumed() || h.Tables() != nil {
		t.Error("a new host says that it took something up")
	}
}

func TestAttachAndClose(t *testing.T) {
	newLab(t)
	dir := filepath.Join(instances(t), "one")
	h := open(t, Options{Interfaces: []string{"a0"}, Limits: small(), Dir: dir})
	if _, name := onDevice(t, "a0"); name != dispatchProgram {
		t.Fatalf("on a0 is %q", name)
	}
	if h.MTU() != 1500 || h.String() != "a0 (native XDP)" {
		t.Errorf("MTU %d, %s", h.MTU(), h)
	}
	if !isBPFFS(filepath.Join(dir, mountDir)) {
		t.Error("nothing is mounted")
	}
	if _, err := h.NewTables(narrow, 3); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if id, name := onDevice(t, "a0"); id != 0 {
		t.Errorf("after Close %s is on a0", name)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close the directory is there: %v", err)
	}
	if err := h.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
	_, tablesErr := h.NewTables(narrow, 1)
	_, reasonsErr := h.Reasons()
	_, timesErr := h.Times()
	_, _, runErr := h.Run(make([]byte, 64))
	for what, err := range map[string]error{
		"NewTables": tablesErr, "Reasons": reasonsErr, "Times": timesErr, "Run": runErr,
		"FreeTable": h.FreeTable(&shuffle.Table{}), "SetJob": h.SetJob(0, &wire.Job{}), "Quiesce": h.Quiesce(),
		"SetAnswer": h.SetAnswer(wire.AnswerTC), "Release": h.Release(),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

// Closing waits for calls that are under way, and those that come later are refused.
func TestCloseUnderUse(t *testing.T) {
	needRoot(t)
	h := open(t, Options{Limits: small()})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				_, err := h.Reasons()
				if err == nil {
					err = h.SetJob(1, &wire.Job{})
				}
				if err == nil {
					err = h.Quiesce()
				}
				if errors.Is(err, ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	if err := h.Quiesce(); err != nil {
		t.Error(err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	all.Wait()
}

func TestTwoInterfaces(t *testing.T) {
	newLab(t)
	sh(t, "ip link add c0 mtu 1400 type veth peer name c1")
	h := open(t, Options{Interfaces: []string{"a0", "c0"}, Limits: small()})
	for _, d := range []string{"a0", "c0"} {
		if _, name := onDevice(t, d); name != dispatchProgram {
			t.Errorf("on %s is %q", d, name)
		}
	}
	if h.MTU() != 1400 {
		t.Errorf("MTU is %d, want that of c0", h.MTU())
	}
	if !h.Clones() || len(h.clones.links) != 2 && !h.clones.filter {
		t.Errorf("chunks are cloned at %d interfaces", len(h.clones.links))
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	// The second is taken: nothing may be left on the first.
	p, err := AttachPass("c0")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := Open(Options{Interfaces: []string{"a0", "c0"}, Limits: small()}); err == nil {
		t.Fatal("displaced what is on c0")
	}
	if id, _ := onDevice(t, "a0"); id != 0 {
		t.Error("a failed Open left its program on a0")
	}
}

func TestForeignProgram(t *testing.T) {
	for _, how := range []string{"link", "netlink"} {
		t.Run(how, func(t *testing.T) {
			newLab(t)
			d, err := findDevice("a0")
			if err != nil {
				t.Fatal(err)
			}
			if how == "link" {
				p, err := AttachPass("a0")
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
			} else {
				p, err := loadPass()
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				if err := netlink.LinkSetXdpFdWithFlags(d.link, p.FD(), unix.XDP_FLAGS_DRV_MODE); err != nil {
					t.Fatal(err)
				}
			}
			id, _ := onDevice(t, "a0")
			root := instances(t)
			o := Options{Interfaces: []string{"a0"}, Limits: small(), Dir: filepath.Join(root, "one")}
			_, err = Open(o)
			var f *ForeignError
			if !errors.As(err, &f) || f.ID != id || f.Program != passProgram || f.Mode != Native {
				t.Fatalf("error is %v", err)
			}
			for _, s := range []string{"a0", fmt.Sprint(id), passProgram, "--" + ReplaceSetting} {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not name %s", err, s)
				}
			}
			if now, _ := onDevice(t, "a0"); now != id {
				t.Error("the other program was displaced")
			}
			if list, _ := os.ReadDir(root); len(list) > 0 {
				t.Errorf("a failed Open left %v", list)
			}
			o.Replace = true
			h, err := Open(o)
			if err != nil {
				t.Fatal(err)
			}
			if _, name := onDevice(t, "a0"); name != dispatchProgram {
				t.Errorf("on a0 is %q", name)
			}
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMTUTooLarge(t *testing.T) {
	l := newLab(t)
	sh(t, "ip link add c0 type veth peer name c1 mtu 9000")
	sh(t, "ip -n %s link set b0 mtu 9000", l.farN)
	for _, c := range []struct{ device, names string }{{"c0", "c1"}, {"a0", "a0"}} { // the other end in sight, and out of it
		_, err := Open(Options{Interfaces: []string{c.device}, Limits: small()})
		if !errors.Is(err, ErrMTU) || !strings.Contains(err.Error(), "3506") || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: %v", c.device, err)
		}
		h, err := Open(Options{Interfaces: []string{c.device}, Limits: small(), XDP: Generic})
		if err != nil {
			t.Errorf("%s, generic: %v", c.device, err)
			continue
		}
		if h.XDP() != Generic || !strings.Contains(h.String(), "generic") {
			t.Errorf("it says %s", h)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	sh(t, "ip link set c1 mtu %d", vethMTU)
	open(t, Options{Interfaces: []string{"c0"}, Limits: small()})
}

func TestNativeIsNeverGeneric(t *testing.T) {
	newLab(t)
	sh(t, "ip link add d0 type bridge")
	_, err := Open(Options{Interfaces: []string{"d0"}, Limits: small()})
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "--"+XDPModeSetting+" generic") {
		t.Fatalf("error is %v", err)
	}
	if id, _ := onDevice(t, "d0"); id != 0 {
		t.Error("there is a program on d0")
	}
	open(t, Options{Interfaces: []string{"d0"}, Limits: small(), XDP: Generic})
	if id, _ := onDevice(t, "d0"); id == 0 {
		t.Error("there is no program on d0")
	}
	if _, err := Open(Options{Interfaces: []string{"d9"}}); err == nil || !strings.Contains(err.Error(), "d9") {
		t.Errorf("an interface that is not there: %v", err)
	}
}

// A Host that nobody refers to stays: its memory may be in use, and programs are meant to run.
func TestNotCollected(t *testing.T) {
	newLab(t)
	if _, err := Open(Options{Interfaces: []string{"a0"}, Limits: small()}); err != nil {
		t.Fatal(err)
	}
	before, _ := onDevice(t, "a0")
	for range 3 {
		runtime.GC()
		runtime.Gosched()
	}
	if after, _ := onDevice(t, "a0"); after == 0 || after != before {
		t.Errorf("program %d was on a0, and now %d", before, after)
	}
	heldMu.Lock()
	var left []*Host
	for v := range held {
		if h, ok := v.(*Host); ok && slices.Equal(h.opts.Interfaces, []string{"a0"}) {
			left = append(left, h)
		}
	}
	heldMu.Unlock()
	for _, h := range left {
		var id uint32
		if err := h.loader.shared["chain"].Lookup(uint32(chainAck), &id); err != nil || id == 0 {
			t.Errorf("the chain is empty: %v", err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(left) != 1 {
		t.Errorf("%d hosts are held", len(left))
	}
}

func TestTables(t *testing.T) {
	needRoot(t)
	h := open(t, Options{Limits: small()})
	dense := shuffle.TableLayout{Dense: true, Bits: 5, Class: 3, Lanes: 9}
	a, err := h.NewTables(narrow, 3)
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.NewTables(dense, 2)
	if err != nil {
		t.Fatal(err)
	}
	c, err := h.NewTables(narrow, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		t  *shuffle.Table
		id shuffle.TableID
	}{{a[0], 0}, {a[1], 1}, {a[2], 2}, {b[0], 1 << 24}, {b[1], 1<<24 + 1}, {c[0], 3}} {
		if want.t.ID != want.id || len(want.t.Memory) != want.t.Layout.Size() {
			t.Errorf("table %d has number %#x, want %#x, and %d bytes, want %d", i, want.t.ID, want.id, len(want.t.Memory), want.t.Layout.Size())
		}
	}
	if got := len(b[0].Memory); got != 64+8*32 {
		t.Errorf("a dense table has %d bytes", got)
	}
	if b[0].Layout != (shuffle.TableLayout{Dense: true, Bits: 5}) {
		t.Errorf("layout is %+v", b[0].Layout)
	}
	for i, name := range foldPrograms(narrow) {
		var id uint32
		if err := h.loader.shared["chain"].Lookup(uint32(chainSets+i), &id); err != nil || id == 0 {
			t.Errorf("%s is not in the chain: %v", name, err)
		}
	}
	// A number is given out again only after it was freed.
	if err := h.FreeTable(a[1]); err != nil {
		t.Fatal(err)
	}
	if err := h.FreeTable(a[1]); err == nil {
		t.Error("a table was freed twice")
	}
	d, err := h.NewTables(narrow, 2)
	if err != nil {
		t.Fatal(err)
	}
	if d[0].ID != 1 || d[1].ID != 4 {
		t.Errorf("new tables have numbers %d and %d, want 1 and 4", d[0].ID, d[1].ID)
	}
	// One that a cell names is in use.
	h.Memory().Cells[1].Table[2] = uint32(d[0].ID) + 1
	if err := h.FreeTable(d[0]); err == nil || !strings.Contains(err.Error(), "cell 1") {
		t.Errorf("a table in use was freed: %v", err)
	}
	for _, bad := range []shuffle.TableLayout{
		{Class: 4, Lanes: 1, Bits: 4},
		{Class: 0, Lanes: 0, Bits: 4},
		{Class: 0, Lanes: 5, Bits: 4},
		{Class: 0, Lanes: 1, Bits: 0},
		{Class: 0, Lanes: 1, Bits: wire.MaxBits + 1},
		{Dense: true, Bits: 26},
	} {
		if _, err := h.NewTables(bad, 1); err == nil {
			t.Errorf("tables of %+v were made", bad)
		}
	}
}

func TestTableLimits(t *testing.T) {
	needRoot(t)
	cost := tableCost(narrow)
	h := open(t, Options{Limits: shuffle.Limits{Targets: 1, Streams: 1, Outgoing: 1, Jobs: 1}, TableMemory: 3*cost + cost/2})
	if _, err := h.NewTables(narrow, 2); err != nil {
		t.Fatal(err)
	}
	_, err := h.NewTables(narrow, 2)
	if !errors.Is(err, ErrBudget) || !strings.Contains(err.Error(), "--"+TableMemorySetting) || !strings.Contains(err.Error(), mib(cost/2)+" more") {
		t.Fatalf("error is %v", err)
	}
	if used, limit := h.TableBytes(); used != 2*cost || limit != 3*cost+cost/2 {
		t.Errorf("%d of %d bytes are used", used, limit)
	}
	last, err := h.NewTables(narrow, 1)
	if err != nil {
		t.Fatal(err)
	}
	if last[0].ID != 2 {
		t.Errorf("the failed call used up numbers: the next is %d", last[0].ID)
	}
	if err := h.FreeTable(last[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := h.NewTables(narrow, 1); err != nil {
		t.Errorf("after a table was freed: %v", err)
	}

	// The map of tables has an end, too.
	h.opts.TableMemory = 1 << 40
	before, mapped := h.used, len(h.mapped)
	capacity := h.loader.capacity()
	if _, err := h.NewTables(narrow, capacity-2); err == nil {
		t.Fatal("more tables than there is room for")
	}
	if h.used != before || len(h.mapped) != mapped {
		t.Errorf("a failed call left %d bytes of tables and %d mappings", h.used-before, len(h.mapped)-mapped)
	}
	if all, err := h.NewTables(narrow, capacity-3); err != nil || len(all) != capacity-3 {
		t.Errorf("%d tables of %d: %v", len(all), capacity-3, err)
	}
}

// Callers at the same time share waits, and no wait serves a call that came after it began.
func TestQuiesceIsShared(t *testing.T) {
	needRoot(t)
	h := open(t, Options{Limits: small()})
	var waits, began atomic.Int32
	running := make(chan struct{})
	goOn := make(chan struct{})
	wait := h.rounds.wait
	h.rounds.wait = func() error {
		if waits.Add(1) == 1 {
			close(running)
			<-goOn
		}
		return wait()
	}
	var all sync.WaitGroup
	call := func() {
		all.Go(func() {
			began.Add(1)
			before := waits.Load()
			if err := h.Quiesce(); err != nil {
				t.Error(err)
			}
			if waits.Load() == before {
				t.Error("a call was served by a wait that began before it")
			}
		})
	}
	call()
	<-running
	for range 50 {
		call()
	}
	for began.Load() != 51 {
		runtime.Gosched()
	}
	close(goOn)
	all.Wait()
	// Those that had not yet queued when the first wait ended may need one more.
	if n := waits.Load(); n > 10 {
		t.Errorf("51 calls cost %d waits", n)
	}
}

func TestTimes(t *testing.T) {
	needRoot(t)
	s, err := Stats()
	if err != nil {
		t.Fatal(err)
	}
	h := open(t, Options{Limits: small()})
	for range 3 {
		if _, _, err := h.Run(make([]byte, 64)); err != nil {
			t.Fatal(err)
		}
	}
	times, err := h.Times()
	if err != nil {
		t.Fatal(err)
	}
	if times[0].Name != dispatchProgram || times[0].Runs != 3 || times[0].Time <= 0 {
		t.Errorf("times are %+v", times)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	reasons, err := h.Reasons()
	if err != nil || reasons[wire.Foreign] != 3 {
		t.Errorf("reasons are %v: %v", reasons, err)
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		o    Options
		says string
	}{
		{Options{Port: 70000}, "70000"},
		{Options{Dir: "relative/x"}, "absolute"},
		{Options{Dir: "/run/quern/a b"}, "name"},
		{Options{Dir: "/run/quern/.."}, "name"},
		{Options{Interfaces: []string{"a", "a"}}, "own"},
		{Options{Interfaces: []string{""}}, "own"},
		{Options{XDP: 7}, "7"},
		{Options{TableMemory: -1}, TableMemorySetting},
	} {
		if _, err := Open(c.o); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
	for _, m := range []XDPMode{Native, Generic} {
		if got, err := ParseXDPMode(m.String()); err != nil || got != m {
			t.Errorf("%s is read as %s: %v", m, got, err)
		}
	}
	if _, err := ParseXDPMode("auto"); err == nil {
		t.Error("auto is no XDP mode: native never becomes generic by itself")
	}
}
