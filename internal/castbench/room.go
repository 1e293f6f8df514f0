// SPDX-License-Identifier: Apache-2.0

package castbench

import (
	"errors"
	"fmt"
	"sync"
)

// room is where a member's process has the message that came last by a path without
// our protocol.
type room struct {
	mu      sync.Mutex
	memory  []byte
	size    int
	number  uint64 // of the message; they go up
	count   int    // of messages that came
	wrong   int    // of those that are not what they say
	failure error
}

// begin makes room for a message. The caller holds mu, also while it writes to what
// is returned.
func (r *room) begin(size, number uint64) ([]byte, error) {
	if size < MinBytes || size > MaxBytes {
		return nil, fmt.Errorf("a message of %d bytes: %d to %d are possible", size, MinBytes, MaxBytes)
	}
	if uint64(len(r.memory)) < size {
		r.memory = make([]byte, size)
	}
	if number <= r.number {
		r.wrong++
	}
	r.size, r.number = int(size), number
	return r.memory[:size], nil
}

// end notes that the message is there. The caller holds mu.
func (r *room) end() {
	r.count++
	if number(r.memory) != r.number {
		r.wrong++
	}
}

// fail notes why nothing more will come.
func (r *room) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failure = errors.Join(r.failure, err)
}

// Taken is what a member has got by a path.
type Taken struct {
	Messages int
	Wrong    int // that differ from what they should be, as far as a member can tell
	Number   uint64
	Bytes    int
	Digest   Digest // of the last one
}

// got answers what came since it was last called.
func (r *room) got() (Taken, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := Taken{Messages: r.count, Wrong: r.wrong, Number: r.number, Bytes: r.size, Digest: digest(r.memory[:r.size])}
	r.count, r.wrong = 0, 0
	return t, r.failure
}
