// SPDX-License-Identifier: Apache-2.0

package task

// FaultKind is what kind of thing has failed, for programs that are to act on it.
type FaultKind string

// The kinds. An error that is none of them has none: what the job's own code returns, for example.
const (
	KindInput     FaultKind = "input"      // an input can't be found or read
	KindRecord    FaultKind = "record"     // a record of the input is not as it should be
	KindSideInput FaultKind = "side input" // a side input can't be found, read or parsed
	KindOutput    FaultKind = "output"     // the output is refused or can't be written
	KindOverflow  FaultKind = "overflow"   // a result is beyond what its type holds
	KindAudit     FaultKind = "audit"      // the books do not balance
	KindPanic     FaultKind = "panic"      // the job's own code panicked
	KindProgram   FaultKind = "program"    // a program crashed, hung, took too much memory or is none that workers can run
	KindWorkers   FaultKind = "workers"    // there was no worker for too long
	KindRefused   FaultKind = "refused"    // the job is larger than the cluster takes
	KindCancelled FaultKind = "cancelled"  // somebody wanted it to end
)

// Cause is what an error is beside its text, so that whoever is told of it in another process can ask
// what errors.Is and errors.As answer where it arose. Package mapreduce makes it of an error, and an error of it. It is
// the same for all attempts that fail alike: nothing of the attempt is in it but the stack of a panic.
type Cause struct {
	Kind FaultKind `json:"kind,omitempty"`
	// Is names the known errors that it is.
	Is []string `json:"is,omitempty"`
	// Panic is what the job's code panicked with, in words; Stack is where.
	Panic *string `json:"panic,omitempty"`
	Stack string  `json:"stack,omitempty"`
	// SideInput is what is wrong with one.
	SideInput *SideFault `json:"side_input,omitempty"`
	// Record is a place in the input that the job's map function gave an error for, Row one that is malformed.
	Record *RecordFault `json:"record,omitempty"`
	Row    *RecordFault `json:"row,omitempty"`
	// Path is what a failed call of the system was about.
	Path *PathFault `json:"path,omitempty"`
}

// SideFault is an error about a side input.
type SideFault struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// RecordFault is an error about a record.
type RecordFault struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`         // of its first byte, decompressed
	Line   int64  `json:"line,omitempty"` // from 1; 0: unknown
	Column string `json:"column,omitempty"`
	Text   string `json:"text"`
}

// PathFault is a failed call of the system, or of a store.
type PathFault struct {
	Op   string `json:"op"`
	Path string `json:"path"`
	Text string `json:"text"`
	// Errno is the number that the system OS (as GOOS) gave; 0: none.
	Errno uint   `json:"errno,omitempty"`
	OS    string `json:"os,omitempty"`
}

// KindOf returns the kind of a cause that may be nil.
func KindOf(c *Cause) FaultKind {
	if c == nil {
		return ""
	}
	return c.Kind
}
