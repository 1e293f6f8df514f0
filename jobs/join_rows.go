// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"strconv"

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

// keyText is a key as errors show it.
func keyText(key []byte) string {
	switch {
	case len(key) > 0 && key[0] == keyPresent:
		return strconv.Quote(string(key[1:]))
	case len(key) == 1 && key[0] == keyMissing+left:
		return "missing (left side)"
	case len(key) == 1 && key[0] == keyMissing+right:
		return "missing (right side)"
	}
	return strconv.Quote(string(key))
}

var errJoinValue = errors.New("damaged intermediate data: a row of a join cannot be read")

// newMap emits each row under its key: which side it is of, and its cells. With a table of
// the small side it emits the rows of the other one that have a partner, or that are kept
// without; the parts are cut by the keys of all.
func (j *joiner) newMap() func(mapreduce.Block, *lineEmitter) error {
	var readers [2]*rowReader
	var key, value []byte
	var waiting probes
	return func(b mapreduce.Block, emit *lineEmitter) error {
		side := j.side(b.File)
		if readers[side] == nil {
			readers[side] = j.sides[side].source.newReader()
		}
		reader := readers[side]
		table, err := j.table()
		if err != nil {
			return err
		}
		mark := byte(streamedSide)
		if side == j.small {
			mark = heldSide
		}
		filtered := table != nil && side != j.small && !j.outer[side]
		err = reader.each(b, emit, func() error {
			field := reader.Field(0)
			switch {
			case field == nil && !j.outer[side]:
				return nil
			case field == nil:
				key = append(key[:0], keyMissing+byte(side))
			default:
				key = append(append(key[:0], keyPresent), field...)
			}
			if table != nil && side == j.small {
				emit.Sample(key) // its rows are in the table
				return nil
			}
			if filtered {
				hash := table.hash(field)
				if table.large() {
					waiting.add(hash, key, func(dst []byte) []byte { return j.appendRow(append(dst, mark), side, reader) })
					if len(waiting.rows) == maxProbes {
						waiting.flush(table, emit)
					}
					return nil
				}
				if !table.has(hash, table.home(hash)) {
					emit.Sample(key)
					return nil
				}
			}
			value = j.appendRow(append(value[:0], mark), side, reader)
			emit.Emit(key, value)
			return nil
		})
		waiting.flush(table, emit)
		return err
	}
}

// probes are rows that wait for the slots of a table which does not fit the cache: many
// of them wait at once for as long as one would.
type probes struct {
	data []byte // their keys and values
	rows []probe
}

type probe struct {
	hash, slot uint64
	key, end   int // where they end in data
}

const maxProbes = 64

func (p *probes) add(hash uint64, key []byte, value func(dst []byte) []byte) {
	p.data = append(p.data, key...)
	end := len(p.data)
	p.data = value(p.data)
	p.rows = append(p.rows, probe{hash: hash, key: end, end: len(p.data)})
}

// flush emits the rows whose keys are in the table.
func (p *probes) flush(table *joinTable, emit *lineEmitter) {
	for i := range p.rows {
		p.rows[i].slot = table.home(p.rows[i].hash)
	}
	start := 0
	for _, r := range p.rows {
		key := p.data[start:r.key]
		if table.has(r.hash, r.slot) {
			emit.Emit(key, p.data[r.key:r.end])
		} else {
			emit.Sample(key)
		}
		start = r.end
	}
	p.rows = p.rows[:0]
	if p.data = p.data[:0]; cap(p.data) > 1<<20 {
		p.data = nil
	}
}

// appendRow appends the cells of the row at which a reader stands.
func (j *joiner) appendRow(dst []byte, side int, reader *rowReader) []byte {
	if j.sides[side].whole {
		return appendCell(dst, reader.Record())
	}
	for _, f := range reader.Fields()[1:] {
		dst = appendCell(dst, f)
	}
	return dst
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
	table, err := j.table()
	if err != nil {
		return err
	}
	if table != nil && key[0] == keyPresent {
		group, err := table.find(key[1:])
		if err == nil {
			err = held.take(group, j.sides[heldSideOf].width())
		}
		if err != nil {
			return err
		}
	}
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
		return groupTooLarge(h.limit, len(h.ends))
	}
	return nil
}

func groupTooLarge(limit int64, rows int) error {
	return mapreduce.Permanent(fmt.Errorf("more than %d bytes of rows share this key in the smaller input (%d rows so far): raise --max-group, or leave the key out", limit, rows))
}

// take takes the rows of a table, each of so many cells, where they are.
func (h *heldRows) take(group tableGroup, cells int) error {
	h.data = group.rows
	at := 0
	for range group.count {
		for range cells {
			length, n := binary.Uvarint(h.data[at:])
			if n <= 0 || length > uint64(len(h.data)-at-n)+1 {
				return errTable
			}
			at += n
			if length > 0 {
				at += int(length) - 1
			}
		}
		h.ends = append(h.ends, at)
	}
	if at != len(h.data) {
		return errTable
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
