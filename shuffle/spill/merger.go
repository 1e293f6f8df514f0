// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"bytes"
	"fmt"
	"math/bits"
)

// Merger merges cursors into one. It is a Cursor, and owns the cursors it merges:
// Close closes them.
type Merger struct {
	leaves []leaf
	// tree is a loser tree: tree[i] for 0 < i < len(leaves) is who lost at inner
	// node i, whose children are 2i and 2i+1; leaf j is node len(leaves)+j.
	tree   []entrant
	byKey  bool
	winner int
	cur    *head  // the winner's pair
	code   uint64 // and its key's code against the pair before
	// bound is below or at the codes of all whom the winner's successor would
	// have to beat: a smaller code wins without looking further.
	bound   uint64
	started bool
	done    bool
	err     error

	last, lastPayload []byte // of the pair before; only kept with invariants
}

type leaf struct {
	cursor coded
	head   *head
}

// entrant is a leaf and the code of the key where it stands.
type entrant struct {
	code uint64
	leaf int
}

// NewMerger returns a Merger that yields the pairs of all cursors in ascending
// order of (key, payload); equal pairs come in the order of their cursors.
func NewMerger(cs []Cursor) *Merger { return newMerger(cs, false) }

// NewKeyMerger returns a Merger that yields the pairs of all cursors in ascending
// order of the key; pairs with equal keys come in the order of their cursors,
// and those of one cursor in its order. Payloads are not compared, which is
// cheaper.
func NewKeyMerger(cs []Cursor) *Merger { return newMerger(cs, true) }

func newMerger(cs []Cursor, byKey bool) *Merger {
	m := &Merger{leaves: make([]leaf, len(cs)), byKey: byKey}
	for i, c := range cs {
		var k coded
		switch c := c.(type) {
		case *Merger:
			k = &mergedCursor{from: c}
		case coded:
			k = c
		default:
			k = &foreignCursor{from: c}
		}
		m.leaves[i] = leaf{k, k.self()}
	}
	return m
}

// Key returns the key.
func (m *Merger) Key() []byte {
	if m.cur == nil {
		return nil
	}
	return m.cur.key
}

// Payload returns the payload.
func (m *Merger) Payload() []byte {
	if m.cur == nil {
		return nil
	}
	return m.cur.payload
}

// SameKey says whether the key is equal to that of the pair before. The Merger
// knows, so nobody needs to compare.
func (m *Merger) SameKey() bool { return m.code < belowDiffers }

// Err returns the error that ended the merge too early.
func (m *Merger) Err() error { return m.err }

// Close closes all cursors.
func (m *Merger) Close() {
	for i := range m.leaves {
		m.leaves[i].cursor.Close()
	}
	m.end()
}

// end makes Next return false from now on.
func (m *Merger) end() bool {
	m.done, m.cur, m.code = true, nil, codeEnd
	return false
}

// Next advances to the next pair. It returns false at the end or on error.
func (m *Merger) Next() bool {
	if !m.started || m.done {
		return m.start()
	}
	l := &m.leaves[m.winner]
	code := codeEnd
	if l.cursor.Next() {
		code = l.head.code
		if code == codeSame && !m.byKey {
			code = prefix48(l.head.payload)
		}
	} else if m.err = l.cursor.Err(); m.err != nil {
		return m.end()
	}
	if code < m.bound {
		m.code = code
		if invariants {
			return m.check()
		}
		return true
	}
	return m.replay(code)
}

// replay finds the next winner, after the last one has gone on to a key with
// that code.
func (m *Merger) replay(code uint64) bool {
	c := entrant{code, m.winner}
	bound := codeEnd
	for i := (len(m.leaves) + m.winner) >> 1; i > 0; i >>= 1 {
		t := &m.tree[i]
		if c.code == t.code {
			c, *t = m.tie(c, *t)
		} else {
			// Swap if t wins, without a branch, which could not be predicted.
			_, borrow := bits.Sub64(t.code, c.code, 0)
			swap := -borrow
			code, leaf := (c.code^t.code)&swap, (c.leaf^t.leaf)&int(swap)
			c.code, t.code = c.code^code, t.code^code
			c.leaf, t.leaf = c.leaf^leaf, t.leaf^leaf
		}
		bound = min(bound, t.code)
	}
	if c.leaf != m.winner {
		// Whom the new winner's successor meets is not known.
		bound = 0
	}
	if m.byKey {
		// A further pair with the winner's key comes next in any case.
		bound = max(bound, codeSame+1)
	}
	m.bound = bound
	return m.crown(c)
}

func (m *Merger) crown(c entrant) bool {
	if c.code == codeEnd {
		return m.end()
	}
	m.winner, m.code, m.cur = c.leaf, c.code, m.leaves[c.leaf].head
	if invariants {
		return m.check()
	}
	return true
}

// tie decides between two whose codes are equal, and codes the loser against
// the winner.
func (m *Merger) tie(a, b entrant) (winner, loser entrant) {
	if a.code == codeEnd {
		return a, b
	}
	ha, hb := m.leaves[a.leaf].head, m.leaves[b.leaf].head
	if a.code >= belowDiffers {
		start := codeStart(a.code)
		common := start + commonPrefix(ha.key[start:], hb.key[start:])
		endA, endB := common == len(ha.key), common == len(hb.key)
		if !endA || !endB {
			if endA || !endB && ha.key[common] < hb.key[common] {
				b.code = codeOf(hb.key, common)
				return a, b
			}
			a.code = codeOf(ha.key, common)
			return b, a
		}
	}
	// The keys are equal.
	order := 0
	if !m.byKey {
		order = bytes.Compare(ha.payload, hb.payload)
	}
	if order == 0 {
		order = a.leaf - b.leaf
	}
	if order > 0 {
		a, b, hb = b, a, ha
	}
	b.code = codeSame
	if !m.byKey {
		b.code = prefix48(hb.payload)
	}
	return a, b
}

// start goes to the first pair of every cursor and plays the first tournament.
func (m *Merger) start() bool {
	if m.done {
		return false
	}
	m.started = true
	k := len(m.leaves)
	if k == 0 {
		return m.end()
	}
	m.tree = make([]entrant, k)
	winners := make([]entrant, 2*k)
	for i := range m.leaves {
		l := &m.leaves[i]
		c := entrant{codeEnd, i}
		if l.cursor.Next() {
			c.code = l.head.code
		} else if m.err = l.cursor.Err(); m.err != nil {
			return m.end()
		}
		winners[k+i] = c
	}
	for i := k - 1; i > 0; i-- {
		a, b := winners[2*i], winners[2*i+1]
		switch {
		case a.code < b.code:
		case a.code > b.code:
			a, b = b, a
		default:
			a, b = m.tie(a, b)
		}
		winners[i], m.tree[i] = a, b
	}
	if m.bound = 0; k == 1 {
		m.bound = codeEnd
	} else if m.byKey {
		m.bound = codeSame + 1
	}
	return m.crown(winners[1])
}

// check compares the pair with the one before.
func (m *Merger) check() bool {
	if m.last != nil {
		order := bytes.Compare(m.last, m.cur.key)
		if order > 0 || order == 0 && !m.byKey && bytes.Compare(m.lastPayload, m.cur.payload) > 0 || (order == 0) != m.SameKey() {
			m.err = fmt.Errorf("spill: merge out of order: %.60q after %.60q (code %x)", m.cur.key, m.last, m.code)
			return m.end()
		}
	}
	m.last = append(append(m.last[:0:cap(m.last)], m.cur.key...), 0)
	m.last = m.last[:len(m.last)-1]
	m.lastPayload = append(m.lastPayload[:0], m.cur.payload...)
	return true
}
