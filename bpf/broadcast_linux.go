// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

var _ shuffle.Broadcasts = (*Host)(nil)

// casting is what a Host has for broadcasts.
type casting struct {
	err    error // why it has nothing
	ends   shuffle.Ends
	marks  []uint64
	clones atomic.Uint32 // what Clones has found out

	// For the rest Host.mu is held.
	slots  *ranges // of "contents" that are free
	room   *ranges // of "marks" that are free
	open   map[*shuffle.Content]*content
	events *teller
}

// What casting.clones may be.
const (
	clonesUntried = iota
	clonesYes
	clonesNo
)

// content is what a shuffle.Content is made of.
type content struct {
	slot, mark, chunks uint32
	memory             []byte    // whole pages
	own                *ebpf.Map // programs find it without
	sealed             bool      // nobody but programs can write it any more
}

// contents is the number of contents that there is room for: every end of a broadcast has one, and of an
// all-reduce two, and those of ends that were closed are freed after the next ones are made.
func (l *loader) contents() int { return 2 * (l.limits.Regions + l.limits.Casts + 2*l.limits.Groups) }

// contentSpec is what a content is to the kernel.
func contentSpec(chunks uint32) *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name:       "content",
		Type:       ebpf.Array,
		KeySize:    4,
		ValueSize:  wire.ChunkSize,
		MaxEntries: chunks,
		Flags:      unix.BPF_F_MMAPABLE | unix.BPF_F_INNER_MAP,
	}
}

// startBroadcasts makes what broadcasts need. Where that can't be, the fold does without.
func (h *Host) startBroadcasts() {
	err := h.loader.extra(forBroadcasts, broadcastPrograms, h.programs)
	if err == nil {
		err = h.mapEnds()
	}
	if err == nil {
		err = h.loader.link(chainChunk, h.programs[chunkProgram], h.programs[collectProgram], h.programs[pumpProgram])
	}
	if err != nil {
		h.casting.err, h.casting.ends, h.casting.marks = err, shuffle.Ends{}, nil
		h.opts.Log.Info("broadcasts: user space alone", "reason", err)
	}
}

// mapEnds maps what programs and user space share of broadcasts.
func (h *Host) mapEnds() (err error) {
	c, l := &h.casting, h.loader.limits
	if c.ends.Regions, err = mapAs[wire.Region](h, "regions", l.Regions); err != nil {
		return err
	}
	if c.ends.Casts, err = mapAs[wire.Cast](h, "casts", l.Casts); err != nil {
		return err
	}
	if c.marks, err = mapAs[uint64](h, "marks", l.Chunks); err != nil {
		return err
	}
	c.slots, c.room = newRanges(h.loader.shared["contents"].MaxEntries()), newRanges(uint32(l.Chunks))
	c.open = map[*shuffle.Content]*content{}
	return nil
}

// resumeBroadcasts begins anew with what an earlier process has left: nothing of it goes on.
func (h *Host) resumeBroadcasts() error {
	if h.state.NoBroadcasts != "" {
		h.casting.err = fmt.Errorf("an earlier process found: %s", h.state.NoBroadcasts)
		return nil
	}
	if err := h.mapEnds(); err != nil {
		return err
	}
	c := &h.casting
	for i := range c.ends.Regions {
		atomic.StoreUint64(&c.ends.Regions[i].Token, 0)
	}
	for i := range c.ends.Casts {
		atomic.StoreUint64(&c.ends.Casts[i].Token, 0)
	}
	h.reducing.shut()
	var token uint64
	var slot uint32
	var tokens []uint64
	for it := h.loader.shared["tokens"].Iterate(); it.Next(&token, &slot); {
		tokens = append(tokens, token)
	}
	for _, token := range tokens {
		if err := h.loader.shared["tokens"].Delete(token); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget a broadcast or a group of an earlier process: %w", err)
		}
	}
	if err := h.quiesce(); err != nil {
		return err
	}
	if err := h.emptyContents(); err != nil {
		return err
	}
	clear(c.ends.Regions)
	clear(c.ends.Casts)
	clear(h.reducing.groups)
	clear(c.marks)
	if h.clones.attached() {
		c.clones.Store(clonesYes)
	}
	return nil
}

// emptyContents frees the contents of an earlier process. The kernel waits for running programs
// after every deletion, some 10 ms, so they are made side by side.
func (h *Host) emptyContents() error {
	contents := h.loader.shared["contents"]
	var all sync.WaitGroup
	errs := make([]error, contents.MaxEntries())
	for i := range errs {
		var id uint32
		if contents.Lookup(uint32(i), &id) != nil {
			continue // empty
		}
		all.Go(func() {
			if err := contents.Delete(uint32(i)); err != nil {
				errs[i] = fmt.Errorf("free what an earlier process has broadcast or reduced: %w", err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// drop forgets what was mapped and made. Events have ended.
func (c *casting) drop() {
	for _, k := range c.open {
		_ = k.close()
	}
	c.err, c.ends, c.marks, c.slots, c.room, c.open, c.events = nil, shuffle.Ends{}, nil, nil, nil, nil, nil
	c.clones.Store(clonesUntried)
}

// casts is use for what concerns broadcasts.
func (h *Host) casts() (done func(), err error) {
	done, err = h.use()
	if err == nil && h.casting.err != nil {
		done()
		return nil, fmt.Errorf("broadcasts: %w: %w", ErrUnsupported, h.casting.err)
	}
	return done, err
}

// Broadcasts returns the Host as a help with broadcasts, or an error that wraps ErrUnsupported and says why
// programs are none: their maps or programs could not be made, and user space has to do.
func (h *Host) Broadcasts() (shuffle.Broadcasts, error) {
	done, err := h.casts()
	if err != nil {
		return nil, err
	}
	done()
	return h, nil
}

// Ends returns the shared memory of broadcasts, which has no ends where Broadcasts returns an error. Once
// Close or Release has unmapped it, using it is a fault that ends the process.
func (h *Host) Ends() *shuffle.Ends { return &h.casting.ends }

// NewContent makes room for that many chunks. It takes some 15 ms, most of it a wait for running programs that calls
// at the same time share, and 8 ms for 32 MiB. An error wraps shuffle.ErrBusy if not as much of Options.Limits.Chunks
// is free in one piece, or the kernel has no memory, and shuffle.ErrRefused if it never will be.
func (h *Host) NewContent(chunks int) (*shuffle.Content, error) {
	done, err := h.casts()
	if err != nil {
		return nil, err
	}
	defer done()
	limit := h.opts.Limits.Chunks
	if chunks < 1 || chunks > limit {
		return nil, fmt.Errorf("room for %d chunks of broadcasts: 1 to %d are possible: %w", chunks, limit, shuffle.ErrRefused)
	}
	k := &content{chunks: uint32(chunks)}
	if err := h.reserve(k); err != nil {
		return nil, err
	}
	if err := h.makeContent(k); err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.giveBack(k)
		return nil, fmt.Errorf("make room for %d chunks of broadcasts: %w", chunks, err)
	}
	c := &shuffle.Content{
		ID:    k.slot,
		Mark:  k.mark,
		Data:  k.memory[: chunks*wire.ChunkSize : chunks*wire.ChunkSize],
		Marks: h.casting.marks[k.mark:][:chunks:chunks],
	}
	c.Open = func() (*os.File, error) { return h.openContent(c) }
	h.mu.Lock()
	defer h.mu.Unlock()
	h.casting.open[c] = k
	return c, nil
}

// reserve finds a slot and marks for a content.
func (h *Host) reserve(k *content) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &h.casting
	var ok bool
	if k.slot, ok = c.slots.take(1); !ok {
		return fmt.Errorf("%d contents of broadcasts are in use, which is all that there is room for: %w", len(c.open), shuffle.ErrBusy)
	}
	if k.mark, ok = c.room.take(k.chunks); !ok {
		c.slots.give(k.slot, 1)
		return fmt.Errorf("room for %d chunks of broadcasts: %d of %d are free, and not as many in one piece: %w", k.chunks, c.room.left(), h.opts.Limits.Chunks, shuffle.ErrBusy)
	}
	return nil
}

// giveBack is the reverse of reserve. mu is held.
func (h *Host) giveBack(k *content) {
	h.casting.slots.give(k.slot, 1)
	h.casting.room.give(k.mark, k.chunks)
}

// makeContent makes the memory of a content, and lets programs find it.
func (h *Host) makeContent(k *content) (err error) {
	m, err := ebpf.NewMap(contentSpec(k.chunks))
	if errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%w: %w", shuffle.ErrBusy, kernelError(err))
	}
	if err != nil {
		return kernelError(err)
	}
	if k.memory, err = mapArray(m, int(k.chunks)*wire.ChunkSize); err != nil {
		return errors.Join(err, m.Close())
	}
	k.own = m
	if err := h.loader.shared["contents"].Update(k.slot, m, ebpf.UpdateAny); err != nil {
		return errors.Join(fmt.Errorf("show it to programs: %w", err), k.close())
	}
	return nil
}

func (k *content) close() error { return errors.Join(unix.Munmap(k.memory), k.own.Close()) }

// openContent returns a descriptor by which a content can be read, and not written. The kernel lets an array be mapped by a
// descriptor that can write alone, so what is whole is frozen: then no descriptor can. User space writes no chunk that
// is stored, and programs still could. What is not whole, or is a source's, is copied as it is.
func (h *Host) openContent(c *shuffle.Content) (f *os.File, err error) {
	done, err := h.use()
	if err != nil {
		return nil, err
	}
	defer done()
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.casting.open[c]
	if k == nil {
		return nil, fmt.Errorf("content %d is not one of %s", c.ID, h)
	}
	if !k.sealed && h.whole(k, c) {
		if err := k.seal(); err != nil {
			return nil, fmt.Errorf("open content %d to read it: %w", c.ID, err)
		}
	}
	if k.sealed {
		f, err = dupFile(k.own.FD(), "content")
		runtime.KeepAlive(k)
	} else {
		f, err = copyFile(c.Data)
	}
	if err != nil {
		return nil, fmt.Errorf("open content %d to read it: %w", c.ID, err)
	}
	return f, nil
}

// whole says whether all chunks of a content are stored, so that nobody writes it any more. Marks of a
// source and of a group say something else.
func (h *Host) whole(k *content, c *shuffle.Content) bool {
	for i := range h.casting.ends.Casts {
		if s := &h.casting.ends.Casts[i]; atomic.LoadUint64(&s.Token) != 0 && atomic.LoadUint32(&s.Content) == k.slot {
			return false
		}
	}
	if h.reducing.names(k.slot) >= 0 {
		return false
	}
	for i := range c.Marks {
		if wire.MarkState(&c.Marks[i]) != wire.MarkStored {
			return false
		}
	}
	return true
}

// seal maps a content anew in the same place, to be read alone, and has the kernel refuse all else.
func (k *content) seal() error {
	at, n := unsafe.Pointer(unsafe.SliceData(k.memory)), uintptr(len(k.memory))
	remap := func(prot int) error {
		_, err := unix.MmapPtr(k.own.FD(), 0, at, n, prot, unix.MAP_SHARED|unix.MAP_FIXED)
		return err
	}
	if err := remap(unix.PROT_READ); err != nil {
		return fmt.Errorf("map it to be read alone: %w", err)
	}
	if err := k.own.Freeze(); err != nil {
		return errors.Join(fmt.Errorf("freeze it: %w", err), remap(unix.PROT_READ|unix.PROT_WRITE))
	}
	k.sealed = true
	return nil
}

func dupFile(fd int, name string) (*os.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), name), nil
}

// copyFile returns a file without a name that holds data and can be read alone.
func copyFile(data []byte) (_ *os.File, err error) {
	fd, err := unix.MemfdCreate("quern-content", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "content")
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return nil, err
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// FreeContent frees what no region and no cast has named since the last Quiesce. Data and Marks must not be touched
// any more; what others have mapped lives on. It takes some 10 ms, which calls at the same time share.
func (h *Host) FreeContent(c *shuffle.Content) error {
	done, err := h.casts()
	if err != nil {
		return err
	}
	defer done()
	k, err := h.withdraw(c)
	if err != nil {
		return err
	}
	if err := h.loader.shared["contents"].Delete(k.slot); err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.casting.open[c] = k
		return fmt.Errorf("free content %d: %w", c.ID, err)
	}
	err = k.close()
	// Whoever gets them next finds zeros.
	clear(h.casting.marks[k.mark:][:k.chunks])
	h.mu.Lock()
	defer h.mu.Unlock()
	h.giveBack(k)
	if err != nil {
		return fmt.Errorf("free content %d: %w", c.ID, err)
	}
	return nil
}

// withdraw takes a content from those there are, if no open end names it.
func (h *Host) withdraw(c *shuffle.Content) (*content, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.casting.open[c]
	if k == nil {
		return nil, fmt.Errorf("content %d is not one of %s", c.ID, h)
	}
	for i := range h.casting.ends.Regions {
		if r := &h.casting.ends.Regions[i]; atomic.LoadUint64(&r.Token) != 0 && atomic.LoadUint32(&r.Content) == k.slot {
			return nil, fmt.Errorf("content %d is in use: region %d names it", c.ID, i)
		}
	}
	for i := range h.casting.ends.Casts {
		if r := &h.casting.ends.Casts[i]; atomic.LoadUint64(&r.Token) != 0 && atomic.LoadUint32(&r.Content) == k.slot {
			return nil, fmt.Errorf("content %d is in use: cast %d names it", c.ID, i)
		}
	}
	if i := h.reducing.names(k.slot); i >= 0 {
		return nil, fmt.Errorf("content %d is in use: group %d names it", c.ID, i)
	}
	delete(h.casting.open, c)
	return k, nil
}

// SetToken has programs find the region, or the group, in a slot by a token, which no other slot of either has.
func (h *Host) SetToken(token uint64, slot int) error {
	done, err := h.casts()
	if err != nil {
		return err
	}
	defer done()
	if l := h.opts.Limits; token == 0 || slot < 0 || slot >= max(l.Regions, l.Groups) {
		return fmt.Errorf("token %#x of slot %d: there are %d regions and %d groups, and 0 is no token", token, slot, l.Regions, l.Groups)
	}
	if err := h.loader.shared["tokens"].Update(token, uint32(slot), ebpf.UpdateNoExist); err != nil {
		return fmt.Errorf("show programs the token of slot %d: %w", slot, err)
	}
	return nil
}

// ClearToken takes that back. A token that programs do not know is fine.
func (h *Host) ClearToken(token uint64) error {
	done, err := h.casts()
	if err != nil {
		return err
	}
	defer done()
	if err := h.loader.shared["tokens"].Delete(token); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("have programs forget token %#x: %w", token, err)
	}
	return nil
}

// Hop says how programs send to a host from this one's port. It asks the system every time, which takes some
// 150 us. An error that wraps shuffle.ErrNotNow says that the system has to find the way first, any other that programs can't.
func (h *Host) Hop(to netip.AddrPort) (hop wire.Hop, err error) {
	done, err := h.use()
	if err != nil {
		return hop, err
	}
	defer done()
	if !to.IsValid() || to.Port() == 0 {
		return hop, fmt.Errorf("the way to %s: it is no address of a host", to)
	}
	var w way
	err = h.inNetns(func() (err error) {
		w, err = findWay(h.devices, to.Addr())
		return err
	})
	if err != nil {
		return hop, fmt.Errorf("the way to %s: %w", to.Addr(), err)
	}
	need := 20 + 8 + wire.FrameSize
	if w.to.Is6() {
		need += 20
		hop.V6 = 1
	}
	if w.mtu < need {
		return wire.Hop{}, fmt.Errorf("the way to %s: %w: it takes packets of up to %d bytes, and chunks come in %d", to.Addr(), ErrUnsupported, w.mtu, need)
	}
	hop.MACTo, hop.MACFrom, hop.Interface = w.far, w.near, w.iface
	binary.BigEndian.PutUint16(hop.PortTo[:], to.Port())
	binary.BigEndian.PutUint16(hop.PortFrom[:], uint16(h.opts.Port))
	copy(hop.To[:], w.to.AsSlice())
	copy(hop.From[:], w.from.AsSlice())
	return hop, nil
}

// OnEvent has f called, by one goroutine, for every message of an open region that programs have stored whole. It can be
// called once. Events may be lost while f does not return: there is room for some 2700. f must not call Close or Release, which wait for it.
func (h *Host) OnEvent(f func(wire.Event)) error {
	done, err := h.casts()
	if err != nil {
		return err
	}
	defer done()
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &h.casting
	if c.events != nil {
		return errors.New("somebody is told of messages already")
	}
	regions := c.ends.Regions
	c.events, err = newTeller(h.loader.shared["events"], func(e wire.Event) {
		if stands(e, len(regions), func(i int) *uint64 { return &regions[i].Token }) {
			f(e)
		}
	}, func(err error) {
		h.opts.Log.Error("broadcasts: nobody hears what programs tell any more", "reason", err)
	})
	if err != nil {
		return fmt.Errorf("read what programs tell: %w", err)
	}
	return nil
}

// stopTelling returns when nobody is told anything any more. Calls fail by then, so that none begins it.
func (h *Host) stopTelling() (err error) {
	h.mu.Lock()
	tellers := []*teller{h.casting.events, h.reducing.rounds}
	h.mu.Unlock()
	for _, t := range tellers {
		if t != nil {
			err = errors.Join(err, t.close())
		}
	}
	return err
}

// Clones says whether a chunk for wire.ChainAll that a socket sends out at the interface is cloned to the heads of its
// cast. The first call attaches what does it, by tcx or, before 6.6, by a filter of clsact; if that fails, the log says why.
func (h *Host) Clones() bool {
	c := &h.casting
	switch c.clones.Load() {
	case clonesYes:
		return true
	case clonesNo:
		return false
	}
	done, err := h.casts()
	if err != nil {
		return false
	}
	defer done()
	if len(h.devices) == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.clones.Load() == clonesNo { // another call has found out
		return false
	}
	if !h.clones.attached() {
		if err := h.attachHook(&h.clones, tcx.Have() != nil); err != nil {
			c.clones.Store(clonesNo)
			h.opts.Log.Warn("broadcasts: chunks are not cloned, so each head gets its own from user space", "reason", err)
			return false
		}
	}
	c.clones.Store(clonesYes)
	return true
}

// Pumps says whether programs can send by themselves: answers leave by them, and there is an interface.
func (h *Host) Pumps() bool {
	done, err := h.casts()
	if err != nil {
		return false
	}
	defer done()
	return len(h.devices) > 0 && h.Answer() != wire.AnswerUser
}
