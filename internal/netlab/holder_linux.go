// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/quernmr/quern/bpf/faults"
	"golang.org/x/sys/unix"
)

// mostHeld bounds the packets that are held at once. Those beyond are sent on
// before they are due, the oldest first.
const mostHeld = 1 << 16

// holder holds packets for the wire's programs, which cannot wait, and sends
// them out of their port when they are due.
type holder struct {
	wire   *faults.Wire
	socket int // packet socket in the bridge's namespace
	wake   int // event descriptor: look at the heap again
	done   sync.WaitGroup

	mu                  sync.Mutex
	held                packets
	free                [][]byte
	arrived             uint64
	released, discarded uint64
	closing             bool
}

// packet is one that is held.
type packet struct {
	due    int64
	number uint64 // packets that are due at once go in the order they came
	port   int
	frame  []byte
}

type packets []packet

func (p packets) Len() int { return len(p) }
func (p packets) Less(i, j int) bool {
	return p[i].due < p[j].due || p[i].due == p[j].due && p[i].number < p[j].number
}
func (p packets) Swap(i, j int) { p[i], p[j] = p[j], p[i] }
func (p *packets) Push(x any)   { *p = append(*p, x.(packet)) }
func (p *packets) Pop() any {
	last := len(*p) - 1
	x := (*p)[last]
	(*p)[last] = packet{}
	*p = (*p)[:last]
	return x
}

// newHolder begins to hold packets. close ends it and closes wire.
func newHolder(wire *faults.Wire, bridge *namespace) (*holder, error) {
	h := &holder{wire: wire, socket: -1, wake: -1}
	err := bridge.do(func() (err error) {
		// Protocol 0: it receives nothing.
		h.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err == nil {
		err = unix.SetsockoptInt(h.socket, unix.SOL_SOCKET, unix.SO_MARK, int(faults.Mark))
	}
	if err == nil {
		err = unix.SetsockoptInt(h.socket, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1)
	}
	if err == nil {
		h.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err != nil {
		h.closeFiles()
		return nil, fmt.Errorf("open a packet socket, which delays and reordering need: %w", err)
	}
	h.done.Go(h.receive)
	h.done.Go(h.send)
	return h, nil
}

// receive takes packets from the programs.
func (h *holder) receive() {
	for {
		p, err := h.wire.ReadHeld()
		if err != nil {
			return // closed; nothing else ends reading of a ring
		}
		h.mu.Lock()
		var frame []byte
		if n := len(h.free); n > 0 {
			frame, h.free = h.free[n-1][:0], h.free[:n-1]
		}
		h.arrived++
		heap.Push(&h.held, packet{p.Due, h.arrived, p.Port, append(frame, p.Frame...)})
		first := h.held[0].number == h.arrived || len(h.held) > mostHeld
		h.mu.Unlock()
		if first {
			h.signal()
		}
	}
}

func (h *holder) signal() {
	// It fails only if it is set already.
	_, _ = unix.Write(h.wake, binary.NativeEndian.AppendUint64(nil, 1))
}

// send sends what is due.
func (h *holder) send() {
	var batch []packet
	poll := []unix.PollFd{{Fd: int32(h.wake), Events: unix.POLLIN}}
	for {
		h.mu.Lock()
		if h.closing {
			h.discarded += uint64(len(h.held))
			h.held = nil
			h.mu.Unlock()
			return
		}
		now := monotonic()
		for len(h.held) > 0 && (h.held[0].due <= now || len(h.held) > mostHeld) {
			batch = append(batch, heap.Pop(&h.held).(packet))
		}
		var timeout *unix.Timespec // none: until there is something
		if len(h.held) > 0 {
			t := unix.NsecToTimespec(h.held[0].due - now)
			timeout = &t
		}
		h.mu.Unlock()
		if len(batch) > 0 {
			h.sendAll(batch)
			batch = batch[:0]
			continue
		}
		// An error is an interruption.
		if n, _ := unix.Ppoll(poll, timeout, nil); n > 0 {
			var set [8]byte
			_, _ = unix.Read(h.wake, set[:])
		}
	}
}

func (h *holder) sendAll(batch []packet) {
	sent := uint64(0)
	for _, p := range batch {
		// The protocol of the address is what the kernel takes the packet for.
		to := &unix.SockaddrLinklayer{Ifindex: p.port, Protocol: binary.NativeEndian.Uint16(p.frame[12:])}
		head := virtioHeader(p.frame)
		if _, err := unix.SendmsgBuffers(h.socket, [][]byte{head[:], p.frame}, nil, to, 0); err == nil {
			sent++
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.released += sent
	h.discarded += uint64(len(batch)) - sent
	for _, p := range batch {
		h.free = append(h.free, p.frame)
	}
}

// virtioHeader says how a packet's checksum stands. A sender whose checksums its
// card makes leaves but the sum of the pseudo header in the packet. Then that
// must go on to be so: nothing but a card could finish it, and here is none.
func virtioHeader(frame []byte) (head [10]byte) {
	const needsChecksum = 1
	var addresses []byte
	var start, protocol int
	switch {
	case frame[12] == 0x08 && frame[13] == 0x00 && len(frame) >= 34:
		if fragment := binary.BigEndian.Uint16(frame[20:]); fragment&0x3fff != 0 {
			return head
		}
		start, protocol, addresses = 14+int(frame[14]&15)*4, int(frame[23]), frame[26:34]
	case frame[12] == 0x86 && frame[13] == 0xdd && len(frame) >= 54:
		start, protocol, addresses = 54, int(frame[20]), frame[22:54]
	default:
		return head
	}
	offset := 0
	switch protocol {
	case unix.IPPROTO_UDP:
		offset = 6
	case unix.IPPROTO_TCP:
		offset = 16
	default:
		return head
	}
	if len(frame) < start+offset+2 {
		return head
	}
	sum := protocol + len(frame) - start
	for i := 0; i < len(addresses); i += 2 {
		sum += int(binary.BigEndian.Uint16(addresses[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	if binary.BigEndian.Uint16(frame[start+offset:]) != uint16(sum) {
		return head
	}
	head[0] = needsChecksum
	binary.NativeEndian.PutUint16(head[6:], uint16(start))
	binary.NativeEndian.PutUint16(head[8:], uint16(offset))
	return head
}

// counts returns the packets that were sent on, and those that could not be.
func (h *holder) counts() (released, discarded uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.released, h.discarded
}

func (h *holder) close() error {
	h.mu.Lock()
	h.closing = true
	h.mu.Unlock()
	h.signal()
	err := h.wire.Close()
	h.done.Wait()
	return errors.Join(err, h.closeFiles())
}

func (h *holder) closeFiles() error {
	var err error
	for _, fd := range []int{h.socket, h.wake} {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	return err
}
