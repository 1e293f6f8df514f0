// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"errors"
	"fmt"
	"iter"
)

// Vectors are folded element by element. Their keys have parts, of up to four elements each, which are folded like
// any key, in the kernel too: a vector of n elements costs about n/4 pairs (more for exact floats), a part that is all 0
// costs a sum nothing, and the parts of a key take 4 bytes for every element and some 50 bytes for every part in
// memory, wherever they are folded. All parts of a key are drained together: 100 bytes for each, at the task that has the key.

// MaxVector is the largest number of elements of a vector fold.
const MaxVector = 1 << 20

// ErrVector is why a job ends that meets a vector of another length than its fold has.
var ErrVector = errors.New("the vector has another length than the fold")

// partLanes is the number of lanes of a part, as many as run in the kernel.
const partLanes = 4

// vector is what folds of vectors have in common.
type vector struct{ n int }

func newVector(name string, n int) (vector, error) {
	if n < 1 || n > MaxVector {
		return vector{1}, fmt.Errorf("fold %s of %d elements: 1 to %d are possible", name, n, MaxVector)
	}
	return vector{n}, nil
}

// fits says whether a vector has the right length, and fails otherwise.
func (v vector) fits(p *Parts, n int) bool {
	if n != v.n {
		p.Fail(fmt.Errorf("%w: %d elements, not %d", ErrVector, n, v.n))
		return false
	}
	return true
}

// four returns elements 4g to 4g+3, rest for those behind the end.
func four[T any](v []T, g int, rest T) [partLanes]T {
	if v = v[partLanes*g:]; len(v) >= partLanes {
		return [partLanes]T(v)
	}
	to := [partLanes]T{rest, rest, rest, rest}
	copy(to[:], v)
	return to
}

// present puts a part that changes nothing if a vector had none to put, so that its key has a row.
func (p *Parts) present(put bool) {
	if !put {
		clear(p.Lanes)
		p.Put(0)
	}
}

// elements calls f for every element of the parts of a key whose lanes are elements.
func (v vector) elements(subs iter.Seq2[uint32, Lanes], f func(i int, l Lanes, lane int) error) error {
	for sub, l := range subs {
		if sub >= uint32((v.n+partLanes-1)/partLanes) {
			return errPart
		}
		first := partLanes * int(sub)
		for lane := range min(partLanes, v.n-first) {
			if err := f(first+lane, l, lane); err != nil {
				return fmt.Errorf("element %d: %w", first+lane, err)
			}
		}
	}
	return nil
}

// VectorSum adds vectors of n integers, element by element. A sum that does not fit 64 bits is ErrOverflow and
// names key and element. A vector of another length ends the job with an error that names the record.
//
// It emits a pair for every four elements in a row of which any is not 0, and takes some 10 to 20 ns an element.
func VectorSum[T int32 | int64](n int) Fold[[]T, []int64] {
	s, err := newVector("VectorSum", n)
	return Fold[[]T, []int64]{
		ops: []Op{OpSum, OpSum, OpSum, OpSum}, err: err,
		putSub: func(p *Parts, v []T) {
			if !s.fits(p, len(v)) {
				return
			}
			put := false
			for g := range (len(v) + partLanes - 1) / partLanes {
				if e := four(v, g, 0); e != [partLanes]T{} {
					*(*[partLanes]int64)(p.Lanes) = [partLanes]int64{int64(e[0]), int64(e[1]), int64(e[2]), int64(e[3])}
					p.Put(uint32(g))
					put = true
				}
			}
			p.present(put)
		},
		getSub: func(subs iter.Seq2[uint32, Lanes]) ([]int64, error) {
			sums := make([]int64, s.n)
			return sums, s.elements(subs, func(i int, l Lanes, lane int) (err error) {
				sums[i], err = l.sum(lane)
				return err
			})
		},
	}
}

// VectorMin keeps the smallest of each element of vectors of n integers. It emits a pair for every four elements.
func VectorMin[T int32 | int64](n int) Fold[[]T, []T] { return vectorExtreme[T]("VectorMin", OpMin, n) }

// VectorMax keeps the largest of each element of vectors of n integers. It emits a pair for every four elements.
func VectorMax[T int32 | int64](n int) Fold[[]T, []T] { return vectorExtreme[T]("VectorMax", OpMax, n) }

func vectorExtreme[T int32 | int64](name string, op Op, n int) Fold[[]T, []T] {
	s, err := newVector(name, n)
	return Fold[[]T, []T]{
		ops: []Op{op, op, op, op}, err: err,
		putSub: func(p *Parts, v []T) {
			if !s.fits(p, len(v)) {
				return
			}
			for g := range (len(v) + partLanes - 1) / partLanes {
				e := four(v, g, 0) // behind the end nobody looks
				*(*[partLanes]int64)(p.Lanes) = [partLanes]int64{int64(e[0]), int64(e[1]), int64(e[2]), int64(e[3])}
				p.Put(uint32(g))
			}
		},
		getSub: func(subs iter.Seq2[uint32, Lanes]) ([]T, error) {
			got := make([]T, s.n)
			return got, s.elements(subs, func(i int, l Lanes, lane int) error {
				got[i] = T(l.V[lane])
				return nil
			})
		},
	}
}
