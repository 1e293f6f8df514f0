// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"

	"github.com/quernmr/quern/shuffle"
)

// Options say how a receiver works. The zero value takes frames on any free
// port, on all addresses, in user space.
type Options struct {
	// Kernel is the help of programs at the interface, nil if there is none. It
	// outlives the receiver: its owner closes it.
	Kernel shuffle.Kernel
	// Jobs are the kernel's slots for jobs' keys, which the sender at this host uses too.
	// nil: there is no sender that uses the kernel.
	Jobs *shuffle.JobSlots
	// Mode UserOnly has programs fold nothing, if there are any.
	Mode shuffle.Mode
	// Generic says that the programs see packets as a socket would.
	Generic bool
	// Listen is the address that frames come to; "": all of both families.
	Listen string
	// Port for frames, UDP. 0: any free one. With a kernel, the one its programs know.
	Port int
	// Limits are the sizes of the memory. With a kernel, those it was opened with.
	Limits shuffle.Limits
	// TempDir is where runs go, in a folder that Close removes; "": the system's. On
	// Linux New removes the folders of receivers there whose processes are gone.
	TempDir string
	// FoldMemory bounds the bytes of records that wait in user space, for all
	// targets together. 0: 256 MiB. At least 2 MiB.
	FoldMemory int64
	// TableMemory bounds the bytes of the tables that programs fold into. 0: 512 MiB.
	TableMemory int64
	// Readers is the number of sockets and of goroutines that read them. 0: half the
	// processors, at most 4.
	Readers int
	// ReceiveBuffer is how many bytes each socket may hold; the system may allow less.
	// 0: 8 MiB.
	ReceiveBuffer int
	// InFlight is how many frames may be under way to here; senders are told
	// their share. 0: what the receive buffers hold.
	InFlight int
	// TableBits bounds log2 of a table's slots. 0: wire.MaxBits.
	TableBits int
	// Other takes what comes to the port and is not of streams: chunks of broadcasts and
	// their answers, parts and results of all-reduces. Heads were checked, tags were not. Several goroutines
	// call it, also before New has returned and until Close does. The frame is the
	// caller's again afterwards, and may be changed until then. nil: such frames
	// are counted as strays.
	Other func(frame []byte, from netip.AddrPort)
	Log   *slog.Logger // nil: silent

	usage func(*shuffle.Table) (used, pairs uint64) // for tests
}

func (o Options) ensureDefaults() (Options, error) {
	if o.Mode == shuffle.KernelOnly && o.Kernel == nil {
		return o, fmt.Errorf("receive: mode %s, and no kernel's help; `quern doctor` says what is missing, --shuffle auto does without", o.Mode)
	}
	if o.Kernel != nil && o.Jobs == nil {
		o.Jobs = shuffle.NewJobSlots(o.Kernel, o.Limits.EnsureDefaults().Jobs)
	}
	if o.TempDir == "" {
		o.TempDir = os.TempDir()
	}
	if o.FoldMemory == 0 {
		o.FoldMemory = 256 << 20
	}
	o.FoldMemory = max(o.FoldMemory, 2<<20)
	if o.TableMemory == 0 {
		o.TableMemory = 512 << 20
	}
	if o.Readers <= 0 {
		o.Readers = max(1, min(4, runtime.GOMAXPROCS(0)/2))
	}
	if o.ReceiveBuffer <= 0 {
		o.ReceiveBuffer = 8 << 20
	}
	if o.TableBits <= 0 {
		o.TableBits = maxTableBits
	}
	if o.usage == nil {
		o.usage = usage
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o, nil
}
