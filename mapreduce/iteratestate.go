// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/zeebo/xxh3"
)

// iterationState is where an iteration stands. All members have the same after the same round.
type iterationState struct {
	rounds    int // that were done
	converged bool
	bound     float64 // see IterationResult.Bound
	numbers   []float64
}

// A state's encoding: a head of 8-byte words (stateMagic, rounds, converged, the bits of bound, how many numbers),
// the bits of the numbers, and the hash of all that.
const (
	stateMagic = "qrnstat1"
	stateHead  = 5 * 8
)

var errState = errors.New("damaged state of an iteration")

func (s *iterationState) encode() []byte {
	b := make([]byte, 0, stateHead+8*len(s.numbers)+8)
	b = append(b, stateMagic...)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.rounds))
	b = binary.LittleEndian.AppendUint64(b, s.flag())
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(s.bound))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s.numbers)))
	for _, v := range s.numbers {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
	}
	return binary.LittleEndian.AppendUint64(b, xxh3.Hash(b))
}

func (s *iterationState) flag() uint64 {
	if s.converged {
		return 1
	}
	return 0
}

// stateSize is how many bytes at the beginning of b are those of a state.
func stateSize(b []byte) (int, error) {
	if len(b) < stateHead+8 || binary.LittleEndian.Uint64(b[stateHead-8:]) > uint64(len(b)-stateHead-8)/8 {
		return 0, errState
	}
	return stateHead + 8 + 8*int(binary.LittleEndian.Uint64(b[stateHead-8:])), nil
}

func decodeState(b []byte) (*iterationState, error) {
	if len(b) < stateHead+8 || len(b)%8 != 0 || string(b[:8]) != stateMagic {
		return nil, errState
	}
	body := b[:len(b)-8]
	if binary.LittleEndian.Uint64(b[len(body):]) != xxh3.Hash(body) {
		return nil, errState
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(body[8*i:]) }
	n := (len(body) - stateHead) / 8
	if word(1) > math.MaxInt || word(2) > 1 || word(4) != uint64(n) {
		return nil, errState
	}
	s := &iterationState{rounds: int(word(1)), converged: word(2) == 1, bound: math.Float64frombits(word(3)), numbers: make([]float64, n)}
	for i := range s.numbers {
		s.numbers[i] = math.Float64frombits(word(5 + i))
	}
	return s, nil
}

// digest is the same for members that have the same state.
func (s *iterationState) digest() int64 {
	var h xxh3.Hasher
	var buf [512]byte
	b := buf[:0]
	b = binary.LittleEndian.AppendUint64(b, uint64(s.rounds))
	b = binary.LittleEndian.AppendUint64(b, s.flag())
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(s.bound))
	for _, v := range s.numbers {
		if len(b) == len(buf) {
			_, _ = h.Write(b) // never fails
			b = buf[:0]
		}
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
	}
	_, _ = h.Write(b)
	return int64(h.Sum64())
}

// iterationJSON is an IterationResult with the bits of the state, which may have numbers that JSON has not.
type iterationJSON struct {
	plainIterationResult
	State []byte
}

type plainIterationResult IterationResult

// MarshalJSON encodes it so that the state comes back to the last bit.
func (r *IterationResult) MarshalJSON() ([]byte, error) {
	j := iterationJSON{plainIterationResult: plainIterationResult(*r)}
	for _, v := range r.State {
		j.State = binary.LittleEndian.AppendUint64(j.State, math.Float64bits(v))
	}
	return json.Marshal(j)
}

// UnmarshalJSON decodes what MarshalJSON made.
func (r *IterationResult) UnmarshalJSON(b []byte) error {
	var j iterationJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	if len(j.State)%8 != 0 {
		return fmt.Errorf("%w: it has %d bytes", errState, len(j.State))
	}
	*r = IterationResult(j.plainIterationResult)
	if len(j.State) > 0 {
		r.State = make([]float64, len(j.State)/8)
	}
	for i := range r.State {
		r.State[i] = math.Float64frombits(binary.LittleEndian.Uint64(j.State[8*i:]))
	}
	return nil
}
