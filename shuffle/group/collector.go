// SPDX-License-Identifier: Apache-2.0

package group

import (
	"fmt"
	"unsafe"

	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/spill"
)

// MaxPair is the largest pair, key and value together, in bytes.
const MaxPair = spill.MaxPair - 64

// Config is what the collectors of a job have in common.
type Config struct {
	Arena      *pairs.Arena
	Partitions int
	Share      int64 // bytes of records after which Spill is called
	// Spill takes all records of a collector elsewhere; the collector forgets them afterwards.
	Spill func(c *Collector) error
	// Combine, if not nil, may replace the values of a key when a run is
	// written. It reads values and adds what shall stand for them with add, in
	// any order.
	Combine func(key []byte, values spill.Cursor, add func(payload []byte)) error
}

// subBuckets spreads the records of a partition so that several goroutines can
// take them up.
const subBuckets = 16

// Collector holds the pairs of one mapper. It belongs to one goroutine.
type Collector struct {
	cfg     Config
	buckets *pairs.Buckets
	emitted int64
	turn    int
	err     error
}

// NewCollector makes a collector.
func NewCollector(cfg Config) *Collector {
	return &Collector{cfg: cfg, buckets: pairs.NewBuckets(cfg.Arena, cfg.Partitions*subBuckets, cfg.Share)}
}

// Emitted returns the number of pairs added.
func (c *Collector) Emitted() int64 { return c.emitted }

// Records returns the number of pairs held.
func (c *Collector) Records() int64 { return c.buckets.Records() }

// Bytes returns the memory they take.
func (c *Collector) Bytes() int64 { return c.buckets.Bytes() }

// Err returns the first thing that went wrong; pairs added later are lost.
func (c *Collector) Err() error { return c.err }

// Reset forgets all records, after they were written.
func (c *Collector) Reset() { c.buckets.Reset() }

// Add keeps a copy of a pair.
func (c *Collector) Add(key, payload []byte) {
	if c.err != nil {
		return
	}
	c.emitted++
	if len(key)+len(payload) > MaxPair {
		c.err = fmt.Errorf("a key of %d bytes with a value of %d is over the limit of %d together", len(key), len(payload), MaxPair)
		return
	}
	if c.buckets.Bytes() >= c.cfg.Share && !c.spill() {
		return
	}
	part := 0
	if c.cfg.Partitions > 1 {
		part = pairs.Partition(pairs.FixedSeed.HashBytes(key), c.cfg.Partitions)
	}
	c.turn++
	kw, pw := pairs.KeyWords(len(key)), (len(payload)+7)/8
	bucket := part*subBuckets + (c.turn>>8)%subBuckets
	r, err := c.buckets.Reserve(bucket, 2+kw+pw)
	if err != nil && c.buckets.Records() > 0 && c.spill() {
		r, err = c.buckets.Reserve(bucket, 2+kw+pw)
	}
	if err != nil {
		if c.err == nil {
			c.err = fmt.Errorf("no room for a pair of %d bytes: %w; more --memory helps", len(key)+len(payload), err)
		}
		return
	}
	rec := c.cfg.Arena.Rec(r)
	*rec.Word(0) = uint64(len(key))
	*rec.Word(1) = uint64(len(payload))
	*rec.Word(1 + kw) = 0
	copy(rec.PayloadKey(), key)
	if pw > 0 {
		*rec.Word(1 + kw + pw) = 0
		copy(rec.Payload(), payload)
	}
}

// spill makes room: what the collector holds goes elsewhere.
func (c *Collector) spill() bool {
	if c.err = c.cfg.Spill(c); c.err != nil {
		return false
	}
	c.Reset()
	return true
}

// entries is a spill.Cursor over sorted records.
type entries struct {
	arena *pairs.Arena
	list  []pairs.Entry
	at    int
}

func (e *entries) Next() bool {
	e.at++
	return e.at < len(e.list)
}
func (e *entries) Key() []byte     { return e.arena.Rec(e.list[e.at].Ref()).PayloadKey() }
func (e *entries) Payload() []byte { return e.arena.Rec(e.list[e.at].Ref()).Payload() }
func (e *entries) Err() error      { return nil }
func (e *entries) Close()          {}

const entryWords = int(unsafe.Sizeof(pairs.Entry{}) / 8)
