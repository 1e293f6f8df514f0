// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"unsafe"

	"github.com/quernmr/quern/shuffle/pairs"
)

// Sample has a key count among the distinct keys by which the parts of a total order
// (Options.TotalOrder) are cut, as if a pair of it had been emitted. A map function that
// leaves out keys which another way to the same rows emits, makes the same parts by that.
// Where nothing is cut it does nothing.
func (e *Emitter[K, V]) Sample(key K) {
	if e.sample == nil {
		return
	}
	kp := noescape(unsafe.Pointer(&key))
	var b []byte
	if e.keyKind == keyBytes {
		b = bytesOf(kp)
	} else {
		e.keyBuf = e.key.append(e.keyBuf[:0], kp)
		b = e.keyBuf
	}
	if e.putSub != nil { // as the keys of its pairs are sampled
		e.subBuf = appendEscaped(e.subBuf[:0], b)
		b = e.subBuf
	}
	e.sample.Add(b)
}

// sampleKeys has the mapper keep the keys that Sample is told of.
func (m *typedMapper[K, V]) sampleKeys(size int) { m.emit.sample = pairs.NewBottomK(size) }

// sampled returns them, nil if they are not kept.
func (m *typedMapper[K, V]) sampled() *pairs.BottomK { return m.emit.sample }
