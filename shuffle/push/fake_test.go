// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// faults are what happens on the wire, as parts of all packets.
type faults struct {
	Lose, Double, Delay, Damage float64
	Latency                     time.Duration // of delayed packets, at most
}

// receiver is a receiver made for tests: a UDP socket at the loopback interface, a
// control plane by function calls, and a map that pairs are added up in.
type receiver struct {
	t     testing.TB
	conn  *net.UDPConn
	addr  netip.Addr
	end   shuffle.Endpoint
	done  chan struct{}
	wg    sync.WaitGroup
	share int
	// kernel, if not nil, absorbs answers before they reach a socket.
	kernel *fakeKernel
	from   uint8

	mu       sync.Mutex
	rng      *rand.Rand
	data     faults // of frames
	acks     faults // of answers
	deaf     bool   // nothing that comes by packet arrives
	jobs     map[shuffle.JobID]*receiverJob
	streams  map[uint32]*receiverStream
	ids      map[shuffle.StreamID]*receiverStream
	targets  map[shuffle.TargetID]bool
	nextSlot uint32
	most     int // streams open at once
	nonce    uint64
	total    map[string][]int64
	vector   map[uint32]int64
	pairs    map[string]int // how often a key came

	packets, bad, duplicates, delivered, want atomic.Int64
	reset                                     func(call string) error // hook before each control call
	incomplete                                int                     // Status says so many times that frames are missing that are not
}

type receiverJob struct {
	spec shuffle.JobSpec
	tags *wire.Tags
}

type receiverStream struct {
	slot    uint32
	token   uint64
	spec    shuffle.StreamSpec
	job     *receiverJob
	claimed [wire.SeenWords]uint64
	n       int
	open    bool
	done    bool
}

func newReceiver(t testing.TB, six bool, seed uint64) *receiver {
	addr := "127.0.0.1"
	network := "udp4"
	if six {
		addr, network = "::1", "udp6"
	}
	c, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadBuffer(4 << 20)
	r := &receiver{
		t: t, conn: c, addr: netip.MustParseAddr(addr), done: make(chan struct{}), rng: rand.New(rand.NewPCG(seed, 7)),
		jobs: map[shuffle.JobID]*receiverJob{}, streams: map[uint32]*receiverStream{}, ids: map[shuffle.StreamID]*receiverStream{},
		targets: map[shuffle.TargetID]bool{}, total: map[string][]int64{}, vector: map[uint32]int64{}, pairs: map[string]int{},
		share: 64, from: wire.FromUser,
	}
	r.end = shuffle.Endpoint{Port: c.LocalAddr().(*net.UDPAddr).Port, Frame: wire.FrameSize}
	r.wg.Add(1)
	go r.read()
	t.Cleanup(func() {
		close(r.done)
		c.Close()
		r.wg.Wait()
	})
	return r
}

func (r *receiver) read() {
	defer r.wg.Done()
	buf := make([]byte, 64<<10)
	for {
		n, from, err := r.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		r.packets.Add(1)
		r.mu.Lock()
		deaf := r.deaf
		r.mu.Unlock()
		if deaf {
			continue
		}
		r.pass(&r.data, buf[:n], func(b []byte) { r.take(b, from) })
	}
}

// pass does to a packet what faults do, by chance.
func (r *receiver) pass(f *faults, b []byte, next func([]byte)) {
	r.mu.Lock()
	n := 1
	if r.rng.Float64() < f.Lose {
		n = 0
	} else if r.rng.Float64() < f.Double {
		n = 2
	}
	var late [2]time.Duration
	var hurt [2]int
	for i := range n {
		hurt[i] = -1
		if r.rng.Float64() < f.Delay {
			late[i] = 1 + time.Duration(r.rng.Int64N(int64(f.Latency)))
		}
		if r.rng.Float64() < f.Damage {
			hurt[i] = r.rng.IntN(8 * len(b))
		}
	}
	r.mu.Unlock()
	for i := range n {
		if hurt[i] < 0 && late[i] == 0 {
			next(b)
			continue
		}
		c := append([]byte(nil), b...)
		if hurt[i] >= 0 {
			c[hurt[i]/8] ^= 1 << (hurt[i] % 8)
		}
		if late[i] == 0 {
			next(c)
			continue
		}
		r.wg.Add(1)
		time.AfterFunc(late[i], func() {
			defer r.wg.Done()
			select {
			case <-r.done:
			default:
				next(c)
			}
		})
	}
}

// take takes a frame that came as a packet.
func (r *receiver) take(b []byte, from netip.AddrPort) {
	h, err := wire.ParseFrame(b)
	if err != nil || h.Kind != wire.Data {
		r.bad.Add(1)
		return
	}
	r.mu.Lock()
	st := r.streams[h.Stream]
	if st == nil || !st.open || st.token != h.Token || !st.job.tags.OpenData(b) || int(h.Seq) >= st.spec.Frames {
		r.mu.Unlock()
		r.bad.Add(1)
		return
	}
	r.fold(st, h, b)
	var answer []byte
	if h.Flags&wire.FlagWantAck != 0 {
		r.want.Add(1)
		r.nonce++
		a := wire.AckBody{Nonce: wire.AckNonce(0, r.nonce), Stamp: h.Stamp, Share: uint32(r.share), From: r.from}
		a.Window(&st.claimed, h.Seq)
		answer = wire.PutAck(make([]byte, wire.AckFrame), h, a, st.job.tags)
	}
	r.mu.Unlock()
	if answer != nil {
		r.pass(&r.acks, answer, func(b []byte) {
			if r.kernel != nil && !r.kernel.absorb(b) {
				return
			}
			_, _ = r.conn.WriteToUDPAddrPort(b, from)
		})
	}
}

// fold claims a frame and adds it up. mu is held.
func (r *receiver) fold(st *receiverStream, h wire.Head, b []byte) {
	w, bit := h.Seq/32, uint64(1)<<(h.Seq%32)
	if st.claimed[w]&bit != 0 {
		r.duplicates.Add(1)
		return
	}
	st.claimed[w] |= bit
	st.n++
	var rd wire.Reader
	if err := rd.Reset(b, len(st.job.spec.Ops)); err != nil {
		r.t.Errorf("frame %d of %s: %v", h.Seq, st.spec.ID, err)
		return
	}
	for rd.Next() {
		if h.Shape&wire.Dense != 0 {
			r.vector[rd.Index()] += rd.Lanes()[0]
			continue
		}
		k := string(rd.Key())
		r.pairs[k]++
		to := r.total[k]
		if to == nil {
			to = make([]int64, len(rd.Lanes()))
			r.total[k] = to
		}
		for i, v := range rd.Lanes() {
			to[i] += v
		}
	}
}

func (r *receiver) call(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	f := r.reset
	r.mu.Unlock()
	if f != nil {
		return f(name)
	}
	return nil
}

// restart forgets targets and streams, as a receiver does whose process was restarted.
func (r *receiver) restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.streams)
	clear(r.ids)
	clear(r.targets)
	clear(r.jobs)
	clear(r.total)
	clear(r.pairs)
	clear(r.vector)
}

func (r *receiver) Endpoint(ctx context.Context) (shuffle.Endpoint, error) {
	return r.end, r.call(ctx, "Endpoint")
}

func (r *receiver) OpenJob(ctx context.Context, job shuffle.JobSpec) error {
	if err := r.call(ctx, "OpenJob"); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.jobs[job.ID] == nil {
		r.jobs[job.ID] = &receiverJob{job, wire.NewTags(job.Secret)}
	}
	return nil
}

func (r *receiver) OpenTarget(ctx context.Context, target shuffle.TargetSpec) error {
	if err := r.call(ctx, "OpenTarget"); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.jobs[target.ID.Job] == nil {
		return fmt.Errorf("job: %w", shuffle.ErrUnknown)
	}
	r.targets[target.ID] = true
	return nil
}

func (r *receiver) Open(ctx context.Context, specs []shuffle.StreamSpec) ([]shuffle.Grant, error) {
	if err := r.call(ctx, "Open"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var grants []shuffle.Grant
	open := 0
	for _, st := range r.streams {
		if st.open {
			open++
		}
	}
	if r.most > 0 && open+len(specs) > r.most {
		return nil, errors.New("no room")
	}
	for _, spec := range specs {
		if !r.targets[spec.ID.Target] {
			return nil, fmt.Errorf("target: %w", shuffle.ErrUnknown)
		}
		st := r.ids[spec.ID]
		if st == nil {
			r.nextSlot++
			st = &receiverStream{slot: r.nextSlot, token: r.rng.Uint64() | 1, spec: spec, job: r.jobs[spec.ID.Target.Job], open: true}
			r.streams[st.slot] = st
			r.ids[spec.ID] = st
		}
		if st.done {
			grants = append(grants, shuffle.Grant{Done: true})
			continue
		}
		grants = append(grants, shuffle.Grant{Slot: st.slot, Token: st.token, Share: r.share, Claimed: st.bits()})
	}
	return grants, nil
}

func (st *receiverStream) bits() []uint32 {
	if st.n == 0 {
		return nil
	}
	b := make([]uint32, wire.SeenWords)
	for i, w := range st.claimed {
		b[i] = uint32(w)
	}
	return b
}

func (r *receiver) Status(ctx context.Context, ids []shuffle.StreamID) ([]shuffle.StreamStatus, error) {
	if err := r.call(ctx, "Status"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []shuffle.StreamStatus
	for _, id := range ids {
		st := r.ids[id]
		if st == nil {
			return nil, shuffle.ErrReset
		}
		s := shuffle.StreamStatus{Complete: st.n == st.spec.Frames, Claimed: st.bits()}
		if s.Complete && r.incomplete > 0 {
			r.incomplete--
			s.Complete = false
		}
		st.done = s.Complete
		list = append(list, s)
	}
	return list, nil
}

func (r *receiver) Deliver(ctx context.Context, id shuffle.StreamID, frames [][]byte) error {
	if err := r.call(ctx, "Deliver"); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.ids[id]
	if st == nil {
		return shuffle.ErrReset
	}
	for _, b := range frames {
		h, err := wire.ParseFrame(b)
		if err != nil || h.Token != st.token || !st.job.tags.OpenData(b) {
			r.t.Errorf("a delivered frame is wrong: %+v, %v", h, err)
			return nil
		}
		r.delivered.Add(1)
		r.fold(st, h, b)
	}
	return nil
}

func (r *receiver) Confirm(ctx context.Context, ids []shuffle.StreamID) error {
	if err := r.call(ctx, "Confirm"); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		st := r.ids[id]
		if st == nil {
			return shuffle.ErrReset
		}
		if !st.done {
			r.t.Errorf("%s was confirmed and is not complete", id)
		}
		st.open = false
	}
	return nil
}

// fakeKernel absorbs as the program at the sender's interface does.
type fakeKernel struct {
	mem      *shuffle.Memory
	mu       sync.Mutex
	jobs     map[int]*wire.Tags
	held     map[shuffle.JobID]int
	passed   atomic.Int64
	took     atomic.Int64
	quiesced atomic.Int64
}

func newFakeKernel(outgoing int) *fakeKernel {
	return &fakeKernel{mem: shuffle.NewMemory(shuffle.Limits{Streams: 1, Targets: 1, Outgoing: outgoing}), jobs: map[int]*wire.Tags{}, held: map[shuffle.JobID]int{}}
}

// absorb returns whether the answer goes up to the socket.
func (k *fakeKernel) absorb(b []byte) bool {
	h, a, err := wire.ParseAck(b)
	if err != nil || int(h.Back) >= len(k.mem.Outgoing) {
		return false
	}
	o := &k.mem.Outgoing[h.Back]
	if atomic.LoadUint64(&o.Token) != h.Token {
		return false
	}
	k.mu.Lock()
	tags := k.jobs[int(atomic.LoadUint32(&o.Job))]
	k.mu.Unlock()
	if tags == nil || !tags.Open(b, a.Nonce) {
		return false
	}
	k.took.Add(1)
	fresh := a.Absorb(&o.Acked)
	atomic.StoreUint64(&o.Stamp, a.Stamp)
	atomic.StoreUint64(&o.Arrived, uint64(now()))
	atomic.StoreUint32(&o.Share, a.Share)
	atomic.StoreUint32(&o.From, uint32(a.From))
	atomic.AddUint32(&o.Answers, 1)
	count := atomic.AddUint64(&o.Count, uint64(fresh))
	if count >= atomic.LoadUint64(&o.Wake) {
		k.passed.Add(1)
		return true
	}
	return false
}

func (k *fakeKernel) Acquire(job shuffle.JobID, keys *wire.Job) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[job]++
	k.jobs[5] = wire.TagsOf(keys)
	return 5, nil
}

func (k *fakeKernel) Release(job shuffle.JobID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[job]--
}

func (k *fakeKernel) Memory() *shuffle.Memory { return k.mem }
func (k *fakeKernel) SetJob(int, *wire.Job) error {
	return nil
}

func (k *fakeKernel) NewTables(shuffle.TableLayout, int) ([]*shuffle.Table, error) {
	return nil, errors.ErrUnsupported
}
func (k *fakeKernel) FreeTable(*shuffle.Table) error         { return nil }
func (k *fakeKernel) Tables() []*shuffle.Table               { return nil }
func (k *fakeKernel) Resumed() bool                          { return false }
func (k *fakeKernel) Quiesce() error                         { k.quiesced.Add(1); return nil }
func (k *fakeKernel) Reasons() ([wire.Reasons]uint64, error) { return [wire.Reasons]uint64{}, nil }
func (k *fakeKernel) MTU() int                               { return 1500 }
func (k *fakeKernel) String() string                         { return "fake" }
func (k *fakeKernel) Close() error                           { return nil }
