// SPDX-License-Identifier: Apache-2.0

package wire

// Shape says how the pairs of a frame are laid out.
type Shape uint8

// Shapes beside the keyed ones.
const (
	Wide  Shape = 0x10 // flag of keyed and dense shapes: values of 8 bytes, else 4
	Long  Shape = 0x20 // keys of any length; folded in user space only
	Dense Shape = 0x40 // a vector: offset and values
	// KeyedShapes is the number of keyed shapes; they are numbered from 0.
	KeyedShapes = 32
)

// Keyed returns the shape of pairs with keys of a class (0 to 3), 1 to 4 lanes,
// and values of 8 bytes if wide, else 4.
func Keyed(class, lanes int, wide bool) Shape {
	s := Shape(class | (lanes-1)<<2)
	if wide {
		s |= Wide
	}
	return s
}

// ClassOf returns the least class that holds keys of n bytes; ok is false for
// keys beyond MaxKey.
func ClassOf(n int) (class int, ok bool) {
	switch {
	case n <= 8:
		return 0, true
	case n <= 16:
		return 1, true
	case n <= 32:
		return 2, true
	case n <= 64:
		return 3, true
	}
	return 0, false
}

// Keyed says whether frames of the shape hold keys of up to MaxKey bytes.
func (s Shape) Keyed() bool { return s < KeyedShapes }

// Valid says whether there is such a shape.
func (s Shape) Valid() bool { return s < KeyedShapes || s == Long || s&^Wide == Dense }

// Class returns the key class of a keyed shape.
func (s Shape) Class() int { return int(s & 3) }

// KeyBytes returns the size of a key, padding included.
func (s Shape) KeyBytes() int { return 8 << s.Class() }

// Lanes returns the number of lanes of a keyed shape.
func (s Shape) Lanes() int { return int(s>>2&3) + 1 }

// ValueBytes returns the size of a value.
func (s Shape) ValueBytes() int {
	if s&Wide != 0 {
		return 8
	}
	return 4
}

// PairSize returns the bytes of a pair of a keyed shape.
func (s Shape) PairSize() int { return 4 + s.Lanes()*s.ValueBytes() + s.KeyBytes() }

// PairsPerFrame returns the most pairs that a frame of a keyed shape holds.
func (s Shape) PairsPerFrame() int { return BodySize / s.PairSize() }

// SlotSize returns the bytes of a table's slot for keys of a class and lanes.
func SlotSize(class, lanes int) int {
	return 8 + 8*lanes + 8*(lanes/2) + 8<<class
}

// TableSize returns the bytes of a table with 1<<bits slots, head and the slots
// that the last probes reach included.
func TableSize(class, lanes, bits int) int {
	return TableHead + (1<<bits+Probes)*SlotSize(class, lanes)
}

// Meta returns the first word of a pair: the top bits of the key's hash and its
// length + 1.
func Meta(hash uint64, keyLen int) uint32 {
	return uint32(hash>>(64-HashBits))<<7 | uint32(keyLen+1)
}
