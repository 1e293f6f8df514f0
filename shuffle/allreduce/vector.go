// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/quernmr/quern/shuffle/wire"
)

// String says what kind of vector it is.
func (v Vector) String() string {
	if len(v.Int64) != 0 {
		return fmt.Sprintf("%d int64 to %s", len(v.Int64), v.Op)
	}
	return fmt.Sprintf("%d int32 to %s", len(v.Int32), v.Op)
}

// String names it.
func (o Op) String() string {
	switch o {
	case Sum:
		return "sum"
	case Min:
		return "min"
	case Max:
		return "max"
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// check says what is wrong with a vector.
func (v Vector) check() error {
	switch {
	case v.Op > Max:
		return fmt.Errorf("all-reduce knows no %s", v.Op)
	case len(v.Int32) != 0 && len(v.Int64) != 0:
		return errors.New("a vector with both int32 and int64; give one of them")
	}
	return nil
}

// like says whether two vectors, neither of them empty, may be of one call.
func (v Vector) like(o Vector) bool {
	return v.Op == o.Op && len(v.Int32) == len(o.Int32) && len(v.Int64) == len(o.Int64)
}

// combine has dst take src in. Both have the same length.
func combine[T int32 | int64](op Op, dst, src []T) {
	src = src[:len(dst)]
	switch op {
	case Sum:
		for len(dst) >= 8 && len(src) >= 8 {
			d, s := (*[8]T)(dst), (*[8]T)(src)
			d[0] += s[0]
			d[1] += s[1]
			d[2] += s[2]
			d[3] += s[3]
			d[4] += s[4]
			d[5] += s[5]
			d[6] += s[6]
			d[7] += s[7]
			dst, src = dst[8:], src[8:]
		}
		for i, x := range src {
			dst[i] += x
		}
	case Min:
		for i, x := range src {
			dst[i] = min(dst[i], x)
		}
	case Max:
		for i, x := range src {
			dst[i] = max(dst[i], x)
		}
	}
}

// littleEndian says that values lie in this machine's memory as they do in frames.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// width is the bytes of a value.
func (v Vector) width() int {
	if len(v.Int64) != 0 {
		return 8
	}
	return 4
}

// raw is the memory of the vector's values from one on, if it is as in frames.
func (v Vector) raw(from, n int) []byte {
	if len(v.Int64) != 0 {
		s := v.Int64[from:][:n]
		return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), 8*n)
	}
	s := v.Int32[from:][:n]
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), 4*n)
}

// values returns n values from one on as they stand in frames: the vector's own memory, or room filled with them.
func (v Vector) values(from, n int, room *[wire.ChunkSize]byte) []byte {
	if littleEndian {
		return v.raw(from, n)
	}
	b := room[:0]
	for i := from; i < from+n; i++ {
		if len(v.Int64) != 0 {
			b = binary.LittleEndian.AppendUint64(b, uint64(v.Int64[i]))
		} else {
			b = binary.LittleEndian.AppendUint32(b, uint32(v.Int32[i]))
		}
	}
	return b
}

// set sets values from one on to those in b.
func (v Vector) set(from int, b []byte) {
	if littleEndian {
		copy(v.raw(from, len(b)/v.width()), b)
		return
	}
	for i := from; len(b) > 0; i++ {
		if len(v.Int64) != 0 {
			v.Int64[i] = int64(binary.LittleEndian.Uint64(b))
			b = b[8:]
		} else {
			v.Int32[i] = int32(binary.LittleEndian.Uint32(b))
			b = b[4:]
		}
	}
}

// combineBytes has dst take src in, both as values stand in frames. Both have the same length.
func combineBytes(op Op, wide bool, dst, src []byte) {
	to, from := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	if littleEndian && (uintptr(to)|uintptr(from))%8 == 0 {
		if wide {
			combine(op, unsafe.Slice((*int64)(to), len(dst)/8), unsafe.Slice((*int64)(from), len(src)/8))
		} else {
			combine(op, unsafe.Slice((*int32)(to), len(dst)/4), unsafe.Slice((*int32)(from), len(src)/4))
		}
		return
	}
	le := binary.LittleEndian
	for ; wide && len(dst) > 0; dst, src = dst[8:], src[8:] {
		x, y := [1]int64{int64(le.Uint64(dst))}, [1]int64{int64(le.Uint64(src))}
		combine(op, x[:], y[:])
		le.PutUint64(dst, uint64(x[0]))
	}
	for ; len(dst) > 0; dst, src = dst[4:], src[4:] {
		x, y := [1]int32{int32(le.Uint32(dst))}, [1]int32{int32(le.Uint32(src))}
		combine(op, x[:], y[:])
		le.PutUint32(dst, uint32(x[0]))
	}
}
