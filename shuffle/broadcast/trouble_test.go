// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// thoughtful answers no question about chunks.
type thoughtful struct {
	shuffle.BroadcastControl
	asked chan struct{}
}

func (c thoughtful) Missing(ctx context.Context, token uint64, first, total uint32) ([]shuffle.Gap, error) {
	if total == 0 {
		return c.BroadcastControl.Missing(ctx, token, first, total)
	}
	c.asked <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// A member is not asked again before it has answered, though its chunks arrived meanwhile, and a transfer that
// ends leaves nobody behind who wants to tell it something.
func TestQuestionsEnd(t *testing.T) {
	l := newLab(t, 1, faults{})
	source := l.host(virtualSetting{})
	_, members := l.hosts(1, virtualSetting{}, func(int) bool { return false })
	asked := make(chan struct{}, 10)
	members[0].Control = thoughtful{members[0].Control, asked}
	g := openGroup(t, source, members, GroupSpec{Chunks: 20})
	ctx, cancel := context.WithCancel(testContext(t))
	g.mu.Lock()
	m, c := g.members[0], g.chains[0]
	tr := &transfer{g: g, ctx: ctx, cast: g.cast.shared, marks: g.cast.marks, s: sent{0, 10, 100}, limit: 10, rep: &Report{}, members: []*member{m}, chains: []*chain{c}}
	tr.cast.Next[0] = 10
	c.flow = flow{sent: 10, asking: true, end: 10}
	m.lacks = lacks{fresh: true, known: 10, gaps: []shuffle.Gap{{Place: 3, Count: 1}}, count: 1}
	tr.tend(time.Now())
	<-asked
	for i := range 10 {
		g.cast.marks[i] = 1
	}
	tr.tend(time.Now()) // all has come
	clear(g.cast.marks)
	c.flow = flow{sent: 10}
	tr.round(c)
	tr.ask(m, 0, 10) // whatever happens
	<-asked
	if len(asked) > 0 {
		t.Error("a member that has not answered is asked again")
	}
	cancel()
	tr.end()
	g.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.calls.Wait()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("who asked a member waits for ever")
		for range 2 {
			select {
			case <-tr.answers:
			default:
			}
		}
		<-done
	}
	clear(g.cast.marks)
	if err := g.Close(testContext(t)); err != nil {
		t.Error(err)
	}
}

// Members wait for the rest of a message that was called off: nothing behind it would ever be confirmed.
func TestNothingBehindAFailure(t *testing.T) {
	l := newLab(t, 1, faults{})
	source := l.host(virtualSetting{})
	_, members := l.hosts(1, virtualSetting{}, func(int) bool { return false })
	g := openGroup(t, source, members, GroupSpec{Chunks: 300})
	ctx, cancel := context.WithCancel(testContext(t))
	if _, err := g.Send(ctx, 2*maxWindow*wire.ChunkSize, func([]byte) error { cancel(); return nil }); err == nil {
		t.Fatal("it was sent")
	}
	if _, err := g.Send(testContext(t), 100, nil); err == nil {
		t.Error("another message was sent behind one that failed")
	}
	if err := g.Close(testContext(t)); err != nil {
		t.Error(err)
	}
}

// A member that is out of its chain for a while keeps its bit: who joins that chain gets another one.
func TestBitsAreApart(t *testing.T) {
	l := newLab(t, 1, faults{})
	source := l.host(virtualSetting{})
	list, members := l.hosts(3, virtualSetting{}, func(int) bool { return false })
	g := openGroup(t, source, members[:2], GroupSpec{Chunks: 100, Chains: 2})
	g.mu.Lock()
	g.unlink(g.members[1]) // it was slow
	g.mu.Unlock()
	if err := g.Join(testContext(t), members[2]); err != nil {
		t.Fatal(err)
	}
	data := noise(1, 3000)
	confirm(t, g, send(t, g, data))
	g.mu.Lock()
	for _, c := range g.chains {
		bits := map[uint8]bool{}
		for _, m := range c.members {
			bits[m.bit] = true
		}
		if len(bits) != len(c.members) {
			t.Errorf("%d members of chain %d have %d bits", len(c.members), c.number, len(bits))
		}
	}
	g.mu.Unlock()
	if err := g.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	for _, h := range list {
		h.same([][]byte{data}, 1)
	}
}

// A source says one number of chunks in chunks, and another in the message's head: what is not there is
// not looked at.
func TestNumbersOfChunksDiffer(t *testing.T) {
	l := newLonely(t, Options{})
	spec := regionSpec(9, 8)
	if _, err := l.Control().OpenRegion(testContext(t), spec); err != nil {
		t.Fatal(err)
	}
	b := withHead(make([]byte, 2*wire.ChunkSize))
	b = append(b, bytes.Repeat([]byte{0}, 6*wire.ChunkSize-len(b))...)
	for i, place := range []uint32{0, 4, 5} { // three, as many as the head says
		l.Handle(chunkOf(t, &spec, b, 0, 6, place, 3, uint32(i)), sender)
	}
	ctx, cancel := context.WithTimeout(testContext(t), 300*time.Millisecond)
	defer cancel()
	if err := l.Control().ConfirmMessage(ctx, 9, 0); err == nil {
		t.Error("a message was taken of which a third is there")
	}
	for i, place := range []uint32{1, 2} {
		l.Handle(chunkOf(t, &spec, b, 0, 6, place, 3, uint32(10+i)), sender)
	}
	if err := l.Control().ConfirmMessage(testContext(t), 9, 0); err != nil {
		t.Error(err)
	}
}

// No number of a transmission comes twice under one token.
func TestTransmissionsRunOut(t *testing.T) {
	l := newLab(t, 1, faults{})
	source := l.host(virtualSetting{})
	_, members := l.hosts(2, virtualSetting{}, func(int) bool { return false })
	g := openGroup(t, source, members, GroupSpec{Chunks: 10})
	send(t, g, noise(1, 100))
	atomic.StoreUint32(&g.cast.shared.Transmissions, mostTransmissions+1)
	if _, err := g.Send(testContext(t), 1, nil); !errors.Is(err, ErrFull) {
		t.Errorf("after 2^31 transmissions: %v", err)
	}
	if err := g.Close(testContext(t)); err != nil {
		t.Error(err)
	}
}
