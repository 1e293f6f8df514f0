// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// Slots of the chain.
const (
	chainSize  = 1024
	chainAck   = 0 // and the absorber's is the next
	chainChunk = 2 // and the collector's and the pump's are the next
	chainPart  = 5 // what adds up parts, what completes blocks, and what stores results
	chainSets  = 8 // of set s: chainSets + 4 s + (2 if wide) + (1 if it applies)
	maxSets    = (chainSize - chainSets) / 4
)

// held keeps what programs hang on from being collected, though nobody refers to
// it: a link that is collected detaches its program.
var (
	heldMu sync.Mutex
	held   = map[any]struct{}{}
)

func hold(v any) {
	heldMu.Lock()
	defer heldMu.Unlock()
	held[v] = struct{}{}
}

func letGo(v any) {
	heldMu.Lock()
	defer heldMu.Unlock()
	delete(held, v)
}

// digest tells objects apart: state of other programs is not taken up.
var digest = sync.OnceValue(func() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		_ = binary.Write(h, binary.LittleEndian, int64(len(objects[name].code)))
		h.Write(objects[name].code)
	}
	return hex.EncodeToString(h.Sum(nil))
})

// object is what was made of one file of bpf/c.
type object struct {
	load func() (*ebpf.CollectionSpec, error)
	code []byte
}

var (
	specsMu sync.Mutex
	specs   = map[string]*ebpf.CollectionSpec{}
)

// read returns a copy of an object that the caller may change. Reading the largest takes 100 ms, so it is done once.
func (o object) read(name string) (*ebpf.CollectionSpec, error) {
	specsMu.Lock()
	defer specsMu.Unlock()
	if specs[name] == nil {
		spec, err := o.load()
		if err != nil {
			return nil, fmt.Errorf("read object %s: %w", name, err)
		}
		specs[name] = spec
	}
	return specs[name].Copy(), nil
}

// loader makes maps and programs of the objects.
type loader struct {
	cpus   int
	limits shuffle.Limits
	shared map[string]*ebpf.Map
}

// need says what has to have a map or a program. What has a higher number needs all of the lower ones too.
type need uint8

const (
	forFold need = iota
	forBroadcasts
	forReduces
)

// sharedMap is a map that objects share.
type sharedMap struct {
	size    uintptr                // of an element; 0: whatever the object says
	entries func(l *loader) uint32 // nil: as the object says
	need    need
}

// sharedMaps lists the maps that all objects share.
var sharedMaps = map[string]sharedMap{
	"config":   {unsafe.Sizeof(wire.Settings{}), nil, forFold},
	"jobs":     {unsafe.Sizeof(wire.Job{}), func(l *loader) uint32 { return uint32(l.limits.Jobs) }, forFold},
	"streams":  {unsafe.Sizeof(wire.Stream{}), func(l *loader) uint32 { return uint32(l.limits.Streams) }, forFold},
	"cells":    {unsafe.Sizeof(wire.Cell{}), func(l *loader) uint32 { return uint32(l.limits.Targets * l.cpus) }, forFold},
	"outgoing": {unsafe.Sizeof(wire.Outgoing{}), func(l *loader) uint32 { return uint32(l.limits.Outgoing) }, forFold},
	"reasons":  {8, nil, forFold},
	"nonces":   {8, nil, forFold},
	"chain":    {4, nil, forFold},
	"targets":  {unsafe.Sizeof(wire.Target{}), func(l *loader) uint32 { return uint32(l.limits.Targets) }, forFold},

	"regions":  {unsafe.Sizeof(wire.Region{}), func(l *loader) uint32 { return uint32(l.limits.Regions) }, forBroadcasts},
	"tokens":   {4, func(l *loader) uint32 { return uint32(l.limits.Regions + l.limits.Groups) }, forBroadcasts},
	"casts":    {unsafe.Sizeof(wire.Cast{}), func(l *loader) uint32 { return uint32(l.limits.Casts) }, forBroadcasts},
	"contents": {4, func(l *loader) uint32 { return uint32(l.contents()) }, forBroadcasts},
	"marks":    {8, func(l *loader) uint32 { return uint32(l.limits.Chunks) }, forBroadcasts},
	"events":   {0, nil, forBroadcasts},

	"groups": {unsafe.Sizeof(wire.Group{}), func(l *loader) uint32 { return uint32(l.limits.Groups) }, forReduces},
	"rounds": {0, nil, forReduces},
}

// basePrograms are always there. broadcastPrograms and reducePrograms are where the kernel can.
var (
	basePrograms      = []objectProgram{{"dispatch", dispatchProgram}, {"ack", ackProgram}, {"absorb", absorbProgram}, {"answer_tc", tcProgram}}
	broadcastPrograms = []objectProgram{{"chunk", chunkProgram}, {"collect", collectProgram}, {"pump", pumpProgram}, {"clone", cloneProgram}}
	reducePrograms    = []objectProgram{{"reduce", reduceProgram}, {"complete", completeProgram}, {"reduced", reducedProgram}}
)

type objectProgram struct{ object, program string }

// spec reads an object and fits its maps to the limits.
func (l *loader) spec(name string) (*ebpf.CollectionSpec, error) {
	o, ok := objects[name]
	if !ok {
		return nil, fmt.Errorf("%w: no programs for this kind of processor", ErrUnsupported)
	}
	spec, err := o.read(name)
	if err != nil {
		return nil, err
	}
	for name, m := range spec.Maps {
		s, ok := sharedMaps[name]
		if !ok {
			continue
		}
		if s.size != 0 && uintptr(m.ValueSize) != s.size {
			return nil, fmt.Errorf("object and Go disagree on map %s: %d bytes an element, and %d", name, m.ValueSize, s.size)
		}
		if s.entries != nil {
			m.MaxEntries = s.entries(l)
		}
	}
	return spec, nil
}

// setConstant sets a constant of the programs, if the object has it.
func setConstant(spec *ebpf.CollectionSpec, name string, v uint64) error {
	c, ok := spec.Variables[name]
	if !ok {
		return fmt.Errorf("object has no constant %s", name)
	}
	b := make([]byte, 8)
	binary.LittleEndian.PutUint64(b, v)
	if int(c.Size()) > len(b) {
		return fmt.Errorf("constant %s has %d bytes", name, c.Size())
	}
	return c.Set(b[:c.Size()])
}

// collection loads some programs of an object, with maps of the caller's beside those that are
// shared. These are made when the first object that has them is loaded.
func (l *loader) collection(spec *ebpf.CollectionSpec, own map[string]*ebpf.Map, programs ...string) (*ebpf.Collection, error) {
	want := map[string]*ebpf.ProgramSpec{}
	for _, name := range programs {
		p, ok := spec.Programs[name]
		if !ok {
			return nil, fmt.Errorf("object has no program %s", name)
		}
		want[name] = p
	}
	spec.Programs = want
	replace := maps.Clone(own)
	if replace == nil {
		replace = map[string]*ebpf.Map{}
	}
	if err := l.share(spec); err != nil {
		return nil, err
	}
	for name := range spec.Maps {
		if m := l.shared[name]; m != nil {
			replace[name] = m
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replace})
	if err != nil {
		return nil, fmt.Errorf("load %v: %w", programs, kernelError(err))
	}
	return c, nil
}

// share makes those shared maps of an object that there are not yet.
func (l *loader) share(spec *ebpf.CollectionSpec) error {
	for name, m := range spec.Maps {
		if _, ok := sharedMaps[name]; !ok || l.shared[name] != nil {
			continue
		}
		made, err := ebpf.NewMap(m)
		if err != nil {
			return fmt.Errorf("make map %s: %w", name, kernelError(err))
		}
		l.shared[name] = made
	}
	return nil
}

// programs loads some programs of an object that has no maps of its own beside constants.
func (l *loader) programs(spec *ebpf.CollectionSpec, into map[string]*ebpf.Program, names ...string) error {
	c, err := l.collection(spec, nil, names...)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, name := range names {
		into[name] = c.DetachProgram(name)
	}
	return nil
}

// base makes the shared maps and the programs that are always there.
func (l *loader) base(into map[string]*ebpf.Program) error {
	targets, err := ebpf.NewMap(&ebpf.MapSpec{
		Name:       "targets",
		Type:       ebpf.Array,
		KeySize:    4,
		ValueSize:  uint32(sharedMaps["targets"].size),
		MaxEntries: sharedMaps["targets"].entries(l),
		Flags:      unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		return fmt.Errorf("make map targets: %w", kernelError(err))
	}
	l.shared["targets"] = targets

	for _, p := range basePrograms {
		spec, err := l.spec(p.object)
		if err != nil {
			return err
		}
		if p.object == "dispatch" {
			if err := setConstant(spec, "cpus", uint64(l.cpus)); err != nil {
				return err
			}
		}
		if err := l.programs(spec, into, p.program); err != nil {
			return err
		}
	}
	if err := l.complete(forFold); err != nil {
		return err
	}
	return l.link(chainAck, into[ackProgram], into[absorbProgram])
}

// complete says whether all shared maps were made that something needs.
func (l *loader) complete(n need) error {
	for name, s := range sharedMaps {
		if s.need == n && l.shared[name] == nil {
			return fmt.Errorf("no object has a map %s", name)
		}
	}
	return nil
}

// link puts programs into the chain from a slot on. nil leaves a slot empty.
func (l *loader) link(slot int, programs ...*ebpf.Program) error {
	for i, p := range programs {
		if p == nil {
			continue
		}
		if err := l.shared["chain"].Put(uint32(slot+i), p); err != nil {
			return fmt.Errorf("add a program to the chain: %w", err)
		}
	}
	return nil
}

// extra makes what is not there for the fold: the shared maps that something needs, and its programs; or none of them.
func (l *loader) extra(n need, programs []objectProgram, into map[string]*ebpf.Program) (err error) {
	defer func() {
		if err == nil {
			return
		}
		for name, s := range sharedMaps {
			if m := l.shared[name]; s.need == n && m != nil {
				_ = m.Close()
				delete(l.shared, name)
			}
		}
		for _, p := range programs {
			if into[p.program] != nil {
				_ = into[p.program].Close()
				delete(into, p.program)
			}
		}
	}()
	specs := map[string]*ebpf.CollectionSpec{}
	for _, p := range programs {
		spec, err := l.spec(p.object)
		if err != nil {
			return err
		}
		if err := l.share(spec); err != nil {
			return err
		}
		specs[p.object] = spec
	}
	// The kernel's check of one takes up to 200 ms, so they are loaded side by side.
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, p := range programs {
		all.Go(func() {
			loaded := map[string]*ebpf.Program{}
			lerr := l.programs(specs[p.object], loaded, p.program)
			mu.Lock()
			defer mu.Unlock()
			err = errors.Join(err, lerr)
			maps.Copy(into, loaded)
		})
	}
	all.Wait()
	if err != nil {
		return err
	}
	return l.complete(n)
}

func loadPass() (*ebpf.Program, error) {
	raiseMemlock()
	l := &loader{cpus: 1, limits: shuffle.Limits{}.EnsureDefaults(), shared: map[string]*ebpf.Map{}}
	defer l.close()
	spec, err := l.spec("pass")
	if err != nil {
		return nil, err
	}
	p := map[string]*ebpf.Program{}
	if err := l.programs(spec, p, passProgram); err != nil {
		return nil, err
	}
	return p[passProgram], nil
}

func (l *loader) close() {
	for _, m := range l.shared {
		_ = m.Close()
	}
}

// kernelError adds to what the kernel said what is behind it, as far as known.
func kernelError(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		if missing := missingRights(); len(missing) > 0 {
			return fmt.Errorf("%w: %w", &rightsError{missing}, err)
		}
		return fmt.Errorf("%w: the kernel refuses, perhaps by a security module or in a container; or raise the limit of locked memory (ulimit -l): %w", ErrRights, err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	case errors.Is(err, unix.E2BIG):
		return fmt.Errorf("%w: too large for this kernel: %w", ErrUnsupported, err)
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("the kernel has no memory for it: %w", err)
	}
	return err
}

// raiseMemlock lifts a limit that kernels before 5.11 count maps against. If
// it can't be lifted, making maps says so.
func raiseMemlock() { _ = rlimit.RemoveMemlock() }

func machineMemory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}

func pageAlign(n int) int {
	p := os.Getpagesize()
	return (n + p - 1) / p * p
}
