// SPDX-License-Identifier: Apache-2.0

package mapreduce

// Emitter takes the pairs that Map makes. It belongs to one goroutine.
type Emitter[K, V any] struct {
}

// Emit adds a value to a key. It copies what it needs and does not allocate.
// What goes wrong (no room to spill, say) ends the job once Map returns.
func (e *Emitter[K, V]) Emit(key K, value V) { panic("TODO") }

// Count adds n to the counter of that name, which Result.Counters then has.
// Hold on to the *Counter in hot loops.
func (e *Emitter[K, V]) Counter(name string) *Counter { panic("TODO") }

// AddRecords lets block mappers count the records they saw.
func (e *Emitter[K, V]) AddRecords(n int64) { panic("TODO") }

// SetScale says that from now on the values of lane are decimals with that many
// digits after the point (0 to 18). Values emitted before, here or by other
// mappers, are brought to the largest scale that any mapper set.
func (e *Emitter[K, V]) SetScale(lane int, scale uint8) { panic("TODO") }

// Counter is a user-defined counter of one mapper; its total is the sum over all.
type Counter struct{ n int64 }

// Add adds n.
func (c *Counter) Add(n int64) { c.n += n }
