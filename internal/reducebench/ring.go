// SPDX-License-Identifier: Apache-2.0

package reducebench

import (
	"net"
	"runtime"
	"sync/atomic"
)

// In a ring each member sends to the next one. A vector has a segment for each member. In step s member r sends
// segment r-s and gets segment r-s-1, which it adds its own to in the first n-1 steps, after which
// one member has each segment's sum, and takes as it is in the others. What came is sent on piece by piece, so steps overlap.

const (
	// ringPiece is how many bytes of a segment are sent on at once.
	ringPiece = 64 << 10
	// ringQuiet is how large a segment may be that is sent without a goroutine of its own: what the system
	// takes from all members at once without any of them reading.
	ringQuiet = 128 << 10
)

// ring is a member of one.
type ring struct {
	rank, members int
	elements      int
	out           net.Conn
	in            *reader
	write         chan []byte  // nil: writes do not wait
	wrote         chan error   // of a round
	written       atomic.Int64 // pieces of a round
	before        []int64      // pieces sent before a step
}

func newRing(s *streams, rank, members, elements int, next string) (*ring, error) {
	r := &ring{rank: rank, members: members, elements: elements}
	out, err := s.to(toNext, (rank+1)%members, next)
	if err != nil {
		return nil, err
	}
	in, err := s.from(toNext, (rank+members-1)%members)
	if err != nil {
		return nil, err
	}
	r.out, r.in = out, newReader(in, ringPiece)
	if largest := 4 * (elements/members + 1); largest > ringQuiet {
		all := (2*members - 2) * (largest/ringPiece + 1)
		r.write, r.wrote = make(chan []byte, all+1), make(chan error, 1)
		r.before = make([]int64, 2*members)
		for step := range 2*members - 1 {
			from, to := r.bounds(elements, rank-step)
			r.before[step+1] = r.before[step] + int64((4*(to-from)+ringPiece-1)/ringPiece)
		}
		go r.writer()
	}
	return r, nil
}

// writer writes what it is given; nil ends a round.
func (r *ring) writer() {
	defer close(r.wrote)
	var err error
	for b := range r.write {
		switch {
		case b == nil:
			r.wrote <- err
		case err == nil:
			_, err = r.out.Write(b)
			err = cut(err)
			r.written.Add(1)
		}
	}
}

func (r *ring) send(b []byte) error {
	if r.write != nil {
		r.write <- b
		return nil
	}
	_, err := r.out.Write(b)
	return cut(err)
}

// bounds says where a segment is; i may be beyond the members on either side.
func (r *ring) bounds(elements, i int) (from, to int) {
	i = (i%r.members + r.members) % r.members
	return i * elements / r.members, (i + 1) * elements / r.members
}

func (r *ring) segment(v []int32, i int) []int32 {
	from, to := r.bounds(len(v), i)
	return v[from:to]
}

// free waits until what is about to be replaced has been written, so many steps ago that it hardly ever has to. Nobody waits for
// ever: the next member reads all that until it is there itself.
func (r *ring) free(step, piece int) {
	if r.write != nil {
		for need := r.before[step+1-r.members] + int64(piece) + 1; r.written.Load() < need; {
			runtime.Gosched()
		}
	}
}

func (r *ring) begin(int) error { return nil }

func (r *ring) round(v []int32) error {
	r.written.Store(0)
	for b := raw(r.segment(v, r.rank)); len(b) > 0; b = b[min(ringPiece, len(b)):] {
		if err := r.send(b[:min(ringPiece, len(b))]); err != nil {
			return err
		}
	}
	for step := range 2*r.members - 2 {
		s := r.segment(v, r.rank-step-1)
		for k := 0; len(s) > 0; k, s = k+1, s[min(ringPiece/4, len(s)):] {
			piece := s[:min(ringPiece/4, len(s))]
			b := raw(piece)
			if step < r.members-1 {
				got, err := r.in.take(len(b))
				if err != nil {
					return err
				}
				add(piece, cooked(got))
			} else {
				r.free(step, k)
				if err := r.in.into(b); err != nil {
					return err
				}
			}
			if step < 2*r.members-3 {
				if err := r.send(b); err != nil {
					return err
				}
			}
		}
	}
	if r.write != nil {
		r.write <- nil
		return <-r.wrote
	}
	return nil
}

func (r *ring) end() error { return nil }

func (r *ring) close() error {
	if r.write != nil {
		close(r.write)
		for range r.wrote { // until it has ended
		}
	}
	return nil
}
