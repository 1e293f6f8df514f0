// SPDX-License-Identifier: Apache-2.0

package fold

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/quernmr/quern/shuffle/pairs"
)

const (
	// frontWays is how many places a key may have in the front table.
	frontWays = 4
	// frontSlots is chosen by measurement: with fewer, keys get more records;
	// with more, a visit costs more than those save.
	frontSlots = 1 << 17
)

// Config is what the combiners of a job have in common.
type Config struct {
	Arena      *pairs.Arena
	Ops        []Op       // one per lane
	Seed       pairs.Seed // of the run
	Partitions int
	SubBuckets int   // buckets per partition, a power of two
	Suffix     int   // trailing bytes of a key that do not choose its partition
	Share      int64 // bytes of records after which Spill is called
	// Spill takes all records of a combiner elsewhere; the combiner forgets
	// them afterwards. It is called in the midst of an Add, by its goroutine.
	Spill func(c *Combiner) error
	// Front is log2 of the places of the front table, eight bytes each; 0: 17.
	// 4 to 26.
	Front int
	// Ordered says that pairs come in the order of their hashes, or as a few such
	// sequences: the front table is then swept from one end to the other, so that
	// it may be larger than the cache.
	Ordered bool
}

// Combiner folds the pairs of one mapper. Records live in buckets by partition
// and hash; a front table in the cache remembers where those of recent keys
// are, so that frequent keys have one record and rare ones cost a write in
// sequence. A key may have several records; the drain folds them.
type Combiner struct {
	cfg     Config
	slots   []uint64 // tag<<32 | ref; groups of frontWays, the latest first
	mask    uint64
	front   uint // bits of a hash to drop before the mask gives its group
	buckets *pairs.Buckets
	shift   uint
	lanes   int
	sums    []uintptr // offsets of the lanes with Op Sum
	others  []lane
	emitted int64
	check   []uint64 // per sum lane: sum of value x hash(key), mod 2^64
	carries map[uint64]int64
	scale   []uint8
	err     error

	wait    [batch]waiting
	waits   int
	touched uint64 // keeps the loads of Flush from being optimised away
}

// NewCombiner makes a combiner.
func NewCombiner(cfg Config) *Combiner {
	slots := frontSlots
	if cfg.Front != 0 {
		slots = 1 << min(max(cfg.Front, 4), 26)
	}
	c := &Combiner{
		cfg:   cfg,
		slots: make([]uint64, slots),
		mask:  uint64(slots - frontWays),
		lanes: len(cfg.Ops),
		shift: uint(64 - bits.Len(uint(cfg.SubBuckets-1))),
		check: make([]uint64, len(cfg.Ops)),
	}
	if cfg.Ordered {
		c.front = uint(64 - bits.Len(uint(slots-1)))
	}
	c.buckets = pairs.NewBuckets(cfg.Arena, cfg.Partitions*cfg.SubBuckets, cfg.Share)
	for i, op := range cfg.Ops {
		if op == Sum {
			c.sums = append(c.sums, uintptr(i)*8)
		} else {
			c.others = append(c.others, lane{uintptr(i) * 8, op})
		}
	}
	return c
}

// Emitted returns the number of pairs added.
func (c *Combiner) Emitted() int64 { return c.emitted }

// Records returns the number of records held: the pairs left after combining.
func (c *Combiner) Records() int64 { return c.buckets.Records() }

// Err returns the first thing that went wrong; pairs added later are lost.
func (c *Combiner) Err() error { return c.err }

// Bytes returns the memory that records take.
func (c *Combiner) Bytes() int64 { return c.buckets.Bytes() }

// Check returns, per lane, the sum of value x hash(key) mod 2^64 over all pairs
// added (0 for lanes that are no sums).
func (c *Combiner) Check() []uint64 { return c.check }

// Scale returns the decimal scale per lane, nil if none was set.
func (c *Combiner) Scale() []uint8 { return c.scale }

// waiting is a short key on its way into the table.
type waiting struct {
	k0, k1, h uint64
	n         uint64
	v         int64
}

// batch is how many short keys wait before they are looked up together: their
// loads from slots and records then overlap, instead of each waiting in turn
// for the memory.
const batch = 32

// Add1 folds a value into a key of a job with a single sum lane. It is the
// fast case of Add. Call Flush before looking at what the combiner holds.
func (c *Combiner) Add1(p unsafe.Pointer, n int, v int64) {
	if n > 16 {
		h := c.cfg.Seed.Hash(p, n)
		c.emitted++
		c.check[0] += uint64(v) * h
		c.addOne(p, n, 0, 0, h, v)
		return
	}
	k0, k1 := pairs.LoadShort(p, n)
	w := &c.wait[c.waits%batch]
	w.k0, w.k1, w.n, w.v = k0, k1, uint64(n), v
	w.h = c.cfg.Seed.HashShort(k0, k1, n)
	c.waits++
	if c.waits == batch {
		c.Flush()
	}
}

// Flush folds the pairs that still wait.
//
//go:nocheckptr
func (c *Combiner) Flush() {
	wait := c.wait[:c.waits]
	if len(wait) == 0 {
		return
	}
	c.waits = 0
	c.emitted += int64(len(wait))
	// Two passes that only load, without branches on what they loaded, bring
	// slots and records into the cache; the third works on them.
	var refs [batch]pairs.Ref
	slots := unsafe.Pointer(unsafe.SliceData(c.slots))
	check := c.check[0]
	for i := range wait {
		refs[i] = pairs.Ref(*(*uint64)(unsafe.Add(slots, wait[i].h>>(c.front&63)&c.mask<<3)))
		check += uint64(wait[i].v) * wait[i].h
	}
	c.check[0] = check
	var heads uint64
	for i := range wait {
		heads += *(*uint64)(c.cfg.Arena.At(refs[i]))
	}
	c.touched = heads
	for i := range wait {
		w := &wait[i]
		c.addOne(nil, int(w.n), w.k0, w.k1, w.h, w.v)
	}
}

// Packed says how pairs lie behind each other: as in a frame, with the key's length
// + 1 in the low 7 bits of the first four bytes, the value behind them, and the key, padded with
// zeros to 8 or 16 bytes, at the end of the Size bytes of each pair.
type Packed struct {
	Size int
	Key  int  // bytes of a padded key: 8 or 16
	Wide bool // values of 8 bytes, else 4
}

// AddPacked folds the n pairs at p into a job with a single sum lane, as Add1 and
// Flush do.
//
//go:nocheckptr
func (c *Combiner) AddPacked(p unsafe.Pointer, n int, l Packed) {
	c.Flush()
	slots := unsafe.Pointer(unsafe.SliceData(c.slots))
	at := uintptr(l.Size - l.Key)
	for n > 0 {
		m := min(n, batch)
		var hashes [batch]uint64
		var refs [batch]pairs.Ref
		check := c.check[0]
		for i := range m {
			q := unsafe.Add(p, i*l.Size)
			k0, k1 := packedKey(unsafe.Add(q, at), l.Key)
			h := c.cfg.Seed.HashShort(k0, k1, packedLen(q))
			hashes[i] = h
			refs[i] = pairs.Ref(*(*uint64)(unsafe.Add(slots, h>>(c.front&63)&c.mask<<3)))
			check += uint64(packedValue(q, l.Wide)) * h
		}
		c.check[0] = check
		c.emitted += int64(m)
		var heads uint64
		for _, r := range refs[:m] {
			heads += *(*uint64)(c.cfg.Arena.At(r))
		}
		c.touched = heads
		for i := range m {
			q := unsafe.Add(p, i*l.Size)
			k0, k1 := packedKey(unsafe.Add(q, at), l.Key)
			c.addOne(nil, packedLen(q), k0, k1, hashes[i], packedValue(q, l.Wide))
		}
		p = unsafe.Add(p, m*l.Size)
		n -= m
	}
}

func packedLen(p unsafe.Pointer) int { return int(*(*byte)(p)&0x7f) - 1 }

func packedKey(p unsafe.Pointer, n int) (k0, k1 uint64) {
	k0 = binary.LittleEndian.Uint64((*[8]byte)(p)[:])
	if n > 8 {
		k1 = binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(p, 8))[:])
	}
	return k0, k1
}

func packedValue(p unsafe.Pointer, wide bool) int64 {
	if wide {
		return int64(binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(p, 4))[:]))
	}
	return int64(int32(binary.LittleEndian.Uint32((*[4]byte)(unsafe.Add(p, 4))[:])))
}

// addOne folds a value into a key of at most 16 bytes, given as two words, or
// of more, given by its address.
//
//go:nocheckptr
func (c *Combiner) addOne(p unsafe.Pointer, n int, k0, k1, h uint64, v int64) {
	head := pairs.Head(h, n)
	slots := unsafe.Pointer(&c.slots[h>>(c.front&63)&c.mask])
	kw := pairs.KeyWords(n)
	for w := uintptr(0); w < frontWays*8; w += 8 {
		s := *(*uint64)(unsafe.Add(slots, w))
		if (s^h)>>32 != 0 {
			continue
		}
		rec := c.cfg.Arena.At(pairs.Ref(s))
		if *(*uint64)(rec) != head {
			continue
		}
		if n <= 16 {
			if *(*uint64)(unsafe.Add(rec, 8))^k0|*(*uint64)(unsafe.Add(rec, 16))^k1 != 0 {
				continue
			}
		} else if !sameKey(unsafe.Add(rec, 8), p, n) {
			continue
		}
		lane := (*int64)(unsafe.Add(rec, 8+uintptr(kw)<<3))
		a := *lane
		sum := a + v
		if (a^sum)&(v^sum) < 0 {
			break // the sum would wrap: start another record
		}
		*lane = sum
		return
	}
	r := c.newRecord(h, p, n, k0, k1)
	if r == 0 {
		return
	}
	*(*int64)(unsafe.Add(c.cfg.Arena.At(r), 8+uintptr(kw)<<3)) = v
	c.remember(slots, h, r)
}

// Add folds a value of all lanes into a key.
//
//go:nocheckptr
func (c *Combiner) Add(p unsafe.Pointer, n int, v []int64) {
	var k0, k1, h uint64
	if n <= 16 {
		k0, k1 = pairs.LoadShort(p, n)
		h = c.cfg.Seed.HashShort(k0, k1, n)
	} else {
		h = c.cfg.Seed.Hash(p, n)
	}
	c.emitted++
	_ = v[c.lanes-1]
	vp, check := unsafe.Pointer(unsafe.SliceData(v)), unsafe.Pointer(unsafe.SliceData(c.check))
	for _, o := range c.sums {
		*at(check, o) += *at(vp, o) * int64(h)
	}
	head := pairs.Head(h, n)
	slots := unsafe.Pointer(&c.slots[h>>(c.front&63)&c.mask])
	for w := uintptr(0); w < frontWays*8; w += 8 {
		s := *(*uint64)(unsafe.Add(slots, w))
		if (s^h)>>32 != 0 {
			continue
		}
		rec := c.cfg.Arena.At(pairs.Ref(s))
		if *(*uint64)(rec) != head {
			continue
		}
		kw := pairs.KeyWords(n)
		if n <= 16 {
			if *(*uint64)(unsafe.Add(rec, 8))^k0|*(*uint64)(unsafe.Add(rec, 16))^k1 != 0 {
				continue
			}
		} else if !sameKey(unsafe.Add(rec, 8), p, n) {
			continue
		}
		if !c.apply(unsafe.Add(rec, 8+uintptr(kw)<<3), vp) {
			break // a sum would wrap: start another record
		}
		return
	}
	r := c.newRecord(h, p, n, k0, k1)
	if r == 0 {
		return
	}
	copy(unsafe.Slice((*int64)(unsafe.Add(c.cfg.Arena.At(r), 8+uintptr(pairs.KeyWords(n))<<3)), c.lanes), v)
	c.remember(slots, h, r)
}

// AddCarried folds a value that was folded elsewhere into a key: the sum in
// lane i is v[i] + carry[i] x 2^64. carry may be nil. The key gets a record of
// its own if there is a carry.
func (c *Combiner) AddCarried(p unsafe.Pointer, n int, v, carry []int64) {
	carried := false
	for _, n := range carry {
		carried = carried || n != 0
	}
	if !carried {
		c.Add(p, n, v)
		return
	}
	var k0, k1, h uint64
	if n <= 16 {
		k0, k1 = pairs.LoadShort(p, n)
		h = c.cfg.Seed.HashShort(k0, k1, n)
	} else {
		h = c.cfg.Seed.Hash(p, n)
	}
	c.emitted++
	_, _ = v[c.lanes-1], carry[c.lanes-1]
	for _, o := range c.sums {
		c.check[o/8] += uint64(v[o/8]) * h
	}
	r := c.newRecord(h, p, n, k0, k1)
	if r == 0 {
		return
	}
	copy(unsafe.Slice((*int64)(unsafe.Add(c.cfg.Arena.At(r), 8+uintptr(pairs.KeyWords(n))<<3)), c.lanes), v)
	if c.carries == nil {
		c.carries = map[uint64]int64{}
	}
	for i, n := range carry {
		if n != 0 {
			c.carries[uint64(r)*MaxLanes+uint64(i)] = n
		}
	}
}

// lane is the place of a lane among a value's lanes, in bytes, and its operation.
type lane struct {
	offset uintptr
	op     Op
}

func at(lanes unsafe.Pointer, offset uintptr) *int64 {
	return (*int64)(unsafe.Add(lanes, offset))
}

// apply folds the lanes at v into those at lanes, all or nothing: false if a
// sum would wrap.
func (c *Combiner) apply(lanes, v unsafe.Pointer) bool {
	var wraps int64
	for _, o := range c.sums {
		to, b := at(lanes, o), *at(v, o)
		a := *to
		s := a + b
		*to = s
		wraps |= (a ^ s) & (b ^ s)
	}
	if wraps < 0 {
		for _, o := range c.sums {
			*at(lanes, o) -= *at(v, o)
		}
		return false
	}
	for _, l := range c.others {
		to, b := at(lanes, l.offset), *at(v, l.offset)
		switch l.op {
		case Min:
			if b < *to {
				*to = b
			}
		case Max:
			if b > *to {
				*to = b
			}
		case And:
			*to &= b
		case Or:
			*to |= b
		case Xor:
			*to ^= b
		}
	}
	return true
}

func (c *Combiner) remember(slots unsafe.Pointer, h uint64, r pairs.Ref) {
	g := (*[frontWays]uint64)(slots)
	g[3], g[2], g[1] = g[2], g[1], g[0]
	g[0] = h&^0xffffffff | uint64(r)
}

// newRecord writes a record's head and key and returns where, 0 on error.
//
//go:nocheckptr
func (c *Combiner) newRecord(h uint64, p unsafe.Pointer, n int, k0, k1 uint64) pairs.Ref {
	if n > pairs.MaxKey {
		c.fail(fmt.Errorf("a key of %d bytes is over the limit of %d", n, pairs.MaxKey))
		return 0
	}
	if c.err != nil {
		return 0
	}
	if c.buckets.Bytes() >= c.cfg.Share && !c.spill() {
		return 0
	}
	b := int(h >> c.shift)
	if c.cfg.Partitions > 1 {
		var fixed uint64
		if p == nil { // a single lane without suffix, see Flush
			fixed = pairs.FixedSeed.HashShort(k0, k1, n)
		} else {
			fixed = pairs.FixedSeed.Hash(p, n-c.cfg.Suffix)
		}
		b += c.cfg.SubBuckets * pairs.Partition(fixed, c.cfg.Partitions)
	}
	kw := pairs.KeyWords(n)
	r, err := c.buckets.Reserve(b, 1+kw+c.lanes)
	if err != nil && c.buckets.Records() > 0 && c.spill() {
		r, err = c.buckets.Reserve(b, 1+kw+c.lanes)
	}
	if err != nil {
		c.fail(fmt.Errorf("no room for a key of %d bytes: %w; more --memory helps", n, err))
		return 0
	}
	rec := c.cfg.Arena.At(r)
	*(*uint64)(rec) = pairs.Head(h, n)
	if n <= 16 {
		*(*uint64)(unsafe.Add(rec, 8)) = k0
		*(*uint64)(unsafe.Add(rec, 16)) = k1
		return r
	}
	*(*uint64)(unsafe.Add(rec, uintptr(kw)<<3)) = 0
	copy(unsafe.Slice((*byte)(unsafe.Add(rec, 8)), n), unsafe.Slice((*byte)(p), n))
	return r
}

// spill makes room: what the combiner holds goes elsewhere. Pairs that wait are
// not records yet and stay where they are.
func (c *Combiner) spill() bool {
	if err := c.cfg.Spill(c); err != nil {
		c.fail(err)
		return false
	}
	c.Reset()
	return true
}

func (c *Combiner) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// sameKey compares n > 16 bytes.
//
//go:nocheckptr
func sameKey(a, b unsafe.Pointer, n int) bool {
	return string(unsafe.Slice((*byte)(a), n)) == string(unsafe.Slice((*byte)(b), n))
}

// ErrScale is returned when a value does not fit 64 bits at the scale that
// others need.
var ErrScale = errors.New("a value is out of range: with as many digits after the point as other values have, it does not fit in 64 bits; round the values (--decimals N)")

// SetScale brings all values of a lane to more digits after the point.
func (c *Combiner) SetScale(lane int, scale uint8) {
	c.Flush()
	if c.scale == nil {
		c.scale = make([]uint8, c.lanes)
	}
	if lane < 0 || lane >= c.lanes || scale > MaxScale {
		c.fail(fmt.Errorf("scale %d of lane %d: lanes are 0 to %d, scales 0 to %d", scale, lane, c.lanes-1, MaxScale))
		return
	}
	if scale <= c.scale[lane] {
		return
	}
	by := pow10[scale-c.scale[lane]]
	c.scale[lane] = scale
	c.check[lane] *= uint64(by)
	layout := pairs.Layout{Lanes: c.lanes}
	for b := range c.buckets.Count() {
		c.buckets.Each(b, layout, func(r pairs.Ref, rec pairs.Record) {
			v := &rec.Lanes(c.lanes)[lane]
			key := uint64(r)*MaxLanes + uint64(lane)
			carry := c.carries[key]
			lo, hi, err := scaleUp(c.cfg.Ops[lane], *v, carry, by)
			if err != nil {
				c.fail(fmt.Errorf("key %q: %w", rec.Key(), err))
				return
			}
			*v = lo
			if hi != carry {
				if c.carries == nil {
					c.carries = map[uint64]int64{}
				}
				c.carries[key] = hi
			}
		})
	}
}

// MaxScale is the largest decimal scale.
const MaxScale = 18

var pow10 = func() (p [MaxScale + 1]int64) {
	p[0] = 1
	for i := 1; i < len(p); i++ {
		p[i] = p[i-1] * 10
	}
	return
}()

// scaleUp multiplies a lane's value, hi x 2^64 + lo for sums, by a power of ten.
func scaleUp(op Op, lo, hi, by int64) (int64, int64, error) {
	if op == Min || op == Max {
		if lo == op.Identity() {
			return lo, hi, nil
		}
	}
	const room = 1 << 62
	if hi <= -room/by || hi >= room/by {
		return 0, 0, ErrScale
	}
	l, h := mul128(lo, hi, by)
	if op != Sum && h != 0 {
		return 0, 0, ErrScale
	}
	return l, h, nil
}

// mul128 returns (hi x 2^64 + lo) x by as low word and signed carry, where lo
// counts as signed: the value is lo + hi x 2^64.
func mul128(lo, hi, by int64) (int64, int64) {
	// lo x by as a signed 128-bit product.
	uh, ul := bits.Mul64(uint64(lo), uint64(by))
	if lo < 0 {
		uh -= uint64(by)
	}
	high := int64(uh) + hi*by
	low := int64(ul)
	if low < 0 { // low is read as signed, so the word above takes one more
		high++
	}
	return low, high
}

// Reset forgets all records, after they were drained.
func (c *Combiner) Reset() {
	c.buckets.Reset()
	clear(c.slots)
	clear(c.carries)
}

// Buckets returns the records.
func (c *Combiner) Buckets() *pairs.Buckets { return c.buckets }
