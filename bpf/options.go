// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/quernmr/quern/shuffle"
)

// Names of the settings that errors tell users to change.
const (
	ReplaceSetting     = "xdp-replace"  // Options.Replace
	TableMemorySetting = "table-memory" // Options.TableMemory
	XDPModeSetting     = "xdp-mode"     // Options.XDP
	InterfaceSetting   = "interface"    // Options.Interfaces
)

// noInterface is why the kernel does not fold where nobody said where.
const noInterface = "no network interface was named (--" + InterfaceSetting + " names one)"

// Root is where instances have their directories, unless told otherwise. It is
// lost at a reboot, as the programs are.
const Root = "/run/quern"

// XDPMode says where in the network stack the programs run.
type XDPMode uint8

// The modes. None falls back to another by itself: peers that think packets come
// cut would send what generic mode does not see as frames.
const (
	Native  XDPMode = iota // in the driver
	Generic                // behind it; slower, works with every driver
)

func (m XDPMode) String() string {
	if m == Generic {
		return "generic"
	}
	return "native"
}

// ParseXDPMode reads a mode's name.
func ParseXDPMode(s string) (XDPMode, error) {
	switch s {
	case "native":
		return Native, nil
	case "generic":
		return Generic, nil
	}
	return 0, fmt.Errorf("%q is no XDP mode (native, generic)", s)
}

// Options say what [Open] sets up.
type Options struct {
	// Interfaces are the network interfaces to attach to, by name, in the network
	// namespace of the calling thread. A caller that has changed that holds
	// the thread (runtime.LockOSThread) during Open. None: nothing is
	// attached, and programs run only by [Host.Run].
	Interfaces []string
	XDP        XDPMode
	// Replace displaces XDP programs of others. Else Open returns a *ForeignError.
	Replace bool
	Port    int // UDP; 0: shuffle.Port
	Limits  shuffle.Limits
	// Dir is the instance's directory, where its state is pinned. The same
	// directory means the same instance. "": nothing outlives the process.
	Dir string
	// TableMemory is the most that tables may take, in bytes; 0: a quarter of
	// the machine's memory.
	TableMemory int64
	Log         *slog.Logger // nil: nothing is logged
}

// InstanceDir returns the directory of the instance of that name below [Root].
func InstanceDir(name string) string { return filepath.Join(Root, name) }

var instanceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// EnsureDefaults fills in what is not set.
func (o Options) EnsureDefaults() Options {
	if o.Port == 0 {
		o.Port = shuffle.Port
	}
	if o.TableMemory == 0 {
		o.TableMemory = max(int64(machineMemory()/4), 64<<20)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Limits = o.Limits.EnsureDefaults()
	o.Interfaces = slices.Clone(o.Interfaces)
	return o
}

// Validate returns an error that names the first setting that can't be.
func (o Options) Validate() error {
	for i, name := range o.Interfaces {
		if name == "" || slices.Contains(o.Interfaces[:i], name) {
			return fmt.Errorf("interfaces %q: each needs a name of its own", o.Interfaces)
		}
	}
	if o.Port < 0 || o.Port > 65535 {
		return fmt.Errorf("port %d: UDP ports go from 1 to 65535", o.Port)
	}
	if o.XDP > Generic {
		return fmt.Errorf("XDP mode %d does not exist", o.XDP)
	}
	if o.TableMemory < 0 {
		return fmt.Errorf("%s of %d bytes is less than nothing", TableMemorySetting, o.TableMemory)
	}
	if o.Dir != "" {
		if !filepath.IsAbs(o.Dir) {
			return fmt.Errorf("instance directory %q: give an absolute path", o.Dir)
		}
		if !instanceName.MatchString(filepath.Base(o.Dir)) {
			return fmt.Errorf("instance directory %q: its last part is the instance's name: up to 64 letters, digits, dots, dashes and underscores", o.Dir)
		}
	}
	return nil
}

func (o Options) String() string {
	if len(o.Interfaces) == 0 {
		return "no interface"
	}
	return fmt.Sprintf("%s (%s XDP)", strings.Join(o.Interfaces, ", "), o.XDP)
}

// Errors of Open and of a Host, for errors.Is. What is returned says more.
var (
	// ErrUnsupported: the system, the kernel or the driver can't do it.
	ErrUnsupported = errors.New("not supported here")
	// ErrRights: the process lacks a right.
	ErrRights = errors.New("missing right")
	// ErrMTU: the interface takes packets larger than programs are given in one piece.
	ErrMTU = errors.New("MTU too large")
	// ErrInUse: another process that lives has the instance.
	ErrInUse = errors.New("instance in use")
	// ErrBudget: tables would take more memory than they may.
	ErrBudget = errors.New("table memory used up")
	// ErrClosed: the Host was closed or released.
	ErrClosed = errors.New("host is closed")
)

// errNoMount: an instance's directory can't be used for want of the right to mount.
var errNoMount = fmt.Errorf("%w to mount", ErrRights)

// ForeignError says that an interface has another XDP program.
type ForeignError struct {
	Interface string
	ID        uint32 // the program's number; 0 if it is not known
	Program   string // its name; "" if it is not known
	Mode      XDPMode
}

func (e *ForeignError) Error() string {
	s := "interface " + e.found()
	if e.Program == dispatchProgram {
		return s + fmt.Sprintf(", of another Quern process or left by one: quern doctor --clean removes leftovers, --%s displaces it", ReplaceSetting)
	}
	return s + fmt.Sprintf("; --%s displaces it", ReplaceSetting)
}

// found says what is there.
func (e *ForeignError) found() string {
	what := "an XDP program"
	if e.ID != 0 {
		what = fmt.Sprintf("XDP program %d", e.ID)
	}
	if e.Program != "" {
		what += fmt.Sprintf(" (%s)", e.Program)
	}
	return fmt.Sprintf("%s has %s in %s mode already", e.Interface, what, e.Mode)
}

// ProgramTime is how long a program ran since it was loaded, while times were
// taken (see [Stats]). Programs that it called by tail calls are included.
type ProgramTime struct {
	Name string
	Runs uint64
	Time time.Duration
}

// Names of programs in the objects.
const (
	dispatchProgram = "quern_dispatch"
	ackProgram      = "quern_ack"
	absorbProgram   = "quern_absorb"
	tcProgram       = "quern_answer_tc"
	chunkProgram    = "quern_chunk"
	collectProgram  = "quern_collect"
	pumpProgram     = "quern_pump"
	cloneProgram    = "quern_clone"
	reduceProgram   = "quern_reduce"
	completeProgram = "quern_complete"
	reducedProgram  = "quern_reduced"
	passProgram     = "quern_pass"
	sendProgram     = "quern_send"
)
