// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net"
	"sort"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type pair struct {
	key   string
	lanes []int64
}

// testJob is a job and what its targets hold.
type testJob struct {
	spec shuffle.JobSpec
	tags *wire.Tags
}

func newJob(rng *rand.Rand, ops ...fold.Op) *testJob {
	j := &testJob{}
	for i := range j.spec.ID {
		j.spec.ID[i] = byte(rng.Uint32())
		j.spec.Secret[i] = byte(rng.Uint32())
	}
	j.spec.Seed = pairs.Seed{A: rng.Uint64(), B: rng.Uint64()}
	j.spec.Ops = ops
	j.tags = wire.NewTags(j.spec.Secret)
	return j
}

func (j *testJob) target(part, gen uint32) shuffle.TargetID {
	return shuffle.TargetID{Job: j.spec.ID, Partition: part, Generation: gen}
}

// output is a committed map output for one target, cut into unsealed frames.
type output struct {
	job    *testJob
	spec   shuffle.StreamSpec
	frames [][]byte
}

// cut makes frames of pairs, whose keys are distinct, in the order of the protocol.
func (j *testJob) cut(id shuffle.StreamID, list []pair) *output {
	o := &output{job: j, spec: shuffle.StreamSpec{ID: id, Pairs: uint64(len(list)), Check: make([]uint64, len(j.spec.Ops))}}
	type cutPair struct {
		pair
		hash  uint64
		class int
	}
	sorted := make([]cutPair, len(list))
	for i, p := range list {
		c, ok := wire.ClassOf(len(p.key))
		if !ok || len(p.lanes) > wire.MaxLanes {
			c = wire.Classes
		}
		sorted[i] = cutPair{p, j.spec.Seed.HashBytes([]byte(p.key)), c}
		for l, op := range j.spec.Ops {
			if op == fold.Sum {
				o.spec.Check[l] += uint64(p.lanes[l]) * sorted[i].hash
			}
		}
	}
	sort.Slice(sorted, func(a, b int) bool {
		if sorted[a].class != sorted[b].class {
			return sorted[a].class < sorted[b].class
		}
		if sorted[a].hash != sorted[b].hash {
			return sorted[a].hash < sorted[b].hash
		}
		return sorted[a].key < sorted[b].key
	})
	wide := [wire.Classes + 1]bool{}
	for _, p := range sorted {
		for _, v := range p.lanes {
			wide[p.class] = wide[p.class] || v != int64(int32(v))
		}
	}
	var b wire.Builder
	class := -1
	finish := func() {
		if class < 0 {
			return
		}
		if f := b.Finish(wire.Head{Seq: uint32(len(o.frames))}, nil); f != nil {
			o.frames = append(o.frames, f)
		}
	}
	for _, p := range sorted {
		shape := wire.Long
		if p.class < wire.Classes {
			shape = wire.Keyed(p.class, len(p.lanes), wide[p.class])
		}
		if p.class != class {
			finish()
			class = p.class
			b.Reset(make([]byte, wire.FrameSize), shape)
		}
		if b.Add(p.hash, []byte(p.key), p.lanes) {
			continue
		}
		finish()
		b.Reset(make([]byte, wire.FrameSize), shape)
		if b.Add(p.hash, []byte(p.key), p.lanes) {
			continue
		}
		f, err := wire.LargeFrame(wire.Head{Seq: uint32(len(o.frames))}, []byte(p.key), p.lanes, nil)
		if err != nil {
			panic(err)
		}
		o.frames = append(o.frames, f)
		class = -1
	}
	finish()
	o.spec.Frames = len(o.frames)
	return o
}

// seal returns frame i as it travels under a grant.
func (o *output) seal(i int, g shuffle.Grant, back uint32) []byte {
	f := append([]byte(nil), o.frames[i]...)
	le.PutUint64(f[8:], g.Token)
	le.PutUint32(f[16:], g.Slot)
	le.PutUint32(f[24:], back)
	wire.SetStamp(f, uint64(i)+1, true)
	o.job.tags.SealData(f)
	return f
}

// faults are what the test's network does to frames.
type faults struct {
	drop, double, damage, reorder float64
	rng                           *rand.Rand
}

// link carries frames to a receiver.
type link interface{ send(frame []byte) }

// socketLink sends them to its port.
type socketLink struct{ *net.UDPConn }

func dial(port int) (socketLink, error) {
	conn, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	return socketLink{conn}, err
}

func (l socketLink) send(frame []byte) { _, _ = l.Write(frame) }

// push sends an output until it is complete, and confirms it.
func push(ctx context.Context, r shuffle.Control, o *output, f *faults, l link) error {
	for {
		err := pushOnce(ctx, r, o, f, l)
		if !errors.Is(err, shuffle.ErrReset) {
			return err
		}
	}
}

func pushOnce(ctx context.Context, r shuffle.Control, o *output, f *faults, l link) error {
	grants, err := r.Open(ctx, []shuffle.StreamSpec{o.spec})
	if err != nil {
		return err
	}
	g := grants[0]
	if g.Done {
		return nil
	}
	claimed := g.Claimed
	id := []shuffle.StreamID{o.spec.ID}
	for ctx.Err() == nil {
		large := o.sendAll(g, claimed, f, l)
		if len(large) > 0 {
			if err := r.Deliver(ctx, o.spec.ID, large); err != nil {
				return err
			}
		}
		time.Sleep(2 * time.Millisecond)
		st, err := r.Status(ctx, id)
		if err != nil {
			return err
		}
		if st[0].Complete {
			return r.Confirm(ctx, id)
		}
		claimed = st[0].Claimed
	}
	return ctx.Err()
}

// sendAll sends all frames that are not claimed once, and returns those that
// are too large for a packet.
func (o *output) sendAll(g shuffle.Grant, claimed []uint32, f *faults, l link) (large [][]byte) {
	var held [][]byte
	for i := range o.frames {
		if claimed != nil && claimed[i/32]>>(i%32)&1 != 0 {
			continue
		}
		frame := o.seal(i, g, 7)
		if len(frame) > wire.FrameSize {
			large = append(large, frame)
			continue
		}
		n := 1
		if f != nil {
			if f.rng.Float64() < f.drop {
				n = 0
			}
			if f.rng.Float64() < f.double {
				n++
			}
			if n > 0 && f.rng.Float64() < f.damage {
				bad := append([]byte(nil), frame...)
				bad[f.rng.IntN(len(bad))] ^= 1 << f.rng.IntN(8)
				held = append(held, bad)
			}
		}
		for range n {
			held = append(held, frame)
		}
		if len(held) > 64 {
			held = flush(l, held, f)
			time.Sleep(100 * time.Microsecond)
		}
	}
	for len(held) > 0 {
		held = flush(l, held, f)
	}
	return large
}

func flush(l link, held [][]byte, f *faults) (left [][]byte) {
	if f != nil && f.reorder > 0 {
		f.rng.Shuffle(len(held), func(a, b int) { held[a], held[b] = held[b], held[a] })
		if keep := len(held) / 8; len(held) > 16 {
			left = append(left, held[:keep]...)
			held = held[keep:]
		}
	}
	for _, b := range held {
		l.send(b)
	}
	return left
}

// oracle folds with numbers of any size.
type oracle struct {
	ops  []fold.Op
	keys map[string][]*big.Int
}

func newOracle(ops []fold.Op) *oracle { return &oracle{ops, map[string][]*big.Int{}} }

func (o *oracle) add(list []pair) {
	for _, p := range list {
		v := o.keys[p.key]
		if v == nil {
			v = make([]*big.Int, len(o.ops))
			for i := range v {
				v[i] = big.NewInt(p.lanes[i])
			}
			o.keys[p.key] = v
			continue
		}
		for i, op := range o.ops {
			b := big.NewInt(p.lanes[i])
			if op == fold.Sum {
				v[i].Add(v[i], b)
			} else {
				v[i].SetInt64(op.Apply(v[i].Int64(), p.lanes[i]))
			}
		}
	}
}

// check compares a result with the oracle.
func (o *oracle) check(ctx context.Context, res *Result) error {
	n := 0
	last := ""
	err := res.Walk(ctx, func(key []byte, lanes []int64) error {
		if n > 0 && string(key) <= last {
			return fmt.Errorf("key %q after %q", key, last)
		}
		last = string(key)
		n++
		want := o.keys[last]
		if want == nil {
			return fmt.Errorf("key %q was not sent", key)
		}
		for i, v := range want {
			if !v.IsInt64() || v.Int64() != lanes[i] {
				return fmt.Errorf("key %q lane %d: %d, not %s", key, i, lanes[i], v)
			}
		}
		return nil
	})
	if err == nil && n != len(o.keys) {
		err = fmt.Errorf("%d keys, not %d", n, len(o.keys))
	}
	return err
}

// randomPairs returns n pairs of distinct keys.
func randomPairs(rng *rand.Rand, n, lanes, keySpace, longest int, large bool) []pair {
	seen := map[string]bool{}
	var list []pair
	for len(list) < n {
		k := rng.IntN(keySpace)
		kr := rand.New(rand.NewPCG(uint64(k), 5))
		length := kr.IntN(longest + 1)
		if kr.IntN(3) > 0 {
			length = min(length, kr.IntN(17))
		}
		b := make([]byte, length)
		for i := range b {
			b[i] = byte('a' + kr.IntN(4))
		}
		if len(b) >= 4 {
			le.PutUint32(b, uint32(k))
		}
		if seen[string(b)] {
			n--
			continue
		}
		seen[string(b)] = true
		v := make([]int64, lanes)
		for i := range v {
			v[i] = int64(int32(rng.Uint32())) >> rng.IntN(20)
			if large {
				v[i] = int64(rng.Uint64()) >> (6 + rng.IntN(50))
			}
		}
		list = append(list, pair{string(b), v})
	}
	return list
}

func testReceiver(t testing.TB, opts Options) *Receiver {
	t.Helper()
	opts.TempDir = t.TempDir()
	r, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func bytesAt(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }
