// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/quernmr/quern/mapreduce/output"
)

// Fields is a key of several byte strings whose number is known only at run
// time (columns named by a user). It must be the same for all keys of a job.
type Fields [][]byte

// A key's encoding sorts bytewise as the key does: strings as they are,
// integers big-endian with the sign flipped, several fields one after the
// other. A string that is not the last field is escaped: 0 becomes 0 255, and
// 0 1 ends it.
const (
	escape     = 0x00
	escapedNul = 0xff
	terminator = 0x01
)

type keyKind uint8

const (
	keyBytes keyKind = iota // string or []byte: the encoding is the key
	keyFixed                // one integer, bool or array: encoded without a loop
	keyMany                 // struct or Fields
)

// field is one field of a key: its place in memory and its kind.
type field struct {
	name   string
	offset uintptr
	kind   reflect.Kind // String, Slice ([]byte), Array ([n]byte), Bool, Int..., Uint...
	size   int
	last   bool
}

// keyCodec encodes keys of one type.
type keyCodec struct {
	typ    reflect.Type
	kind   keyKind
	fields []field
	list   bool // Fields
	count  int  // of the Fields of every key
}

var errKey = errors.New("damaged key")

func newKeyCodec(t reflect.Type) (*keyCodec, error) {
	c := &keyCodec{typ: t}
	if t == reflect.TypeFor[Fields]() {
		c.kind, c.list = keyMany, true
		return c, nil
	}
	if t.Kind() == reflect.Struct {
		c.kind = keyMany
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() {
				return nil, fmt.Errorf("key type %v: field %s is not exported", t, f.Name)
			}
			k, err := newField(f.Type, f.Name, f.Offset)
			if err != nil {
				return nil, fmt.Errorf("key type %v: %w", t, err)
			}
			c.fields = append(c.fields, k)
		}
		if len(c.fields) == 0 {
			return nil, fmt.Errorf("key type %v has no fields", t)
		}
		c.fields[len(c.fields)-1].last = true
		return c, nil
	}
	f, err := newField(t, "key", 0)
	if err != nil {
		return nil, fmt.Errorf("key type %v: %w", t, err)
	}
	f.last = true
	c.fields = []field{f}
	c.kind = keyFixed
	if f.kind == reflect.String || f.kind == reflect.Slice {
		c.kind = keyBytes
	}
	return c, nil
}

func newField(t reflect.Type, name string, offset uintptr) (field, error) {
	f := field{name: name, offset: offset, kind: t.Kind(), size: int(t.Size())}
	switch t.Kind() {
	case reflect.String, reflect.Bool,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return f, nil
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return f, nil
		}
	}
	return f, fmt.Errorf("%s is a %v; keys are strings, byte slices, bools, integers, arrays of bytes, structs of these, or Fields", name, t)
}

// text is a key as errors show it.
func (c *keyCodec) text(key any) string {
	switch {
	case c.kind == keyBytes:
		return fmt.Sprintf("%q", key)
	case c.kind == keyMany:
		return fmt.Sprintf("%q", fmt.Sprint(key))
	}
	return fmt.Sprint(key)
}

// append appends the encoding of the key at p.
func (c *keyCodec) append(dst []byte, p unsafe.Pointer) []byte {
	if c.list {
		l := *(*Fields)(p)
		if len(l) != c.count {
			// Emit has no way to return an error; the engine turns this into one
			// that names the record.
			panic(fmt.Errorf("a key of %d Fields where the job has %d KeyColumns", len(l), c.count))
		}
		for i, b := range l {
			if i == len(l)-1 {
				dst = append(dst, b...)
			} else {
				dst = appendEscaped(dst, b)
			}
		}
		return dst
	}
	for i := range c.fields {
		dst = c.fields[i].append(dst, unsafe.Add(p, c.fields[i].offset))
	}
	return dst
}

func (f *field) append(dst []byte, p unsafe.Pointer) []byte {
	switch f.kind {
	case reflect.String, reflect.Slice:
		b := bytesOf(p)
		if f.last {
			return append(dst, b...)
		}
		return appendEscaped(dst, b)
	case reflect.Array:
		return append(dst, unsafe.Slice((*byte)(p), f.size)...)
	case reflect.Bool, reflect.Uint8:
		return append(dst, *(*byte)(p))
	case reflect.Int8:
		return append(dst, *(*byte)(p)^0x80)
	}
	return appendSized(dst, f.size, readInt(p, f.size)^f.flip())
}

// flip is the sign bit of signed kinds.
func (f *field) flip() uint64 {
	switch f.kind {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return 1 << (8*f.size - 1)
	}
	return 0
}

func readInt(p unsafe.Pointer, size int) uint64 {
	switch size {
	case 1:
		return uint64(*(*uint8)(p))
	case 2:
		return uint64(*(*uint16)(p))
	case 4:
		return uint64(*(*uint32)(p))
	}
	return *(*uint64)(p)
}

func writeInt(p unsafe.Pointer, size int, v uint64) {
	switch size {
	case 1:
		*(*uint8)(p) = uint8(v)
	case 2:
		*(*uint16)(p) = uint16(v)
	case 4:
		*(*uint32)(p) = uint32(v)
	default:
		*(*uint64)(p) = v
	}
}

func appendSized(dst []byte, size int, v uint64) []byte {
	switch size {
	case 1:
		return append(dst, byte(v))
	case 2:
		return binary.BigEndian.AppendUint16(dst, uint16(v))
	case 4:
		return binary.BigEndian.AppendUint32(dst, uint32(v))
	}
	return binary.BigEndian.AppendUint64(dst, v)
}

func appendEscaped(dst, b []byte) []byte {
	for {
		i := bytes.IndexByte(b, escape)
		if i < 0 {
			dst = append(dst, b...)
			return append(dst, escape, terminator)
		}
		dst = append(dst, b[:i]...)
		dst = append(dst, escape, escapedNul)
		b = b[i+1:]
	}
}

// unescape splits b behind its first escaped string, which it appends to dst.
func unescape(dst, b []byte) (str, rest []byte, err error) {
	for {
		i := bytes.IndexByte(b, escape)
		if i < 0 || i+1 >= len(b) {
			return dst, nil, errKey
		}
		dst = append(dst, b[:i]...)
		switch b[i+1] {
		case terminator:
			return dst, b[i+2:], nil
		case escapedNul:
			dst = append(dst, 0)
		default:
			return dst, nil, errKey
		}
		b = b[i+2:]
	}
}

// decode writes the key that b encodes to p, a zero value of the key's type.
// Byte slices of the key may share b's memory.
func (c *keyCodec) decode(b []byte, p unsafe.Pointer) error {
	if c.list {
		l := make(Fields, c.count)
		for i := range l[:c.count-1] {
			var err error
			if l[i], b, err = unescape(nil, b); err != nil {
				return err
			}
		}
		l[c.count-1] = b
		*(*Fields)(p) = l
		return nil
	}
	var err error
	for i := range c.fields {
		if b, err = c.fields[i].decode(b, unsafe.Add(p, c.fields[i].offset)); err != nil {
			return err
		}
	}
	if len(b) != 0 {
		return errKey
	}
	return nil
}

func (f *field) decode(b []byte, p unsafe.Pointer) (rest []byte, err error) {
	switch f.kind {
	case reflect.String, reflect.Slice:
		s := b
		if !f.last {
			if s, rest, err = unescape(nil, b); err != nil {
				return nil, err
			}
		}
		if f.kind == reflect.String {
			*(*string)(p) = string(s)
		} else {
			*(*[]byte)(p) = s
		}
		return rest, nil
	}
	if len(b) < f.size {
		return nil, errKey
	}
	if f.kind == reflect.Array {
		copy(unsafe.Slice((*byte)(p), f.size), b)
		return b[f.size:], nil
	}
	var v uint64
	for _, x := range b[:f.size] {
		v = v<<8 | uint64(x)
	}
	writeInt(p, f.size, v^f.flip())
	return b[f.size:], nil
}

// values appends the cells that the key encoded in b has in a row. scratch
// keeps the memory of unescaped strings.
func (c *keyCodec) values(dst []output.Value, b []byte, scratch *[]byte) ([]output.Value, error) {
	switch {
	case c.kind == keyBytes:
		return append(dst, output.Value{Kind: output.Bytes, B: b}), nil
	case c.list:
		var l Fields
		if err := c.decode(b, unsafe.Pointer(&l)); err != nil {
			return dst, err
		}
		for _, s := range l {
			dst = append(dst, output.Value{Kind: output.Bytes, B: s})
		}
		return dst, nil
	}
	*scratch = (*scratch)[:0]
	for i := range c.fields {
		f := &c.fields[i]
		switch f.kind {
		case reflect.String, reflect.Slice:
			s := b
			if !f.last {
				from := len(*scratch)
				all, rest, err := unescape(*scratch, b)
				if err != nil {
					return dst, err
				}
				*scratch = all
				s, b = all[from:], rest
			}
			dst = append(dst, output.Value{Kind: output.Bytes, B: s})
			continue
		}
		if len(b) < f.size {
			return dst, errKey
		}
		if f.kind == reflect.Array {
			dst = append(dst, output.Value{Kind: output.Bytes, B: b[:f.size]})
			b = b[f.size:]
			continue
		}
		var v uint64
		for _, x := range b[:f.size] {
			v = v<<8 | uint64(x)
		}
		b = b[f.size:]
		v ^= f.flip()
		switch f.kind {
		case reflect.Bool:
			dst = append(dst, output.Value{Kind: output.Bool, I: int64(v)})
		case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Int:
			shift := 64 - 8*f.size
			dst = append(dst, output.Value{Kind: output.Int, I: int64(v<<shift) >> shift})
		default:
			dst = append(dst, output.Value{Kind: output.Uint, I: int64(v)})
		}
	}
	return dst, nil
}

// columns names the key's cells.
func (c *keyCodec) columns(names []string) ([]output.Column, error) {
	if c.list {
		if len(names) == 0 {
			return nil, errors.New("a job whose keys are Fields must set KeyColumns")
		}
		cols := make([]output.Column, len(names))
		for i, n := range names {
			cols[i] = output.Column{Name: n, Kind: output.Bytes}
		}
		return cols, nil
	}
	cols := make([]output.Column, len(c.fields))
	for i, f := range c.fields {
		k := output.Uint
		switch f.kind {
		case reflect.String, reflect.Slice, reflect.Array:
			k = output.Bytes
		case reflect.Bool:
			k = output.Bool
		case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
			k = output.Int
		}
		cols[i] = output.Column{Name: f.name, Kind: k}
	}
	if names != nil {
		if len(names) != len(cols) {
			return nil, fmt.Errorf("%d KeyColumns for a key of %d fields", len(names), len(cols))
		}
		for i, n := range names {
			cols[i].Name = n
		}
	}
	return cols, nil
}
