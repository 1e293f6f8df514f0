// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// reporter is what tests and rapid's checks have in common.
type reporter interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// rig is the programs and their memory without an interface: packets are given to
// them by test runs.
type rig struct {
	t        reporter
	cpus     int
	limits   shuffle.Limits
	maps     map[string]*ebpf.Map
	programs map[string]*ebpf.Program
	memory   *shuffle.Memory
	settings *wire.Settings
	sets     []*rigSet
	mappings [][]byte
	out      []byte
}

type rigSet struct {
	layout   shuffle.TableLayout
	outer    *ebpf.Map
	programs map[string]*ebpf.Program
	next     int
}

// needRoot skips tests that load programs where that is not allowed.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loading programs needs root (or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON); run as root")
	}
	_ = rlimit.RemoveMemlock()
}

// newRig loads the programs that are always there.
func newRig(t testing.TB, limits shuffle.Limits) *rig {
	t.Helper()
	needRoot(t)
	r := &rig{
		t: t, cpus: runtime.NumCPU(), limits: limits.EnsureDefaults(),
		maps: map[string]*ebpf.Map{}, programs: map[string]*ebpf.Program{},
		out: make([]byte, 1<<16),
	}
	t.Cleanup(r.close)
	for _, o := range []struct{ object, program string }{
		{"dispatch", "quern_dispatch"},
		{"ack", "quern_ack"},
		{"absorb", "quern_absorb"},
		{"answer_tc", "quern_answer_tc"},
		{"pass", "quern_pass"},
	} {
		spec := r.spec(o.object)
		if v, ok := spec.Variables["cpus"]; ok {
			r.check(v.Set(uint32(r.cpus)))
		}
		for name, p := range r.load(spec, o.program).programs {
			r.programs[name] = p
		}
	}
	r.check(r.maps["chain"].Put(uint32(0), r.programs["quern_ack"]))
	r.check(r.maps["chain"].Put(uint32(1), r.programs["quern_absorb"]))
	r.memory = &shuffle.Memory{
		CPUs:     r.cpus,
		Streams:  mapped[wire.Stream](r, "streams", r.limits.Streams),
		Targets:  make([]wire.Target, r.limits.Targets),
		Cells:    mapped[wire.Cell](r, "cells", r.limits.Targets*r.cpus),
		Outgoing: mapped[wire.Outgoing](r, "outgoing", r.limits.Outgoing),
	}
	r.settings = &mapped[wire.Settings](r, "config", 1)[0]
	binary.BigEndian.PutUint16(r.settings.Port[:], shuffle.Port)
	return r
}

func (r *rig) check(err error) {
	if err != nil {
		r.t.Helper()
		var v *ebpf.VerifierError
		if errors.As(err, &v) {
			err = fmt.Errorf("%+v", v)
		}
		r.t.Fatal(err)
	}
}

func (r *rig) spec(object string) *ebpf.CollectionSpec {
	spec, err := objects[object].load()
	r.check(err)
	for name, n := range map[string]int{
		"streams": r.limits.Streams, "cells": r.limits.Targets * r.cpus, "outgoing": r.limits.Outgoing, "jobs": r.limits.Jobs,
	} {
		if m := spec.Maps[name]; m != nil {
			m.MaxEntries = uint32(n)
		}
	}
	return spec
}

type rigLoaded struct {
	programs map[string]*ebpf.Program
	tables   *ebpf.Map
}

func (r *rig) load(spec *ebpf.CollectionSpec, programs ...string) rigLoaded {
	r.t.Helper()
	for name := range spec.Programs {
		if !slices.Contains(programs, name) {
			delete(spec.Programs, name)
		}
	}
	replace := map[string]*ebpf.Map{}
	for name, m := range r.maps {
		if spec.Maps[name] != nil {
			replace[name] = m
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replace})
	r.check(err)
	defer c.Close()
	l := rigLoaded{programs: map[string]*ebpf.Program{}}
	for _, name := range programs {
		if l.programs[name] = c.DetachProgram(name); l.programs[name] == nil {
			r.t.Fatalf("no program %s", name)
		}
	}
	for name := range c.Maps {
		switch {
		case name == "tables":
			l.tables = c.DetachMap(name)
		case r.maps[name] == nil && name[0] != '.':
			r.maps[name] = c.DetachMap(name)
		}
	}
	return l
}

func mapped[T any](r *rig, name string, n int) []T {
	var e T
	b := r.mmap(r.maps[name], n*int(unsafe.Sizeof(e)))
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n)
}

func (r *rig) mmap(m *ebpf.Map, size int) []byte {
	r.t.Helper()
	page := os.Getpagesize()
	b, err := unix.Mmap(m.FD(), 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		r.t.Fatalf("map %v into memory: %v", m, err)
	}
	r.mappings = append(r.mappings, b)
	return b[:size]
}

func (r *rig) close() {
	for _, b := range r.mappings {
		_ = unix.Munmap(b)
	}
	for _, m := range r.maps {
		_ = m.Close()
	}
	for _, p := range r.programs {
		_ = p.Close()
	}
	for _, s := range r.sets {
		_ = s.outer.Close()
		for _, p := range s.programs {
			_ = p.Close()
		}
	}
}

func (r *rig) SetJob(slot int, keys *wire.Job) error { return r.maps["jobs"].Put(uint32(slot), keys) }

func (r *rig) Memory() *shuffle.Memory { return r.memory }

// setNames returns the programs of a layout in the order of the chain.
func setNames(l shuffle.TableLayout) [4]string {
	if l.Dense {
		return [4]string{"", "apply_dense_n", "", "apply_dense_w"}
	}
	s := fmt.Sprintf("c%d_l%d", l.Class, l.Lanes)
	return [4]string{"find_" + s + "_n", "apply_" + s + "_n", "find_" + s + "_w", "apply_" + s + "_w"}
}

func (r *rig) set(layout shuffle.TableLayout) (int, *rigSet) {
	r.t.Helper()
	for i, s := range r.sets {
		if s.layout == layout {
			return i, s
		}
	}
	spec := r.spec("fold")
	r.check(spec.Variables["slot_bits"].Set(uint32(layout.Bits)))
	spec.Maps["tables"].MaxEntries = 64
	spec.Maps["tables"].InnerMap.ValueSize = uint32(layout.Size())
	var names []string
	for _, name := range setNames(layout) {
		if name != "" {
			names = append(names, name)
		}
	}
	l := r.load(spec, names...)
	s := &rigSet{layout: layout, outer: l.tables, programs: l.programs}
	id := len(r.sets)
	r.sets = append(r.sets, s)
	for i, name := range setNames(layout) {
		if name != "" {
			r.check(r.maps["chain"].Put(uint32(chainSets+4*id+i), s.programs[name]))
		}
	}
	return id, s
}

// NewTables makes empty tables.
func (r *rig) NewTables(layout shuffle.TableLayout, n int) ([]*shuffle.Table, error) {
	r.t.Helper()
	id, s := r.set(layout)
	var all []*shuffle.Table
	for range n {
		m, err := ebpf.NewMap(&ebpf.MapSpec{
			Name: "table", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(layout.Size()), MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE,
		})
		if err != nil {
			return nil, err
		}
		if err := s.outer.Put(uint32(s.next), m); err != nil {
			return nil, err
		}
		all = append(all, &shuffle.Table{ID: shuffle.TableID(id<<24 | s.next), Layout: layout, Memory: r.mmap(m, layout.Size())})
		s.next++
		_ = m.Close()
	}
	return all, nil
}

// Reasons returns how often programs ended for each reason.
func (r *rig) Reasons() (sum [wire.Reasons]uint64, err error) {
	for i := range sum {
		var each []uint64
		if err := r.maps["reasons"].Lookup(uint32(i), &each); err != nil {
			return sum, err
		}
		for _, n := range each {
			sum[i] += n
		}
	}
	return sum, nil
}

// run gives a packet to the dispatcher and returns what came of it.
func (r *rig) run(packet []byte) (verdict uint32, out []byte) {
	r.t.Helper()
	return r.runProgram(r.programs["quern_dispatch"], packet)
}

func (r *rig) runProgram(p *ebpf.Program, packet []byte) (verdict uint32, out []byte) {
	r.t.Helper()
	o := ebpf.RunOptions{Data: packet, DataOut: r.out[:cap(r.out)]}
	verdict, err := p.Run(&o)
	if err != nil {
		r.t.Fatalf("test run: %v", err)
	}
	return verdict, o.DataOut
}

// onCPU keeps the goroutine on a CPU for the time of a test: cells and tables are
// a CPU's own.
func onCPU(t testing.TB, cpu int) {
	t.Helper()
	runtime.LockOSThread()
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.SchedSetaffinity(0, &before)
		runtime.UnlockOSThread()
	})
}
