// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bpf

import (
	"fmt"
	"io"
	"net/netip"
	"runtime"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

var _ shuffle.Reduces = (*Host)(nil)

// Host is a kernel's help at this host. This system has none to give, so there is no Host.
type Host struct{}

var errSystem = fmt.Errorf("%w: the kernel folds on Linux alone, and this is %s", ErrUnsupported, runtime.GOOS)

// Rights lists the capabilities that a Host needs on Linux.
var Rights = []string{"CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON", "CAP_SYS_ADMIN"}

// Open returns an error that wraps ErrUnsupported.
func Open(o Options) (*Host, error) {
	if err := o.EnsureDefaults().Validate(); err != nil {
		return nil, err
	}
	return nil, errSystem
}

// AttachPass returns an error that wraps ErrUnsupported.
func AttachPass(string) (io.Closer, error) { return nil, errSystem }

// Clean finds nothing.
func Clean(string) (removed []string, err error) { return nil, nil }

// CleanAll finds nothing.
func CleanAll(string) (removed []string, err error) { return nil, nil }

// Leftovers finds none.
func Leftovers(string) (dirs []string) { return nil }

// Stats returns an error that wraps ErrUnsupported.
func Stats() (io.Closer, error) { return nil, errSystem }

// Memory returns nil.
func (h *Host) Memory() *shuffle.Memory { return nil }

// SetJob returns an error.
func (h *Host) SetJob(int, *wire.Job) error { return errSystem }

// NewTables returns an error.
func (h *Host) NewTables(shuffle.TableLayout, int) ([]*shuffle.Table, error) { return nil, errSystem }

// FreeTable returns an error.
func (h *Host) FreeTable(*shuffle.Table) error { return errSystem }

// Tables returns none.
func (h *Host) Tables() []*shuffle.Table { return nil }

// TableBytes returns 0.
func (h *Host) TableBytes() (used, limit int64) { return 0, 0 }

// Resumed returns false.
func (h *Host) Resumed() bool { return false }

// Note returns "".
func (h *Host) Note() string { return "" }

// Quiesce returns an error.
func (h *Host) Quiesce() error { return errSystem }

// Reasons returns an error.
func (h *Host) Reasons() (sums [wire.Reasons]uint64, err error) { return sums, errSystem }

// Run returns an error.
func (h *Host) Run([]byte) (verdict uint32, out []byte, err error) { return 0, nil, errSystem }

// MTU returns 0.
func (h *Host) MTU() int { return 0 }

// XDP returns the mode that is not there.
func (h *Host) XDP() XDPMode { return Native }

// Port returns 0.
func (h *Host) Port() int { return 0 }

// Answer returns how user space alone would answer.
func (h *Host) Answer() wire.AnswerMode { return wire.AnswerUser }

// SetAnswer returns an error.
func (h *Host) SetAnswer(wire.AnswerMode) error { return errSystem }

// Times returns an error.
func (h *Host) Times() ([]ProgramTime, error) { return nil, errSystem }

// String says that there is nothing.
func (h *Host) String() string { return "no kernel's help on " + runtime.GOOS }

// Broadcasts returns an error.
func (h *Host) Broadcasts() (shuffle.Broadcasts, error) { return nil, errSystem }

// Reduces returns an error.
func (h *Host) Reduces() (shuffle.Reduces, error) { return nil, errSystem }

// Groups returns none.
func (h *Host) Groups() []wire.Group { return nil }

// OnRound returns an error.
func (h *Host) OnRound(func(wire.Event)) error { return errSystem }

// Ends returns none.
func (h *Host) Ends() *shuffle.Ends { return &shuffle.Ends{} }

// NewContent returns an error.
func (h *Host) NewContent(int) (*shuffle.Content, error) { return nil, errSystem }

// FreeContent returns an error.
func (h *Host) FreeContent(*shuffle.Content) error { return errSystem }

// SetToken returns an error.
func (h *Host) SetToken(uint64, int) error { return errSystem }

// ClearToken returns an error.
func (h *Host) ClearToken(uint64) error { return errSystem }

// Hop returns an error.
func (h *Host) Hop(netip.AddrPort) (wire.Hop, error) { return wire.Hop{}, errSystem }

// OnEvent returns an error.
func (h *Host) OnEvent(func(wire.Event)) error { return errSystem }

// Clones says no.
func (h *Host) Clones() bool { return false }

// Pumps says no.
func (h *Host) Pumps() bool { return false }

// Release returns an error.
func (h *Host) Release() error { return errSystem }

// Close does nothing.
func (h *Host) Close() error { return nil }

func machineMemory() uint64 { return 0 }
