// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/wire"
)

// fakeKernel is the model of a kernel, which outlives receivers.
type fakeKernel struct {
	*model.Host
	mu      sync.Mutex
	port    int
	cpus    int
	resumed bool
	list    []*shuffle.Table
	slow    time.Duration // of Quiesce
}

func newFakeKernel(t testing.TB, cpus int, before func(stream, seq uint32)) *fakeKernel {
	t.Helper()
	port := freePort(t)
	return &fakeKernel{
		port: port, cpus: cpus,
		Host: model.NewHost(model.Config{Limits: shuffle.Limits{Streams: 64, Targets: 16, Jobs: 4}, CPUs: cpus, Port: port, BeforeClaim: before}),
	}
}

// freePort returns a port that nobody uses. Receivers come to it later, and one after the other, so it is none of those that
// systems give to whoever asks for any port: in between, somebody's socket would have it now and then.
func freePort(t testing.TB) int {
	t.Helper()
	for {
		port := 15_000 + rand.IntN(15_000)
		c, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
		if err == nil {
			c.Close()
			return port
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

func (k *fakeKernel) NewTables(l shuffle.TableLayout, n int) ([]*shuffle.Table, error) {
	list, err := k.Host.NewTables(l, n)
	k.list = append(k.list, list...)
	return list, err
}

func (k *fakeKernel) FreeTable(t *shuffle.Table) error {
	for i, o := range k.list {
		if o == t {
			k.list = append(k.list[:i:i], k.list[i+1:]...)
		}
	}
	return k.Host.FreeTable(t)
}

func (k *fakeKernel) Tables() []*shuffle.Table { return append([]*shuffle.Table(nil), k.list...) }
func (k *fakeKernel) Resumed() bool            { return k.resumed }

func (k *fakeKernel) Quiesce() error {
	time.Sleep(k.slow)
	return k.Host.Quiesce()
}

func (k *fakeKernel) usage(t *shuffle.Table) (used, pairs uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return usage(t)
}

func (k *fakeKernel) options(o Options) Options {
	o.Kernel, o.Port, o.usage = k, k.port, k.usage
	o.Limits.Jobs = 4
	return o
}

// kernelLink sends frames by way of the kernel; what that passes goes to the socket.
type kernelLink struct {
	k  *fakeKernel
	up socketLink
	n  int
}

func (l *kernelLink) send(frame []byte) {
	p := model.NewPacket(frame).Ports(40000, uint16(l.k.port))
	l.n++
	l.k.mu.Lock()
	verdict, out := l.k.Handle(l.n%l.k.cpus, p.Bytes)
	l.k.mu.Unlock()
	if verdict == model.Pass && len(out) > 42 {
		l.up.send(out[42:])
	}
}

func (k *fakeKernel) links(t testing.TB) func() link {
	n := 0
	return func() link {
		l, err := dial(k.port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		n++
		return &kernelLink{k: k, up: l, n: n}
	}
}

// patientLink sends its first frame, and the rest once a table is in place: how
// soon that is depends on the machine, and frames in memory would not wait for it.
type patientLink struct {
	link
	k *fakeKernel
}

func (l *patientLink) send(frame []byte) {
	l.link.send(frame)
	for end := time.Now().Add(time.Minute); l.k != nil && !l.k.tabled() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	l.k = nil
}

// tabled says whether any cell names a table.
func (k *fakeKernel) tabled() bool {
	cells := k.Memory().Cells
	for i := range cells {
		for class := range wire.Classes {
			if table, _ := cells[i].Place(class); table != 0 {
				return true
			}
		}
	}
	return false
}

func TestKernelPath(t *testing.T) {
	for _, c := range []struct {
		name   string
		ops    []fold.Op
		opts   Options
		keys   uint64
		faults faults
		flips  bool
		user   bool // all in user space
		waits  bool // frames come when there is a table: nobody estimated the keys
	}{
		{name: "clean", ops: []fold.Op{fold.Sum}, waits: true},
		{name: "estimated", ops: []fold.Op{fold.Sum}, keys: 2000, faults: faults{drop: .1, double: .1, reorder: 1, damage: .05}},
		{name: "flips", ops: []fold.Op{fold.Sum}, keys: 1200, opts: Options{TableBits: 10}, flips: true},
		{name: "flipsLanes", ops: mixed, opts: Options{TableBits: 10}, keys: 8000, faults: faults{double: .1, reorder: 1}, flips: true},
		{name: "noSpare", ops: mixed, opts: Options{TableMemory: 130 << 10}, waits: true},
		{name: "noTable", ops: mixed, opts: Options{TableMemory: 10 << 10}, user: true},
		{name: "manyLanes", ops: append(mixed, fold.Or), user: true},
		{name: "userOnly", ops: mixed, opts: Options{Mode: shuffle.UserOnly}, user: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(3, 4))
			ctx := testContext(t)
			k := newFakeKernel(t, 3, nil)
			r := testReceiver(t, k.options(c.opts))
			w := newWork(rng, c.ops, amounts{maps: 4, parts: 2, pairs: 3000, keySpace: 8000, longest: 70, large: true})
			for i := range w.keys {
				w.keys[i] = c.keys / 2
			}
			w.open(ctx, t, r)
			links := k.links(t)
			if c.waits {
				fast := links
				links = func() link { return &patientLink{fast(), k} }
			}
			w.pushAll(ctx, t, rng, r, c.faults, links)
			all := w.finish(ctx, t, r)
			s := r.Stats()
			t.Logf("%+v %+v", all, s)
			if c.user != (all.Kernel == 0) {
				t.Errorf("%d pairs were folded in the kernel", all.Kernel)
			}
			if all.User == 0 { // there are long keys
				t.Error("nothing was folded in user space")
			}
			if n := s.Reasons[wire.BadTag]; n != 0 && c.faults.damage == 0 {
				t.Errorf("%d frames that programs gave up were not restored", n)
			}
			if c.flips && s.Flips == 0 {
				t.Error("no table was flipped")
			}
			tables := int64(0)
			for _, tab := range k.list {
				tables += int64(tab.Layout.Size())
				for _, b := range tab.Memory {
					if b != 0 {
						t.Fatalf("table %#x was not cleared", tab.ID)
					}
				}
			}
			if limit := r.opts.TableMemory; tables > limit {
				t.Errorf("tables take %d of %d bytes", tables, limit)
			}
			for i := range k.Memory().Cells {
				if k.Memory().Cells[i] != (wire.Cell{}) {
					t.Errorf("cell %d was not cleared", i)
				}
			}
		})
	}
}
