// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"fmt"
	"unsafe"

	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/group"
	"github.com/quernmr/quern/shuffle/pairs"
)

// Emitter takes the pairs that Map makes. It belongs to one goroutine.
type Emitter[K, V any] struct {
	comb *fold.Combiner   // jobs with a Fold
	coll *group.Collector // jobs with a Reduce

	keyKind keyKind
	plain   bool // the value in memory is the only lane, a sum
	direct  bool // the value is a slice of lanes
	key     *keyCodec
	keyText func(K) string // as errors show it
	put     func(dst []int64, v V)
	putSub  func(p *Parts, v V)
	putSome func(p *Parts, v V)
	encode  func(dst []byte, v V) []byte
	order   func(dst []byte, v V) []byte

	lanes    []int64
	keyBuf   []byte
	subBuf   []byte
	parts    Parts
	valueBuf []byte
	orderBuf []byte

	records  int64
	counters map[string]*Counter
	sample   *pairs.BottomK // keys that Sample was told of; nil: nobody asks
}

// Emit adds a value to a key. It copies what it needs and does not allocate.
// What goes wrong (no room to spill, say) ends the job once Map returns.
func (e *Emitter[K, V]) Emit(key K, value V) {
	kp := noescape(unsafe.Pointer(&key))
	var b []byte
	if e.keyKind == keyBytes {
		b = bytesOf(kp)
	} else {
		e.keyBuf = e.key.append(e.keyBuf[:0], kp)
		b = e.keyBuf
	}
	switch {
	case e.plain:
		e.comb.Add1(unsafe.Pointer(unsafe.SliceData(b)), len(b), *(*int64)(noescape(unsafe.Pointer(&value))))
	case e.direct:
		lanes := *(*[]int64)(noescape(unsafe.Pointer(&value)))
		e.comb.Add(unsafe.Pointer(unsafe.SliceData(b)), len(b), lanes[:len(e.lanes)])
	case e.put != nil:
		e.put(e.lanes, value)
		e.comb.Add(unsafe.Pointer(unsafe.SliceData(b)), len(b), e.lanes)
	case e.putSub != nil:
		e.parts.buf = appendEscaped(e.parts.buf[:0], b)
		e.parts.key = len(e.parts.buf)
		e.putSub(&e.parts, value)
		if e.parts.err != nil {
			e.nameKey(kp)
		}
	case e.putSome != nil:
		e.parts.buf = append(e.parts.buf[:0], b...)
		e.putSome(&e.parts, value)
		if e.parts.err != nil {
			e.nameKey(kp)
		}
	default:
		e.valueBuf = e.valueBuf[:0]
		if e.order != nil {
			e.orderBuf = e.order(e.orderBuf[:0], value)
			e.valueBuf = appendEscaped(e.valueBuf, e.orderBuf)
		}
		e.valueBuf = e.encode(e.valueBuf, value)
		e.coll.Add(b, e.valueBuf)
	}
}

// nameKey adds the key at kp to the first error of a value, which another attempt
// would meet again.
//
//go:noinline
func (e *Emitter[K, V]) nameKey(kp unsafe.Pointer) {
	if e.parts.named {
		return
	}
	e.parts.named = true
	e.parts.err = &permanent{fmt.Errorf("key %s: %w", e.keyText(*(*K)(kp)), e.parts.err)}
}

// noescape hides a pointer from escape analysis: what Emit is handed is read
// before it returns, and must not cost an allocation.
//
//go:nosplit
func noescape(p unsafe.Pointer) unsafe.Pointer {
	x := uintptr(p)
	return *(*unsafe.Pointer)(unsafe.Pointer(&x))
}

// Counter returns the counter of that name, which Result.Counters has at the
// end. Hold on to it in hot loops.
func (e *Emitter[K, V]) Counter(name string) *Counter {
	c := e.counters[name]
	if c == nil {
		c = &Counter{}
		e.counters[name] = c
	}
	return c
}

// AddRecords lets block mappers count the records they saw.
func (e *Emitter[K, V]) AddRecords(n int64) { e.records += n }

// SetScale says that from now on the values of lane are decimals with that many
// digits after the point (0 to 18). Values emitted before, here or by other
// mappers, are brought to the largest scale that any mapper set. A scale
// below the current one changes nothing.
func (e *Emitter[K, V]) SetScale(lane int, scale uint8) {
	if e.comb != nil {
		e.comb.SetScale(lane, scale)
	}
}

// err is the first thing that went wrong in an Emit.
func (e *Emitter[K, V]) err() error {
	if e.comb != nil {
		return e.comb.Err()
	}
	return e.coll.Err()
}

// Counter is a user-defined counter of one mapper; its total is the sum over all.
type Counter struct{ n int64 }

// Add adds n.
func (c *Counter) Add(n int64) { c.n += n }
