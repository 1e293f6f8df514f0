// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"encoding"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"unsafe"
)

var errValue = errors.New("damaged value")

// valueCodec picks a codec for values on their way to Reduce. Encodings of
// numbers sort as the numbers do, so that values without ValueOrder come in
// ascending order.
func valueCodec[V any]() (Codec[V], error) {
	t := reflect.TypeFor[V]()
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.BinaryUnmarshaler]()) {
		if t.Implements(reflect.TypeFor[encoding.BinaryAppender]()) {
			return Codec[V]{
				Append: func(dst []byte, v V) []byte {
					out, err := any(v).(encoding.BinaryAppender).AppendBinary(dst)
					if err != nil {
						panic(fmt.Errorf("encode value: %w", err))
					}
					return out
				},
				Decode: func(b []byte) (v V, err error) {
					err = any(&v).(encoding.BinaryUnmarshaler).UnmarshalBinary(b)
					return v, err
				},
			}, nil
		}
	}
	switch t.Kind() {
	case reflect.String:
		return Codec[V]{
			Append: func(dst []byte, v V) []byte { return append(dst, bytesOf(unsafe.Pointer(&v))...) },
			Decode: func(b []byte) (v V, err error) {
				*(*string)(unsafe.Pointer(&v)) = string(b)
				return v, nil
			},
		}, nil
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return Codec[V]{
				Append: func(dst []byte, v V) []byte { return append(dst, bytesOf(unsafe.Pointer(&v))...) },
				Decode: func(b []byte) (v V, err error) {
					*(*[]byte)(unsafe.Pointer(&v)) = b
					return v, nil
				},
			}, nil
		}
	}
	if enc, ok := newFixed(t); ok {
		return Codec[V]{
			Append: func(dst []byte, v V) []byte { return enc.append(dst, unsafe.Pointer(&v)) },
			Decode: func(b []byte) (v V, err error) {
				rest, err := enc.decode(b, unsafe.Pointer(&v))
				if err == nil && len(rest) != 0 {
					err = errValue
				}
				return v, err
			},
		}, nil
	}
	if _, err := json.Marshal(reflect.Zero(t).Interface()); err != nil {
		return Codec[V]{}, fmt.Errorf("values of type %v can't be encoded (set ValueCodec): %w", t, err)
	}
	return Codec[V]{
		Append: func(dst []byte, v V) []byte {
			text, err := json.Marshal(v)
			if err != nil {
				panic(fmt.Errorf("encode value: %w", err))
			}
			return append(dst, text...)
		},
		Decode: func(b []byte) (v V, err error) { return v, json.Unmarshal(b, &v) },
	}, nil
}

// fixed encodes bools, numbers, strings and structs of them.
type fixed struct {
	fields []field
}

func newFixed(t reflect.Type) (*fixed, bool) {
	if t.Kind() != reflect.Struct {
		f, ok := fixedField(t, 0)
		f.last = true
		return &fixed{[]field{f}}, ok
	}
	x := &fixed{}
	for i := range t.NumField() {
		f := t.Field(i)
		k, ok := fixedField(f.Type, f.Offset)
		if !ok || !f.IsExported() {
			return nil, false
		}
		x.fields = append(x.fields, k)
	}
	if n := len(x.fields); n > 0 {
		x.fields[n-1].last = true
	}
	return x, true
}

func fixedField(t reflect.Type, offset uintptr) (field, bool) {
	if k := t.Kind(); k == reflect.Float32 || k == reflect.Float64 {
		return field{offset: offset, kind: k, size: int(t.Size())}, true
	}
	f, err := newField(t, "", offset)
	return f, err == nil
}

func (x *fixed) append(dst []byte, p unsafe.Pointer) []byte {
	for i := range x.fields {
		f := &x.fields[i]
		q := unsafe.Add(p, f.offset)
		switch f.kind {
		case reflect.Float64:
			dst = binary.BigEndian.AppendUint64(dst, orderFloat(math.Float64bits(*(*float64)(q)), 63))
		case reflect.Float32:
			dst = binary.BigEndian.AppendUint32(dst, uint32(orderFloat(uint64(math.Float32bits(*(*float32)(q))), 31)))
		default:
			dst = f.append(dst, q)
		}
	}
	return dst
}

// orderFloat maps a float's bits to an integer that sorts as the float does;
// sign is the number of its sign bit.
func orderFloat(b uint64, sign uint) uint64 {
	if b>>sign&1 != 0 {
		return ^b
	}
	return b | 1<<sign
}

func unorderFloat(b uint64, sign uint) uint64 {
	if b>>sign&1 != 0 {
		return b &^ (1 << sign)
	}
	return ^b
}

func (x *fixed) decode(b []byte, p unsafe.Pointer) ([]byte, error) {
	var err error
	for i := range x.fields {
		f := &x.fields[i]
		q := unsafe.Add(p, f.offset)
		switch f.kind {
		case reflect.Float64:
			if len(b) < 8 {
				return nil, errValue
			}
			*(*float64)(q) = math.Float64frombits(unorderFloat(binary.BigEndian.Uint64(b), 63))
			b = b[8:]
		case reflect.Float32:
			if len(b) < 4 {
				return nil, errValue
			}
			*(*float32)(q) = math.Float32frombits(uint32(unorderFloat(uint64(binary.BigEndian.Uint32(b)), 31)))
			b = b[4:]
		default:
			if b, err = f.decode(b, q); err != nil {
				return nil, errValue
			}
		}
	}
	return b, nil
}
