// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"unsafe"

	"github.com/quernmr/quern/mapreduce/output"
)

// rowCodec makes cells of results of one type.
type rowCodec struct {
	columns []output.Column
	cells   []cell
	dynamic bool // []output.Value
}

// cell is where a column's value lies in a result.
type cell struct {
	offset uintptr
	typ    reflect.Type
	kind   reflect.Kind
}

func newRowCodec(t reflect.Type, names []string, kinds []output.Kind) (*rowCodec, error) {
	c := &rowCodec{}
	switch {
	case t == reflect.TypeFor[[]output.Value]():
		c.dynamic = true
		if names == nil || len(kinds) != len(names) {
			return nil, errors.New("a job whose results are []output.Value must set Columns and as many ColumnKinds")
		}
		for i, n := range names {
			c.columns = append(c.columns, output.Column{Name: n, Kind: kinds[i]})
		}
		return c, nil
	case t.Kind() == reflect.Struct && t != decimalType && flat(t):
		for i := range t.NumField() {
			f := t.Field(i)
			c.cells = append(c.cells, cell{f.Offset, f.Type, f.Type.Kind()})
			c.columns = append(c.columns, output.Column{Name: columnName(f), Kind: columnKind(f.Type)})
		}
	default:
		c.cells = []cell{{0, t, t.Kind()}}
		c.columns = []output.Column{{Name: "value", Kind: columnKind(t)}}
	}
	if names != nil {
		if len(names) == 0 {
			c.cells, c.columns = nil, nil
		}
		if len(names) != len(c.columns) {
			return nil, fmt.Errorf("%d Columns for results of type %v, which has %d", len(names), t, len(c.columns))
		}
		for i, n := range names {
			c.columns[i].Name = n
		}
	}
	return c, nil
}

// flat says whether all fields are exported.
func flat(t reflect.Type) bool {
	for i := range t.NumField() {
		if !t.Field(i).IsExported() {
			return false
		}
	}
	return true
}

func columnName(f reflect.StructField) string {
	if n, _, _ := strings.Cut(f.Tag.Get("json"), ","); n != "" && n != "-" {
		return n
	}
	return strings.ToLower(f.Name)
}

// decimalType is of results that are one cell though they are structs.
var decimalType = reflect.TypeFor[Decimal]()

func columnKind(t reflect.Type) output.Kind {
	if t == decimalType {
		return output.Decimal
	}
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return output.Int
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return output.Uint
	case reflect.Float32, reflect.Float64:
		return output.Float
	case reflect.Bool:
		return output.Bool
	case reflect.String:
		return output.Bytes
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return output.Bytes
		}
	}
	return output.JSON
}

// isInt64 says whether a result is an int64 and its only cell.
func (c *rowCodec) isInt64() bool {
	return len(c.cells) == 1 && c.cells[0].offset == 0 && c.cells[0].kind == reflect.Int64
}

// values appends the cells of the result at p.
func (c *rowCodec) values(dst []output.Value, p unsafe.Pointer) ([]output.Value, error) {
	if c.dynamic {
		v := *(*[]output.Value)(p)
		if len(v) != len(c.columns) {
			return dst, fmt.Errorf("a result has %d values for %d columns", len(v), len(c.columns))
		}
		return append(dst, v...), nil
	}
	for i := range c.cells {
		f := &c.cells[i]
		q := unsafe.Add(p, f.offset)
		switch f.kind {
		case reflect.Int64, reflect.Int:
			dst = append(dst, output.Value{Kind: output.Int, I: int64(readInt(q, int(f.typ.Size())))})
		case reflect.Int8, reflect.Int16, reflect.Int32:
			shift := 64 - 8*int(f.typ.Size())
			dst = append(dst, output.Value{Kind: output.Int, I: int64(readInt(q, int(f.typ.Size()))<<shift) >> shift})
		case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			dst = append(dst, output.Value{Kind: output.Uint, I: int64(readInt(q, int(f.typ.Size())))})
		case reflect.Float64:
			dst = append(dst, output.Value{Kind: output.Float, F: *(*float64)(q)})
		case reflect.Float32:
			dst = append(dst, output.Value{Kind: output.Float, F: float64(*(*float32)(q))})
		case reflect.Bool:
			dst = append(dst, output.Value{Kind: output.Bool, I: int64(*(*byte)(q))})
		case reflect.String:
			dst = append(dst, output.Value{Kind: output.Bytes, B: bytesOf(q)})
		default:
			if f.typ == decimalType {
				dst = append(dst, (*Decimal)(q).cell())
				continue
			}
			v := reflect.NewAt(f.typ, q).Elem()
			if f.kind == reflect.Slice && f.typ.Elem().Kind() == reflect.Uint8 {
				dst = append(dst, output.Value{Kind: output.Bytes, B: v.Bytes()})
				continue
			}
			if f.kind == reflect.Pointer && v.IsNil() {
				dst = append(dst, output.Value{Kind: output.Null})
				continue
			}
			text, err := json.Marshal(v.Interface())
			if err != nil && f.kind == reflect.Slice && (f.typ.Elem().Kind() == reflect.Float64 || f.typ.Elem().Kind() == reflect.Float32) {
				text, err = appendFloats(nil, v)
			}
			if err != nil {
				return dst, fmt.Errorf("result column %s: %w", c.columns[i].Name, err)
			}
			dst = append(dst, output.Value{Kind: output.JSON, B: text})
		}
	}
	return dst, nil
}

// appendFloats writes a slice of floats of which JSON has no word for some: they are the strings that they are
// in columns of floats.
func appendFloats(dst []byte, v reflect.Value) ([]byte, error) {
	dst = append(dst, '[')
	for i := range v.Len() {
		if i > 0 {
			dst = append(dst, ',')
		}
		x := v.Index(i)
		switch f := x.Float(); {
		case f != f:
			dst = append(dst, `"NaN"`...)
		case math.IsInf(f, 1):
			dst = append(dst, `"Infinity"`...)
		case math.IsInf(f, -1):
			dst = append(dst, `"-Infinity"`...)
		default:
			text, err := json.Marshal(x.Interface())
			if err != nil {
				return nil, err
			}
			dst = append(dst, text...)
		}
	}
	return append(dst, ']'), nil
}
