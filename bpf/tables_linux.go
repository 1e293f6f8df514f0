// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// maxTable is the most bytes of one table.
const maxTable = 512 << 20

// set is what tables of one layout share: the programs that fold into them,
// and the map that those find them in.
type set struct {
	id       int
	layout   shuffle.TableLayout
	outer    *ebpf.Map
	programs map[string]*ebpf.Program
	next     uint32   // no index from here on was given out
	free     []uint32 // given back
}

func (s *set) close() {
	if s.outer != nil {
		_ = s.outer.Close()
	}
	for _, p := range s.programs {
		_ = p.Close()
	}
}

// normal returns a layout without the fields that don't count.
func normal(l shuffle.TableLayout) shuffle.TableLayout {
	if l.Dense {
		l.Class, l.Lanes = 0, 0
	}
	return l
}

func checkLayout(l shuffle.TableLayout) error {
	switch {
	case l.Bits < 1,
		!l.Dense && (l.Class < 0 || l.Class >= wire.Classes || l.Lanes < 1 || l.Lanes > wire.MaxLanes || l.Bits > wire.MaxBits),
		l.Dense && l.Bits > 25,
		l.Size() > maxTable:
		return fmt.Errorf("no programs fold into tables of %d lanes, key class %d, 2^%d places", l.Lanes, l.Class, l.Bits)
	}
	return nil
}

// foldPrograms names the programs of a layout in the order of the chain: find and
// apply of narrow values, then of wide ones. There is nothing to find in a dense table.
func foldPrograms(l shuffle.TableLayout) [4]string {
	if l.Dense {
		return [4]string{"", "apply_dense_n", "", "apply_dense_w"}
	}
	shape := fmt.Sprintf("c%d_l%d", l.Class, l.Lanes)
	return [4]string{"find_" + shape + "_n", "apply_" + shape + "_n", "find_" + shape + "_w", "apply_" + shape + "_w"}
}

// capacity is the number of tables that a set has room for: two for every cell,
// one in use and one for the next flip, and some beside.
func (l *loader) capacity() int { return min(2*l.limits.Targets*l.cpus+64, 1<<20) }

// tableSpec is what a table is to the kernel.
func tableSpec(layout shuffle.TableLayout) *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name:       "table",
		Type:       ebpf.Array,
		KeySize:    4,
		ValueSize:  uint32(layout.Size()),
		MaxEntries: 1,
		Flags:      unix.BPF_F_MMAPABLE,
	}
}

// tableCost is what a table takes of the kernel's memory.
func tableCost(layout shuffle.TableLayout) int64 {
	return int64(pageAlign(layout.Size()) + os.Getpagesize())
}

// newSet loads the programs of a layout. The kernel's check of one takes up to 100 ms, so
// they are loaded side by side.
func (l *loader) newSet(id int, layout shuffle.TableLayout) (_ *set, err error) {
	spec, err := l.spec("fold")
	if err != nil {
		return nil, err
	}
	if err := setConstant(spec, "slot_bits", uint64(layout.Bits)); err != nil {
		return nil, err
	}
	tables, ok := spec.Maps["tables"]
	if !ok {
		return nil, errors.New("object fold has no map of tables")
	}
	tables.MaxEntries = uint32(l.capacity())
	tables.InnerMap = tableSpec(layout)
	s := &set{id: id, layout: layout, programs: map[string]*ebpf.Program{}}
	if s.outer, err = ebpf.NewMap(tables); err != nil {
		return nil, fmt.Errorf("make map tables: %w", kernelError(err))
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, name := range foldPrograms(layout) {
		if name == "" {
			continue
		}
		own := spec.Copy()
		all.Go(func() {
			c, lerr := l.collection(own, map[string]*ebpf.Map{"tables": s.outer}, name)
			mu.Lock()
			defer mu.Unlock()
			if lerr != nil {
				err = errors.Join(err, lerr)
				return
			}
			s.programs[name] = c.DetachProgram(name)
			c.Close()
		})
	}
	all.Wait()
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// set returns the set of a layout, which it makes if there is none.
func (h *Host) set(layout shuffle.TableLayout) (*set, error) {
	for _, s := range h.sets {
		if s.layout == layout {
			return s, nil
		}
	}
	if len(h.sets) == maxSets {
		return nil, fmt.Errorf("%d layouts of tables are in use already, which is all that there is room for", maxSets)
	}
	s, err := h.loader.newSet(len(h.sets), layout)
	if err != nil {
		return nil, fmt.Errorf("programs for %s: %w", layout, err)
	}
	// The programs are in the chain before any cell can name the set, and pinned
	// last: a set that is pinned is whole.
	var chain [4]*ebpf.Program
	for i, name := range foldPrograms(layout) {
		chain[i] = s.programs[name]
	}
	if err = h.loader.link(chainSets+4*s.id, chain[:]...); err == nil && h.inst != nil {
		err = h.inst.pinSet(h.state.Live, s)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("programs for %s: %w", layout, err)
	}
	h.sets = append(h.sets, s)
	return s, nil
}

// NewTables makes n empty tables, and loads the programs of their layout if they are the
// first of it. An error that wraps ErrBudget says how much is missing; then, as after
// any other error, there are no new tables.
func (h *Host) NewTables(layout shuffle.TableLayout, n int) ([]*shuffle.Table, error) {
	layout = normal(layout)
	if err := checkLayout(layout); err != nil {
		return nil, err
	}
	done, err := h.use()
	if err != nil {
		return nil, err
	}
	defer done()
	h.mu.Lock()
	defer h.mu.Unlock()
	if n <= 0 {
		return nil, nil
	}
	cost := tableCost(layout)
	if need := h.used + int64(n)*cost; need > h.opts.TableMemory {
		return nil, fmt.Errorf("%w: %d tables of %s take %s beside the %s of those there are, which is %s more than --%s allows (%s)",
			ErrBudget, n, layout, mib(int64(n)*cost), mib(h.used), mib(need-h.opts.TableMemory), TableMemorySetting, mib(h.opts.TableMemory))
	}
	s, err := h.set(layout)
	if err != nil {
		return nil, err
	}
	tables, err := h.newTables(s, n)
	if err != nil {
		return nil, fmt.Errorf("make %d tables of %s: %w", n, layout, err)
	}
	h.used += int64(n) * cost
	for _, t := range tables {
		h.tables[t.ID] = t
	}
	return tables, nil
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

func (h *Host) newTables(s *set, n int) (tables []*shuffle.Table, err error) {
	free, next := s.free, s.next
	var keys []uint32
	var fds []uint32
	var inner []*ebpf.Map
	defer func() {
		// Programs find tables through the map of maps, and the mapping holds them.
		for _, m := range inner {
			_ = m.Close()
		}
		if err == nil {
			return
		}
		for _, t := range tables {
			err = errors.Join(err, h.unmap(t.Memory))
			if h.inst != nil {
				err = errors.Join(err, removeIfThere(h.inst.tablePath(h.state.Live, t.ID)))
			}
		}
		for _, k := range keys {
			_ = s.outer.Delete(k) // those that were added
		}
		tables, s.free, s.next = nil, free, next
	}()
	for range n {
		var index uint32
		if len(s.free) > 0 {
			index, s.free = s.free[len(s.free)-1], s.free[:len(s.free)-1]
		} else if index = s.next; int(index) < h.loader.capacity() {
			s.next++
		} else {
			return tables, fmt.Errorf("%d tables of one layout are all that there is room for; raise the limit of targets", h.loader.capacity())
		}
		m, err := ebpf.NewMap(tableSpec(s.layout))
		if err != nil {
			return tables, kernelError(err)
		}
		inner = append(inner, m)
		b, err := h.mapMemory(m, s.layout.Size())
		if err != nil {
			return tables, err
		}
		t := &shuffle.Table{ID: shuffle.TableID(uint32(s.id)<<24 | index), Layout: s.layout, Memory: b}
		tables = append(tables, t)
		if h.inst != nil {
			// Pinned before it is in the map of maps; see resumeTables.
			if err := m.Pin(h.inst.tablePath(h.state.Live, t.ID)); err != nil {
				return tables, fmt.Errorf("pin a table: %w", err)
			}
		}
		keys = append(keys, index)
		fds = append(fds, uint32(m.FD()))
	}
	// All in one: the kernel waits for running programs after every update, some 10 ms.
	if _, err := s.outer.BatchUpdate(keys, fds, nil); err != nil {
		if !errors.Is(err, ebpf.ErrNotSupported) && !errors.Is(err, unix.EINVAL) {
			return tables, fmt.Errorf("add tables: %w", err)
		}
		for i, k := range keys {
			if err := s.outer.Update(k, inner[i], ebpf.UpdateAny); err != nil {
				return tables, fmt.Errorf("add a table: %w", err)
			}
		}
	}
	runtime.KeepAlive(inner)
	return tables, nil
}

// FreeTable frees a table that no cell has named since the last Quiesce. Its memory
// is unmapped, and its number may be given to another.
func (h *Host) FreeTable(t *shuffle.Table) error {
	done, err := h.use()
	if err != nil {
		return err
	}
	defer done()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tables[t.ID] != t {
		return fmt.Errorf("table %#x is not one of %s", uint32(t.ID), h)
	}
	for i := range h.memory.Cells {
		for class := range h.memory.Cells[i].Table {
			if atomic.LoadUint32(&h.memory.Cells[i].Table[class]) == uint32(t.ID)+1 {
				return fmt.Errorf("table %#x is in use: cell %d names it", uint32(t.ID), i)
			}
		}
	}
	s, index := h.sets[t.ID>>24], uint32(t.ID)&(1<<24-1)
	if err := s.outer.Delete(index); err != nil {
		return fmt.Errorf("free table %#x: %w", uint32(t.ID), err)
	}
	delete(h.tables, t.ID)
	h.before = slices.DeleteFunc(h.before, func(b *shuffle.Table) bool { return b == t })
	s.free = append(s.free, index)
	h.used -= tableCost(t.Layout)
	err = h.unmap(t.Memory)
	if h.inst != nil {
		err = errors.Join(err, removeIfThere(h.inst.tablePath(h.state.Live, t.ID)))
	}
	if err != nil {
		return fmt.Errorf("free table %#x: %w", uint32(t.ID), err)
	}
	return nil
}

// Tables returns the tables that were there when the state of an earlier process was
// taken up, by number, without those that were freed since.
func (h *Host) Tables() []*shuffle.Table {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.before)
}

// TableBytes returns what tables take of the kernel's memory, and the most they may.
func (h *Host) TableBytes() (used, limit int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.used, h.opts.TableMemory
}

func (h *Host) unmap(memory []byte) error {
	for i, b := range h.mapped {
		if &b[0] == &memory[0] {
			h.mapped = slices.Delete(h.mapped, i, i+1)
			return unix.Munmap(b)
		}
	}
	return errors.New("memory is not mapped")
}
