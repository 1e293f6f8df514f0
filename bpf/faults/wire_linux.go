// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Flags of a plan; see c/faults.h.
const (
	flagActive  = 1
	flagCut     = 2
	flagUDPOnly = 4
)

// Wire is the bad wire's programs and their maps. Its methods may be called at
// the same time, but for ReadHeld, which is for one caller, and Close.
type Wire struct {
	objects wireObjects
	held    *ringbuf.Reader
	record  ringbuf.Record
}

// LoadWire loads the programs for ports whose interfaces have indexes up to
// highest. It needs CAP_BPF and CAP_NET_ADMIN.
func LoadWire(highest int) (*Wire, error) {
	// Kernels before 5.11 count maps as locked memory. Where that cannot be
	// raised and matters, loading fails and says so.
	_ = rlimit.RemoveMemlock()
	spec, err := loadWire()
	if err != nil {
		return nil, fmt.Errorf("read the wire's programs: %w", err)
	}
	for _, name := range []string{"plans", "tallies"} {
		spec.Maps[name].MaxEntries = uint32(highest+1) * 2
	}
	w := &Wire{}
	if err := spec.LoadAndAssign(&w.objects, nil); err != nil {
		return nil, fmt.Errorf("load the wire's programs: %w", err)
	}
	if w.held, err = ringbuf.NewReader(w.objects.Holds); err != nil {
		_ = w.objects.Close()
		return nil, fmt.Errorf("open the ring of held packets: %w", err)
	}
	return w, nil
}

// Prepare gives an interface in the calling thread's network namespace the hooks
// that Attach needs. It is called before the interface is up: at one that is, what
// is sent meanwhile is lost.
func Prepare(ifindex int) error {
	qdisc := &netlink.GenericQdisc{
		QdiscType:  "clsact",
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
	}
	if err := netlink.QdiscAdd(qdisc); err != nil {
		return fmt.Errorf("add the clsact queueing discipline: %w", err)
	}
	return nil
}

// Attach puts the programs at both hooks of an interface in the calling
// thread's network namespace. They go when the interface goes.
func (w *Wire) Attach(ifindex int) error {
	for _, hook := range []struct {
		name    string
		parent  uint32
		program *ebpf.Program
	}{
		{"quern_from", netlink.HANDLE_MIN_INGRESS, w.objects.FromHost},
		{"quern_to", netlink.HANDLE_MIN_EGRESS, w.objects.ToHost},
	} {
		filter := &netlink.BpfFilter{
			FilterAttrs:  netlink.FilterAttrs{LinkIndex: ifindex, Parent: hook.parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
			Fd:           hook.program.FD(),
			Name:         hook.name,
			DirectAction: true,
		}
		if err := netlink.FilterReplace(filter); err != nil {
			return fmt.Errorf("attach %s: %w", hook.name, err)
		}
	}
	return nil
}

func index(ifindex int, d Direction) uint32 { return uint32(ifindex)*2 + uint32(d) }

// SetPlan changes what happens to packets. Packets keep the numbers they are
// counted by, unless renumber is set: then the next one is number 0.
func (w *Wire) SetPlan(ifindex int, d Direction, p *Plan, renumber bool) error {
	if err := p.Check(); err != nil {
		return err
	}
	k := index(ifindex, d)
	var old wireFaultsPlan
	if err := w.objects.Plans.Lookup(k, &old); err != nil {
		return fmt.Errorf("look up the plan of interface %d: %w", ifindex, err)
	}
	base := old.Base
	if renumber {
		t, err := w.Tally(ifindex, d)
		if err != nil {
			return err
		}
		base = t.Drawn
	}
	plan := wireFaultsPlan{
		Seed: p.Seed, Base: base,
		Loss: threshold(p.Loss), Duplicate: threshold(p.Duplicate), Corrupt: threshold(p.Corrupt), Reorder: threshold(p.Reorder),
		DelayUs: microseconds(p.Delay), JitterUs: microseconds(p.Jitter), HoldUs: microseconds(p.Hold),
	}
	if p.active() {
		plan.Flags |= flagActive
	}
	if p.Cut {
		plan.Flags |= flagCut
	}
	if p.UDPOnly {
		plan.Flags |= flagUDPOnly
	}
	if err := w.objects.Plans.Put(k, &plan); err != nil {
		return fmt.Errorf("set the plan of interface %d: %w", ifindex, err)
	}
	return nil
}

// Tally returns what was done since the programs were loaded.
func (w *Wire) Tally(ifindex int, d Direction) (Tally, error) {
	var t wireFaultsTally
	if err := w.objects.Tallies.Lookup(index(ifindex, d), &t); err != nil {
		return Tally{}, fmt.Errorf("look up the tally of interface %d: %w", ifindex, err)
	}
	return Tally{
		Drawn: t.Drawn, Lost: t.Lost, Duplicated: t.Duplicated, Corrupted: t.Corrupted, Rejected: t.Rejected,
		Reordered: t.Reordered, Held: t.Held, Unheld: t.Unheld, Cut: t.Cut,
	}, nil
}

// ReadHeld waits for a packet that is to be held. The frame is valid until the
// next call. It returns os.ErrClosed after Close.
func (w *Wire) ReadHeld() (Held, error) {
	for {
		if err := w.held.ReadInto(&w.record); err != nil {
			return Held{}, err
		}
		raw := w.record.RawSample
		var head wireFaultsHeld
		if len(raw) < int(unsafe.Sizeof(head)) {
			continue
		}
		head = *(*wireFaultsHeld)(unsafe.Pointer(unsafe.SliceData(raw)))
		frame := raw[unsafe.Sizeof(head):]
		if len(frame) < int(head.Length) {
			continue
		}
		return Held{Due: int64(head.Due), Port: int(head.Port), Frame: frame[:head.Length]}, nil
	}
}

// Close ends ReadHeld and gives the programs up. Those that are attached stay
// until their interfaces go.
func (w *Wire) Close() error {
	return errors.Join(w.held.Close(), w.objects.Close())
}
