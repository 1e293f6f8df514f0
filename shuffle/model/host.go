// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// Verdict is what becomes of a packet; the numbers are those of XDP.
type Verdict uint8

// The verdicts.
const (
	Aborted Verdict = iota
	Drop
	Pass
	TX
	Redirect
)

func (v Verdict) String() string {
	return [...]string{"aborted", "drop", "pass", "tx", "redirect"}[min(v, Redirect)]
}

// Config is what a Host is made of.
type Config struct {
	Limits shuffle.Limits
	CPUs   int // 0: 1
	Port   int // of the receiver's end; 0: shuffle.Port
	Answer wire.AnswerMode
	// Broadcasts says that there are programs for broadcasts. Else their frames go up.
	Broadcasts bool
	// Reduces says that there are programs for all-reduces too, and with them those for broadcasts.
	Reduces   bool
	Interface uint32                                 // that packets come in by; 0: 1
	Hop       func(netip.AddrPort) (wire.Hop, error) // how packets get to a host; nil: not at all
	MTU       int                                    // 0: 1500
	Now       func() uint64                          // nanoseconds, for when acknowledgements arrived; nil: always 0
	// BeforeClaim is called between find and claim; nil: nothing. It may claim
	// the frame, as user space on another CPU may.
	BeforeClaim func(stream, seq uint32)
}

// Host is one host's programs and their state. It implements [shuffle.Kernel], so that it stands in
// for a kernel where there is none. Its methods may be called at the same time.
type Host struct {
	cfg    Config
	memory *shuffle.Memory

	mu      sync.Mutex // one program at a time
	jobs    []*wire.Tags
	sets    []shuffle.TableLayout
	tables  map[shuffle.TableID]*shuffle.Table
	next    []int // next index per set
	answers []uint64
	reasons [wire.Reasons]uint64
	ends    ends
}

var _ shuffle.Kernel = (*Host)(nil)

// NewHost returns a host without tables and jobs.
func NewHost(cfg Config) *Host {
	cfg.Limits = cfg.Limits.EnsureDefaults()
	cfg.CPUs = max(cfg.CPUs, 1)
	if cfg.Port == 0 {
		cfg.Port = shuffle.Port
	}
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	if cfg.Interface == 0 {
		cfg.Interface = 1
	}
	cfg.Broadcasts = cfg.Broadcasts || cfg.Reduces
	m := shuffle.NewMemory(cfg.Limits)
	m.CPUs = cfg.CPUs
	m.Cells = make([]wire.Cell, cfg.Limits.Targets*cfg.CPUs)
	h := &Host{
		cfg: cfg, memory: m,
		jobs:    make([]*wire.Tags, cfg.Limits.Jobs),
		tables:  map[shuffle.TableID]*shuffle.Table{},
		answers: make([]uint64, cfg.CPUs),
		ends:    ends{shared: &shuffle.Ends{}, tokens: map[uint64]uint32{}, contents: map[uint32]*shuffle.Content{}},
	}
	if cfg.Broadcasts {
		h.ends.shared.Regions = make([]wire.Region, cfg.Limits.Regions)
		h.ends.shared.Casts = make([]wire.Cast, cfg.Limits.Casts)
		h.ends.marks = make([]uint64, cfg.Limits.Chunks)
	}
	if cfg.Reduces {
		h.ends.groups = make([]wire.Group, cfg.Limits.Groups)
	}
	return h
}

// Memory returns the shared memory.
func (h *Host) Memory() *shuffle.Memory { return h.memory }

// SetJob writes a job's keys.
func (h *Host) SetJob(slot int, keys *wire.Job) error {
	if slot < 0 || slot >= len(h.jobs) {
		return fmt.Errorf("job slot %d of %d", slot, len(h.jobs))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.jobs[slot] = wire.TagsOf(keys)
	return nil
}

// NewTables makes empty tables.
func (h *Host) NewTables(layout shuffle.TableLayout, n int) ([]*shuffle.Table, error) {
	if layout.Bits < 0 || layout.Bits > wire.MaxBits ||
		!layout.Dense && (layout.Class < 0 || layout.Class >= wire.Classes || layout.Lanes < 1 || layout.Lanes > wire.MaxLanes) {
		return nil, fmt.Errorf("no table of %v", layout)
	}
	if layout.Dense {
		layout.Class, layout.Lanes = 0, 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	set := slices.Index(h.sets, layout)
	if set < 0 {
		set = len(h.sets)
		h.sets, h.next = append(h.sets, layout), append(h.next, 0)
	}
	if set > 0x7f {
		return nil, errors.New("too many layouts of tables")
	}
	var all []*shuffle.Table
	for range n {
		t := &shuffle.Table{
			ID:     shuffle.TableID(set<<24 | h.next[set]),
			Layout: layout,
			Memory: make([]byte, layout.Size()),
		}
		h.next[set]++
		h.tables[t.ID] = t
		all = append(all, t)
	}
	return all, nil
}

// FreeTable frees a table.
func (h *Host) FreeTable(t *shuffle.Table) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tables[t.ID] != t {
		return fmt.Errorf("table %#x is not there", t.ID)
	}
	delete(h.tables, t.ID)
	return nil
}

// Tables returns nothing: a Host does not outlive its process.
func (h *Host) Tables() []*shuffle.Table { return nil }

// Resumed returns false.
func (h *Host) Resumed() bool { return false }

// Quiesce returns when no packet is being handled that was before the call.
func (h *Host) Quiesce() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return nil
}

// Reasons returns how often packets ended for each reason.
func (h *Host) Reasons() ([wire.Reasons]uint64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reasons, nil
}

// SetAnswer changes how acknowledgements leave.
func (h *Host) SetAnswer(mode wire.AnswerMode) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cfg.Answer = mode
}

// SetAnswers sets the number of answers that a CPU has made, which is the nonce of
// its next one: for comparing with programs that have made some.
func (h *Host) SetAnswers(cpu int, n uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answers[cpu] = n
}

// MTU is that of the interface there isn't.
func (h *Host) MTU() int { return h.cfg.MTU }

func (h *Host) String() string { return "model of a kernel" }

// Close does nothing; the memory stays.
func (h *Host) Close() error { return nil }
