// SPDX-License-Identifier: Apache-2.0

package shuffle

import (
	"fmt"

	"github.com/quernmr/quern/shuffle/wire"
)

// Memory is the state of one host's ends of streams. With a kernel's help it is
// mapped, and programs read and write it too: what both write is read and
// written atomically. Without, it is the process's own.
type Memory struct {
	CPUs     int             // cells per target
	Streams  []wire.Stream   // receiving ends
	Targets  []wire.Target   // what is folded here
	Cells    []wire.Cell     // index target x CPUs + CPU
	Outgoing []wire.Outgoing // sending ends
}

// Limits are the sizes of a host's memory.
type Limits struct {
	Streams  int // receiving ends open at once; 0: 1024
	Targets  int // 0: 256
	Outgoing int // sending ends open at once; 0: 1024
	Jobs     int // 0: 64
	Regions  int // members' ends of broadcasts open at once; 0: 128
	Casts    int // sources' ends; 0: 16
	Groups   int // members' ends of all-reduces open at once; 0: 16
	Chunks   int // of all contents of broadcasts and all-reduces together, each of wire.ChunkSize bytes; 0: 1 << 20
}

// EnsureDefaults fills in what is 0.
func (l Limits) EnsureDefaults() Limits {
	for _, f := range []struct {
		p *int
		d int
	}{{&l.Streams, 1024}, {&l.Targets, 256}, {&l.Outgoing, 1024}, {&l.Jobs, 64}, {&l.Regions, 128}, {&l.Casts, 16}, {&l.Groups, 16}, {&l.Chunks, 1 << 20}} {
		if *f.p <= 0 {
			*f.p = f.d
		}
	}
	return l
}

// NewMemory returns memory of the process's own, for a host without a kernel's help.
func NewMemory(l Limits) *Memory {
	l = l.EnsureDefaults()
	return &Memory{
		CPUs:     1,
		Streams:  make([]wire.Stream, l.Streams),
		Targets:  make([]wire.Target, l.Targets),
		Cells:    make([]wire.Cell, l.Targets),
		Outgoing: make([]wire.Outgoing, l.Outgoing),
	}
}

// TableID names a table to programs: the set of programs that fold into it << 24,
// and its index in that set's map of tables. It stands for one table as long
// as that lives.
type TableID uint32

// TableLayout is what tables are alike in that one set of programs folds into.
type TableLayout struct {
	Class int // of keys; ignored if Dense
	Lanes int // 1 to 4; ignored if Dense
	Bits  int // log2 of the number of slots, or of values if Dense
	Dense bool
}

// Size returns the bytes of a table.
func (l TableLayout) Size() int {
	if l.Dense {
		return wire.TableHead + 8<<l.Bits
	}
	return wire.TableSize(l.Class, l.Lanes, l.Bits)
}

func (l TableLayout) String() string {
	if l.Dense {
		return fmt.Sprintf("dense, 2^%d values", l.Bits)
	}
	return fmt.Sprintf("%d-byte keys, %d lanes, 2^%d slots", 8<<l.Class, l.Lanes, l.Bits)
}

// Table is a table that programs fold into, mapped.
type Table struct {
	ID     TableID
	Layout TableLayout
	Memory []byte // a wire.Table, then slots; zeros are an empty table
}

// Kernel is a kernel's help at one host: programs at its network interface that
// share memory with this process. Package bpf implements it.
type Kernel interface {
	// Memory returns the shared memory. It is unmapped by Close.
	Memory() *Memory
	// SetJob writes a job's keys to a slot below Limits.Jobs. No open stream may
	// name that slot.
	SetJob(slot int, keys *wire.Job) error
	// NewTables makes n empty tables, loading programs for the layout where there
	// are none yet. It takes tens of milliseconds. Tables are used again, not
	// freed, until Close; FreeTable frees one that no cell has named since the last Quiesce.
	NewTables(layout TableLayout, n int) ([]*Table, error)
	FreeTable(t *Table) error
	// Tables returns the tables that were there when the state of an earlier
	// process was taken up.
	Tables() []*Table
	// Resumed says whether the state of an earlier process was taken up.
	Resumed() bool
	// Quiesce returns when no program runs any more that began before the call.
	// It takes some 10 ms; calls at the same time share one wait.
	Quiesce() error
	// Reasons returns how often programs ended for each reason.
	Reasons() ([wire.Reasons]uint64, error)
	// MTU is that of the interface; frames larger than it can't come.
	MTU() int
	// String says in a few words what it is: the interface and the mode.
	String() string
	// Close detaches the programs, removes what was pinned and unmaps the memory.
	Close() error
}
