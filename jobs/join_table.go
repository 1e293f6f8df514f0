// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/zeebo/xxh3"
)

// A joinTable finds the rows of a join's small side by key. It is one piece of
// memory that holds no addresses: it is made once, spread to whoever maps, and used
// where it lies by all processes of a machine.
//
// It begins with a head of tableHead bytes: tableMagic, a fingerprint of what it was
// made for, the seed of its hashes, the numbers of slots, keys and rows, and its size.
// A slot is a word: 0, or the upper half of a key's hash and the place of its group in
// units of tableUnit. A group is the length of the key, the key, the number of its rows,
// the length of all of them, and the rows, each as appendCell wrote its cells, in order of these
// bytes: the order in which a reducer would see them. Lengths and numbers are uvarints, words
// little-endian.
type joinTable struct {
	data  []byte
	slots []byte
	mask  uint64
	seed  uint64
	keys  int64
	rows  int64
}

const (
	tableMagic = "quernjt1"
	tableHead  = 64
	tableUnit  = 8
	// maxTable is the size that places in slots can name.
	maxTable = int64(tableUnit) << 32
)

var errTable = errors.New("damaged table of a join: this is a defect of quern or of the machine's memory")

// tableGroup is what a table has for a key.
type tableGroup struct {
	count int
	rows  []byte
}

// openTable takes a table that tableBuilder made for what has that fingerprint. No bytes
// are no table: nil.
func openTable(data []byte, fingerprint uint64) (*joinTable, error) {
	if len(data) == 0 {
		return nil, nil
	}
	if len(data) < tableHead || string(data[:8]) != tableMagic {
		return nil, errTable
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(data[8*i:]) }
	if word(1) != fingerprint {
		return nil, errors.New("the table of the small side was made for other options or another input than this process finds: what a job is must follow from its arguments, and its inputs must not change while it runs")
	}
	slots := word(3)
	if word(6) != uint64(len(data)) || slots == 0 || slots&(slots-1) != 0 || slots > uint64(len(data)-tableHead)/8 {
		return nil, errTable
	}
	return &joinTable{
		data: data, slots: data[tableHead : tableHead+8*slots], mask: slots - 1,
		seed: word(2), keys: int64(word(4)), rows: int64(word(5)),
	}, nil
}

func (t *joinTable) hash(key []byte) uint64 { return xxh3.HashSeed(key, t.seed) }

// home returns the slot where a search for a hash begins.
func (t *joinTable) home(hash uint64) uint64 {
	return binary.LittleEndian.Uint64(t.slots[8*(hash&t.mask):])
}

// has says whether there may be a key with that hash, whose home slot is slot. It looks at
// no key, which would be another wait for memory, so one in some billions that it says yes to is not there.
func (t *joinTable) has(hash, slot uint64) bool {
	for i := uint64(1); slot != 0 && i <= t.mask; i++ {
		if slot>>32 == hash>>32 {
			return true
		}
		slot = t.home(hash + i)
	}
	return slot != 0 && slot>>32 == hash>>32
}

// large says that slots are waited for longer than it takes to put rows aside meanwhile.
func (t *joinTable) large() bool { return len(t.slots) > 256<<10 }

// find returns the rows of a key; their count is 0 if there are none.
func (t *joinTable) find(key []byte) (tableGroup, error) {
	hash := t.hash(key)
	for i := range t.mask + 1 {
		slot := t.home(hash + i)
		if slot == 0 {
			return tableGroup{}, nil
		}
		if slot>>32 != hash>>32 {
			continue
		}
		at := slot & (1<<32 - 1) * tableUnit
		if at >= uint64(len(t.data)) {
			return tableGroup{}, errTable
		}
		rest := t.data[at:]
		length, n := binary.Uvarint(rest)
		if n <= 0 || length > uint64(len(rest)-n) {
			return tableGroup{}, errTable
		}
		if !bytes.Equal(rest[n:n+int(length)], key) {
			continue
		}
		return t.group(rest[n+int(length):])
	}
	return tableGroup{}, errTable
}

// group reads what follows the key of a group.
func (t *joinTable) group(b []byte) (tableGroup, error) {
	count, n := binary.Uvarint(b)
	if n <= 0 || count == 0 || count > uint64(t.rows) {
		return tableGroup{}, errTable
	}
	b = b[n:]
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return tableGroup{}, errTable
	}
	return tableGroup{int(count), b[n : n+int(size)]}, nil
}

// tableBuilder collects the rows of a table.
type tableBuilder struct {
	// maxGroup bounds the rows of a key, as heldRows does; memory what building takes
	// and the size of the table. Both are bytes.
	maxGroup, memory int64
	fingerprint      uint64 // of what it is for

	data    []byte // keys and rows, one after the other
	entries []tableEntry
	mix     uint64 // of all rows, in whatever order they came

	// What finish makes:
	seed  uint64
	keys  int64
	slots []uint64
	size  int64 // of the table
}

// tableEntry is a row. It lies in the builder's data behind its key.
type tableEntry struct {
	hash uint64 // of the key
	at   uint64
	key  uint32 // bytes
	row  uint32
}

const entryBytes = 24

func (b *tableBuilder) key(e *tableEntry) []byte { return b.data[e.at : e.at+uint64(e.key)] }
func (b *tableBuilder) row(e *tableEntry) []byte {
	from := e.at + uint64(e.key)
	return b.data[from : from+uint64(e.row)]
}

// add adds a row, its cells one after the other.
func (b *tableBuilder) add(key, row []byte) error {
	if b.used()+int64(len(key)+len(row)+entryBytes) > b.memory {
		return b.tooLarge()
	}
	e := tableEntry{at: uint64(len(b.data)), key: uint32(len(key)), row: uint32(len(row))}
	b.data = append(append(b.data, key...), row...)
	b.mix += xxh3.Hash(b.data[e.at:])
	b.entries = append(b.entries, e)
	return nil
}

// used is how many bytes the rows take.
func (b *tableBuilder) used() int64 { return int64(len(b.data)) + int64(len(b.entries))*entryBytes }

// tooLargeError says that a table would be larger than it may be.
type tooLargeError struct{ rows, memory int64 }

func (e *tooLargeError) Error() string {
	if e.memory <= 0 {
		return "no memory is left for it beside the records"
	}
	return fmt.Sprintf("as a table it takes more than the %s of memory that are left for it (%d rows so far)", humanize.IBytes(uint64(e.memory)), e.rows)
}

func (b *tableBuilder) tooLarge() error { return &tooLargeError{int64(len(b.entries)), b.memory} }

// A table's seed is made of its rows, so that the same rows always give the same
// table, and none can be chosen whose keys collide: any other row is another seed.
const tableSeed = 0x71756572_6e6a7431

// finish sorts the rows and finds a place for each key.
func (b *tableBuilder) finish() error {
	var mixed [8]byte
	binary.LittleEndian.PutUint64(mixed[:], b.mix)
	b.seed = xxh3.HashSeed(mixed[:], tableSeed)
	for i := range b.entries {
		e := &b.entries[i]
		e.hash = xxh3.HashSeed(b.key(e), b.seed)
	}
	slices.SortFunc(b.entries, func(x, y tableEntry) int {
		if x.hash != y.hash {
			return cmp.Compare(x.hash, y.hash) // no look at the rows, which are all over the memory
		}
		return cmp.Or(bytes.Compare(b.key(&x), b.key(&y)), bytes.Compare(b.row(&x), b.row(&y)))
	})
	for range b.groups() {
		b.keys++
	}
	slots := uint64(1)
	for slots < 2*uint64(b.keys) {
		slots *= 2
	}
	if int64(8*slots)+b.used() > b.memory {
		return b.tooLarge()
	}
	b.slots = make([]uint64, slots)
	b.size = tableHead + 8*int64(slots)
	var head []byte
	for group := range b.groups() {
		rows := b.rowBytes(group)
		if used := rows + 8*int64(len(group)); used > b.maxGroup {
			return fmt.Errorf("key %q: %w", b.key(&group[0]), groupTooLarge(b.maxGroup, len(group)))
		}
		hash := group[0].hash
		at := hash & (slots - 1)
		for b.slots[at] != 0 {
			at = (at + 1) & (slots - 1)
		}
		b.slots[at] = hash&^(1<<32-1) | uint64(b.size/tableUnit)
		head = b.groupHead(head[:0], group, rows)
		if b.size = aligned(b.size + int64(len(head)) + rows); b.size > min(maxTable, b.memory) {
			return b.tooLarge()
		}
	}
	return nil
}

// write writes the table, which is finished.
func (b *tableBuilder) write(w io.Writer) error {
	out := bufio.NewWriterSize(w, 64<<10)
	head := make([]byte, 0, tableHead)
	head = append(head, tableMagic...)
	for _, word := range []uint64{b.fingerprint, b.seed, uint64(len(b.slots)), uint64(b.keys), uint64(len(b.entries)), uint64(b.size), 0} {
		head = binary.LittleEndian.AppendUint64(head, word)
	}
	_, _ = out.Write(head) // Flush has the errors of all
	var word [8]byte
	for _, slot := range b.slots {
		binary.LittleEndian.PutUint64(word[:], slot)
		_, _ = out.Write(word[:])
	}
	var pad [tableUnit]byte
	for group := range b.groups() {
		rows := b.rowBytes(group)
		head = b.groupHead(head[:0], group, rows)
		_, _ = out.Write(head)
		for i := range group {
			_, _ = out.Write(b.row(&group[i]))
		}
		length := int64(len(head)) + rows
		if _, err := out.Write(pad[:aligned(length)-length]); err != nil {
			return err
		}
	}
	return out.Flush()
}

func aligned(n int64) int64 { return (n + tableUnit - 1) &^ (tableUnit - 1) }

// groups goes through the entries of each key, once they are sorted.
func (b *tableBuilder) groups() func(yield func([]tableEntry) bool) {
	return func(yield func([]tableEntry) bool) {
		for rest := b.entries; len(rest) > 0; {
			n := 1
			for n < len(rest) && rest[n].hash == rest[0].hash && bytes.Equal(b.key(&rest[n]), b.key(&rest[0])) {
				n++
			}
			if !yield(rest[:n]) {
				return
			}
			rest = rest[n:]
		}
	}
}

func (b *tableBuilder) rowBytes(group []tableEntry) (n int64) {
	for i := range group {
		n += int64(group[i].row)
	}
	return n
}

func (b *tableBuilder) groupHead(dst []byte, group []tableEntry, rows int64) []byte {
	key := b.key(&group[0])
	dst = binary.AppendUvarint(dst, uint64(len(key)))
	dst = append(dst, key...)
	dst = binary.AppendUvarint(dst, uint64(len(group)))
	return binary.AppendUvarint(dst, uint64(rows))
}
