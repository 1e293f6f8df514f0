// SPDX-License-Identifier: Apache-2.0

package schedule

import "slices"

// fleet is workers among which a job finds its own: all of them, or those of a platform. With one
// per platform a search never passes over workers that can't run what is looked for.
type fleet struct {
	platform    string
	members     int // that have said hello
	usable      int // those that may be given something
	pools       [kinds]*pool
	capacities  *pool // by worker.index
	groups      map[string]*group
	groupList   []*group
	groupCursor int // where paths.pair looks first
}

func newFleet(platform string) *fleet {
	f := &fleet{platform: platform, capacities: newPool(mapSlot), groups: map[string]*group{}}
	for k := range f.pools {
		f.pools[k] = newPool(k)
	}
	return f
}

// fleetOf returns the workers that can run a job.
func (s *State) fleetOf(j *job) *fleet {
	if j.Platform == "" {
		return s.all
	}
	if f := s.fleets[j.Platform]; f != nil {
		return f
	}
	return s.nobody
}

// enlist has a worker, which must not be seated, be in the fleet of a platform ("": in none).
func (s *State) enlist(w *worker, platform string) {
	old := w.fleet
	if old != nil && old.platform == platform {
		return
	}
	if old != nil {
		old.setCapacity(w, noRoom)
		old.members--
		if w.counted {
			old.usable--
		}
		if old.members == 0 {
			delete(s.fleets, old.platform)
		}
		w.fleet = nil
	}
	w.Platform = platform
	if platform == "" {
		return
	}
	f := s.fleets[platform]
	if f == nil {
		f = newFleet(platform)
		s.fleets[platform] = f
	}
	f.members++
	if w.counted {
		f.usable++
	}
	w.fleet = f
}

// count notes whether a worker may be given something.
func (s *State) count(w *worker, usable bool) {
	w.counted = usable
	n := 1
	if !usable {
		n = -1
	}
	s.all.usable += n
	if w.fleet != nil {
		w.fleet.usable += n
	}
}

// setCapacity says whether what the fleet could do at best has changed.
func (f *fleet) setCapacity(w *worker, r room) bool {
	f.capacities.widen(w.index)
	was := f.capacities.tree[1]
	f.capacities.set(w.index, r)
	return f.capacities.tree[1] != was
}

// seat gives a worker its seats in a fleet, and returns its groups there.
func (s *State) seat(f *fleet, w *worker) []*group {
	var groups []*group
	for k := range w.seats {
		w.seats[k] = append(w.seats[k], f.pools[k].join(w))
	}
	for _, l := range w.Local {
		g := f.groups[l]
		if g == nil {
			g = &group{folder: l, pool: newPool(mapSlot)}
			s.groupChanges++
			f.groups[l] = g
			f.groupList = append(f.groupList, g)
		}
		g.members++
		groups = append(groups, g)
		w.seats[mapSlot] = append(w.seats[mapSlot], g.pool.join(w))
	}
	return groups
}

// ungroup takes a worker out of its groups in a fleet.
func (s *State) ungroup(f *fleet, groups []*group) {
	for _, g := range groups {
		g.members--
		if g.members == 0 {
			s.groupChanges++
			delete(f.groups, g.folder)
			f.groupList = slices.DeleteFunc(f.groupList, func(x *group) bool { return x == g })
		}
	}
}
