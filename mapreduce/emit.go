// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"unsafe"

	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/group"
)

// Emitter takes the pairs that Map makes. It belongs to one goroutine.
type Emitter[K, V any] struct {
	comb *fold.Combiner   // jobs with a Fold
	coll *group.Collector // jobs with a Reduce

	keyKind keyKind
	plain   bool // the value in memory is the only lane, a sum
	direct  bool // the value is a slice of lanes
	key     *keyCodec
	put     func(dst []int64, v V)
	putSub  func(dst []int64, v V) uint32
	encode  func(dst []byte, v V) []byte
	order   func(dst []byte, v V) []byte

	lanes    []int64
	keyBuf   []byte
	subBuf   []byte
	valueBuf []byte
	orderBuf []byte

	records  int64
	counters map[string]*Counter
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
		sub := e.putSub(e.lanes, value)
		e.subBuf = appendSub(appendEscaped(e.subBuf[:0], b), sub)
		e.comb.Add(unsafe.Pointer(unsafe.SliceData(e.subBuf)), len(e.subBuf), e.lanes)
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
