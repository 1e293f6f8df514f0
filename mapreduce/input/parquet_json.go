// SPDX-License-Identifier: Apache-2.0

package input

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/big"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

type nodeKind uint8

const (
	nodeLeaf nodeKind = iota
	nodeGroup
	nodeList // an array of the elements of its repeated child
	nodeMap  // an object of the keys and values of its repeated child
)

// parquetNode is a column or group of columns on its way to JSON.
type parquetNode struct {
	name     string
	label    []byte // "name":
	kind     nodeKind
	optional bool
	repeated bool
	wrapper  bool // of a list's repeated child: its only child is the element
	text     bool // a leaf of byte arrays, fit for the keys of an object
	children []*parquetNode
	first    int // of its leaves
	leaves   int // their number
	put      func(dst []byte, v *parquet.Value) []byte
}

// newParquetNode makes a node of c and adds its leaves.
func newParquetNode(c *parquet.Column, leaves *[]parquetLeaf, halves map[int]bool) *parquetNode {
	n := &parquetNode{name: c.Name(), optional: c.Optional(), repeated: c.Repeated(), first: len(*leaves)}
	n.label = append(appendString(nil, []byte(n.name)), ':')
	if c.Leaf() {
		*leaves = append(*leaves, parquetLeaf{column: c.Index(), repeated: c.MaxRepetitionLevel() > 0})
		n.put = leafWriter(c.Type(), halves[c.Index()])
		n.leaves = 1
		n.text = c.Type().Kind() == parquet.ByteArray && !n.repeated
		return n
	}
	n.kind = nodeGroup
	for _, child := range c.Columns() {
		n.children = append(n.children, newParquetNode(child, leaves, halves))
	}
	n.leaves = len(*leaves) - n.first
	if len(n.children) != 1 || !n.children[0].repeated {
		return n
	}
	child := n.children[0]
	var logical format.LogicalTypeValue
	if lt := c.Type().LogicalType(); lt != nil {
		logical = lt.Value
	}
	switch logical.(type) {
	case *format.ListType:
		n.kind = nodeList
		// Old writers put the element itself where the wrapper is now.
		child.wrapper = child.kind == nodeGroup && len(child.children) == 1 &&
			child.name != "array" && child.name != n.name+"_tuple"
	case *format.MapType:
		if child.kind == nodeGroup && len(child.children) == 2 {
			n.kind = nodeMap
		}
	}
	return n
}

// float16Leaves returns the leaves that hold 16-bit floats, which the library
// shows as two bytes.
func float16Leaves(schema []format.SchemaElement) map[int]bool {
	m := make(map[int]bool)
	leaf := 0
	for i := range schema {
		if !schema[i].Type.Valid {
			continue
		}
		if _, ok := schema[i].LogicalType.Value.(*format.Float16Type); ok {
			m[leaf] = true
		}
		leaf++
	}
	return m
}

// appendRow appends one row as an object. record holds its values by leaf.
func appendRow(dst []byte, fields []*parquetNode, record [][]parquet.Value) []byte {
	dst = append(dst, '{')
	for i, f := range fields {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, f.label...)
		dst = f.append(dst, record[f.first:f.first+f.leaves], 0, 0)
	}
	return append(dst, '}')
}

// append appends the node's value. The levels are those of its parent; values
// holds, by leaf, what belongs to this one instance of the parent.
func (n *parquetNode) append(dst []byte, values [][]parquet.Value, rep, def int) []byte {
	switch {
	case n.repeated:
		return n.elements(dst, values, rep, def, (*parquetNode).content)
	case n.optional:
		def++
		if defined(values) < def {
			return append(dst, "null"...)
		}
	}
	return n.content(dst, values, rep, def)
}

// defined returns how many levels of what may be missing are there.
func defined(values [][]parquet.Value) int {
	if len(values) == 0 || len(values[0]) == 0 {
		return -1
	}
	return values[0][0].DefinitionLevel()
}

func (n *parquetNode) content(dst []byte, values [][]parquet.Value, rep, def int) []byte {
	switch n.kind {
	case nodeLeaf:
		if len(values[0]) == 0 {
			return append(dst, "null"...)
		}
		return n.put(dst, &values[0][0])
	case nodeList:
		child := n.children[0]
		if child.wrapper {
			return child.elements(dst, values, rep, def, func(c *parquetNode, dst []byte, v [][]parquet.Value, rep, def int) []byte {
				return c.children[0].append(dst, v, rep, def)
			})
		}
		return child.elements(dst, values, rep, def, (*parquetNode).content)
	case nodeMap:
		return n.children[0].pairs(dst, values, rep, def)
	}
	dst = append(dst, '{')
	for i, c := range n.children {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, c.label...)
		dst = c.append(dst, values[c.first-n.first:][:c.leaves], rep, def)
	}
	return append(dst, '}')
}

// each calls do for every instance of a repeated node.
func (n *parquetNode) each(values [][]parquet.Value, rep, def int, do func(i int, v [][]parquet.Value)) {
	if defined(values) < def+1 {
		return
	}
	left := make([][]parquet.Value, len(values))
	one := make([][]parquet.Value, len(values))
	copy(left, values)
	for i := 0; len(left[0]) > 0; i++ {
		for l, v := range left {
			end := 1
			for end < len(v) && v[end].RepetitionLevel() > rep+1 {
				end++
			}
			end = min(end, len(v))
			one[l], left[l] = v[:end], v[end:]
		}
		do(i, one)
	}
}

func (n *parquetNode) elements(dst []byte, values [][]parquet.Value, rep, def int, element func(*parquetNode, []byte, [][]parquet.Value, int, int) []byte) []byte {
	dst = append(dst, '[')
	n.each(values, rep, def, func(i int, v [][]parquet.Value) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = element(n, dst, v, rep+1, def+1)
	})
	return append(dst, ']')
}

// pairs appends a map: an object if all keys are text, else an array of
// objects with key and value.
func (n *parquetNode) pairs(dst []byte, values [][]parquet.Value, rep, def int) []byte {
	key, value := n.children[0], n.children[1]
	text := key.text
	n.each(values, rep, def, func(_ int, v [][]parquet.Value) {
		if text && !utf8.Valid(v[0][0].ByteArray()) {
			text = false
		}
	})
	if !text {
		return n.elements(dst, values, rep, def, (*parquetNode).content)
	}
	dst = append(dst, '{')
	n.each(values, rep, def, func(i int, v [][]parquet.Value) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, v[0][0].ByteArray())
		dst = append(dst, ':')
		dst = value.append(dst, v[key.leaves:], rep+1, def+1)
	})
	return append(dst, '}')
}

// leafWriter returns what writes values of a type as JSON.
func leafWriter(t parquet.Type, half bool) func(dst []byte, v *parquet.Value) []byte {
	write := typedWriter(t, half)
	return func(dst []byte, v *parquet.Value) []byte {
		if v.IsNull() {
			return append(dst, "null"...)
		}
		return write(dst, v)
	}
}

func typedWriter(t parquet.Type, half bool) func(dst []byte, v *parquet.Value) []byte {
	kind := t.Kind()
	var logical format.LogicalTypeValue
	if lt := t.LogicalType(); lt != nil {
		logical = lt.Value
	}
	switch l := logical.(type) {
	case *format.DecimalType:
		return decimalWriter(kind, int(l.Scale))
	case *format.DateType:
		return func(dst []byte, v *parquet.Value) []byte {
			return appendTime(dst, time.Unix(int64(v.Int32())*86400, 0), time.DateOnly)
		}
	case *format.TimeType:
		unit := unitOf(l.Unit)
		return func(dst []byte, v *parquet.Value) []byte {
			n := v.Int64()
			if kind == parquet.Int32 {
				n = int64(v.Int32())
			}
			return appendTime(dst, instant(n, unit), "15:04:05.999999999")
		}
	case *format.TimestampType:
		unit, layout := unitOf(l.Unit), time.RFC3339Nano
		if !l.IsAdjustedToUTC {
			layout = "2006-01-02T15:04:05.999999999" // of no particular zone
		}
		return func(dst []byte, v *parquet.Value) []byte { return appendTime(dst, instant(v.Int64(), unit), layout) }
	case *format.IntType:
		if !l.IsSigned {
			return func(dst []byte, v *parquet.Value) []byte {
				if kind == parquet.Int32 {
					return strconv.AppendUint(dst, uint64(v.Uint32()), 10)
				}
				return strconv.AppendUint(dst, v.Uint64(), 10)
			}
		}
	case *format.UUIDType:
		return func(dst []byte, v *parquet.Value) []byte { return appendUUID(dst, v.ByteArray()) }
	}
	switch kind {
	case parquet.Boolean:
		return func(dst []byte, v *parquet.Value) []byte { return strconv.AppendBool(dst, v.Boolean()) }
	case parquet.Int32:
		return func(dst []byte, v *parquet.Value) []byte { return strconv.AppendInt(dst, int64(v.Int32()), 10) }
	case parquet.Int64:
		return func(dst []byte, v *parquet.Value) []byte { return strconv.AppendInt(dst, v.Int64(), 10) }
	case parquet.Int96:
		return func(dst []byte, v *parquet.Value) []byte {
			// What is left of it in the wild is times: nanoseconds of a day, and a Julian day.
			i := v.Int96()
			nanos := int64(uint64(i[1])<<32 | uint64(i[0]))
			days := int64(i[2]) - 2440588
			return appendTime(dst, time.Unix(days*86400, 0).Add(time.Duration(nanos)), time.RFC3339Nano)
		}
	case parquet.Float:
		return func(dst []byte, v *parquet.Value) []byte { return appendFloat(dst, float64(v.Float()), 32) }
	case parquet.Double:
		return func(dst []byte, v *parquet.Value) []byte { return appendFloat(dst, v.Double(), 64) }
	}
	if half {
		return func(dst []byte, v *parquet.Value) []byte {
			b := v.ByteArray()
			if len(b) != 2 {
				return appendBytes(dst, b)
			}
			return appendFloat(dst, halfFloat(binary.LittleEndian.Uint16(b)), 32)
		}
	}
	return func(dst []byte, v *parquet.Value) []byte { return appendBytes(dst, v.ByteArray()) }
}

func unitOf(u format.TimeUnit) time.Duration {
	if u.Value == nil {
		return time.Microsecond
	}
	return u.Value.Duration()
}

// instant makes a time of n units since 1970, without overflow.
func instant(n int64, unit time.Duration) time.Time {
	per := int64(time.Second / unit)
	sec, rest := n/per, n%per
	return time.Unix(sec, rest*int64(unit))
}

func appendTime(dst []byte, t time.Time, layout string) []byte {
	dst = append(dst, '"')
	dst = t.UTC().AppendFormat(dst, layout)
	return append(dst, '"')
}

// appendFloat appends the shortest text that reads back as the same number.
func appendFloat(dst []byte, f float64, size int) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(dst, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(dst, `"-Infinity"`...)
	}
	form := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		form = 'e'
	}
	return strconv.AppendFloat(dst, f, form, -1, size)
}

func halfFloat(h uint16) float64 {
	sign := 1.0
	if h>>15 == 1 {
		sign = -1
	}
	exp, frac := int(h>>10&31), float64(h&1023)
	switch exp {
	case 0:
		return math.Copysign(math.Ldexp(frac, -24), sign)
	case 31:
		if frac != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return math.Copysign(math.Ldexp(1024+frac, exp-25), sign)
}

func decimalWriter(kind parquet.Kind, scale int) func(dst []byte, v *parquet.Value) []byte {
	return func(dst []byte, v *parquet.Value) []byte {
		var digits [24]byte
		switch kind {
		case parquet.Int32:
			return appendDecimal(dst, strconv.AppendInt(digits[:0], int64(v.Int32()), 10), scale)
		case parquet.Int64:
			return appendDecimal(dst, strconv.AppendInt(digits[:0], v.Int64(), 10), scale)
		}
		b := v.ByteArray()
		n := new(big.Int).SetBytes(b)
		if len(b) > 0 && b[0]&0x80 != 0 {
			n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
		}
		return appendDecimal(dst, n.Append(digits[:0], 10), scale)
	}
}

// appendDecimal puts the point into a whole number.
func appendDecimal(dst, digits []byte, scale int) []byte {
	if scale > 1000 || scale < -1000 { // no sane file; exact, but short
		dst = append(append(dst, digits...), 'e')
		return strconv.AppendInt(dst, -int64(scale), 10)
	}
	if digits[0] == '-' {
		dst = append(dst, '-')
		digits = digits[1:]
	}
	if scale <= 0 {
		dst = append(dst, digits...)
		if digits[0] != '0' {
			for range -scale {
				dst = append(dst, '0')
			}
		}
		return dst
	}
	whole := len(digits) - scale
	if whole <= 0 {
		dst = append(dst, "0."...)
		for range -whole {
			dst = append(dst, '0')
		}
		return append(dst, digits...)
	}
	dst = append(dst, digits[:whole]...)
	dst = append(dst, '.')
	return append(dst, digits[whole:]...)
}

const hexDigits = "0123456789abcdef"

func appendUUID(dst, b []byte) []byte {
	if len(b) != 16 {
		return appendBytes(dst, b)
	}
	dst = append(dst, '"')
	for i, c := range b {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, hexDigits[c>>4], hexDigits[c&15])
	}
	return append(dst, '"')
}

// appendBytes appends text as a string, and anything else as an object that
// says so.
func appendBytes(dst, b []byte) []byte {
	if utf8.Valid(b) {
		return appendString(dst, b)
	}
	dst = append(dst, `{"base64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, `"}`...)
}

// appendString appends valid UTF-8 as a JSON string.
func appendString(dst, b []byte) []byte {
	dst = append(dst, '"')
	from := 0
	for i, c := range b {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, b[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	dst = append(dst, b[from:]...)
	return append(dst, '"')
}
