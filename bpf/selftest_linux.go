// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/wire"
)

// What XDP programs return, as far as the self-test meets it.
const (
	xdpDrop = 1
	xdpTX   = 3
)

// selfPair is a pair of the self-test: a key with one sum and one maximum.
type selfPair struct {
	key      string
	sum, max int64
}

// selfFrames are the frames of the self-test, in order. The sums below were worked out by hand.
var selfFrames = []struct {
	name  string
	seq   uint32
	wide  bool
	spoil bool // a bit of the body is wrong
	ack   bool
	pairs []selfPair
	want  uint32 // verdict
	ends  wire.Reason
}{
	{"the first", 0, false, false, false, []selfPair{{"one", 1, -5}, {"two", 2, 7}, {"three", 3, 0}}, xdpDrop, wire.Folded},
	{"one that wants an answer", 1, false, false, true, []selfPair{{"one", 10, -9}, {"three", -30, 4}, {"four", 40, -1}}, xdpTX, wire.Answered},
	{"one that came before", 0, false, false, false, []selfPair{{"one", 1, -5}, {"two", 2, 7}, {"three", 3, 0}}, xdpDrop, wire.Duplicate},
	{"a damaged one", 2, false, true, false, []selfPair{{"one", 1000, 1000}}, xdpDrop, wire.BadTag},
	{"wide values", 3, true, false, false, []selfPair{{"two", 1 << 40, 1 << 41}}, xdpDrop, wire.Folded},
	{"one beyond the stream", 8, false, false, false, []selfPair{{"one", 1000, 1000}}, xdpDrop, wire.BadSeq},
}

var selfSums = map[string][2]int64{
	"one":   {11, -5},
	"two":   {1099511627778, 2199023255552},
	"three": {-27, 4},
	"four":  {40, -1},
}

// SelfTest loads all programs in a Host of its own that is attached to nothing, folds known frames by test run,
// and compares the sums with values that are written in the code. The same goes for the chunks of a broadcast and for the
// parts of an all-reduce, if there are programs for them. It says what it did.
func SelfTest() (string, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return "", fmt.Errorf("count processors: %w", err)
	}
	h, err := Open(Options{Limits: shuffle.Limits{
		Streams: 1, Targets: 1, Outgoing: 1, Jobs: 1, Regions: 1, Casts: 1, Groups: 1, Chunks: selfChunks + selfBlocks(cpus),
	}})
	if err != nil {
		return "", err
	}
	n, err := h.selfTest()
	found := fmt.Sprintf("load, folded %d known frames right", n)
	_, noCasts := h.Broadcasts()
	_, noReduces := h.Reduces()
	switch {
	case noCasts != nil:
		found += ", but not those of broadcasts and all-reduces, which user space relays: " + oneLine(noCasts)
	case err == nil:
		err = h.selfBroadcast()
		found += fmt.Sprintf(", stored %d known chunks", selfChunks)
	}
	switch {
	case noCasts != nil:
	case noReduces != nil:
		found += ", but not those of all-reduces, which user space relays: " + oneLine(noReduces)
	case err == nil:
		err = h.selfReduce()
		found += ", reduced a known block"
	}
	if err = errors.Join(err, h.Close()); err != nil {
		return "", fmt.Errorf("self-test: %w", err)
	}
	return found, nil
}

func (h *Host) selfTest() (int, error) {
	layout := shuffle.TableLayout{Class: 0, Lanes: 2, Bits: 10}
	tables, err := h.NewTables(layout, 1)
	if err != nil {
		return 0, err
	}
	tags := wire.NewTags([16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
	if err := h.SetJob(0, tags.Job()); err != nil {
		return 0, err
	}
	m := h.Memory()
	for i := range m.Cells {
		// Whatever CPU the test runs on. They run one by one, so they may share a table.
		atomic.StoreUint32(&m.Cells[i].Table[0], uint32(tables[0].ID)+1)
	}
	const token = 0x0123456789abcdef
	s := &m.Streams[0]
	s.Frames, s.Ops, s.Lanes, s.Flags = 8, wire.OpSum|wire.OpMax<<4, 2, wire.FlagFold
	atomic.StoreUint64(&s.Token, token)

	for _, f := range selfFrames {
		before, err := h.Reasons()
		if err != nil {
			return 0, err
		}
		packet := h.selfPacket(tags, token, 0, f.seq, f.wide, f.ack, f.pairs)
		if f.spoil {
			packet[len(packet)-1] ^= 1
		}
		verdict, out, err := h.Run(packet)
		if err != nil {
			return 0, err
		}
		after, err := h.Reasons()
		if err != nil {
			return 0, err
		}
		if verdict != f.want || after[f.ends] != before[f.ends]+1 {
			return 0, fmt.Errorf("frame %q ended with verdict %d, want %d, and reason %d was counted %d times, want once",
				f.name, verdict, f.want, f.ends, after[f.ends]-before[f.ends])
		}
		if f.ack {
			if err := checkAnswer(tags, out); err != nil {
				return 0, fmt.Errorf("frame %q: %w", f.name, err)
			}
		}
	}
	if got := s.Seen[0]; got != 0b1011 {
		return 0, fmt.Errorf("frames seen are %#b, want 0b1011", got)
	}
	return len(selfFrames), checkSums(tables[0])
}

// headersV4 is the bytes before a frame: Ethernet, IPv4, UDP.
const headersV4 = 14 + 20 + 8

func (h *Host) selfPacket(tags *wire.Tags, token uint64, stream, seq uint32, wide, ack bool, list []selfPair) []byte {
	le := binary.LittleEndian
	shape := wire.Keyed(0, 2, wide)
	var body []byte
	for _, p := range list {
		body = le.AppendUint32(body, wire.Meta(pairs.FixedSeed.HashBytes([]byte(p.key)), len(p.key)))
		for _, v := range []int64{p.sum, p.max} {
			if wide {
				body = le.AppendUint64(body, uint64(v))
			} else {
				body = le.AppendUint32(body, uint32(v))
			}
		}
		var key [8]byte
		copy(key[:], p.key)
		body = append(body, key[:]...)
	}
	for len(body)%wire.BodyStep != 0 || len(body) < wire.MinBody {
		body = append(body, 0)
	}
	b := append(h.selfHeaders(wire.HeadSize+len(body)), make([]byte, wire.HeadSize)...)
	head := b[headersV4:]
	le.PutUint32(head, wire.Magic)
	head[4], head[5], head[6], head[7] = byte(wire.Data), byte(shape), byte(len(list)), wire.Version
	le.PutUint64(head[8:], token)
	le.PutUint32(head[16:], stream)
	le.PutUint32(head[20:], seq)
	le.PutUint16(head[28:], uint16(len(body)))
	if ack {
		head[48] = wire.FlagWantAck
	}
	b = append(b, body...)
	le.PutUint64(b[headersV4+32:], tags.Tag(b[headersV4:], uint64(seq))) // back is 0
	return b
}

// selfHeaders returns the headers of a packet with a frame of that many bytes.
func (h *Host) selfHeaders(frame int) []byte {
	be := binary.BigEndian
	b := make([]byte, headersV4, headersV4+wire.FrameSize)
	copy(b, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0})
	ip, udp := b[14:], b[34:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	be.PutUint16(ip[2:], uint16(len(b)-14+frame))
	copy(ip[12:], []byte{192, 0, 2, 1, 192, 0, 2, 2})
	be.PutUint16(udp, 40000)
	be.PutUint16(udp[2:], uint16(h.opts.Port))
	be.PutUint16(udp[4:], uint16(len(b)-34+frame))
	return b
}

// checkAnswer looks at the answer that a frame was turned into.
func checkAnswer(tags *wire.Tags, packet []byte) error {
	if len(packet) != headersV4+wire.HeadSize+wire.AckSize {
		return fmt.Errorf("the answer has %d bytes, want %d", len(packet), headersV4+wire.HeadSize+wire.AckSize)
	}
	le := binary.LittleEndian
	f := packet[headersV4:]
	body := f[wire.HeadSize:]
	if f[4] != byte(wire.Ack) || le.Uint64(f[32:]) != tags.Tag(f, le.Uint64(body)) {
		return errors.New("the answer's kind or tag is wrong")
	}
	if claimed := le.Uint32(body[24:]); claimed != 0b11 {
		return fmt.Errorf("the answer says that frames %#b are folded, want 0b11", claimed)
	}
	return nil
}

// eachSlot visits the slots of a table of 8-byte keys with two lanes, a sum and a maximum. applied
// says that a value was folded into it.
func eachSlot(t *shuffle.Table, visit func(key string, lanes [2]int64, applied bool)) {
	le := binary.LittleEndian
	size := wire.SlotSize(t.Layout.Class, t.Layout.Lanes)
	for slot := t.Memory[wire.TableHead:]; len(slot) >= size; slot = slot[size:] {
		meta := le.Uint32(slot)
		if meta == 0 {
			continue
		}
		key := string(slot[size-8:][:min(meta&0x7f-1, 8)])
		// Lanes are stored so that zeroed memory holds what changes nothing.
		visit(key, [2]int64{int64(le.Uint64(slot[8:])), int64(le.Uint64(slot[16:])) ^ math.MinInt64}, slot[4]&1 != 0)
	}
}

// checkSums compares a table with selfSums.
func checkSums(t *shuffle.Table) (err error) {
	found := 0
	eachSlot(t, func(key string, got [2]int64, applied bool) {
		found++
		if want, ok := selfSums[key]; err == nil && (!ok || got != want || !applied) {
			err = fmt.Errorf("key %q has (sum, max) = %v, want %v", key, got, want)
		}
	})
	if err == nil && found != len(selfSums) {
		err = fmt.Errorf("the table has %d keys, want %d", found, len(selfSums))
	}
	return err
}
