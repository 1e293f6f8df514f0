// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strings"
)

// paths finds the longest waiting split under a folder. The splits are ordered by path, so that those of a
// folder follow each other, and a tournament over them holds the least rank of each range.
type paths struct {
	splits []Split
	// The rest is made when the first worker that is near a folder is asked about.
	order  []uint32 // tasks by path
	place  []uint32 // the inverse
	size   int      // leaves
	tree   []uint32 // least rank of waiting tasks; none if there are none
	ranges map[string][2]int

	// What anyNear found last; splits of a file follow each other.
	lastPath   string
	lastGroups uint64
	lastNear   bool
}

const none = math.MaxUint32

// newPaths returns nil if no split has a path.
func newPaths(splits []Split) *paths {
	for i := range splits {
		if splits[i].Path != "" {
			return &paths{splits: splits}
		}
	}
	return nil
}

// under says whether a path is a folder, or in it.
func under(path, folder string) bool {
	return strings.HasPrefix(path, folder) && (len(path) == len(folder) || path[len(folder)] == '/')
}

// byPath compares paths as if each ended with a slash, so that what is under a folder
// stands together and behind the folder's own name.
func byPath(a, b string) int {
	n := min(len(a), len(b))
	if c := strings.Compare(a[:n], b[:n]); c != 0 || len(a) == len(b) {
		return c
	}
	if len(a) < len(b) {
		if b[n] < '/' {
			return 1
		}
		return -1
	}
	if a[n] < '/' {
		return -1
	}
	return 1
}

// build makes the order. Tasks that wait already are in st.
func (p *paths) build(st *stage) {
	n := len(p.splits)
	p.order, p.place = make([]uint32, n), make([]uint32, n)
	for i := range p.order {
		p.order[i] = uint32(i)
	}
	slices.SortFunc(p.order, func(a, b uint32) int {
		if c := byPath(p.splits[a].Path, p.splits[b].Path); c != 0 {
			return c
		}
		return cmp.Compare(a, b)
	})
	for at, i := range p.order {
		p.place[i] = uint32(at)
	}
	p.ranges = map[string][2]int{}
	p.size = 1
	for p.size < n {
		p.size *= 2
	}
	p.tree = make([]uint32, 2*p.size)
	for i := range p.tree {
		p.tree[i] = none
	}
	for i := range st.tasks {
		if q := st.tasks[i].queue; q != unqueued && q != backoff {
			p.tree[p.size+int(p.place[i])] = uint32(st.rankOf(uint32(i)))
		}
	}
	for i := p.size - 1; i > 0; i-- {
		p.tree[i] = min(p.tree[2*i], p.tree[2*i+1])
	}
}

// set notes whether a task waits.
func (p *paths) set(st *stage, i uint32, waits bool) {
	if p.order == nil {
		return
	}
	v := uint32(none)
	if waits {
		v = uint32(st.rankOf(i))
	}
	at := p.size + int(p.place[i])
	if p.tree[at] == v {
		return
	}
	p.tree[at] = v
	for at /= 2; at > 0; at /= 2 {
		n := min(p.tree[2*at], p.tree[2*at+1])
		if p.tree[at] == n {
			return
		}
		p.tree[at] = n
	}
}

// least returns the least rank of waiting tasks under a folder, or none.
func (p *paths) least(st *stage, folder string) uint32 {
	if p.order == nil {
		p.build(st)
	}
	r, ok := p.ranges[folder]
	if !ok {
		r[0] = sort.Search(len(p.order), func(k int) bool { return byPath(p.splits[p.order[k]].Path, folder) >= 0 })
		r[1] = r[0] + sort.Search(len(p.order)-r[0], func(k int) bool { return !under(p.splits[p.order[r[0]+k]].Path, folder) })
		p.ranges[folder] = r
	}
	best := uint32(none)
	for lo, hi := p.size+r[0], p.size+r[1]; lo < hi; lo, hi = lo/2, hi/2 {
		if lo%2 == 1 {
			best = min(best, p.tree[lo])
			lo++
		}
		if hi%2 == 1 {
			hi--
			best = min(best, p.tree[hi])
		}
	}
	return best
}

// nearTo calls do for each group of workers near a path, the nearest first, until it returns false.
func (f *fleet) nearTo(path string, do func(*group) bool) {
	if len(f.groups) == 0 || path == "" {
		return
	}
	for {
		if g := f.groups[path]; g != nil && !do(g) {
			return
		}
		if path == "" {
			return
		}
		cut := strings.LastIndexByte(path, '/')
		if cut < 0 {
			return
		}
		path = path[:cut]
	}
}

// anyNear says whether a worker is near a split.
func (p *paths) anyNear(s *State, j *job, i uint32) bool {
	if p == nil {
		return false
	}
	f := s.fleetOf(j)
	if len(f.groups) == 0 {
		return false
	}
	path := p.splits[i].Path
	if path != p.lastPath || s.groupChanges != p.lastGroups {
		p.lastPath, p.lastGroups, p.lastNear = path, s.groupChanges, false
		f.nearTo(path, func(*group) bool { p.lastNear = true; return false })
	}
	return p.lastNear
}

// longest returns the longest waiting split near one of the groups.
func (p *paths) longest(st *stage, groups []*group) (uint32, bool) {
	best := uint32(none)
	for _, g := range groups {
		best = min(best, p.least(st, g.folder))
	}
	if best == none {
		return 0, false
	}
	return st.taskAt(int(best)), true
}

// pair looks for a waiting split and a worker near it that is free.
func (p *paths) pair(f *fleet, st *stage, need int64) (uint32, *worker, bool) {
	n := len(f.groupList)
	for k := range n {
		// From where it was found last, since much is there as a rule.
		at := (f.groupCursor + k) % n
		g := f.groupList[at]
		if !g.pool.any() {
			continue
		}
		r := p.least(st, g.folder)
		if r == none {
			continue
		}
		i := st.taskAt(int(r))
		if w := g.pool.best(need, st.tasks[i].avoid, nil); w != nil {
			f.groupCursor = at
			return i, w, true
		}
	}
	return 0, nil, false
}

// home returns a free worker near a split, or nil.
func (p *paths) home(f *fleet, i uint32, need int64) (w *worker) {
	f.nearTo(p.splits[i].Path, func(g *group) bool {
		w = g.pool.best(need, nil, nil)
		return w == nil
	})
	return w
}
