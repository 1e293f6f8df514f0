// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// child starts the test binary as a process of its own.
func child(t testing.TB, name string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), append(env, childVar+"="+name)...)
	cmd.Stderr = os.Stderr
	return cmd
}

const (
	dirVar   = "QUERN_BPF_DIR"
	tcVar    = "QUERN_BPF_TC"
	holdPort = 7200
)

func holdOptions(dir string) Options {
	return Options{Interfaces: []string{"a0"}, Limits: small(), Dir: dir, Port: holdPort}
}

// childHold opens a Host with a stream that the kernel folds into table 0, and waits to be killed.
func childHold() error {
	h, err := Open(holdOptions(os.Getenv(dirVar)))
	if err != nil {
		return err
	}
	switch how := os.Getenv(tcVar); how {
	case "":
		if err := prepare(h); err != nil {
			return err
		}
	case "clones":
		if !h.Clones() {
			return errors.New("it does not clone")
		}
		c, err := h.NewContent(5)
		if err != nil {
			return err
		}
		h.Ends().Regions[1] = wire.Region{Token: holdToken, Content: c.ID, Marks: c.Mark, Chunks: 5}
		c.Marks[0] = wire.MarkStored
		if err := h.SetToken(holdToken, 1); err != nil {
			return err
		}
	default:
		h.mu.Lock()
		err := h.attachHook(&h.answers, how == "clsact")
		h.mu.Unlock()
		if err != nil {
			return err
		}
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until killed, or the parent is gone
	return errors.New("nobody killed me")
}

const holdToken = 0xfeed

var holdLayout = shuffle.TableLayout{Class: 0, Lanes: 2, Bits: 6}

func holdTags() *wire.Tags { return wire.NewTags([16]byte{42}) }

// prepare opens a stream and lets all CPUs fold into a table each.
func prepare(h *Host) error {
	m := h.Memory()
	tables, err := h.NewTables(holdLayout, m.CPUs)
	if err != nil {
		return err
	}
	if err := h.SetJob(1, holdTags().Job()); err != nil {
		return err
	}
	m.Targets[2] = wire.Target{Partition: 9, State: 1}
	for i, t := range tables {
		m.Cells[2*m.CPUs+i].Table[0] = uint32(t.ID) + 1
	}
	s := &m.Streams[3]
	s.Job, s.Target, s.Frames, s.Ops, s.Lanes, s.Flags = 1, 2, 100, wire.OpSum|wire.OpMax<<4, 2, wire.FlagFold
	s.Token = holdToken
	return h.Quiesce()
}

// startHold starts childHold and returns when it is ready, and a function that kills it.
func startHold(t testing.TB, dir string, env ...string) (kill func()) {
	t.Helper()
	cmd := child(t, "hold", append(env, dirVar+"="+dir)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Signal(syscall.SIGKILL)
			_ = cmd.Wait()
			_ = in.Close()
		}
	}
	t.Cleanup(kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the child said %q: %v", line, err)
	}
	return kill
}

// send sends frames of the stream of prepare from the far end: in frame seq, key "k" with seq and -seq.
func (l *lab) send(seqs ...uint32) {
	l.t.Helper()
	l.far(func() {
		conn, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.ParseIP(l.addrA), Port: holdPort})
		if err != nil {
			l.t.Fatal(err)
		}
		defer conn.Close()
		h := &Host{opts: Options{Port: holdPort}}
		for _, seq := range seqs {
			p := h.selfPacket(holdTags(), holdToken, 3, seq, false, false, []selfPair{{"k", int64(seq), -int64(seq)}})
			if _, err := conn.Write(p[headersV4:]); err != nil {
				l.t.Fatal(err)
			}
		}
	})
}

// await waits until the kernel has folded n frames of target 2.
func await(t testing.TB, h *Host, n uint64) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		var folded uint64
		for _, c := range h.Memory().Cells[2*h.Memory().CPUs:] {
			folded += c.Frames
		}
		if folded == n {
			break
		}
		if time.Now().After(end) {
			r, _ := h.Reasons()
			t.Fatalf("%d frames are folded, want %d; reasons are %v", folded, n, r)
		}
	}
	if err := h.Quiesce(); err != nil {
		t.Fatal(err)
	}
}

// sumOfK adds up key "k" over tables.
func sumOfK(tables []*shuffle.Table) (sum int64) {
	for _, table := range tables {
		eachSlot(table, func(key string, lanes [2]int64, _ bool) {
			if key == "k" {
				sum += lanes[0]
			}
		})
	}
	return sum
}

// State is taken up after Release and after SIGKILL alike, and the kernel folds in between.
func TestResume(t *testing.T) {
	ways := []string{"killed", "released"}
	if testing.Short() {
		ways = ways[:1] // which shows most of it; emulated machines are slow
	}
	for _, how := range ways {
		t.Run(how, func(t *testing.T) {
			l := newLab(t)
			dir := filepath.Join(instances(t), "one")
			if how == "released" {
				h, err := Open(holdOptions(dir))
				if err != nil {
					t.Fatal(err)
				}
				if err := prepare(h); err != nil {
					t.Fatal(err)
				}
				l.send(1, 2)
				await(t, h, 2)
				if err := h.Release(); err != nil {
					t.Fatal(err)
				}
				if err := h.Release(); !errors.Is(err, ErrClosed) {
					t.Errorf("released again: %v", err)
				}
				if err := h.Close(); err != nil {
					t.Errorf("closed after Release: %v", err)
				}
			} else {
				kill := startHold(t, dir)
				l.send(1, 2)
				kill()
			}
			id, name := onDevice(t, "a0")
			if name != dispatchProgram {
				t.Fatalf("with no process on a0 is %q", name)
			}
			l.send(3, 4, 4) // nobody is there but the kernel

			h := open(t, holdOptions(dir))
			if !h.Resumed() || h.Note() != "" {
				t.Fatalf("not taken up: %s", h.Note())
			}
			if now, _ := onDevice(t, "a0"); now != id {
				t.Errorf("program %d was on a0, and now %d", id, now)
			}
			if got := h.Memory().Targets[2].Partition; got != 9 {
				t.Errorf("the target is of partition %d", got)
			}
			await(t, h, 4)
			tables := h.Tables()
			if len(tables) != h.Memory().CPUs || tables[0].Layout != holdLayout {
				t.Fatalf("there are %d tables, the first of %s", len(tables), tables[0].Layout)
			}
			if got := sumOfK(tables); got != 1+2+3+4 {
				t.Errorf("the sum is %d, want 10", got)
			}
			if used, _ := h.TableBytes(); used != int64(len(tables))*tableCost(holdLayout) {
				t.Errorf("tables count as %d bytes", used)
			}
			// It goes on: the same numbers, the same set.
			l.send(5)
			await(t, h, 5)
			if got := sumOfK(tables); got != 15 {
				t.Errorf("the sum is %d, want 15", got)
			}
			more, err := h.NewTables(holdLayout, 1)
			if err != nil {
				t.Fatal(err)
			}
			if want := shuffle.TableID(len(tables)); more[0].ID != want {
				t.Errorf("the next table has number %d, want %d", more[0].ID, want)
			}
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
			if id, _ := onDevice(t, "a0"); id != 0 {
				t.Error("after Close there is a program on a0")
			}
		})
	}
}

// What does not fit is not taken up but removed, and everything begins anew.
func TestNotResumed(t *testing.T) {
	edit := func(change func(s *state)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			i := &instance{dir: dir}
			s, err := i.readState()
			if err != nil {
				t.Fatal(err)
			}
			change(s)
			if err := i.writeState(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	live := func(t *testing.T, dir string) string {
		s, err := (&instance{dir: dir}).readState()
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, mountDir, s.Live)
	}
	for _, c := range []struct {
		name   string
		change func(t *testing.T, dir string)
		says   string
		sets   bool // needs tables
	}{
		{"other programs", edit(func(s *state) { s.Digest = "0" }), "programs", false},
		{"other format", edit(func(s *state) { s.Format++ }), "format", false},
		{"before a reboot", edit(func(s *state) { s.Boot = "x" }), "boot", false},
		{"other namespace", edit(func(s *state) { s.Netns++ }), "namespace", false},
		{"other limits", edit(func(s *state) { s.Limits.Jobs++ }), "limits", false},
		{"other port", edit(func(s *state) { s.Port++ }), "port", false},
		{"other interface number", edit(func(s *state) { s.Devices[0].Index++ }), "interfaces", false},
		{"damaged description", func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, stateFile), []byte("{\"format\": 1, \"live"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, stateFile, false},
		{"description of a name outside", edit(func(s *state) { s.Live = "../.." }), "names directory", false},
		{"a map is gone", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(live(t, dir), "maps", "cells")); err != nil {
				t.Fatal(err)
			}
		}, "cells", false},
		{"a map of broadcasts is gone", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(live(t, dir), "maps", "tokens")); err != nil {
				t.Fatal(err)
			}
		}, "tokens", false},
		{"a set is not whole", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(live(t, dir), "sets", "0-c0-l2-b6", "tables")); err != nil {
				t.Fatal(err)
			}
		}, "tables", true},
		{"detached", func(t *testing.T, _ string) {
			d, err := findDevice("a0")
			if err != nil {
				t.Fatal(err)
			}
			f, err := d.foreign()
			if err != nil || f == nil {
				t.Fatal(err)
			}
			if err := d.displace(f); err != nil {
				t.Fatal(err)
			}
		}, "not on a0", false},
	} {
		if testing.Short() && c.sets {
			continue // emulated machines are slow
		}
		t.Run(c.name, func(t *testing.T) {
			newLab(t)
			dir := filepath.Join(instances(t), "one")
			h, err := Open(holdOptions(dir))
			if err != nil {
				t.Fatal(err)
			}
			if c.sets {
				if err := prepare(h); err != nil {
					t.Fatal(err)
				}
			}
			h.Memory().Streams[3].Token = holdToken
			if err := h.Release(); err != nil {
				t.Fatal(err)
			}
			c.change(t, dir)
			h = open(t, holdOptions(dir))
			if h.Resumed() || !strings.Contains(h.Note(), c.says) {
				t.Errorf("resumed %v, and says %q, want %q", h.Resumed(), h.Note(), c.says)
			}
			if n := len(h.Tables()); n != 0 || h.Memory().Streams[3].Token != 0 {
				t.Errorf("there are %d old tables, and the old stream's token is %#x", n, h.Memory().Streams[3].Token)
			}
			if _, name := onDevice(t, "a0"); name != dispatchProgram {
				t.Errorf("on a0 is %q", name)
			}
			if trees, _ := filepath.Glob(filepath.Join(dir, mountDir, "live-*")); len(trees) != 1 {
				t.Errorf("pinned are %v", trees)
			}
		})
	}
}

// Tables that were being made or freed when the process ended vanish; the others stay.
func TestResumeHalfMadeTables(t *testing.T) {
	newLab(t)
	dir := filepath.Join(instances(t), "one")
	h, err := Open(holdOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	tables, err := h.NewTables(narrow, 4)
	if err != nil {
		t.Fatal(err)
	}
	for i, table := range tables {
		table.Memory[wire.TableHead] = byte(i + 1)
	}
	if err := h.FreeTable(tables[0]); err != nil {
		t.Fatal(err)
	}
	if err := h.sets[0].outer.Delete(uint32(1)); err != nil { // pinned, and not in the map
		t.Fatal(err)
	}
	if err := os.Remove(h.inst.tablePath(h.state.Live, tables[3].ID)); err != nil { // the other way round
		t.Fatal(err)
	}
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	h = open(t, holdOptions(dir))
	if !h.Resumed() {
		t.Fatal(h.Note())
	}
	got := h.Tables()
	if len(got) != 1 || got[0].ID != 2 || got[0].Memory[wire.TableHead] != 3 {
		t.Fatalf("there are %d tables: %+v", len(got), got)
	}
	if used, _ := h.TableBytes(); used != tableCost(narrow) {
		t.Errorf("%d bytes are used", used)
	}
	more, err := h.NewTables(narrow, 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range more {
		if table.ID == 2 || table.ID > 3 || table.Memory[wire.TableHead] != 0 {
			t.Errorf("a new table has number %d and begins with %d", table.ID, table.Memory[wire.TableHead])
		}
	}
}

func TestLock(t *testing.T) {
	newLab(t)
	root := instances(t)
	dir := filepath.Join(root, "one")
	open(t, holdOptions(dir))
	id, _ := onDevice(t, "a0")
	_, err := Open(holdOptions(dir))
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("opened twice: %v", err)
	}
	if removed, err := Clean(dir); !errors.Is(err, ErrInUse) || len(removed) > 0 {
		t.Errorf("a live instance was cleaned: %v, %v", removed, err)
	}
	if removed, err := CleanAll(root); err != nil || len(removed) > 0 {
		t.Errorf("a live instance was cleaned: %v, %v", removed, err)
	}
	if left := Leftovers(root); len(left) > 0 {
		t.Errorf("a live instance is called left over: %v", left)
	}
	if now, _ := onDevice(t, "a0"); now != id {
		t.Error("what is on a0 has changed")
	}
}

func TestClean(t *testing.T) {
	answers := []string{"", "clsact", "clones"}
	if tcx.Have() == nil {
		answers = append(answers, "tcx")
	}
	for _, tc := range answers {
		t.Run("answers "+tc, func(t *testing.T) {
			newLab(t)
			root := instances(t)
			dir := filepath.Join(root, "one")
			kill := startHold(t, dir, tcVar+"="+tc)
			filters := func() string { return sh(t, "tc filter show dev a0 ingress") }
			if strings.Contains(filters(), tcProgram) != (tc == "clsact") {
				t.Errorf("filters are %q", filters())
			}
			if cloning(t) != (tc == "clones") {
				t.Errorf("chunks are cloned: %v", cloning(t))
			}
			if _, err := Clean(dir); !errors.Is(err, ErrInUse) {
				t.Errorf("it lives, and Clean says %v", err)
			}
			kill()
			if _, name := onDevice(t, "a0"); name != dispatchProgram {
				t.Fatalf("on a0 is %q", name)
			}
			if left := Leftovers(root); len(left) != 1 || left[0] != dir {
				t.Errorf("leftovers are %v", left)
			}
			removed, err := CleanAll(root)
			if err != nil {
				t.Fatal(err)
			}
			all := strings.Join(removed, "\n")
			for _, s := range []string{"link xdp-0 on a0", "pins", "mount " + dir, "directory " + dir} {
				if !strings.Contains(all, s) {
					t.Errorf("of %q it says nothing:\n%s", s, all)
				}
			}
			if id, name := onDevice(t, "a0"); id != 0 {
				t.Errorf("on a0 is %q", name)
			}
			if strings.Contains(filters(), tcProgram) || cloning(t) {
				t.Errorf("filters are %q; chunks are cloned: %v", filters(), cloning(t))
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the directory is there: %v", err)
			}
			if again, err := CleanAll(root); err != nil || len(again) > 0 {
				t.Errorf("the second time it removed %v: %v", again, err)
			}
		})
	}
}

// A process that was killed while it set its state up leaves nothing to take up.
func TestCleanHalfPinned(t *testing.T) {
	newLab(t)
	dir := filepath.Join(instances(t), "one")
	h, err := Open(holdOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(h.inst.path(h.state.Live), h.inst.path(newName)); err != nil {
		t.Fatal(err)
	}
	h = open(t, holdOptions(dir))
	if h.Resumed() || h.Note() == "" {
		t.Errorf("resumed %v: %q", h.Resumed(), h.Note())
	}
	if _, err := os.Stat(h.inst.path(newName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half of the state is there: %v", err)
	}
}

func TestCleanLeavesOthersAlone(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	for _, name := range []string{"no-lock/file", "file"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if removed, err := CleanAll(root); err != nil || len(removed) > 0 {
		t.Errorf("removed %v: %v", removed, err)
	}
	if left := Leftovers(root); len(left) > 0 {
		t.Errorf("leftovers are %v", left)
	}
	// A file that is not ours in an instance's directory is told of, not removed.
	dir := filepath.Join(root, "one")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{lockFile, "precious"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := CleanAll(root); err == nil {
		t.Error("nothing is said of what can't be removed")
	}
	if _, err := os.Stat(filepath.Join(dir, "precious")); err != nil {
		t.Error(err)
	}
	if removed, err := Clean(filepath.Join(root, "nothing")); err != nil || len(removed) > 0 {
		t.Errorf("removed %v of nothing: %v", removed, err)
	}
}

// A bpffs that an administrator has mounted is used, and emptied, but left.
func TestMountedBeforehand(t *testing.T) {
	newLab(t)
	dir := filepath.Join(t.TempDir(), "one")
	mount := filepath.Join(dir, mountDir)
	if err := os.MkdirAll(mount, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("quern-test", mount, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(mount, unix.MNT_DETACH) }()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	h := open(t, holdOptions(dir))
	if _, err := os.Stat(h.inst.path(h.state.Live, "maps", "cells")); err != nil {
		t.Error(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestSetNames(t *testing.T) {
	for _, s := range []*set{
		{id: 0, layout: shuffle.TableLayout{Class: 3, Lanes: 4, Bits: 21}},
		{id: maxSets - 1, layout: shuffle.TableLayout{Dense: true, Bits: 25}},
	} {
		got, err := parseSetName(setName(s))
		if err != nil || got.id != s.id || got.layout != s.layout {
			t.Errorf("%q is read as %+v: %v", setName(s), got, err)
		}
	}
	for _, name := range []string{"", "0", "x-c0-l1-b4", "0-c0-l1-b4-5", "-1-c0-l1-b4", "255-c0-l1-b4", "0-c4-l1-b4", "0-c0-l0-b4", "0-c0-l1-b22", "0-dense-b27", "00-dense-b5"} {
		if s, err := parseSetName(name); err == nil {
			t.Errorf("%q is read as %+v", name, s)
		}
	}
}

func FuzzState(f *testing.F) {
	good, _ := json.Marshal(state{Live: "live-00ff00ff00ff00ff", Devices: []*device{{Name: "a"}}})
	f.Add(good)
	f.Add([]byte(`{"live":"live-0123456789abcdef","devices":[null]}`))
	f.Add([]byte(`{"live":"../x"}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, stateFile), text, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := (&instance{dir: dir}).readState()
		if err != nil {
			return
		}
		// What is read names nothing outside the instance's own mount.
		if p := filepath.Join("/x", s.Live); filepath.Dir(p) != "/x" || filepath.Base(p) != s.Live || s.Live == newName {
			t.Errorf("state names %q", s.Live)
		}
		_ = s.differs(&state{})
	})
}
