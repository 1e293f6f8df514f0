// SPDX-License-Identifier: Apache-2.0

package task

import (
	"fmt"

	"github.com/quernmr/quern/shuffle/pairs"
)

// MergeSamples makes one sample of those of map tasks (MapResult.Sample), in
// whatever order and however often they are merged. Empty ones are passed over;
// with nothing else the result is empty.
func MergeSamples(samples ...[]byte) ([]byte, error) {
	var all *pairs.BottomK
	for _, b := range samples {
		if len(b) == 0 {
			continue
		}
		s := &pairs.BottomK{}
		if err := s.UnmarshalBinary(b); err != nil {
			return nil, fmt.Errorf("the sample of a map task: %w", err)
		}
		if all == nil {
			all = s
		} else {
			all.Merge(s)
		}
	}
	if all == nil {
		return nil, nil
	}
	return all.MarshalBinary()
}

// Cuts returns the parts-1 keys at which parts 1 and up of a total order begin,
// ascending, from the sample of all map tasks: those of the local engine.
func Cuts(sample []byte, parts int) ([][]byte, error) {
	if parts < 2 {
		return nil, nil
	}
	if len(sample) == 0 { // no keys
		return make([][]byte, parts-1), nil
	}
	s := &pairs.BottomK{}
	if err := s.UnmarshalBinary(sample); err != nil {
		return nil, fmt.Errorf("the sample of the map tasks: %w", err)
	}
	return s.Cuts(parts), nil
}

// Between returns the keys of a part, given the cuts: from low up to before high,
// where an empty one is no bound.
func Between(cuts [][]byte, part int) (low, high []byte) {
	if part > 0 {
		low = cuts[part-1]
	}
	if part < len(cuts) {
		if high = cuts[part]; len(high) == 0 {
			// No key is before the empty one. As an empty bound is none, two equal
			// ones say that there is nothing.
			return []byte{0}, []byte{0}
		}
	}
	return low, high
}
