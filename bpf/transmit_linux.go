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
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

var _ shuffle.Transmitter = (*Transmitter)(nil)

// As in c/send.bpf.c.
const (
	sendHeaders = 14 + 20 + 8
	sendRoom    = sendHeaders + wire.FrameSize
	sendBoxHead = 64
	sendStep    = 2048
)

// sendBox is the head of the memory that packets are laid out in.
type sendBox struct {
	next, count, iface, failed uint32
	_                          [6]uint64
}

// liveFrames is BPF_F_TEST_XDP_LIVE_FRAMES: a test run that is none.
const liveFrames = 1 << 1

// wayFor is how long a way to a host is used until the system is asked again.
const wayFor = time.Second

// Transmitter sends packets out at a Host's interfaces by test runs of a program, on
// x86-64 from Linux 5.18 on. IPv4 alone.
//
// Every change of the set of XDP programs that are attached has the kernel rewrite code
// and wait for all processors; a test run of a program that is attached nowhere is two
// changes, which take milliseconds. So the program is attached where no packet
// comes: to the loopback of a network namespace that is made for it.
type Transmitter struct {
	host    *Host
	coll    *ebpf.Collection
	program *ebpf.Program
	link    link.Link
	empty   *os.File // the namespace
	away    *thread  // in the host's namespace; nil: all threads are

	mu     sync.Mutex
	box    *sendBox
	memory []byte
	first  []byte // what a run begins every packet with
	ways   map[netip.Addr]*sendWay
	closed bool
}

// sendWay is a way as it is kept for a while.
type sendWay struct {
	until  time.Time
	iface  uint32
	header [sendHeaders]byte // without lengths, sums and ports
	err    error
}

// NewTransmitter loads the program. The Host must outlive it, and be attached in the
// driver. An error that wraps ErrUnsupported says that sockets have to do.
func NewTransmitter(h *Host) (_ *Transmitter, err error) {
	if h.XDP() != Native || len(h.devices) == 0 {
		return nil, fmt.Errorf("send past sockets: %w: the programs are not in a driver", ErrUnsupported)
	}
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("send past sockets: %w: tried on amd64 alone", ErrUnsupported)
	}
	t := &Transmitter{host: h, ways: map[netip.Addr]*sendWay{}, first: make([]byte, sendRoom+1)}
	defer func() {
		if err != nil {
			err = fmt.Errorf("send past sockets: %w", errors.Join(err, t.Close()))
		}
	}()
	spec, err := h.loader.spec("send")
	if err != nil {
		return nil, err
	}
	if t.coll, err = ebpf.NewCollection(spec); err != nil {
		return nil, kernelError(err)
	}
	t.program = t.coll.Programs[sendProgram]
	size := sendBoxHead + shuffle.TransmitAtOnce*sendStep
	box := t.coll.Maps["box"]
	if box == nil || t.program == nil || box.ValueSize() != uint32(size) {
		return nil, errors.New("object and Go disagree on what packets are laid out in")
	}
	if t.memory, err = unix.Mmap(box.FD(), 0, pageAlign(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	t.box = (*sendBox)(unsafe.Pointer(unsafe.SliceData(t.memory)))
	if err := t.park(); err != nil {
		return nil, err
	}
	mine, err := sameNetns(h.netns, "/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	if !mine {
		if t.away, err = newThread(h.netns); err != nil {
			return nil, err
		}
	}
	// With nothing to send, to find out whether the kernel can.
	if err := t.run(1); err != nil {
		return nil, kernelError(err)
	}
	return t, nil
}

// park attaches the program in a namespace of its own.
func (t *Transmitter) park() error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the function
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("make a network namespace: %w", err)
			return
		}
		var err error
		if t.empty, err = os.Open(netnsPath); err == nil {
			const loopback = 1 // in every namespace
			t.link, err = link.AttachXDP(link.XDPOptions{Program: t.program, Interface: loopback, Flags: link.XDPGenericMode})
		}
		if err != nil {
			err = fmt.Errorf("attach where no packet comes: %w", kernelError(err))
		}
		result <- err
	}()
	return <-result
}

// in runs f on a thread in the interface's namespace.
func (t *Transmitter) in(f func() error) error {
	if t.away == nil {
		return f()
	}
	return t.away.do(f)
}

// run makes n packets.
func (t *Transmitter) run(n int) error {
	return t.in(func() error {
		_, err := t.program.Run(&ebpf.RunOptions{Data: t.first, Repeat: uint32(n), Flags: liveFrames})
		return err
	})
}

// Transmit sends frames; see shuffle.Transmitter.
func (t *Transmitter) Transmit(from uint16, to netip.AddrPort, frames [][]byte) error {
	if len(frames) == 0 || len(frames) > shuffle.TransmitAtOnce {
		return fmt.Errorf("send past sockets: %d frames at once: 1 to %d are possible", len(frames), shuffle.TransmitAtOnce)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	w := t.way(to.Addr())
	if w.err != nil {
		return fmt.Errorf("send past sockets to %s: %w", to.Addr(), w.err)
	}
	header := w.header
	binary.BigEndian.PutUint16(header[34:], from)
	binary.BigEndian.PutUint16(header[36:], to.Port())
	last := -1
	for i, f := range frames {
		if len(f) != last {
			last = len(f)
			if last == 0 || last > wire.FrameSize {
				return fmt.Errorf("send past sockets: a frame of %d bytes", last)
			}
			binary.BigEndian.PutUint16(header[16:], uint16(last+28))
			binary.BigEndian.PutUint16(header[38:], uint16(last+8))
			binary.BigEndian.PutUint16(header[24:], 0)
			binary.BigEndian.PutUint16(header[24:], headerSum(header[14:34]))
		}
		p := t.memory[sendBoxHead+i*sendStep:]
		binary.LittleEndian.PutUint32(p, uint32(sendHeaders+last))
		copy(p[8:], header[:])
		copy(p[8+sendHeaders:sendStep], f)
	}
	atomic.StoreUint32(&t.box.iface, w.iface)
	atomic.StoreUint32(&t.box.count, uint32(len(frames)))
	atomic.StoreUint32(&t.box.next, 0)
	err := t.run(len(frames))
	atomic.StoreUint32(&t.box.count, 0)
	if err != nil {
		return fmt.Errorf("send past sockets: %w", kernelError(err))
	}
	return nil
}

// headerSum is the checksum of an IPv4 header whose own is 0.
func headerSum(b []byte) uint16 {
	sum := uint32(0)
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// way returns the way to a host. mu is held.
func (t *Transmitter) way(to netip.Addr) *sendWay {
	now := time.Now()
	w := t.ways[to]
	if w != nil && now.Before(w.until) {
		return w
	}
	if len(t.ways) >= 4096 {
		clear(t.ways)
	}
	w = &sendWay{until: now.Add(wayFor)}
	w.err = t.in(func() error { return t.find(to, w) })
	if errors.Is(w.err, shuffle.ErrNotNow) {
		w.until = now.Add(time.Millisecond)
	}
	t.ways[to] = w
	return w
}

// find asks the system for the way to a host.
func (t *Transmitter) find(to netip.Addr, w *sendWay) error {
	if !to.Is4() {
		return fmt.Errorf("%w: IPv4 alone", ErrUnsupported)
	}
	found, err := findWay(t.host.devices, to)
	if err != nil {
		return err
	}
	w.iface = found.iface
	h := append(append(append([]byte(nil), found.far[:]...), found.near[:]...), 0x08, 0x00)
	// Version and length; then identification 0, which an atomic packet may have, and don't fragment.
	h = append(h, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0)
	copy(w.header[:], append(append(h, found.from.AsSlice()...), to.AsSlice()...))
	return nil
}

// Close detaches the program and unmaps the memory.
func (t *Transmitter) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	var errs []error
	if t.link != nil {
		errs = append(errs, t.link.Close())
	}
	if t.empty != nil {
		errs = append(errs, t.empty.Close())
	}
	if t.memory != nil {
		errs = append(errs, unix.Munmap(t.memory))
	}
	if t.coll != nil {
		t.coll.Close()
	}
	if t.away != nil {
		t.away.stop()
	}
	return errors.Join(errs...)
}
