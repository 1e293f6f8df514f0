// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"bytes"
	"sort"
)

// Source is something sorted in memory: pairs in ascending order.
type Source interface {
	Len() int
	// At returns pair i. What it returns must stay unchanged until a cursor over
	// it has gone two pairs further.
	At(i int) (key, payload []byte)
}

// SliceCursor returns a cursor over the pairs of src with lo <= key < hi; nil
// means no bound. It need not be closed.
func SliceCursor(src Source, lo, hi []byte) Cursor {
	c := &sourceCursor{src: src, end: src.Len()}
	at := func(bound []byte) int {
		return sort.Search(src.Len(), func(i int) bool {
			k, _ := src.At(i)
			return bytes.Compare(k, bound) >= 0
		})
	}
	if lo != nil {
		c.next = at(lo)
	}
	if hi != nil {
		c.end = max(c.next, at(hi))
	}
	return c
}

type sourceCursor struct {
	head
	src       Source
	next, end int
	started   bool
}

func (c *sourceCursor) Next() bool {
	if c.next >= c.end {
		c.key, c.payload = nil, nil
		return false
	}
	key, payload := c.src.At(c.next)
	c.next++
	c.code = codeAfter(c.key, key, c.started)
	c.started = true
	c.key, c.payload = key, payload
	return true
}

// codeAfter returns the code of key, which follows prev if there is one.
func codeAfter(prev, key []byte, follows bool) uint64 {
	if !follows {
		return codeOf(key, 0)
	}
	common := commonPrefix(prev, key)
	if common == len(key) && common == len(prev) {
		return codeSame
	}
	return codeOf(key, common)
}

func (c *sourceCursor) Err() error { return nil }

func (c *sourceCursor) Close() {
	c.next, c.end = 0, 0
	c.key, c.payload = nil, nil
}

// foreignCursor gives codes to a cursor that was made elsewhere.
type foreignCursor struct {
	head
	from    Cursor
	prev    []byte
	started bool
	err     error
}

func (c *foreignCursor) Next() bool {
	if c.err != nil || !c.from.Next() {
		return false
	}
	key := c.from.Key()
	if bytes.Compare(key, c.prev) < 0 {
		c.err = errUnsorted
		return false
	}
	c.code = codeAfter(c.prev, key, c.started)
	c.started = true
	c.prev = append(c.prev[:0], key...)
	c.key, c.payload = key, c.from.Payload()
	return true
}

func (c *foreignCursor) Err() error {
	if c.err != nil {
		return c.err
	}
	return c.from.Err()
}

func (c *foreignCursor) Close() { c.from.Close() }

// mergedCursor is a Merger below another one.
type mergedCursor struct {
	head
	from *Merger
}

func (c *mergedCursor) Next() bool {
	if !c.from.Next() {
		return false
	}
	c.head = head{c.from.Key(), c.from.Payload(), c.from.code}
	if c.from.SameKey() {
		c.code = codeSame
	}
	return true
}

func (c *mergedCursor) Err() error { return c.from.Err() }

func (c *mergedCursor) Close() { c.from.Close() }
