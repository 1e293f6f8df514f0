// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Ends holds XDP programs for the two ends of a lab's links, in native mode.
// Its methods may be called at the same time.
type Ends struct {
	objects endsObjects

	mu    sync.Mutex
	links []link.Link // their programs are detached when these are closed
}

// LoadEnds loads the programs for links of an MTU. UDP packets to turnPort are
// those that AttachTurn turns around. It needs CAP_BPF and CAP_NET_ADMIN.
func LoadEnds(mtu int, turnPort uint16) (*Ends, error) {
	_ = rlimit.RemoveMemlock() // see LoadWire
	spec, err := loadEnds()
	if err != nil {
		return nil, fmt.Errorf("read the ends' programs: %w", err)
	}
	if mtu > LinearMTU {
		spec.Programs["pass"].Flags |= unix.BPF_F_XDP_HAS_FRAGS
		spec.Programs["turn"].Flags |= unix.BPF_F_XDP_HAS_FRAGS
	}
	// The program compares it with a packet's field as it stands there.
	if err := spec.Variables["turn_port"].Set(turnPort<<8 | turnPort>>8); err != nil {
		return nil, fmt.Errorf("set the port to turn around: %w", err)
	}
	e := &Ends{}
	if err := spec.LoadAndAssign(&e.objects, nil); err != nil {
		if mtu > LinearMTU {
			return nil, fmt.Errorf("load the ends' programs for an MTU of %d, which needs XDP with fragments (Linux 5.18): %w", mtu, err)
		}
		return nil, fmt.Errorf("load the ends' programs: %w", err)
	}
	return e, nil
}

// AttachPass puts a program that passes everything at an interface in the
// calling thread's network namespace. It stays until Close.
func (e *Ends) AttachPass(ifindex int) error {
	return e.attach(link.XDPOptions{Program: e.objects.Pass, Interface: ifindex, Flags: link.XDPDriverMode})
}

// AttachSwitch is AttachPass with a program that is a switch for UDP, once
// [Ends.Switch] has turned it on and as far as [Ends.Join] has told it who is where.
func (e *Ends) AttachSwitch(ifindex int) error {
	return e.attach(link.XDPOptions{Program: e.objects.Forward, Interface: ifindex, Flags: link.XDPDriverMode})
}

// Join tells the switch that the host of an address is at an interface in the calling
// thread's network namespace. There is room for 256. The other end of the interface must
// take what is redirected: it has an XDP program, or generic receive offload is on.
func (e *Ends) Join(ifindex int, a net.HardwareAddr) error {
	var key endsAddress
	if copy(key.Mac[:], a) != len(key.Mac) || len(a) != len(key.Mac) {
		return fmt.Errorf("%v is no Ethernet address", a)
	}
	port := uint32(ifindex)
	if err := e.objects.Ports.Put(port, port); err != nil {
		return fmt.Errorf("make interface %d a port of the switch: %w", ifindex, err)
	}
	if err := e.objects.Addresses.Put(&key, port); err != nil {
		return fmt.Errorf("tell the switch where %v is: %w", a, err)
	}
	return nil
}

// Switch turns the switch on or off; it is off at first. Off, all packets are passed.
// When Switch returns, no packet is on its way through the programs by how it was before.
func (e *Ends) Switch(on bool) error {
	var value uint32
	if on {
		value = 1
	}
	if err := e.objects.Switching.Set(value); err != nil {
		return fmt.Errorf("turn the switch: %w", err)
	}
	return waitForPrograms()
}

// waitForPrograms returns when the programs that are running have ended and what they
// redirected has been handed over; both happen in one critical section. The kernel
// waits for those when it has changed a map of maps.
func waitForPrograms() error {
	inner := &ebpf.MapSpec{Name: "wait_inner", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	in, err := ebpf.NewMap(inner)
	if err != nil {
		return fmt.Errorf("wait for running programs: %w", err)
	}
	defer in.Close()
	out, err := ebpf.NewMap(&ebpf.MapSpec{Name: "wait", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: inner})
	if err != nil {
		return fmt.Errorf("wait for running programs: %w", err)
	}
	defer out.Close()
	if err := out.Put(uint32(0), in); err != nil {
		return fmt.Errorf("wait for running programs: %w", err)
	}
	return nil
}

// AttachTurn is AttachPass with a program that turns UDP packets around.
func (e *Ends) AttachTurn(ifindex int) error {
	return e.attach(link.XDPOptions{Program: e.objects.Turn, Interface: ifindex, Flags: link.XDPDriverMode})
}

func (e *Ends) attach(o link.XDPOptions) error {
	l, err := link.AttachXDP(o)
	if err != nil {
		return fmt.Errorf("attach an XDP program: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.links = append(e.links, l)
	return nil
}

// Turned returns how many packets the turning programs saw, and how many of
// them they turned around.
func (e *Ends) Turned() (seen, turned uint64, err error) {
	for i, total := range []*uint64{&seen, &turned} {
		var perCPU []uint64
		if err := e.objects.Seen.Lookup(uint32(i), &perCPU); err != nil {
			return 0, 0, fmt.Errorf("look up what was turned around: %w", err)
		}
		for _, n := range perCPU {
			*total += n
		}
	}
	return seen, turned, nil
}

// Close detaches the programs.
func (e *Ends) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var err error
	for _, l := range e.links {
		err = errors.Join(err, l.Close())
	}
	e.links = nil
	return errors.Join(err, e.objects.Close())
}
