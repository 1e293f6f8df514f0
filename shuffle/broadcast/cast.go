// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"fmt"
	"sync/atomic"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// cast is a source's end of a broadcast: what answers are counted in.
type cast struct {
	node   *Node
	job    shuffle.JobID
	slot   int
	kernel bool       // programs count answers
	shared *wire.Cast // mapped if kernel
	tags   *wire.Tags
	memory *memory
	data   []byte
	marks  []uint64
	gate   gate
	poke   func() // has the source look at the counts
}

// newCast makes room for a cast of that many chunks. Nobody finds it before its token is set.
func (n *Node) newCast(spec *GroupSpec, kernel bool) (_ *cast, err error) {
	c := &cast{node: n, job: spec.Job, kernel: kernel, tags: wire.NewTags(spec.Secret), gate: newGate()}
	free, what := &n.freeUser, "without programs"
	if kernel {
		free, what = &n.freeCasts, "that programs serve"
	}
	n.mu.Lock()
	if len(*free) == 0 {
		n.mu.Unlock()
		return nil, fmt.Errorf("broadcast %q: all of this host's ends of broadcasts %s are in use: %w", spec.Name, what, shuffle.ErrBusy)
	}
	c.slot = (*free)[len(*free)-1]
	*free = (*free)[:len(*free)-1]
	n.mu.Unlock()
	defer func() {
		if err != nil {
			c.giveSlot()
			err = fmt.Errorf("broadcast %q: %w", spec.Name, err)
		}
	}()
	slot := 0
	if kernel {
		if slot, err = n.jobs.Acquire(spec.Job, c.tags.Job()); err != nil {
			return nil, err
		}
	}
	if c.memory, err = n.newMemory(spec.Job, spec.Chunks, kernel); err != nil {
		if kernel {
			n.jobs.Release(spec.Job)
		}
		return nil, err
	}
	c.data, c.marks = c.memory.content.Data, c.memory.content.Marks
	if kernel {
		c.shared = &n.ends.Casts[c.slot]
		*c.shared = wire.Cast{}
	} else {
		c.shared = &wire.Cast{}
	}
	s := c.shared
	s.Job, s.Content, s.Marks, s.Chunks = uint32(slot), c.memory.content.ID, c.memory.content.Mark, uint32(spec.Chunks)
	return c, nil
}

// publish has answers find the cast.
func (c *cast) publish(token uint64) {
	atomic.StoreUint64(&c.shared.Token, token)
	c.node.casts[c.slot].Store(c)
}

// close gives all back. No call of its own group is under way.
func (c *cast) close() error {
	c.node.casts[c.slot].Store(nil)
	atomic.StoreUint64(&c.shared.Token, 0)
	c.gate.shut()
	if c.kernel {
		if err := c.node.kernel.Quiesce(); err != nil {
			// Programs may still know it: never use it again.
			return fmt.Errorf("broadcast: wait for running programs: %w", err)
		}
		c.node.jobs.Release(c.job)
	}
	c.giveSlot()
	return c.memory.release()
}

func (c *cast) giveSlot() {
	n := c.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.kernel {
		n.freeCasts = append(n.freeCasts, c.slot)
	} else {
		n.freeUser = append(n.freeUser, c.slot)
	}
}

// collect takes the answer to a chunk. It is what programs do, in the order they do it.
func (n *Node) collect(frame []byte, h *wire.Head, c *wire.Chunk) wire.Reason {
	if int64(h.Back) >= int64(len(n.casts)) {
		return wire.AckStray
	}
	ct := n.casts[h.Back].Load()
	if ct == nil || !ct.gate.enter() {
		return wire.AckStray
	}
	defer ct.gate.leave()
	s := ct.shared
	if atomic.LoadUint64(&s.Token) != h.Token {
		return wire.AckStray
	}
	if !ct.tags.OpenChunk(frame) {
		return wire.AckTag
	}
	if c.First != atomic.LoadUint32(&s.First) || c.Total != atomic.LoadUint32(&s.Total) || c.Place >= s.Chunks ||
		c.Chain != wire.ChainDirect && uint32(c.Chain) >= s.Chains {
		return wire.AckStray
	}
	if ct.kernel {
		// Programs counted it and passed it up to wake the source, or could not and will count another one.
		ct.poke()
		return wire.CollectedUp
	}
	atomic.AddUint32(&s.Answers, 1)
	if c.Chain == wire.ChainDirect {
		if atomic.AddUint32(&s.Direct, 1) == atomic.LoadUint32(&s.DirectWake) {
			ct.poke()
			return wire.CollectedUp
		}
		return wire.Collected
	}
	want, bit := atomic.LoadUint64(&s.Want[c.Chain]), uint64(1)<<c.Chain
	if want == 0 || c.Group&want != want || atomic.LoadUint64(&ct.marks[c.Place])&bit != 0 ||
		atomic.OrUint64(&ct.marks[c.Place], bit)&bit != 0 {
		return wire.Collected
	}
	if atomic.AddUint32(&s.Done, 1) == atomic.LoadUint32(&s.Wake) {
		ct.poke()
		return wire.CollectedUp
	}
	return wire.Collected
}
