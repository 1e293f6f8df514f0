// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// linearMTU is an MTU that XDP programs on a veth take without fragments on
// pages of 4 KiB; a little more may be possible.
const linearMTU = 3498

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
	if mtu > linearMTU {
		spec.Programs["pass"].Flags |= unix.BPF_F_XDP_HAS_FRAGS
		spec.Programs["turn"].Flags |= unix.BPF_F_XDP_HAS_FRAGS
	}
	// The program compares it with a packet's field as it stands there.
	if err := spec.Variables["turn_port"].Set(turnPort<<8 | turnPort>>8); err != nil {
		return nil, fmt.Errorf("set the port to turn around: %w", err)
	}
	e := &Ends{}
	if err := spec.LoadAndAssign(&e.objects, nil); err != nil {
		if mtu > linearMTU {
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
