// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/quernmr/quern/shuffle"
)

// resume takes up what an earlier process has pinned. why says why not, "" if it
// was taken up; what was opened until then is for drop.
func (h *Host) resume() (why string, err error) {
	s, err := h.inst.readState()
	if err != nil {
		return "", err
	}
	if s == nil {
		return nothingThere, nil
	}
	now, err := h.describe()
	if err != nil {
		return "", err
	}
	if why := s.differs(&now); why != "" {
		return why, nil
	}
	h.state = *s
	if err := h.resumeShared(); err != nil {
		return "", err
	}
	if why, err := h.resumeLinks(); why != "" || err != nil {
		return why, err
	}
	if err := h.mapShared(); err != nil {
		return "", err
	}
	if err := h.resumeReduces(); err != nil {
		return "", err
	}
	if err := h.resumeBroadcasts(); err != nil {
		return "", err
	}
	if err := h.resumeSets(); err != nil {
		return "", err
	}
	return "", h.resumeTables()
}

// differs says what keeps state from being taken up, or "".
func (s *state) differs(now *state) string {
	devices := func(s *state) (names []string) {
		for _, d := range s.Devices {
			names = append(names, fmt.Sprintf("%s (%d)", d.Name, d.Index))
		}
		return names
	}
	for _, c := range []struct {
		what      string
		old, here any
	}{
		{"format of state", s.Format, now.Format},
		{"boot", s.Boot, now.Boot},
		{"programs", s.Digest, now.Digest},
		{"network namespace", s.Netns, now.Netns},
		{"interfaces", fmt.Sprint(devices(s)), fmt.Sprint(devices(now))},
		{"XDP mode", s.XDP, now.XDP},
		{"port", s.Port, now.Port},
		{"limits", s.Limits, now.Limits},
		{"number of processors", s.CPUs, now.CPUs},
	} {
		if c.old != c.here {
			return fmt.Sprintf("it was of another %s: %v, now %v", c.what, c.old, c.here)
		}
	}
	return ""
}

func (h *Host) resumeShared() error {
	programs, has := basePrograms, forFold
	if h.state.NoBroadcasts == "" {
		programs, has = slices.Concat(programs, broadcastPrograms), forBroadcasts
	}
	if h.state.NoReduces == "" {
		programs, has = slices.Concat(programs, reducePrograms), forReduces
	}
	for name, s := range sharedMaps {
		if s.need > has {
			continue
		}
		m, err := loadMap(h.inst.path(h.state.Live, "maps", name))
		if err != nil {
			return err
		}
		h.loader.shared[name] = m
	}
	for _, p := range programs {
		program, err := loadProgram(h.inst.path(h.state.Live, "programs", p.program))
		if err != nil {
			return err
		}
		h.programs[p.program] = program
	}
	return nil
}

func (h *Host) resumeLinks() (why string, err error) {
	for i, d := range h.devices {
		l, err := link.LoadPinnedLink(h.inst.path(h.state.Live, "links", linkName("xdp", i)), nil)
		if err != nil {
			return "", fmt.Errorf("open a pinned link: %w", err)
		}
		h.links = append(h.links, l)
		if !d.attached(l) {
			return fmt.Sprintf("its program is not on %s any more", d.Name), nil
		}
	}
	h.answers.filter, h.clones.filter = h.state.Filter, h.state.CloneFilter
	for _, k := range []*hooked{&h.answers, &h.clones} {
		// A filter is recorded before it is there, and nothing but its name says that it is ours: it is put there again.
		for _, d := range h.devices {
			if !k.filter {
				break
			}
			err := h.inNetns(func() error {
				_, err := d.attachHook(k.hook, h.programs[k.program], true)
				return err
			})
			if err != nil {
				return "", err
			}
		}
		for i := range h.devices {
			path := h.inst.path(h.state.Live, "links", linkName(k.kind, i))
			if _, err := os.Lstat(path); err != nil {
				continue // nothing was attached there
			}
			l, err := link.LoadPinnedLink(path, nil)
			if err != nil {
				return "", fmt.Errorf("open a pinned link: %w", err)
			}
			k.links = append(k.links, l)
		}
		if n := len(k.links); n != 0 && n != len(h.devices) {
			return fmt.Sprintf("%s is not on all interfaces", k.program), nil
		}
	}
	return "", nil
}

func (h *Host) resumeSets() error {
	list, err := h.inst.pins(h.state.Live, "sets")
	if err != nil {
		return fmt.Errorf("list pinned sets: %w", err)
	}
	for _, e := range list {
		s, err := parseSetName(e.Name())
		if err != nil {
			return err
		}
		dir := h.inst.path(h.state.Live, "sets", e.Name())
		h.sets = append(h.sets, s)
		if s.outer, err = loadMap(dir + "/tables"); err != nil {
			return err
		}
		s.programs = map[string]*ebpf.Program{}
		for _, name := range foldPrograms(s.layout) {
			if name == "" {
				continue
			}
			if s.programs[name], err = loadProgram(dir + "/" + name); err != nil {
				return err
			}
		}
	}
	slices.SortFunc(h.sets, func(a, b *set) int { return cmp.Compare(a.id, b.id) })
	for i, s := range h.sets {
		if s.id != i {
			return fmt.Errorf("of the pinned sets there is no number %d", i)
		}
	}
	return nil
}

// resumeTables finds the tables. One that is pinned and not in its map of maps, or
// the other way round, was being made or freed when the process ended; no cell names it.
func (h *Host) resumeTables() error {
	list, err := h.inst.pins(h.state.Live, "tables")
	if err != nil {
		return fmt.Errorf("list pinned tables: %w", err)
	}
	for _, e := range list {
		n, err := strconv.ParseUint(e.Name(), 16, 32)
		id := shuffle.TableID(n)
		if err != nil || int(id>>24) >= len(h.sets) {
			return fmt.Errorf("pinned table %q has no name of ours", e.Name())
		}
		s, index := h.sets[id>>24], uint32(id)&(1<<24-1)
		path := h.inst.tablePath(h.state.Live, id)
		m, err := loadMap(path)
		if err != nil {
			return err
		}
		var there uint32
		info, err := m.Info()
		if err == nil {
			err = s.outer.Lookup(index, &there)
		}
		mine, _ := idOf(info)
		if err != nil || there != mine {
			_ = m.Close()
			if err := removeIfThere(path); err != nil {
				return fmt.Errorf("remove a half-made table: %w", err)
			}
			continue
		}
		b, err := h.mapMemory(m, s.layout.Size())
		_ = m.Close()
		if err != nil {
			return fmt.Errorf("map table %s: %w", e.Name(), err)
		}
		t := &shuffle.Table{ID: id, Layout: s.layout, Memory: b}
		h.tables[id] = t
		h.before = append(h.before, t)
		h.used += tableCost(s.layout)
	}
	slices.SortFunc(h.before, func(a, b *shuffle.Table) int { return cmp.Compare(a.ID, b.ID) })
	for _, s := range h.sets {
		if err := h.resumeFree(s); err != nil {
			return err
		}
	}
	return nil
}

// resumeFree finds out which numbers of a set may be given out.
func (h *Host) resumeFree(s *set) error {
	for index := range uint32(h.loader.capacity()) {
		var there uint32
		if err := s.outer.Lookup(index, &there); err != nil {
			continue // empty
		}
		if h.tables[shuffle.TableID(uint32(s.id)<<24|index)] == nil {
			if err := s.outer.Delete(index); err != nil {
				return fmt.Errorf("remove a half-made table: %w", err)
			}
			continue
		}
		for ; s.next < index; s.next++ {
			s.free = append(s.free, s.next)
		}
		s.next = index + 1
	}
	return nil
}

func idOf(info *ebpf.MapInfo) (uint32, bool) {
	if info == nil {
		return 0, false
	}
	id, ok := info.ID()
	return uint32(id), ok
}
