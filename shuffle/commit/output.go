// SPDX-License-Identifier: Apache-2.0

package commit

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"github.com/zeebo/xxh3"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/wire"
)

// Total is a sum of absolute values, Hi x 2^64 + Lo.
type Total struct{ Hi, Lo uint64 }

// Fits says whether the total is below 2^63: then no sum of a subset of the
// values, in whatever order, wraps.
func (t Total) Fits() bool { return t.Hi == 0 && t.Lo < 1<<63 }

// Add returns t + u, at most the largest Total.
func (t Total) Add(u Total) Total {
	lo, c := bits.Add64(t.Lo, u.Lo, 0)
	hi, c := bits.Add64(t.Hi, u.Hi, c)
	if c != 0 {
		return Total{^uint64(0), ^uint64(0)}
	}
	return Total{hi, lo}
}

// Class says what an output has of one key class; the last class are long pairs.
type Class struct {
	Pairs  uint64
	Keys   uint64 // distinct ones; fewer than pairs only where sums are beyond 64 bits
	Frames int
	Width  int // bytes of a value: 4 or 8; 0 if there is no pair
}

// Segment is a stretch of at most wire.Segment frames, which travels as one stream.
type Segment struct {
	First, Frames int
	Pairs         uint64   // of a dense output: values
	Check         []uint64 // per lane, as in Manifest
	Digest        uint64   // xxh3 of the bodies of its frames, one behind the other
}

// Manifest describes a committed output.
type Manifest struct {
	Pairs    uint64 // of a dense output: values
	Frames   int
	Bytes    int64 // of all bodies
	Classes  [wire.Classes + 1]Class
	Dense    uint64 // values of a dense output, else 0
	Segments []Segment
	// Digest is the xxh3 of number of frames, pairs and digest of every segment,
	// as little-endian words. Two outputs with the same digest have the same frames.
	Digest uint64
	// Check is, per lane that sums, the sum of value x hash(key) mod 2^64, as
	// fold.Combiner.Check has it; 0 for others. The key of a dense output's
	// value is its index in 8 little-endian bytes.
	Check []uint64
	// MaxAbs is the largest absolute value per lane, SumAbs their sum.
	MaxAbs []uint64
	SumAbs []Total
}

// Keys returns the distinct keys per class as a shuffle.TargetSpec wants them.
func (m *Manifest) Keys() (keys [wire.Classes + 1]uint64) {
	for i, c := range m.Classes {
		keys[i] = c.Keys
	}
	return keys
}

// Output is a committed output. It does not change, and may be read by several
// goroutines.
type Output struct {
	manifest Manifest
	parts    []part
}

// part holds the bodies of frames of one shape.
type part struct {
	shape  wire.Shape
	first  int // number of its first frame
	frames int
	body   []byte
	// Frames of keyed and dense shapes: all but the last are alike.
	size, count   int // bytes of a body; pairs
	last, lastFew int // the same of the last
	// Long frames.
	ends   []int // of each body
	counts []uint8
}

// Manifest describes the output. What it points to must not be changed.
func (o *Output) Manifest() *Manifest { return &o.manifest }

// Frames returns the number of frames.
func (o *Output) Frames() int { return o.manifest.Frames }

// Body returns the shape of frame i, the number of its pairs as its head has it
// (0 if dense), and its body, padded. The body must not be changed.
func (o *Output) Body(i int) (shape wire.Shape, count int, body []byte) {
	for k := range o.parts {
		p := &o.parts[k]
		j := i - p.first
		if j >= p.frames {
			continue
		}
		switch {
		case p.ends != nil:
			from := 0
			if j > 0 {
				from = p.ends[j-1]
			}
			return p.shape, int(p.counts[j]), p.body[from:p.ends[j]]
		case j == p.frames-1:
			return p.shape, p.lastFew, p.body[j*p.size : j*p.size+p.last]
		}
		return p.shape, p.count, p.body[j*p.size : (j+1)*p.size]
	}
	return 0, 0, nil
}

// Size returns the bytes of frame i, head included. Beyond wire.FrameSize it does
// not fit a packet.
func (o *Output) Size(i int) int {
	_, _, body := o.Body(i)
	return wire.HeadSize + len(body)
}

// Frame appends frame i to buf, without a tag: its head is h with kind, shape,
// count, length, magic and version filled in. It allocates nothing if buf has
// room for Size(i) more bytes. wire.Tags.SealData makes the tag.
func (o *Output) Frame(i int, buf []byte, h wire.Head) []byte {
	shape, count, body := o.Body(i)
	h.Magic, h.Version, h.Kind, h.Shape, h.Count = wire.Magic, wire.Version, wire.Data, shape, uint8(count)
	h.Length = uint16(len(body))
	if len(body) > wire.BodySize {
		h.Length = 0
	}
	h.Zero, h.Zero2, h.Hop, h.Tag = 0, 0, 0, 0
	var head [wire.HeadSize]byte
	h.Put(head[:])
	return append(append(buf, head[:]...), body...)
}

// Stream returns the spec of the stream that carries segment i.
func (o *Output) Stream(target shuffle.TargetID, mapTask uint32, i int) shuffle.StreamSpec {
	s := o.manifest.Segments[i]
	return shuffle.StreamSpec{
		ID:     shuffle.StreamID{Target: target, Map: mapTask, Segment: uint32(i)},
		Frames: s.Frames, Pairs: s.Pairs, Check: s.Check, Digest: s.Digest,
	}
}

// tally adds up what a manifest says of values.
type tally struct {
	out   *Output
	ops   []fold.Op
	frame int
}

func newOutput(lanes int) *Output {
	return &Output{manifest: Manifest{
		Check: make([]uint64, lanes), MaxAbs: make([]uint64, lanes), SumAbs: make([]Total, lanes),
	}}
}

// begin notes that the next pairs are those of a further frame.
func (t *tally) begin() {
	m := &t.out.manifest
	if t.frame%wire.Segment == 0 {
		m.Segments = append(m.Segments, Segment{First: t.frame, Check: make([]uint64, len(t.ops))})
	}
	m.Segments[len(m.Segments)-1].Frames++
	t.frame++
}

// value notes a value of a pair.
func (t *tally) value(lane int, v int64, hash uint64) {
	m := &t.out.manifest
	a := uint64(v)
	if v < 0 {
		a = -a
	}
	if a > m.MaxAbs[lane] {
		m.MaxAbs[lane] = a
	}
	s := &m.SumAbs[lane]
	var c uint64
	s.Lo, c = bits.Add64(s.Lo, a, 0)
	s.Hi += c
	if t.ops[lane] == fold.Sum {
		m.Segments[len(m.Segments)-1].Check[lane] += uint64(v) * hash
	}
}

// finish adds up the segments.
func (t *tally) finish() *Output {
	o, m := t.out, &t.out.manifest
	m.Frames = t.frame
	whole := xxh3.New()
	for i := range m.Segments {
		s := &m.Segments[i]
		h := xxh3.New()
		for f := s.First; f < s.First+s.Frames; f++ {
			shape, count, body := o.Body(f)
			if shape&wire.Dense != 0 {
				count = int(binary.LittleEndian.Uint32(body[4:]))
			}
			s.Pairs += uint64(count)
			_, _ = h.Write(body)
		}
		s.Digest = h.Sum64()
		m.Pairs += s.Pairs
		for lane, c := range s.Check {
			m.Check[lane] += c
		}
		var b [24]byte
		binary.LittleEndian.PutUint64(b[:], uint64(s.Frames))
		binary.LittleEndian.PutUint64(b[8:], s.Pairs)
		binary.LittleEndian.PutUint64(b[16:], s.Digest)
		_, _ = whole.Write(b[:])
	}
	m.Digest = whole.Sum64()
	for i := range o.parts {
		m.Bytes += int64(len(o.parts[i].body))
	}
	return o
}

// Commit sorts what was added, cuts it into frames and describes it. The builder
// is empty afterwards and refuses more.
func (b *Builder) Commit() (*Output, error) {
	if b.err != nil {
		return nil, b.err
	}
	t := &tally{out: newOutput(b.lanes), ops: b.ops}
	var list, swap []entry
	for c := range b.stores {
		s := &b.stores[c]
		if s.n == 0 {
			continue
		}
		m := &t.out.manifest.Classes[c]
		m.Pairs, m.Width = uint64(s.n), 8
		if c < long && s.wide == 0 {
			m.Width = 4
		}
		before := t.frame
		lay := b.layouter(t, c)
		order := sorter{}
		for i := range s.parts {
			k := &s.parts[i]
			if n := max(k.n, len(k.entries)); cap(swap) < n {
				list, swap = make([]entry, 0, n+n/4), make([]entry, n+n/4)
			}
			order.key = func(e entry) []byte { return b.key(c, k, e) }
			e := k.list(list[:0], s.record)
			e = order.sort(e, swap[:len(e)])
			keys, err := b.distinct(c, k, e)
			if err != nil {
				return nil, err
			}
			m.Keys += keys
			if c == long {
				lay.long(k, e)
			} else {
				lay.keyed(k, e)
			}
			*k = bucket{}
		}
		lay.end()
		m.Frames = t.frame - before
	}
	b.err = fmt.Errorf("%w: builder was committed", wire.ErrMisuse)
	return t.finish(), nil
}

// longAt returns the record of a long entry from its first byte on.
func (b *bucket) longAt(e entry) []byte {
	return b.blocks[e.ref>>longShift][int(e.ref&(1<<longShift-1))*8:]
}

func (b *Builder) key(class int, k *bucket, e entry) []byte {
	if class == long {
		from := 4 + 8*b.lanes
		return k.longAt(e)[from : from+e.keyLen()]
	}
	return k.at(e.ref, b.stores[class].record)[recordHead+8*b.lanes:][:e.keyLen()]
}

// distinct counts keys, and fails if one was added twice. Entries are sorted.
func (b *Builder) distinct(class int, k *bucket, e []entry) (uint64, error) {
	n := uint64(0)
	for i := range e {
		if e[i].size&more != 0 {
			continue
		}
		n++
		// The key before this one, or its further pairs, have the same hash only if it is
		// the same key, but for one time in 2^64 or so.
		if i > 0 && e[i-1].hash == e[i].hash && bytes.Equal(b.key(class, k, e[i-1]), b.key(class, k, e[i])) {
			return 0, fmt.Errorf("%w: %q", ErrRepeated, head(b.key(class, k, e[i])))
		}
	}
	return n, nil
}

// layouter writes the frames of a class, bucket by bucket.
type layouter struct {
	t     *tally
	p     part
	lanes int
	class int
	wide  bool
	rec   int
	pair  int // bytes of a keyed pair
	size  int // bytes in the current frame
	n     int // pairs in it
	warm  uint64
}

func (b *Builder) layouter(t *tally, class int) *layouter {
	s := &b.stores[class]
	l := &layouter{t: t, lanes: b.lanes, class: class, rec: s.record, wide: s.wide != 0}
	l.p.first = t.frame
	if class == long {
		l.p.shape = wire.Long
		total := 0
		for _, e := range s.parts[0].entries {
			total += wire.LongSize(e.keyLen(), b.lanes)
		}
		l.p.body = make([]byte, 0, total+total/8+wire.BodySize)
		return l
	}
	shape := wire.Keyed(class, b.lanes, l.wide)
	l.pair = shape.PairSize()
	per := shape.PairsPerFrame()
	p := &l.p
	p.shape, p.count, p.size = shape, per, wire.PaddedSize(per*l.pair)
	p.frames = (s.n + per - 1) / per
	p.lastFew = s.n - (p.frames-1)*per
	p.last = wire.PaddedSize(p.lastFew * l.pair)
	p.body = make([]byte, (p.frames-1)*p.size+p.last)
	l.n = per
	return l
}

// ahead is how many records are brought into the cache together.
const ahead = 64

func (l *layouter) keyed(k *bucket, in []entry) {
	t, lanes := l.t, l.lanes
	for len(in) > 0 {
		now := in[:min(ahead, len(in))]
		in = in[len(now):]
		// Loads that nothing waits for overlap.
		for _, e := range now {
			l.warm += uint64(k.at(e.ref, l.rec)[0])
		}
		for _, e := range now {
			if l.n == l.p.count {
				l.n = 0
				l.size = (t.frame - l.p.first) * l.p.size
				t.begin()
			}
			l.n++
			rec := k.at(e.ref, l.rec)[recordHead:]
			to := l.p.body[l.size : l.size+l.pair : l.size+l.pair]
			l.size += l.pair
			binary.LittleEndian.PutUint32(to, wire.Meta(e.hash, e.keyLen()))
			to = to[4:]
			for lane := range lanes {
				v := binary.LittleEndian.Uint64(rec[8*lane:])
				t.value(lane, int64(v), e.hash)
				if l.wide {
					binary.LittleEndian.PutUint64(to, v)
					to = to[8:]
				} else {
					binary.LittleEndian.PutUint32(to, uint32(v))
					to = to[4:]
				}
			}
			key := rec[8*lanes:]
			if l.class == 0 {
				binary.LittleEndian.PutUint64(to, binary.LittleEndian.Uint64(key))
			} else {
				copy(to, key)
			}
		}
	}
}

func (l *layouter) long(k *bucket, in []entry) {
	t, p := l.t, &l.p
	for _, e := range in {
		pair := wire.LongSize(e.keyLen(), l.lanes)
		if l.n > 0 && (l.size+pair > wire.BodySize || l.n == math.MaxUint8) {
			l.close()
		}
		if l.n == 0 {
			t.begin()
		}
		rec := k.longAt(e)[:pair]
		for lane := range l.lanes {
			t.value(lane, int64(binary.LittleEndian.Uint64(rec[4+8*lane:])), e.hash)
		}
		p.body = append(p.body, rec...)
		l.size += pair
		l.n++
	}
}

// close ends a frame of long pairs.
func (l *layouter) close() {
	p := &l.p
	p.body = append(p.body, make([]byte, wire.PaddedSize(l.size)-l.size)...)
	p.ends = append(p.ends, len(p.body))
	p.counts = append(p.counts, uint8(l.n))
	p.frames++
	l.size, l.n = 0, 0
}

func (l *layouter) end() {
	if l.class == long {
		l.close()
	}
	l.t.out.parts = append(l.t.out.parts, l.p)
}
