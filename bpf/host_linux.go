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
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

var _ shuffle.Kernel = (*Host)(nil)

// Host is a kernel's help at this host: attached programs, and the memory that they
// share with this process. It implements shuffle.Kernel. Its methods may be called
// at the same time. After Close or Release they return ErrClosed, and nothing.
type Host struct {
	opts    Options
	netns   *os.File // where the devices are
	away    awayThread
	devices []*device
	mtu     int
	note    string
	resumed bool
	rounds  rounds

	// All of these are held as long as the programs shall run: what the
	// collector finds unused is closed, and detaches or empties silently.
	loader   *loader
	programs map[string]*ebpf.Program
	links    []link.Link
	dummy    [2]*ebpf.Map // a map of maps and the map in it, for Quiesce
	inst     *instance    // nil: nothing is pinned
	state    state

	memory   shuffle.Memory
	settings *wire.Settings
	mapped   [][]byte

	// life is held for reading by every call, so that nothing is closed under it.
	life   sync.RWMutex
	closed bool
	ending sync.Mutex // for Close and Release, and taken before life

	answer  atomic.Uint32 // as in settings
	mu      sync.Mutex    // for the rest
	answers hooked
	clones  hooked
	sets    []*set
	tables  map[shuffle.TableID]*shuffle.Table
	before  []*shuffle.Table // taken up from an earlier process
	used    int64            // bytes of tables

	casting  casting
	reducing reducing
}

// Open loads the programs and attaches them, or takes up the state that an earlier
// process has left in the same directory. Errors wrap ErrUnsupported, ErrRights,
// ErrMTU, ErrInUse or are a *ForeignError where that is the reason, and say what
// to do. After an error nothing is attached.
//
// A Host stays as it is until Close or Release, even if nobody refers to it.
func Open(o Options) (*Host, error) {
	o = o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if missing := missingRights(); len(missing) > 0 {
		return nil, &rightsError{missing}
	}
	devices, err := findDevices(o.Interfaces)
	if err != nil {
		return nil, err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count processors: %w", err)
	}
	raiseMemlock()
	h := &Host{
		opts:     o,
		devices:  devices,
		mtu:      65535,
		loader:   &loader{cpus: cpus, limits: o.Limits, shared: map[string]*ebpf.Map{}},
		programs: map[string]*ebpf.Program{},
		tables:   map[shuffle.TableID]*shuffle.Table{},
		answers:  hooked{hook: answerHook},
		clones:   hooked{hook: cloneHook},
	}
	h.rounds.wait = h.quiesce
	if h.netns, err = os.Open(netnsPath); err != nil {
		return nil, fmt.Errorf("find out the network namespace: %w", err)
	}
	for _, d := range devices {
		h.mtu = min(h.mtu, d.mtu)
	}
	if err := h.open(); err != nil {
		h.release()
		return nil, fmt.Errorf("kernel fold on %s: %w", o, err)
	}
	h.answer.Store(uint32(h.settings.Answer))
	hold(h)
	return h, nil
}

// use keeps the Host from being closed until done is called.
func (h *Host) use() (done func(), err error) {
	h.life.RLock()
	if h.closed {
		h.life.RUnlock()
		return nil, ErrClosed
	}
	return h.life.RUnlock, nil
}

func (h *Host) open() (err error) {
	if err := h.makeDummy(); err != nil {
		return err
	}
	if h.opts.Dir == "" {
		return h.start()
	}
	if h.inst, err = takeInstance(h.opts.Dir); err != nil {
		return err
	}
	if err := h.inst.mount(); err != nil {
		return errors.Join(err, h.inst.dispose(nil))
	}
	why, err := h.resume()
	if err == nil && why == "" {
		h.resumed = true
		return nil
	}
	if err != nil {
		why = err.Error()
	}
	h.drop()
	h.note = "the state of an earlier process was not taken up: " + why
	if why == nothingThere {
		h.note = ""
	}
	if err := h.inst.wipe(nil, h.quiesce); err != nil {
		return err
	}
	if err := h.start(); err != nil {
		h.drop()
		return errors.Join(err, h.inst.dispose(nil))
	}
	return nil
}

// start makes everything anew.
func (h *Host) start() error {
	if err := h.loader.base(h.programs); err != nil {
		return err
	}
	if err := h.mapShared(); err != nil {
		return err
	}
	h.startBroadcasts()
	h.startReduces()
	h.settings.Port = [2]byte{byte(h.opts.Port >> 8), byte(h.opts.Port)}
	if h.inst != nil {
		if err := h.pinNew(); err != nil {
			return err
		}
	}
	for i, d := range h.devices {
		l, err := d.attach(h.programs[dispatchProgram], h.opts.XDP, h.opts.Replace)
		if err != nil {
			return err
		}
		h.links = append(h.links, l)
		if h.inst != nil {
			if err := l.Pin(h.inst.path(newName, "links", linkName("xdp", i))); err != nil {
				return fmt.Errorf("pin a link: %w", err)
			}
		}
	}
	if h.inst != nil {
		return h.pinDone()
	}
	return nil
}

func (h *Host) makeDummy() error {
	inner := &ebpf.MapSpec{Name: "quiesce_inner", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	outer := &ebpf.MapSpec{Name: "quiesce", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: inner}
	for i, s := range []*ebpf.MapSpec{outer, inner} {
		m, err := ebpf.NewMap(s)
		if err != nil {
			return fmt.Errorf("make map %s: %w", s.Name, kernelError(err))
		}
		h.dummy[i] = m
	}
	return nil
}

// quiesce changes a map of maps that no program reads: the kernel then waits until
// no program runs that may have seen the old one, which goes for all programs.
func (h *Host) quiesce() error {
	if err := h.dummy[0].Update(uint32(0), h.dummy[1], ebpf.UpdateAny); err != nil {
		return fmt.Errorf("wait for running programs: %w", err)
	}
	return nil
}

// mapArray maps the pages of an array map that its first n bytes lie in.
func mapArray(m *ebpf.Map, n int) ([]byte, error) {
	b, err := unix.Mmap(m.FD(), 0, pageAlign(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	runtime.KeepAlive(m)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return b, nil
}

// mapMemory maps the first n bytes of an array map until drop.
func (h *Host) mapMemory(m *ebpf.Map, n int) ([]byte, error) {
	b, err := mapArray(m, n)
	if err != nil {
		return nil, err
	}
	h.mapped = append(h.mapped, b)
	return b[:n:n], nil
}

// mapAs maps all of an array map as a slice of its elements.
func mapAs[T any](h *Host, name string, n int) ([]T, error) {
	var t T
	m := h.loader.shared[name]
	if m == nil || m.ValueSize() != uint32(unsafe.Sizeof(t)) || m.MaxEntries() != uint32(n) {
		return nil, fmt.Errorf("map %s is not %d elements of %d bytes", name, n, unsafe.Sizeof(t))
	}
	b, err := h.mapMemory(m, n*int(unsafe.Sizeof(t)))
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", name, err)
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n), nil
}

func (h *Host) mapShared() (err error) {
	l := h.loader
	h.memory.CPUs = l.cpus
	if h.memory.Streams, err = mapAs[wire.Stream](h, "streams", l.limits.Streams); err != nil {
		return err
	}
	if h.memory.Targets, err = mapAs[wire.Target](h, "targets", l.limits.Targets); err != nil {
		return err
	}
	if h.memory.Cells, err = mapAs[wire.Cell](h, "cells", l.limits.Targets*l.cpus); err != nil {
		return err
	}
	if h.memory.Outgoing, err = mapAs[wire.Outgoing](h, "outgoing", l.limits.Outgoing); err != nil {
		return err
	}
	settings, err := mapAs[wire.Settings](h, "config", 1)
	if err != nil {
		return err
	}
	h.settings = &settings[0]
	return nil
}

// Memory returns the shared memory. Once Close or Release has unmapped it, a slice of it that is still
// used is a fault that ends the process, so whoever folds or sends is stopped first.
func (h *Host) Memory() *shuffle.Memory { return &h.memory }

// Resumed says whether the state of an earlier process was taken up.
func (h *Host) Resumed() bool { return h.resumed }

// Note says why state that was there was not taken up; "" if there was none or it was.
func (h *Host) Note() string { return h.note }

// MTU returns the least of the interfaces' when the Host was opened.
func (h *Host) MTU() int { return h.mtu }

// XDP returns the mode. In generic mode senders must not use segmentation offload.
func (h *Host) XDP() XDPMode { return h.opts.XDP }

// Port returns the UDP port of streams' receiving ends.
func (h *Host) Port() int { return h.opts.Port }

// String names the interfaces and the mode.
func (h *Host) String() string { return h.opts.String() }

// SetJob writes a job's keys to a slot. No open stream may name that slot.
func (h *Host) SetJob(slot int, keys *wire.Job) error {
	done, err := h.use()
	if err != nil {
		return err
	}
	defer done()
	if slot < 0 || slot >= h.opts.Limits.Jobs {
		return fmt.Errorf("job slot %d: there are %d", slot, h.opts.Limits.Jobs)
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(keys)), unsafe.Sizeof(*keys))
	if err := h.loader.shared["jobs"].Update(uint32(slot), b, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("write the keys of job slot %d: %w", slot, err)
	}
	return nil
}

// Quiesce returns when no program runs any more that began before the call. It
// takes some 10 ms. A call that arrives while others wait shares the next wait.
func (h *Host) Quiesce() error {
	done, err := h.use()
	if err != nil {
		return err
	}
	defer done()
	return h.rounds.do()
}

// Reasons returns how often programs ended for each reason, on all CPUs, since
// the programs were loaded.
func (h *Host) Reasons() (sums [wire.Reasons]uint64, err error) {
	done, err := h.use()
	if err != nil {
		return sums, err
	}
	defer done()
	var perCPU []uint64
	for r := range sums {
		if err := h.loader.shared["reasons"].Lookup(uint32(r), &perCPU); err != nil {
			return sums, fmt.Errorf("read reason %d: %w", r, err)
		}
		for _, n := range perCPU {
			sums[r] += n
		}
	}
	return sums, nil
}

// Run runs the programs on one packet, Ethernet header first, as if it had come in, and returns
// the verdict (as enum xdp_action has it) and the packet as it was left. Nothing is
// sent. It is for tests and checks; calls must not overlap with each other or
// with traffic, since tables are not locked.
func (h *Host) Run(packet []byte) (verdict uint32, out []byte, err error) {
	done, err := h.use()
	if err != nil {
		return 0, nil, err
	}
	defer done()
	out = make([]byte, len(packet)+256)
	opts := ebpf.RunOptions{Data: packet, DataOut: out, Repeat: 1}
	verdict, err = h.programs[dispatchProgram].Run(&opts)
	if err != nil {
		return 0, nil, fmt.Errorf("test run: %w", err)
	}
	return verdict, opts.DataOut, nil
}

// Answer returns how acknowledgements leave.
func (h *Host) Answer() wire.AnswerMode { return wire.AnswerMode(h.answer.Load()) }

// SetAnswer sets how acknowledgements leave; a Host begins with AnswerTX. For AnswerTC it attaches one
// more program, by tcx or, before 6.6, by a filter of clsact. [Prove] finds
// out what a path needs.
func (h *Host) SetAnswer(mode wire.AnswerMode) error {
	done, err := h.use()
	if err != nil {
		return err
	}
	defer done()
	h.mu.Lock()
	defer h.mu.Unlock()
	if mode > wire.AnswerUser {
		return fmt.Errorf("answer mode %d does not exist", mode)
	}
	if mode == wire.AnswerTC && !h.answers.attached() {
		if err := h.attachHook(&h.answers, tcx.Have() != nil); err != nil {
			return err
		}
	}
	h.settings.Answer = mode // one byte, which programs read at any time
	h.answer.Store(uint32(mode))
	return nil
}

// hooked is what is attached at a hook: a link for every device, or filters, or nothing.
type hooked struct {
	hook
	links  []link.Link
	filter bool
}

func (k *hooked) attached() bool { return len(k.links) > 0 || k.filter }

// attachHook puts a hook's program on all devices, or on none.
func (h *Host) attachHook(k *hooked, filter bool) (err error) {
	if filter && h.inst != nil {
		// Recorded first: a filter outlives the process by itself.
		if err := h.recordFilter(k, true); err != nil {
			return err
		}
	}
	k.filter = filter
	for i, d := range h.devices {
		var l link.Link
		err := h.inNetns(func() (err error) {
			l, err = d.attachHook(k.hook, h.programs[k.program], filter)
			return err
		})
		if err == nil && l != nil {
			k.links = append(k.links, l)
			if h.inst != nil {
				err = l.Pin(h.inst.path(h.state.Live, "links", linkName(k.kind, i)))
			}
		}
		if err != nil {
			return errors.Join(err, h.detachHook(k))
		}
	}
	return nil
}

// recordFilter writes down whether a hook's program is in filters.
func (h *Host) recordFilter(k *hooked, there bool) error {
	if k.hook == cloneHook {
		h.state.CloneFilter = there
	} else {
		h.state.Filter = there
	}
	return h.inst.writeState(&h.state)
}

func (h *Host) detachHook(k *hooked) (err error) {
	for i, l := range k.links {
		err = errors.Join(err, l.Detach(), l.Close())
		if h.inst != nil {
			err = errors.Join(err, removeIfThere(h.inst.path(h.state.Live, "links", linkName(k.kind, i))))
		}
	}
	k.links = nil
	if k.filter {
		for _, d := range h.devices {
			err = errors.Join(err, h.inNetns(func() error { return d.detachFilter(k.hook) }))
		}
		k.filter = false
		if h.inst != nil && err == nil {
			err = h.recordFilter(k, false)
		}
	}
	return err
}

// Times returns how long the programs that are attached ran; see [Stats].
func (h *Host) Times() ([]ProgramTime, error) {
	done, err := h.use()
	if err != nil {
		return nil, err
	}
	defer done()
	var times []ProgramTime
	for _, name := range []string{dispatchProgram, tcProgram, cloneProgram} {
		p := h.programs[name]
		if p == nil {
			continue // no broadcasts
		}
		s, err := p.Stats()
		if err != nil {
			return nil, fmt.Errorf("read the time of %s: %w", name, err)
		}
		times = append(times, ProgramTime{name, s.RunCount, s.Runtime})
	}
	return times, nil
}

// Close detaches the programs, waits until none runs, removes all that was pinned, and
// unmaps the memory, which nobody may use any more. Closing twice is fine.
//
// It waits for the functions of OnEvent and OnRound, which must not call it.
func (h *Host) Close() error {
	h.ending.Lock()
	defer h.ending.Unlock()
	if !h.refuse() {
		return nil
	}
	err := h.stopTelling()
	h.life.Lock()
	defer h.life.Unlock()
	err = errors.Join(err, h.detachHook(&h.answers), h.detachHook(&h.clones))
	for i, l := range h.links {
		err = errors.Join(err, l.Detach())
		if h.inst != nil {
			err = errors.Join(err, removeIfThere(h.inst.path(h.state.Live, "links", linkName("xdp", i))))
		}
	}
	// A program that runs must find its chain to the end.
	err = errors.Join(err, h.rounds.do())
	h.drop()
	if h.inst != nil {
		err = errors.Join(err, h.inst.dispose(nil))
	}
	h.release()
	if err != nil {
		return fmt.Errorf("close %s: %w", h.opts, err)
	}
	return nil
}

// Release leaves everything attached and pinned, so that programs go on, and lets go of the
// instance, so that another process may take it up. The memory is unmapped. A
// Host without a directory can't be released. A process that is killed leaves the same behind.
//
// It waits for the functions of OnEvent and OnRound, which must not call it.
func (h *Host) Release() error {
	h.ending.Lock()
	defer h.ending.Unlock()
	done, err := h.use()
	if err != nil {
		return err
	}
	done()
	if h.inst == nil {
		return fmt.Errorf("release %s: it has no directory to leave its state in", h.opts)
	}
	h.refuse()
	err = h.stopTelling()
	h.life.Lock()
	defer h.life.Unlock()
	h.drop()
	h.release()
	if err != nil {
		return fmt.Errorf("release %s: %w", h.opts, err)
	}
	return nil
}

// refuse has all calls fail from now on. It says false if they do already.
func (h *Host) refuse() bool {
	h.life.Lock()
	defer h.life.Unlock()
	was := h.closed
	h.closed = true
	return !was
}

// drop lets go of programs, maps and memory. What is pinned stays in the kernel.
func (h *Host) drop() {
	for _, l := range slices.Concat(h.links, h.answers.links, h.clones.links) {
		_ = l.Close()
	}
	for _, p := range h.programs {
		_ = p.Close()
	}
	for _, s := range h.sets {
		s.close()
	}
	h.loader.close()
	for _, b := range h.mapped {
		_ = unix.Munmap(b)
	}
	h.links, h.sets, h.mapped, h.before = nil, nil, nil, nil
	h.answers, h.clones = hooked{hook: answerHook}, hooked{hook: cloneHook}
	h.memory, h.settings, h.used = shuffle.Memory{}, nil, 0
	h.casting.drop()
	h.reducing = reducing{}
	clear(h.programs)
	clear(h.loader.shared)
	clear(h.tables)
}

// release undoes the rest of what Open did.
func (h *Host) release() {
	h.drop()
	for i, m := range h.dummy {
		if m != nil {
			_ = m.Close()
		}
		h.dummy[i] = nil
	}
	if h.inst != nil {
		h.inst.unlock()
	}
	h.away.stop()
	if h.netns != nil {
		_ = h.netns.Close()
		h.netns = nil
	}
	letGo(h)
}
