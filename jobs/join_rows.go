// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
)

// A key of a join begins with one of these. Rows without a key have one of
// their side, so that they find no partner.
const (
	keyPresent   = 'k'
	keyMissing   = 'l' // of the left side; the next letter is for the right one
	heldSide     = 0   // first byte of a value: the row is of the side that is held
	streamedSide = 1
)

var errJoinValue = errors.New("damaged intermediate data: a row of a join cannot be read")

// newMap emits each row under its key: which side it is of, and its cells.
func (j *joiner) newMap() func(mapreduce.Block, *lineEmitter) error {
	var readers [2]*rowReader
	var key, value []byte
	return func(b mapreduce.Block, emit *lineEmitter) error {
		side := j.side(b.File)
		if readers[side] == nil {
			readers[side] = j.sides[side].source.newReader()
		}
		reader := readers[side]
		mark := byte(streamedSide)
		if side == j.small {
			mark = heldSide
		}
		return reader.each(b, emit, func() error {
			fields := reader.Fields()
			if fields[0] == nil {
				if !j.outer[side] {
					return nil
				}
				key = append(key[:0], keyMissing+byte(side))
			} else {
				key = append(append(key[:0], keyPresent), fields[0]...)
			}
			value = append(value[:0], mark)
			if j.sides[side].whole {
				value = appendCell(value, reader.Record())
			} else {
				for _, f := range fields[1:] {
					value = appendCell(value, f)
				}
			}
			emit.Emit(key, value)
			return nil
		})
	}
}

// reduce makes the rows of one key: all pairs of a row that is held and one that
// passes by.
func (j *joiner) reduce(key []byte, values iter.Seq[[]byte], yield func([]output.Value)) error {
	cells := make([]output.Value, 1+j.sides[left].width()+j.sides[right].width())
	if key[0] == keyPresent {
		cells[0] = output.Value{Kind: output.Bytes, B: key[1:]}
	}
	cellsOf := func(side int) []output.Value {
		at := 1
		if side == right {
			at += j.sides[left].width()
		}
		return cells[at : at+j.sides[side].width()]
	}
	heldSideOf, other := j.small, 1-j.small
	held := heldRows{limit: j.maxGroup}
	streamed := false
	var failed error
	for v := range values {
		if len(v) == 0 {
			return errJoinValue
		}
		if v[0] == heldSide {
			if failed = held.add(v[1:]); failed != nil {
				break
			}
			continue
		}
		streamed = true
		if held.count() == 0 && !j.outer[other] {
			return nil // all that follows is without a partner too
		}
		if failed = readCells(cellsOf(other), v[1:]); failed != nil {
			break
		}
		if held.count() == 0 {
			yield(cells)
			continue
		}
		for i := range held.count() {
			if failed = readCells(cellsOf(heldSideOf), held.row(i)); failed != nil {
				return failed
			}
			yield(cells)
		}
	}
	if failed != nil {
		return failed
	}
	if !streamed && j.outer[heldSideOf] {
		for i := range held.count() {
			if err := readCells(cellsOf(heldSideOf), held.row(i)); err != nil {
				return err
			}
			yield(cells)
		}
	}
	return nil
}

// heldRows are the rows of one side that share a key.
type heldRows struct {
	data  []byte
	ends  []int
	limit int64
}

func (h *heldRows) add(row []byte) error {
	h.data = append(h.data, row...)
	h.ends = append(h.ends, len(h.data))
	if used := int64(len(h.data)) + 8*int64(len(h.ends)); used > h.limit {
		return fmt.Errorf("more than %d bytes of rows share this key in the smaller input (%d rows so far): raise --max-group, or leave the key out", h.limit, len(h.ends))
	}
	return nil
}

func (h *heldRows) count() int { return len(h.ends) }

func (h *heldRows) row(i int) []byte {
	start := 0
	if i > 0 {
		start = h.ends[i-1]
	}
	return h.data[start:h.ends[i]]
}

// appendCell appends a cell: its length plus one and its bytes; 0 for null.
func appendCell(dst, cell []byte) []byte {
	if cell == nil {
		return append(dst, 0)
	}
	dst = binary.AppendUvarint(dst, uint64(len(cell))+1)
	return append(dst, cell...)
}

// readCells sets cells to those of a row.
func readCells(cells []output.Value, row []byte) error {
	for i := range cells {
		length, n := binary.Uvarint(row)
		if n <= 0 || length > uint64(len(row)-n)+1 {
			return errJoinValue
		}
		row = row[n:]
		if length == 0 {
			cells[i] = output.Value{Kind: output.Null}
			continue
		}
		cells[i] = output.Value{Kind: output.Bytes, B: row[:length-1]}
		row = row[length-1:]
	}
	return nil
}
