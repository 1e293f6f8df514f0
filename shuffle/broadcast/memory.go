// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// budget bounds the bytes of all contents of a host, and of those of a job.
type budget struct {
	total, perJob int64

	mu    sync.Mutex
	used  int64
	byJob map[shuffle.JobID]int64
}

// costOf is what a content of that many chunks takes, in bytes.
func costOf(chunks int) int64 { return int64(chunks) * (wire.ChunkSize + 8) }

// take reserves room. An error wraps ErrRefused for what never has room, and ErrBusy
// for what has none now.
func (b *budget) take(job shuffle.JobID, bytes int64) error {
	if most := min(b.total, b.perJob); bytes > most {
		return fmt.Errorf("%d bytes for a broadcast, where a job may have %d: %w; raise the limits, or send smaller parts", bytes, most, shuffle.ErrRefused)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.byJob[job]+bytes > b.perJob:
		return fmt.Errorf("%d bytes for a broadcast: job %s has %d of %d: %w", bytes, job, b.byJob[job], b.perJob, shuffle.ErrBusy)
	case b.used+bytes > b.total:
		return fmt.Errorf("%d bytes for a broadcast: %d of %d are in use: %w", bytes, b.used, b.total, shuffle.ErrBusy)
	}
	b.used += bytes
	b.byJob[job] += bytes
	return nil
}

func (b *budget) give(job shuffle.JobID, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= bytes
	if b.byJob[job] -= bytes; b.byJob[job] == 0 {
		delete(b.byJob, job)
	}
}

// memory is a content and its share of the budget. A region or a cast holds it, and
// who retains a message; the last one frees it.
type memory struct {
	node    *Node
	content *shuffle.Content
	free    func() error
	kernel  bool // programs know it
	job     shuffle.JobID
	cost    int64
	refs    atomic.Int32
}

// newMemory makes room for that many chunks.
func (n *Node) newMemory(job shuffle.JobID, chunks int, kernel bool) (*memory, error) {
	m := &memory{node: n, kernel: kernel, job: job, cost: costOf(chunks)}
	if err := n.budget.take(job, m.cost); err != nil {
		return nil, err
	}
	var err error
	if kernel {
		m.content, err = n.kernel.NewContent(chunks)
		m.free = func() error { return n.kernel.FreeContent(m.content) }
	} else {
		m.content, m.free, err = newContent(chunks)
	}
	if err != nil {
		n.budget.give(job, m.cost)
		return nil, err
	}
	m.refs.Store(1)
	return m, nil
}

// hold keeps it for one more. It fails once it is free.
func (m *memory) hold() bool {
	for {
		n := m.refs.Load()
		if n == 0 {
			return false
		}
		if m.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// release is called once per hold, and by its first owner. No end names it any more, and
// no program runs that saw one that did.
func (m *memory) release() error {
	if m.refs.Add(-1) != 0 {
		return nil
	}
	err := m.free()
	select {
	case <-m.node.done:
		err = nil // a kernel's help may have ended before who retained a message
	default:
	}
	m.node.budget.give(m.job, m.cost)
	if err != nil {
		return fmt.Errorf("broadcast: free memory: %w", err)
	}
	return nil
}

// gate lets many in until it is shut, and then tells when all have left.
type gate struct {
	inside atomic.Int64
	idle   chan struct{}
}

const gateShut = math.MinInt64 / 2

func newGate() gate { return gate{idle: make(chan struct{}, 1)} }

func (g *gate) enter() bool {
	if g.inside.Add(1) > 0 {
		return true
	}
	g.leave()
	return false
}

func (g *gate) leave() {
	if g.inside.Add(-1) == gateShut {
		select {
		case g.idle <- struct{}{}:
		default:
		}
	}
}

// shut is called once. It returns when nobody is inside.
func (g *gate) shut() {
	if g.inside.Add(gateShut) != gateShut {
		<-g.idle
	}
}

// message is where a message lies.
type message struct {
	memory  *memory
	payload []byte
	offset  int64 // of the payload in the content
}

func (m *message) bytes() []byte { return m.payload }

func (m *message) retain() (*Mapping, error) {
	if !m.memory.hold() {
		return nil, errors.New("broadcast: the region of a message that is to be kept is closed; retain it in Sink.Message, or while it is open")
	}
	f, offset, err := openPayload(m.memory.content, m.payload, m.offset)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("broadcast: keep a message: %w", err), m.memory.release())
	}
	p := &Mapping{File: f, Offset: offset, Size: int64(len(m.payload))}
	p.mapping = mapping{memory: m.memory, file: f}
	return p, nil
}

type mapping struct {
	memory *memory
	file   *os.File
	once   sync.Once
	err    error
}

func (m *mapping) close() error {
	m.once.Do(func() { m.err = errors.Join(m.file.Close(), m.memory.release()) })
	return m.err
}
