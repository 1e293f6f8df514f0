// SPDX-License-Identifier: Apache-2.0

package output

// Shared is what targets implement whose parts several processes write, on
// several machines, at the same time and more than once.
//
// Prepare opens a place that the ticket names; parts are written there by attempts,
// each under a name of its own; Publish makes the output of the attempts that won,
// and of nobody else, visible at once. All of its calls may be made by different
// processes, and again after one that was killed: what was done stays done.
type Shared interface {
	Target
	// Prepare checks what Begin checks and makes the place for the job of that
	// id. For the same job it returns the same ticket again. ErrExists, ErrOverlap, ErrTarget.
	Prepare(info Info, job string) (ticket []byte, err error)
	// Attempt opens part index for one attempt. Commit of the transaction
	// makes what was written last; until then, and after Abort, there is nothing.
	// Its Part takes that index alone.
	Attempt(info Info, ticket []byte, index int, attempt string) (SharedAttempt, error)
	// Publish makes the parts that names name, in order, the output, and success the
	// content of _SUCCESS. A part without a name is written empty. Called again after
	// it has succeeded, it succeeds.
	Publish(info Info, ticket []byte, names []string, success []byte) (notes []string, err error)
	// Discard removes the place and all in it, unless it was published.
	Discard(ticket []byte) error
}

// SharedAttempt is one attempt's part of a shared output.
type SharedAttempt interface {
	Part() Part
	// Commit syncs the part and returns the name that Publish takes.
	Commit() (name string, err error)
	// Abort removes it. After Commit it does nothing.
	Abort() error
}
