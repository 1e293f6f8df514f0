// SPDX-License-Identifier: Apache-2.0

package quantise

import "fmt"

// Feedback carries what rounding dropped into the next round, so that errors do not add up over rounds: the mean
// of many rounds comes as close to the exact one as you like. It keeps 4 bytes a value. Every member has
// its own for each vector that it sums round by round; the member of rank 0 also keeps what the result's format dropped. The zero
// value is ready for a vector of any length.
//
// After n rounds the sum of all results is off by what members carry, at most Terms/2 quanta in all and half a
// unit of the result's last place, and by what n roundings of carried values to 24 bits make.
type Feedback struct{ carried []float32 }

// Carried returns what is carried now, one number a value, nil before the first round: for a
// checkpoint. It is not to be changed, and good until the next round.
func (f *Feedback) Carried() []float32 { return f.carried }

// Carry sets what is carried, such as from a checkpoint; nil: nothing, for a vector of any length.
func (f *Feedback) Carry(v []float32) { f.carried = append([]float32(nil), v...) }

// of returns what is carried for n values; nil without feedback.
func (f *Feedback) of(n int) ([]float32, error) {
	switch {
	case f == nil:
		return nil, nil
	case f.carried == nil:
		f.carried = make([]float32, n)
	case len(f.carried) != n:
		return nil, fmt.Errorf("%w: feedback of %d values for a vector of %d: each vector has its own", ErrRule, len(f.carried), n)
	}
	return f.carried, nil
}
