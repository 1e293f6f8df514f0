// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// feature is something that kernels learnt at some time. Asking for it tries it.
type feature struct {
	name  string
	since string // the first kernel that should have it
	adds  string // what it is for
	try   func() error

	mu   sync.Mutex
	done bool
	err  error
}

// Have returns nil if the kernel has the feature, an error that wraps
// ebpf.ErrNotSupported if it has not, and any other error if that could not be found
// out, for want of rights say. The first two are facts and are remembered.
func (f *feature) Have() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done {
		return f.err
	}
	var err error
	if missing := missingRights(); len(missing) > 0 {
		err = &rightsError{missing} // without them kernels refuse things for other reasons, too
	} else {
		err = f.try()
	}
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w: %w", ErrRights, err) // held, and yet refused
	}
	if err != nil {
		err = fmt.Errorf("%s (since Linux %s): %w", f.name, f.since, err)
	}
	if err == nil || errors.Is(err, ebpf.ErrNotSupported) {
		f.done, f.err = true, err
	}
	return err
}

func smallProgram(t ebpf.ProgramType, insns ...asm.Instruction) (*ebpf.Program, error) {
	insns = append(insns, asm.Mov.Imm(asm.R0, 2), asm.Return())
	return ebpf.NewProgram(&ebpf.ProgramSpec{Type: t, Instructions: insns, License: "Dual BSD/GPL"})
}

// haveLink says whether programs of a type can be attached by links. It asks for
// something that can't be done, and a kernel that knows that kind of link says why.
func haveLink(t ebpf.ProgramType, o link.RawLinkOptions, why error) error {
	p, err := smallProgram(t)
	if err != nil {
		return err
	}
	defer p.Close()
	o.Program = p
	l, err := link.AttachRawLink(o)
	switch {
	case err == nil:
		return l.Close()
	case errors.Is(err, why):
		return nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, ebpf.ErrNotSupported):
		return ebpf.ErrNotSupported
	}
	return err
}

var (
	mappedArrays = &feature{
		name: "arrays that can be mapped", since: "5.5", adds: "reading tables without system calls",
		try: func() error { return features.HaveMapFlag(features.BPF_F_MMAPABLE) },
	}
	boundedLoops = &feature{
		name: "bounded loops", since: "5.3", adds: "checking tags",
		try: features.HaveBoundedLoops,
	}
	xdpLinks = &feature{
		name: "XDP links", since: "5.9", adds: "attaching so that nothing is left behind",
		try: func() error {
			// The loopback interface is the first, and has no native XDP.
			return haveLink(ebpf.XDP, link.RawLinkOptions{Target: 1, Attach: ebpf.AttachXDP, Flags: uint32(link.XDPDriverMode)}, unix.EOPNOTSUPP)
		},
	}
	fetchOr = &feature{
		name: "atomic or that returns what was there", since: "5.12", adds: "claiming frames exactly once",
		try: func() error {
			p, err := smallProgram(ebpf.XDP,
				asm.Mov.Imm(asm.R0, 0),
				asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
				asm.Mov.Imm(asm.R1, 1),
				asm.FetchOr.Mem(asm.RFP, asm.R1, asm.DWord, -8),
			)
			if err == nil {
				return p.Close()
			}
			if errors.Is(err, unix.EINVAL) || errors.Is(err, enotsupp) {
				return ebpf.ErrNotSupported
			}
			return err
		},
	}
	ringBuffers = &feature{
		name: "ring buffers", since: "5.8", adds: "broadcasts and all-reduces, which user space relays without",
		try: func() error { return features.HaveMapType(ebpf.RingBuf) },
	}
	sizedArrays = &feature{
		name: "arrays of any size in a map of maps", since: "5.10", adds: "broadcasts and all-reduces, which user space relays without",
		try: func() error { return features.HaveMapFlag(features.BPF_F_INNER_MAP) },
	}
	tcx = &feature{
		name: "tcx", since: "6.6", adds: "answers on paths where XDP_TX is lost, and clones of chunks, without clsact",
		try: func() error {
			const none = 0x7ffffff0 // no interface has that number
			return haveLink(ebpf.SchedCLS, link.RawLinkOptions{Target: none, Attach: ebpf.AttachTCXIngress}, unix.ENODEV)
		},
	}
)
