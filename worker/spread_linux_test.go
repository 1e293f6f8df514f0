// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// bigBlob makes n random bytes.
func bigBlob(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

const spreadJob = "00112233445566778899aabbccddeeff"

// spread orders a worker to give a blob to others.
func (m *master) spread(id, digest string, mapped bool, from *running, to ...*running) *api.Spread {
	m.t.Helper()
	m.mu.Lock()
	size := len(m.blobs[digest])
	m.mu.Unlock()
	job, _ := hex.DecodeString(spreadJob)
	o := &api.Spread{
		Id: id, Job: spreadJob, Constants: &api.JobConstants{Id: job, Secret: []byte("0123456789abcdef"), Shuffle: "auto"},
		Blob: digest, Size: int64(size), Mapped: mapped, Name: "a blob",
	}
	for _, w := range to {
		o.Members = append(o.Members, &api.SpreadMember{Worker: w.ID(), Address: w.opt.Address, Name: "named " + w.ID()})
	}
	m.send(from.ID(), &api.MasterMessage{Spread: []*api.Spread{o}})
	return o
}

// spreaded waits for the report of a broadcast.
func (m *master) spreaded(id string) *api.Spreaded {
	m.t.Helper()
	var r *api.Spreaded
	wait(m.t, "broadcast "+id+" is reported", func() bool {
		return m.some(func(w *api.WorkerMessage) bool {
			i := slices.IndexFunc(w.GetSpreaded(), func(s *api.Spreaded) bool { return s.GetId() == id })
			if i >= 0 {
				r = w.GetSpreaded()[i]
			}
			return i >= 0
		})
	})
	return r
}

// has checks what a worker has of a blob, without asking the master for it.
func (r *running) has(digest string, want []byte, mapped bool) {
	r.t.Helper()
	c, err := r.blobs.open(r.t.Context(), digest, spreadJob, false)
	if err != nil {
		r.t.Error(err)
		return
	}
	defer c.release()
	data, unmap, err := task.SideInput{Descriptor: int(c.file.Fd()), Offset: c.offset, Size: c.size}.Map()
	if err != nil {
		r.t.Error(err)
		return
	}
	if !bytes.Equal(data, want) {
		r.t.Errorf("it has other %d bytes than the %d that were sent", len(data), len(want))
	}
	if err := unmap(); err != nil {
		r.t.Error(err)
	}
	r.blobs.mu.Lock()
	defer r.blobs.mu.Unlock()
	if in := r.blobs.byName[digest].region != nil; in != mapped {
		r.t.Errorf("it is in memory: %v", in)
	}
}

// only checks how often the master has served a blob.
func (m *master) only(digest string, n int) {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.served[digest] != n {
		m.t.Errorf("the master served it %d times, want %d", m.served[digest], n)
	}
}

// TestSpread has one worker give blobs of all kinds to the others.
func TestSpread(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	var ws []*running
	for range 4 {
		ws = append(ws, m.startWorker(nil))
	}
	for i, size := range []int{1, 1344, 65536, 3 << 20} {
		for _, mapped := range []bool{false, true} {
			text := bigBlob(uint64(2*i), size)
			text[0] = 7
			if mapped {
				text[0] = 8
			}
			digest, id := m.put(text), fmt.Sprintf("%d %v", size, mapped)
			m.spread(id, digest, mapped, ws[0], ws[1:]...)
			r := m.spreaded(id)
			if r.GetReached() != 3 || r.GetHad()+r.GetFailed()+r.GetKernel() != 0 || r.GetError() != "" || r.GetSent() < int64(size) || r.GetElapsedUs() <= 0 {
				t.Errorf("%d bytes: %v", size, r)
			}
			for _, w := range ws[1:] {
				w.has(digest, text, mapped)
			}
			m.only(digest, 1) // to the source
		}
	}
	for _, w := range ws {
		m.send(w.ID(), &api.MasterMessage{Forget: []string{spreadJob}})
	}
	for _, w := range ws {
		wait(t, "memory is given back", func() bool { return w.blobs.mapped() == 0 })
	}
}

// again gives a broadcast's order to a worker once more.
func (m *master) again(o *api.Spread, from *running) {
	m.t.Helper()
	m.send(from.ID(), &api.MasterMessage{Spread: []*api.Spread{o}})
}

// reports counts how often a broadcast was reported.
func (m *master) reports(id string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.heard {
		for _, s := range w.GetSpreaded() {
			if s.GetId() == id {
				n++
			}
		}
	}
	return n
}

// TestSpreadOnce orders one twice, and breaks the link: it is done once, and reported to whoever may not know.
func TestSpreadOnce(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	a, b := m.startWorker(nil), m.startWorker(nil)
	text := bigBlob(1, 100000)
	digest := m.put(text)
	o := m.spread("one", digest, false, a, b)
	m.again(o, a)
	first := m.spreaded("one")
	m.again(o, a)
	wait(t, "it is reported once more", func() bool { return m.reports("one") == 2 })
	if r := m.spreaded("one"); r.GetReached() != 1 || r.GetElapsedUs() != first.GetElapsedUs() {
		t.Errorf("%v, and then %v", first, r)
	}
	m.stop()
	m.start(m.address)
	wait(t, "a new link is told", func() bool { return m.reports("one") == 3 })
	// The one that has it is offered it once more, by another broadcast.
	m.spread("two", digest, false, a, b)
	if r := m.spreaded("two"); r.GetHad() != 1 || r.GetReached()+r.GetFailed() != 0 {
		t.Errorf("to who has it: %v", r)
	}
	m.send(a.ID(), &api.MasterMessage{Forget: []string{spreadJob}})
	wait(t, "the job is forgotten", func() bool {
		return m.some(func(w *api.WorkerMessage) bool { return slices.Contains(w.GetDropped(), spreadJob) })
	})
	m.stop()
	m.start(m.address)
	wait(t, "there is a new link", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.links[a.ID()] != nil
	})
	if n := m.reports("one"); n != 3 {
		t.Errorf("what is forgotten was reported %d times", n)
	}
}

// TestSpreadFails has members that are not there, blobs that are not what they were said to be, and orders that make no sense.
func TestSpreadFails(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	a, b := m.startWorker(nil), m.startWorker(nil)
	nobody := &running{Worker: &Worker{id: "nobody", opt: Options{Address: "127.0.0.1:1"}}}
	text := bigBlob(2, 100000)
	digest := m.put(text)
	m.spread("nobody", digest, false, a, nobody, b)
	if r := m.spreaded("nobody"); r.GetReached() != 1 || r.GetFailed() != 1 || !strings.Contains(r.GetError(), "named nobody: ask for its port: shuffle control at 127.0.0.1:1: BroadcastEndpoint: ") {
		t.Errorf("with a member that is not there: %v", r)
	}
	b.has(digest, text, false)
	m.only(digest, 1)
	for id, c := range map[string]struct {
		change func(o *api.Spread)
		want   string
	}{
		"unknown":  {func(o *api.Spread) { o.Blob = strings.Repeat("cd", 32) }, "the master does not have it"},
		"size":     {func(o *api.Spread) { o.Size++ }, "has 100000 bytes, the order says 100001"},
		"job":      {func(o *api.Spread) { o.Job = "another" }, "the order names job"},
		"secret":   {func(o *api.Spread) { o.Constants.Secret = nil }, "a secret of 0"},
		"mode":     {func(o *api.Spread) { o.Constants.Shuffle = "dance" }, "dance"},
		"nobody 2": {func(o *api.Spread) { o.Members = nil }, "no member can be reached"},
		"address":  {func(o *api.Spread) { o.Members[0].Address = "nowhere" }, "no member can be reached"},
	} {
		o := m.spread("not "+id, digest, false, a) // to nobody
		o.Id, o.Members = id, []*api.SpreadMember{{Worker: b.ID(), Address: b.opt.Address}}
		c.change(o)
		members := uint32(len(o.GetMembers()))
		m.again(o, a)
		if r := m.spreaded(id); r.GetReached() != 0 || r.GetFailed() != members || !strings.Contains(r.GetError(), c.want) {
			t.Errorf("%s: %v", id, r)
		}
	}
}

// TestSpreadOfJobThatEnds forgets the job everywhere while its broadcasts are under way, or wait.
func TestSpreadOfJobThatEnds(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	a, b, c := m.startWorker(nil), m.startWorker(nil), m.startWorker(nil)
	var digests []string
	for i := range 5 {
		digests = append(digests, m.put(bigBlob(uint64(i), 20<<20)))
		m.spread(fmt.Sprint(i), digests[i], i%2 == 0, a, b, c)
	}
	wait(t, "they are under way", func() bool {
		b.blobs.mu.Lock()
		defer b.blobs.mu.Unlock()
		return len(b.blobs.arrivals) > 0
	})
	for _, w := range []*running{b, a, c} {
		m.send(w.ID(), &api.MasterMessage{Forget: []string{spreadJob}})
	}
	for _, w := range []*running{a, b, c} {
		wait(t, "nothing is left", func() bool {
			w.blobs.mu.Lock()
			defer w.blobs.mu.Unlock()
			return len(w.blobs.arrivals) == 0 && len(w.blobs.jobs) == 0 && len(w.casts.known()) == 0
		})
		wait(t, "no memory is kept", func() bool { return w.blobs.mapped() == 0 })
		wait(t, "no part of a file is left", func() bool {
			return !slices.ContainsFunc(w.files("blobs"), func(f string) bool { return !slices.Contains(digests, f) })
		})
	}
}

func (r *running) files(folder string) (names []string) {
	list, _ := os.ReadDir(filepath.Join(r.folder.path, folder))
	for _, f := range list {
		names = append(names, f.Name())
	}
	return names
}

// TestSideInputs has a job's plan make side inputs, which reach all workers: by broadcast, or from the master.
func TestSideInputs(t *testing.T) {
	for _, way := range []string{"broadcast", "master"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			m := newMaster(t)
			ws := []*running{m.startWorker(nil), m.startWorker(nil), m.startWorker(nil)}
			stop := filepath.Join(t.TempDir(), "stop")
			if err := os.WriteFile(stop, []byte("to be or not"), 0o600); err != nil {
				t.Fatal(err)
			}
			j, out := m.job("side", "STOP="+stop)
			if way == "broadcast" {
				j.blob()
			}
			j.planned(ws[0])
			_ = os.Remove(stop) // it is read once
			if n := len(j.plan.SideInputs); n != 3 {
				t.Fatalf("%d side inputs", n)
			}
			for _, s := range j.plan.SideInputs {
				if !slices.Contains(m.kept, s.Digest) || int64(len(m.blobs[s.Digest])) != s.Size {
					t.Errorf("side input %q is not at the master", s.Name)
				}
			}
			if way == "broadcast" {
				for i, d := range []string{j.program.GetBlob(), j.plan.SideInputs[1].Digest, j.plan.SideInputs[0].Digest} {
					m.spread(fmt.Sprint(i), d, i > 0, ws[0], ws[1:]...)
					j.coming = append(j.coming, d)
				}
			}
			j.mapped(ws...)
			var parts []*task.ReduceResult
			for p := range j.plan.Partitions {
				r := &task.ReduceResult{}
				j.ok(j.launch(ws[p], j.reduceLaunch(p)), r)
				parts = append(parts, r)
			}
			j.commit(ws[2], parts)
			n, counts := words(t, out)
			// Of the 2000 words 400 are to, 400 be, 200 or and 200 not.
			if n != 800+200<<20 || counts["LARGE"] != 200<<20 || counts["to"] != 0 || counts["that"] != 200 {
				t.Errorf("%d words: %v", n, counts)
			}
			if way == "broadcast" {
				m.only(j.program.GetBlob(), 1)
				for _, s := range j.plan.SideInputs[:2] {
					m.only(s.Digest, 0)
				}
				for i := range 3 {
					if r := m.spreaded(fmt.Sprint(i)); r.GetReached() != 2 {
						t.Errorf("%v", r)
					}
				}
				for _, w := range ws[1:] {
					if want := j.plan.SideInputs[0].Size + j.plan.SideInputs[1].Size; w.blobs.mapped() != want {
						t.Errorf("%d bytes are in memory, want %d", w.blobs.mapped(), want)
					}
				}
			} else {
				for _, s := range j.plan.SideInputs[:2] {
					m.only(s.Digest, 2)
				}
			}
			for _, w := range ws {
				m.send(w.ID(), &api.MasterMessage{Forget: []string{j.id}})
				wait(t, "no memory is kept", func() bool { return w.blobs.mapped() == 0 })
			}
		})
	}
}

// TestSideInputsLimit has a plan stop where the master would take no more.
func TestSideInputsLimit(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	stop := filepath.Join(t.TempDir(), "stop")
	if err := os.WriteFile(stop, []byte("to be or not"), 0o600); err != nil {
		t.Fatal(err)
	}
	j, _ := m.job("side", "STOP="+stop)
	_, e := j.failed(j.launch(w, &api.Launch{Attempt: j.attempt("plan", 0), SideInputsLimit: 1 << 20}))
	if want := `side input "a large one": it has more than 1048564 bytes, and with those before it they are more than 1048576`; !e.Permanent || !strings.Contains(e.Message, want) {
		t.Errorf("got %+v, want %s", e, want)
	}
}

// alone starts a worker in a process of its own, which can be killed.
func (m *master) alone() (*running, *exec.Cmd) {
	m.t.Helper()
	cmd, id, _ := separate(m.t, m, m.t.TempDir())
	var address string
	wait(m.t, "it says where it is", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		i := slices.IndexFunc(m.hellos, func(h *api.WorkerMessage) bool { return h.GetHello().GetWorker() == id })
		if i >= 0 {
			address = m.hellos[i].GetHello().GetAddress()
		}
		return i >= 0
	})
	return &running{Worker: &Worker{id: id, opt: Options{Address: address}}, t: m.t}, cmd
}

// begun waits until a worker gets something by broadcast.
func (r *running) begun() {
	r.t.Helper()
	wait(r.t, "a broadcast has begun", func() bool {
		r.blobs.mu.Lock()
		defer r.blobs.mu.Unlock()
		return len(r.blobs.arrivals) > 0
	})
}

// TestSpreadSourceDies kills the source of a broadcast that others wait for.
func TestSpreadSourceDies(t *testing.T) {
	t.Parallel()
	for _, mapped := range []bool{false, true} {
		m := newMaster(t)
		source, cmd := m.alone()
		soon := func(o *Options) { o.Broadcast.Idle = time.Second }
		ws := []*running{m.startWorker(soon), m.startWorker(soon)}
		text := bigBlob(3, 32<<20)
		digest := m.put(text)
		m.spread("one", digest, mapped, source, ws...)
		for _, w := range ws {
			w.begun()
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for _, w := range ws {
			path, release, err := w.blobs.get(t.Context(), digest, spreadJob)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, text) {
				t.Errorf("%d bytes are there: %v", len(got), err)
			}
			release()
			if files := w.files("blobs"); !slices.Equal(files, []string{digest}) {
				t.Errorf("files %v are there", files)
			}
		}
		m.mu.Lock()
		if n := m.served[digest]; n < 1 || n > 3 { // the source had it, and others may have got all
			t.Errorf("it was served %d times", n)
		}
		m.mu.Unlock()
	}
}

// TestSpreadMemberDies kills one member of three: the others get it, and the source says so.
func TestSpreadMemberDies(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	soon := func(o *Options) { o.Broadcast.Patience = 5 * time.Second }
	a, b, c := m.startWorker(soon), m.startWorker(soon), m.startWorker(soon)
	dies, cmd := m.alone()
	text := bigBlob(4, 32<<20)
	digest := m.put(text)
	m.spread("one", digest, false, a, b, dies, c)
	b.begun()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	r := m.spreaded("one")
	if r.GetReached() < 2 || r.GetReached()+r.GetFailed() != 3 || (r.GetFailed() == 1) != strings.Contains(r.GetError(), dies.ID()) {
		t.Errorf("%v", r)
	}
	b.has(digest, text, false)
	c.has(digest, text, false)
	m.only(digest, 1)
}

// TestKeepBlob gives side inputs to masters that are away, fail, have them, or do not want them.
func TestKeepBlob(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	text := bigBlob(5, 3<<20)
	sum := sha256.Sum256(text)
	digest := hex.EncodeToString(sum[:])
	path := filepath.Join(t.TempDir(), "side")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	tries := 0
	refuse := func(f func() error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		tries = 0
		m.refuse = func(*api.BlobChunk) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			tries++
			return f()
		}
	}
	keep := func() error { return w.keepBlob(t.Context(), digest, path, int64(len(text))) }
	refuse(func() error { return status.Error(codes.OutOfRange, "it is too large") })
	var e *task.Error
	if err := keep(); !errors.As(err, &e) || !e.Permanent || !strings.Contains(e.Message, "it is too large") || tries != 1 {
		t.Errorf("refused: %v after %d tries", err, tries)
	}
	refuse(func() error { return status.Error(codes.Internal, "the disk is full") })
	var o *own
	if err := keep(); !errors.As(err, &o) || !strings.Contains(err.Error(), "the disk is full") || tries != keepTries {
		t.Errorf("full: %v after %d tries", err, tries)
	}
	refuse(func() error {
		if tries < 3 {
			return status.Error(codes.Unavailable, "not now")
		}
		return nil
	})
	m.stop() // and it comes back while it is asked
	done := make(chan error, 1)
	go func() { done <- keep() }()
	m.start(m.address)
	if err := <-done; err != nil || tries != 3 || !slices.Equal(m.kept, []string{digest}) {
		t.Errorf("at last: %v after %d tries; it has %v", err, tries, m.kept)
	}
	refuse(func() error { return errors.New("it is sent again") })
	if err := keep(); err != nil || tries != 0 {
		t.Errorf("once more: %v after %d tries", err, tries)
	}
	other := strings.Repeat("ab", 32)
	refuse(func() error { return nil })
	if err := w.keepBlob(t.Context(), other, path, int64(len(text))); !errors.As(err, &e) || !e.Permanent {
		t.Errorf("not what it is said to be: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	refuse(func() error {
		cancel(errStopped)
		return status.Error(codes.Unavailable, "not now")
	})
	if err := w.keepBlob(ctx, other, path, int64(len(text))); !errors.Is(err, errStopped) {
		t.Errorf("stopped: %v", err)
	}
}

// TestSideInputsThatAreNot does not believe what a plan says of its folder.
func TestSideInputsThatAreNot(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	sum := sha256.Sum256([]byte("text"))
	good := task.SideFile{Name: "a list", File: "file", Size: 4, Digest: hex.EncodeToString(sum[:])}
	for name, c := range map[string]struct {
		change func(*task.SideFile)
		want   string // "": it is taken
	}{
		"good":         {func(*task.SideFile) {}, ""},
		"again":        {func(*task.SideFile) {}, ""},
		"elsewhere":    {func(s *task.SideFile) { s.File = "../file" }, "no file of its folder"},
		"absolute":     {func(s *task.SideFile) { s.File = "/etc/passwd" }, "no file of its folder"},
		"nowhere":      {func(s *task.SideFile) { s.File = "" }, "no file of its folder"},
		"the folder":   {func(s *task.SideFile) { s.File = "." }, "no file of its folder"},
		"not there":    {func(s *task.SideFile) { s.File = "other" }, "is not there"},
		"a link":       {func(s *task.SideFile) { s.File = "link" }, "is not there"},
		"size":         {func(s *task.SideFile) { s.Size = 5 }, "has 4 bytes"},
		"digest":       {func(s *task.SideFile) { s.Digest = strings.Repeat("ab", 32) }, "digest"},
		"no digest":    {func(s *task.SideFile) { s.Digest = "ab" }, "digest"},
		"digest, long": {func(s *task.SideFile) { s.Digest = strings.ToUpper(s.Digest) }, "digest"},
	} {
		dir := t.TempDir()
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600), os.Symlink("file", filepath.Join(dir, "link"))); err != nil {
			t.Fatal(err)
		}
		a := &attempt{w: w.Worker, ctx: t.Context()}
		s := good
		c.change(&s)
		err := a.keepSideInputs([]task.SideFile{s}, dir)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "a list") {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, infrastructure := a.explain(err); !infrastructure {
			t.Errorf("%s is said to be the job's fault", name)
		}
	}
	if files := w.files("blobs"); !slices.Equal(files, []string{good.Digest}) || len(m.kept) != 1 {
		t.Errorf("files %v are kept here, and %v there", files, m.kept)
	}
}

// TestSpreadToSmallMember has a member with little memory: windows are made smaller for all, and
// nobody who waits gives up for that.
func TestSpreadToSmallMember(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	a, b := m.startWorker(nil), m.startWorker(nil)
	small := m.startWorker(func(o *Options) { o.Broadcast.Memory = 16 << 20 })
	text := bigBlob(6, 20<<20)
	digest := m.put(text)
	got := make(chan error, 2)
	for _, w := range []*running{b, small} {
		go func() {
			path, release, err := w.blobs.get(context.Background(), digest, spreadJob)
			if err == nil {
				var is []byte
				if is, err = os.ReadFile(path); err == nil && !bytes.Equal(is, text) {
					err = fmt.Errorf("%d bytes are not those that were sent", len(is))
				}
				release()
			}
			got <- err
		}()
	}
	for _, w := range []*running{b, small} {
		wait(t, "somebody waits for it", func() bool {
			w.blobs.mu.Lock()
			defer w.blobs.mu.Unlock()
			return w.blobs.byName[digest] != nil
		})
	}
	m.spread("one", digest, true, a, b, small)
	r := m.spreaded("one")
	for range 2 {
		if err := <-got; err != nil {
			t.Error(err)
		}
	}
	if r.GetReached() != 2 || r.GetFailed()+r.GetHad() != 0 {
		t.Errorf("%v", r)
	}
	m.only(digest, 1)
	if n := b.blobs.mapped() + small.blobs.mapped(); n != 0 {
		t.Errorf("%d bytes are in memory", n)
	}
}
