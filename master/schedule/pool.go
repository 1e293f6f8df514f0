// SPDX-License-Identifier: Apache-2.0

package schedule

// The two kinds of slots. Reduce attempts that wait for a map output that is made again
// can't keep it from being made.
const (
	mapSlot    = 0 // plan, map
	reduceSlot = 1 // reduce, commit, abort
	kinds      = 2
)

func kindOf(s Stage) int {
	if s == Plan || s == Map {
		return mapSlot
	}
	return reduceSlot
}

// room is what a worker, or the best of several, has for attempts of a kind.
type room struct {
	score int32 // how good a choice it is; 0 if no slot is free
	share int32 // the same if a slot's share of the memory is free too, else 0
	mem   int64 // free bytes, if a slot is free; else -1
}

// score prefers those with the larger part of their slots free, and of these the larger.
func score(free, slots int) int32 {
	free, slots = min(free, 1<<20-1), min(slots, 1<<20-1)
	return int32(free*1023/slots<<20 | free)
}

var noRoom = room{mem: -1}

// pool finds the worker with the best score among many: a tournament, whose
// nodes hold the best of their two children.
type pool struct {
	kind    int
	members []*worker // by leaf
	free    []int     // leaves that nobody has
	size    int       // leaves, a power of two
	tree    []room    // 1 is the root; leaf i is size+i
}

func newPool(kind int) *pool {
	return &pool{kind: kind, size: 1, tree: []room{noRoom, noRoom}}
}

// seat is a worker's leaf in a pool.
type seat struct {
	pool *pool
	leaf int
}

func (p *pool) join(w *worker) seat {
	var leaf int
	if n := len(p.free); n > 0 {
		leaf = p.free[n-1]
		p.free = p.free[:n-1]
		p.members[leaf] = w
	} else {
		leaf = len(p.members)
		p.members = append(p.members, w)
		if leaf >= p.size {
			p.grow()
		}
	}
	p.set(leaf, w.room(p.kind))
	return seat{p, leaf}
}

func (p *pool) leave(leaf int) {
	p.set(leaf, noRoom)
	p.members[leaf] = nil
	p.free = append(p.free, leaf)
}

// widen makes leaves up to that one, for a pool that is used without members.
func (p *pool) widen(leaf int) {
	for leaf >= p.size {
		p.grow()
	}
}

func (p *pool) grow() {
	old, was := p.tree, p.size
	p.size *= 2
	p.tree = make([]room, 2*p.size)
	for i := range p.tree {
		p.tree[i] = noRoom
	}
	copy(p.tree[p.size:], old[was:])
	for i := p.size - 1; i > 0; i-- {
		p.tree[i] = better(p.tree[2*i], p.tree[2*i+1])
	}
}

func better(a, b room) room {
	return room{max(a.score, b.score), max(a.share, b.share), max(a.mem, b.mem)}
}

func (p *pool) set(leaf int, r room) {
	i := p.size + leaf
	if p.tree[i] == r {
		return
	}
	p.tree[i] = r
	for i /= 2; i > 0; i /= 2 {
		n := better(p.tree[2*i], p.tree[2*i+1])
		if p.tree[i] == n {
			return
		}
		p.tree[i] = n
	}
}

// any says whether a slot of any member is free.
func (p *pool) any() bool { return p.tree[1].score > 0 }

// patience bounds the nodes that best looks at for a better worker than it has.
const patience = 256

// search is one call of best.
type search struct {
	p        *pool
	need     int64
	not, nor *worker
	best     int32
	found    *worker
	steps    int
}

// best returns a member with the best score that has need bytes of free
// memory (0: its share of a slot) and is neither not nor nor. Where memory is scarce it may be a
// lesser one; nil only if there is none.
func (p *pool) best(need int64, not, nor *worker) *worker {
	s := search{p: p, need: need, not: not, nor: nor}
	s.visit(1)
	return s.found
}

func (s *search) bound(i int) int32 {
	r := &s.p.tree[i]
	if s.need == 0 {
		return r.share
	}
	if r.mem < s.need {
		return 0
	}
	return r.score
}

func (s *search) visit(i int) {
	if s.bound(i) <= s.best || s.found != nil && s.steps > patience {
		return
	}
	s.steps++
	if i >= s.p.size {
		w := s.p.members[i-s.p.size]
		if w == nil || w == s.not || w == s.nor {
			return
		}
		s.best, s.found = s.bound(i), w
		return
	}
	first, second := 2*i, 2*i+1
	if s.bound(second) > s.bound(first) {
		first, second = second, first
	}
	s.visit(first)
	s.visit(second)
}
