// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// castBench is a host with one region and one cast.
type castBench struct {
	*bench
	region  *wire.Region
	cast    *wire.Cast
	stored  *shuffle.Content // of the region
	sent    *shuffle.Content // of the cast
	events  []wire.Event
	packets func(frame []byte) *Packet
}

const (
	castToken  = 0xca57ca57ca57ca57
	castRegion = 2
	castSlot   = 1
)

// wayTo is a hop by the interface that packets come in by.
func wayTo(n byte, v6 bool) wire.Hop {
	h := wire.Hop{
		MACTo: [6]byte{2, 1, 0, 0, 0, n}, MACFrom: [6]byte{2, 1, 0, 0, 1, n}, Interface: 1, PortTo: [2]byte{0x1b, 0xcd}, PortFrom: [2]byte{0x1b, 0xce},
		To: [16]byte{10, 1, 0, n}, From: [16]byte{10, 2, 0, n},
	}
	if v6 {
		h.V6 = 1
		h.To, h.From = netip.MustParseAddr(fmt.Sprintf("fd00::1:%x", n)).As16(), netip.MustParseAddr(fmt.Sprintf("fd00::2:%x", n)).As16()
	}
	return h
}

// newCastBench opens a region of 12 chunks, the member with bit 3 of chain 5, and a cast of a message of
// chunks 2 to 9 in 6 chains of the bits 3 and 4.
func newCastBench(t failer, cfg Config, v6 bool) *castBench {
	t.Helper()
	cfg.Broadcasts = true
	b := &castBench{bench: newBench(t, cfg, narrow, 3, wire.OpSum), packets: func(f []byte) *Packet { return NewPacket(f).Ports(7117, 7117).Checksum() }}
	if v6 {
		b.packets = func(f []byte) *Packet { return NewPacket6(f).Ports(7117, 7117).Checksum() }
	}
	var err error
	if b.sent, err = b.NewContent(13); err != nil {
		t.Fatal(err)
	}
	if b.stored, err = b.NewContent(12); err != nil {
		t.Fatal(err)
	}
	b.region, b.cast = &b.Ends().Regions[castRegion], &b.Ends().Casts[castSlot]
	*b.region = wire.Region{
		Token: castToken, Job: testJob, Content: b.stored.ID, Marks: b.stored.Mark, Chunks: 12, Chain: 5, Bit: 3, Hop: 1,
		Hops: [2]wire.Hop{wayTo(1, v6), wayTo(2, v6)},
	}
	*b.cast = wire.Cast{
		Token: castToken, Job: testJob, Content: b.sent.ID, Marks: b.sent.Mark, Chunks: 13, Chains: 6, Flags: wire.FlagPump,
		First: 2, Total: 8, Bytes: 40, Wake: 48, DirectWake: 2,
	}
	for i := range 6 {
		b.cast.Want[i], b.cast.Next[i], b.cast.Heads[i] = 3<<3, 4, wayTo(byte(100+i), v6)
	}
	for i := range 9*wire.ChunkSize + 40 {
		b.sent.Data[i] = byte(i*3 + i>>8)
	}
	if err := b.SetToken(castToken, castRegion); err != nil {
		t.Fatal(err)
	}
	if err := b.OnEvent(func(e wire.Event) { b.events = append(b.events, e) }); err != nil {
		t.Fatal(err)
	}
	return b
}

// state is a digest of all that a packet of a broadcast may change but for reasons.
func (b *castBench) state() string {
	h := fnv.New128a()
	fmt.Fprint(h, b.bench.state(), b.events)
	for i := range b.Ends().Regions {
		h.Write(unsafe.Slice((*byte)(unsafe.Pointer(&b.Ends().Regions[i])), unsafe.Sizeof(wire.Region{})))
	}
	for i := range b.Ends().Casts {
		h.Write(unsafe.Slice((*byte)(unsafe.Pointer(&b.Ends().Casts[i])), unsafe.Sizeof(wire.Cast{})))
	}
	fmt.Fprint(h, b.Marks())
	h.Write(b.stored.Data)
	h.Write(b.sent.Data)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// chunkFrame makes chunk place of the message of chunks 2 to 9, of which the last has 40 bytes.
func chunkFrame(t failer, place uint32, change func(h *wire.Head, c *wire.Chunk)) []byte {
	t.Helper()
	h := wire.Head{Token: castToken, Seq: 30 + place, Back: castSlot, Stamp: 7}
	c := wire.Chunk{Place: place, First: 2, Total: 8, Chain: wire.ChainAll}
	if change != nil {
		change(&h, &c)
	}
	n := wire.ChunkSize
	if place == 9 {
		n = 40
	}
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(int(place)*wire.ChunkSize+i) + 1
	}
	f, err := wire.PutChunk(make([]byte, wire.FrameSize), h, c, data, testTags)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// answerFrame makes the answer of a chain of the bits 3 and 4.
func answerFrame(t failer, place uint32, chain uint16, change func(h *wire.Head, c *wire.Chunk)) []byte {
	t.Helper()
	f := chunkFrame(t, place, func(h *wire.Head, c *wire.Chunk) {
		c.Chain, c.Group, h.Hop = chain, 3<<3, 2
		if change != nil {
			change(h, c)
		}
	})
	return wire.AnswerChunk(f, testTags)
}

// The whole of what a chunk and its answer become, byte by byte.
func TestChunkIsPassedAndAnswered(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, place := range []uint32{4, 9} {
			for _, tail := range []uint8{0, 1} {
				b := newCastBench(t, Config{}, v6)
				b.region.Hops[1].Tail = tail
				frame := chunkFrame(t, place, nil)
				p := b.packets(frame)
				v, out := b.Handle(0, p.Bytes)
				reason := wire.PassedOn
				want := bytes.Clone(frame)
				wire.PassChunk(want, 5, 3, testTags)
				if tail == 1 {
					reason = wire.ChainAnswered
					want = wire.AnswerChunk(want, testTags)
				}
				// Made anew from the addresses of the hop: the packet is that and no more.
				from, to := netip.MustParseAddrPort("10.2.0.2:7118"), netip.MustParseAddrPort("10.1.0.2:7117")
				if v6 {
					from, to = netip.MustParseAddrPort("[fd00::2:2]:7118"), netip.MustParseAddrPort("[fd00::1:2]:7117")
				}
				whole := NewPacket(want)
				whole.layers.ttl = 64
				whole.Addresses(from, to).MACs([6]byte{2, 1, 0, 0, 1, 2}, [6]byte{2, 1, 0, 0, 0, 2})
				if v != TX || !maps.Equal(b.counted(), reasons{wire.Stored: 1, reason: 1}) || !bytes.Equal(out, whole.Bytes) {
					t.Fatalf("%v\ngot  %x\nwant %x", v, out, whole.Bytes)
				}
				_, _, data, _ := wire.ParseChunk(frame)
				at := int(place) * wire.ChunkSize
				if !bytes.Equal(b.stored.Data[at:][:len(data)], data) || bytes.Count(b.stored.Data, []byte{0}) < 11*wire.ChunkSize-40 {
					t.Error("the data is not where it belongs, or somewhere else too")
				}
				m := b.stored.Marks
				if wire.MarkState(&m[place]) != wire.MarkStored || wire.MarkCount(&m[2]) != 1 || b.region.Stored != 1 || b.region.Passed != 1 || len(b.events) != 0 {
					t.Errorf("marks %#x, %+v", m, b.region)
				}
				// It comes again, another transmission: it is passed on, and not stored again.
				b.stored.Data[at] ^= 0xff
				before := bytes.Clone(b.stored.Data)
				v, out = b.Handle(0, b.packets(chunkFrame(t, place, func(h *wire.Head, _ *wire.Chunk) { h.Seq = 99 })).Bytes)
				if v != TX || !maps.Equal(b.counted(), reasons{wire.StoredBefore: 1, reason: 1}) || !bytes.Equal(before, b.stored.Data) || wire.MarkCount(&m[2]) != 1 || wire.ReadHead(PayloadOf(out)).Seq != 99 {
					t.Errorf("again: %v", v)
				}
			}
		}
	}
}

// The chunk that makes a message whole is told, once; messages of one region are told apart.
func TestWholeMessages(t *testing.T) {
	b := newCastBench(t, Config{}, false)
	order := rand.New(rand.NewPCG(1, 1)).Perm(8)
	for _, i := range append(slices.Clone(order), order...) {
		b.Handle(0, b.packets(chunkFrame(t, 2+uint32(i), nil)).Bytes)
	}
	b.Handle(0, b.packets(chunkFrame(t, 1, func(_ *wire.Head, c *wire.Chunk) { c.First, c.Total = 1, 1 })).Bytes)
	want := []wire.Event{{Token: castToken, Slot: castRegion, First: 2}, {Token: castToken, Slot: castRegion, First: 1}}
	if !slices.Equal(b.events, want) || wire.MarkCount(&b.stored.Marks[2]) != 8 || b.region.Stored != 9 || b.region.Passed != 17 {
		t.Errorf("%+v, %+v", b.events, b.region)
	}
}

// A direct chunk is answered to where it came from, whatever the region's next hop.
func TestDirectChunks(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := newCastBench(t, Config{}, v6)
		b.region.Hops[1] = wire.Hop{}
		p := b.packets(chunkFrame(t, 4, func(_ *wire.Head, c *wire.Chunk) { c.Chain = wire.ChainDirect }))
		back := p.Clone().Back()
		v, out := b.Handle(0, p.Bytes)
		h, c, _, err := wire.ParseChunk(PayloadOf(out))
		if v != TX || err != nil || !testTags.OpenChunk(PayloadOf(out)) || h.Hop != 1 || c != (wire.Chunk{Place: 4, First: 2, Total: 8, Chain: wire.ChainDirect, Group: 8}) ||
			!maps.Equal(b.counted(), reasons{wire.Stored: 1, wire.ChainAnswered: 1}) {
			t.Fatalf("%v %+v %+v %v", v, h, c, err)
		}
		back.layers.ttl, back.layers.checksum = 64, false
		if want := back.Frame(PayloadOf(out)).Bytes; !bytes.Equal(out, want) {
			t.Errorf("got  %x\nwant %x", out, want)
		}
	}
}

type castCase struct {
	name    string
	verdict Verdict
	counted reasons
	head    func(h *wire.Head, c *wire.Chunk)
	packet  func(p *Packet)
	memory  func(b *castBench)
	config  Config
}

func sealPacket(p *Packet) { testTags.SealChunk(p.Payload()) }

// One good chunk with one thing broken at a time.
func TestChunksAreChecked(t *testing.T) {
	stored := func(r wire.Reason) reasons { return reasons{wire.Stored: 1, r: 1} }
	one := func(r wire.Reason) reasons { return reasons{r: 1} }
	broken := func(name string, v Verdict, r wire.Reason, f func(p *Packet)) castCase {
		return castCase{name: name, verdict: v, counted: one(r), packet: f}
	}
	sealed := func(name string, v Verdict, r wire.Reason, at int, bytes ...byte) castCase {
		return broken(name, v, r, func(p *Packet) { p.SetFrame(at, bytes...); sealPacket(p) })
	}
	numbers := func(name string, v Verdict, c reasons, f func(h *wire.Head, c *wire.Chunk)) castCase {
		return castCase{name: name, verdict: v, counted: c, head: f}
	}
	memory := func(name string, v Verdict, c reasons, f func(b *castBench)) castCase {
		return castCase{name: name, verdict: v, counted: c, memory: f}
	}
	for _, c := range []castCase{
		{name: "good", verdict: TX, counted: stored(wire.PassedOn)},
		broken("another port", Pass, wire.Foreign, func(p *Packet) { p.Ports(7117, 7118) }),
		broken("version", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(7, 2) }),
		numbers("token", Pass, one(wire.UpRegion), func(h *wire.Head, _ *wire.Chunk) { h.Token++ }),
		memory("closed", Pass, one(wire.UpRegion), func(b *castBench) { b.region.Token = 0 }),
		memory("another's", Pass, one(wire.UpRegion), func(b *castBench) { b.region.Token++ }),
		memory("slot beyond all", Pass, one(wire.UpRegion), func(b *castBench) { _ = b.SetToken(castToken, 1000) }),
		memory("token taken back", Pass, one(wire.UpRegion), func(b *castBench) { _ = b.ClearToken(castToken) }),
		memory("job beyond all", Pass, one(wire.UpRegion), func(b *castBench) { b.region.Job = 8 }),
		memory("no content", Pass, one(wire.UpRegion), func(b *castBench) { b.region.Content = 9 }),
		sealed("shape", Drop, wire.Malformed, 5, 1),
		sealed("count", Drop, wire.Malformed, 6, 1),
		sealed("stream", Drop, wire.Malformed, 16, 1),
		sealed("flags", Drop, wire.Malformed, 48, 1),
		sealed("zero2", Drop, wire.Malformed, 51, 1),
		sealed("hop 64", Drop, wire.Malformed, 49, 64),
		{name: "hop 63", verdict: TX, counted: stored(wire.PassedOn), packet: func(p *Packet) { p.SetFrame(49, 63); sealPacket(p) }},
		broken("length 32", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(28, 32, 0) }),
		broken("length 1377", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(28, 0x61) }),
		broken("length 1408", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(28, 0x80) }),
		broken("a byte less than it says", Drop, wire.Malformed, func(p *Packet) { p.Frame(p.Payload()[:len(p.Payload())-1]) }),
		broken("two in one", Pass, wire.UpShape, func(p *Packet) { p.Frame(append(bytes.Clone(p.Payload()), p.Payload()...)) }),
		sealed("zero", Drop, wire.Malformed, 64+31, 1),
		sealed("no total", Drop, wire.Malformed, 64+8, 0),
		sealed("place before first", Drop, wire.Malformed, 64, 1),
		sealed("place behind", Drop, wire.Malformed, 64, 10),
		sealed("numbers that wrap", Drop, wire.Malformed, 64, 0xff, 0xff, 0xff, 0xff, 0xfe, 0xff, 0xff, 0xff, 2),
		sealed("no bytes", Drop, wire.Malformed, 64+12, 0, 0),
		sealed("too many bytes", Drop, wire.Malformed, 64+12, 0x41),
		sealed("too few bytes in the middle", Drop, wire.Malformed, 64+12, 0x3f),
		sealed("chain 64", Drop, wire.Malformed, 64+14, 64, 0),
		sealed("chain 65533", Drop, wire.Malformed, 64+14, 0xfd, 0xff),
		numbers("another chain", Drop, one(wire.ChunkPlace), func(_ *wire.Head, c *wire.Chunk) { c.Chain = 4 }),
		numbers("our chain", TX, stored(wire.PassedOn), func(_ *wire.Head, c *wire.Chunk) { c.Chain = 5 }),
		numbers("beyond the region", Drop, one(wire.ChunkPlace), func(_ *wire.Head, c *wire.Chunk) { c.Total = 11 }),
		numbers("to the end of the region", TX, stored(wire.PassedOn), func(_ *wire.Head, c *wire.Chunk) { c.Total = 10 }),
		memory("content smaller than the region", Drop, one(wire.ChunkPlace), func(b *castBench) { b.stored.Data = b.stored.Data[:4*wire.ChunkSize] }),
		memory("marks beyond all", Drop, one(wire.ChunkPlace), func(b *castBench) { b.region.Marks = 60 }),
		broken("tag", Drop, wire.ChunkTag, func(p *Packet) { p.SetFrame(32, p.Payload()[32]^1) }),
		broken("damaged data", Drop, wire.ChunkTag, func(p *Packet) { p.SetFrame(64+32+1000, p.Payload()[64+32+1000]^1) }),
		broken("group", Drop, wire.ChunkTag, func(p *Packet) { p.SetFrame(64+16, 1) }),
		broken("hop", Drop, wire.ChunkTag, func(p *Packet) { p.SetFrame(49, 1) }),
		broken("transmission", Drop, wire.ChunkTag, func(p *Packet) { p.SetFrame(20, 1) }),
		broken("turned into an answer", Pass, wire.UpRegion, func(p *Packet) { p.SetFrame(4, byte(wire.BroadcastAck), 0, 0, 1).SetFrame(24, 9) }),
		broken("stamp and scratch are free", TX, wire.Stored, func(p *Packet) {
			p.SetFrame(40, 9, 9, 9, 9, 9, 9, 9, 9).SetFrame(52, bytes.Repeat([]byte{0xff}, 12)...)
		}),
		memory("being written", Drop, one(wire.ChunkBusy), func(b *castBench) { b.stored.Marks[4] = wire.MarkWriting }),
		memory("a state that isn't", Drop, one(wire.ChunkBusy), func(b *castBench) { b.stored.Marks[4] = 3 }),
		memory("stored", TX, reasons{wire.StoredBefore: 1, wire.PassedOn: 1}, func(b *castBench) { b.stored.Marks[4] = wire.MarkStored }),
		memory("counts elsewhere", TX, stored(wire.PassedOn), func(b *castBench) { b.stored.Marks[4] = 7 << 32 }),
		memory("the other hop", TX, stored(wire.PassedOn), func(b *castBench) { b.region.Hop = 2 }),
		memory("no way on", Pass, stored(wire.UpHop), func(b *castBench) { b.region.Hops[1].Interface = 0 }),
		memory("another version of IP", Pass, stored(wire.UpHop), func(b *castBench) { b.region.Hops[1].V6 = 1 }),
		memory("another interface", Redirect, stored(wire.PassedOn), func(b *castBench) { b.region.Hops[1].Interface = 4 }),
		memory("tail at another interface", Redirect, stored(wire.ChainAnswered), func(b *castBench) { b.region.Hops[1].Interface, b.region.Hops[1].Tail = 4, 1 }),
		{name: "by tc", verdict: Pass, counted: stored(wire.PassedOn), config: Config{Answer: wire.AnswerTC}},
		{name: "by user space", verdict: Pass, counted: stored(wire.UpHop), config: Config{Answer: wire.AnswerUser}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newCastBench(t, c.config, false)
			p := b.packets(chunkFrame(t, 4, c.head))
			c.check(t, b, p, chunkStored)
		})
	}
}

// check gives a packet in. Those that count a reason of stored may change memory, and have to.
func (c *castCase) check(t *testing.T, b *castBench, p *Packet, stored []wire.Reason) {
	if c.packet != nil {
		c.packet(p)
	}
	if c.memory != nil {
		c.memory(b)
	}
	state, before := b.state(), clone(p)
	v, out := b.Handle(0, p.Bytes)
	counted := b.counted()
	if len(c.counted) == 1 && c.counted[wire.Stored] == 1 {
		c.counted[wire.PassedOn] = 1
	}
	if v != c.verdict || !maps.Equal(counted, c.counted) {
		t.Errorf("%v, counted %v, not %v and %v", v, counted, c.verdict, c.counted)
	}
	if v == Pass && counted[wire.PassedOn]+counted[wire.ChainAnswered]+counted[wire.Pumped] == 0 && !bytes.Equal(out, before) {
		t.Error("it goes up, and not as it came")
	}
	changes := slices.ContainsFunc(stored, func(r wire.Reason) bool { return counted[r] != 0 })
	if changes == (b.state() == state) {
		t.Error("what was changed in memory")
	}
}

var (
	chunkStored     = []wire.Reason{wire.Stored, wire.PassedOn, wire.ChainAnswered}
	answerCollected = []wire.Reason{wire.Collected, wire.CollectedUp}
)

// Answers, and the next chunks.
func TestAnswersAreCollected(t *testing.T) {
	one := func(r wire.Reason) reasons { return reasons{r: 1} }
	pumped := reasons{wire.Collected: 1, wire.Pumped: 1}
	broken := func(name string, v Verdict, r wire.Reason, f func(p *Packet)) castCase {
		return castCase{name: name, verdict: v, counted: one(r), packet: f}
	}
	sealed := func(name string, v Verdict, r wire.Reason, at int, bytes ...byte) castCase {
		return broken(name, v, r, func(p *Packet) { p.SetFrame(at, bytes...); sealPacket(p) })
	}
	numbers := func(name string, v Verdict, c reasons, f func(h *wire.Head, c *wire.Chunk)) castCase {
		return castCase{name: name, verdict: v, counted: c, head: f}
	}
	memory := func(name string, v Verdict, c reasons, f func(b *castBench)) castCase {
		return castCase{name: name, verdict: v, counted: c, memory: f}
	}
	direct := func(_ *wire.Head, c *wire.Chunk) { c.Chain = wire.ChainDirect }
	for _, c := range []castCase{
		{name: "good", verdict: TX, counted: pumped},
		broken("to our port alone", Pass, wire.Foreign, func(p *Packet) { p.Ports(9, 7117) }),
		numbers("slot", Pass, one(wire.UpRegion), func(h *wire.Head, _ *wire.Chunk) { h.Back = 0 }),
		numbers("slot beyond all", Pass, one(wire.UpRegion), func(h *wire.Head, _ *wire.Chunk) { h.Back = 16 }),
		numbers("token", Pass, one(wire.UpRegion), func(h *wire.Head, _ *wire.Chunk) { h.Token++ }),
		memory("closed", Pass, one(wire.UpRegion), func(b *castBench) { b.cast.Token = 0 }),
		memory("job", Pass, one(wire.UpRegion), func(b *castBench) { b.cast.Job = 8 }),
		sealed("stream", Drop, wire.Malformed, 16, 1),
		sealed("flags", Drop, wire.Malformed, 48, 1),
		sealed("hop 65", Drop, wire.Malformed, 49, 65),
		broken("long", Drop, wire.Malformed, func(p *Packet) { p.Frame(append(bytes.Clone(p.Payload()), make([]byte, 32)...)).SetFrame(28, 96) }),
		broken("cut", Drop, wire.Malformed, func(p *Packet) { p.Frame(p.Payload()[:127]) }),
		broken("two in one", Pass, wire.UpShape, func(p *Packet) { p.Frame(append(bytes.Clone(p.Payload()), p.Payload()...)) }),
		sealed("bytes", Drop, wire.Malformed, 64+12, 1),
		sealed("data", Drop, wire.Malformed, 64+63, 1),
		sealed("place", Drop, wire.Malformed, 64, 10),
		sealed("chain 64", Drop, wire.Malformed, 64+14, 64),
		broken("tag", Drop, wire.AckTag, func(p *Packet) { p.SetFrame(32, p.Payload()[32]^1) }),
		broken("group", Drop, wire.AckTag, func(p *Packet) { p.SetFrame(64+16, 0xff) }),
		memory("another message", Drop, one(wire.AckStray), func(b *castBench) { b.cast.First = 3 }),
		memory("another length", Drop, one(wire.AckStray), func(b *castBench) { b.cast.Total = 7 }),
		memory("none under way", Drop, one(wire.AckStray), func(b *castBench) { b.cast.First, b.cast.Total = 0, 0 }),
		memory("chunks", Drop, one(wire.AckStray), func(b *castBench) { b.cast.Chunks = 6 }),
		memory("chains", Drop, one(wire.AckStray), func(b *castBench) { b.cast.Chains = 5 }),
		numbers("for all", Drop, one(wire.AckStray), func(_ *wire.Head, c *wire.Chunk) { c.Chain = wire.ChainAll }),
		numbers("a bit lacks", Drop, one(wire.Collected), func(_ *wire.Head, c *wire.Chunk) { c.Group = 1 << 3 }),
		numbers("a bit too many", TX, pumped, func(_ *wire.Head, c *wire.Chunk) { c.Group = 7 << 3 }),
		memory("nobody wanted", Drop, one(wire.Collected), func(b *castBench) { b.cast.Want[5] = 0 }),
		memory("known", Drop, one(wire.Collected), func(b *castBench) { b.sent.Marks[6] = 1 << 5 }),
		memory("known of other chains", TX, pumped, func(b *castBench) { b.sent.Marks[6] = ^uint64(1 << 5) }),
		memory("wakes", Pass, one(wire.CollectedUp), func(b *castBench) { b.cast.Done = 47 }),
		memory("behind the wake", TX, pumped, func(b *castBench) { b.cast.Done = 48 }),
		memory("pumps nothing", Drop, one(wire.Collected), func(b *castBench) { b.cast.Flags = 0 }),
		memory("all sent", Drop, one(wire.Collected), func(b *castBench) { b.cast.Next[5] = 10 }),
		memory("the last", TX, pumped, func(b *castBench) { b.cast.Next[5] = 9 }),
		memory("no content", Pass, one(wire.CollectedUp), func(b *castBench) { b.cast.Content = 9 }),
		memory("no way", Pass, one(wire.CollectedUp), func(b *castBench) { b.cast.Heads[5].Interface = 0 }),
		memory("another version", Pass, one(wire.CollectedUp), func(b *castBench) { b.cast.Heads[5].V6 = 1 }),
		memory("another interface", Redirect, pumped, func(b *castBench) { b.cast.Heads[5].Interface = 2 }),
		memory("content too small", Drop, one(wire.Collected), func(b *castBench) { b.sent.Data = b.sent.Data[:4*wire.ChunkSize] }),
		{name: "by tc", verdict: Pass, counted: pumped, config: Config{Answer: wire.AnswerTC}},
		{name: "by user space", verdict: Pass, counted: one(wire.CollectedUp), config: Config{Answer: wire.AnswerUser}},
		numbers("direct", Drop, one(wire.Collected), direct),
		{name: "direct, wakes", verdict: Pass, counted: one(wire.CollectedUp), head: direct, memory: func(b *castBench) { b.cast.Direct = 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newCastBench(t, c.config, false)
			c.check(t, b, b.packets(answerFrame(t, 6, 5, c.head)), answerCollected)
		})
	}
}

// What an answer becomes, byte by byte.
func TestPumpedChunks(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for place, n := range map[uint32]int{4: wire.ChunkSize, 9: 40} {
			b := newCastBench(t, Config{Now: func() uint64 { return 1234 }}, v6)
			b.cast.Next[5], b.cast.Transmissions = place, 70
			v, out := b.Handle(0, b.packets(answerFrame(t, 6, 5, nil)).Bytes)
			want, err := wire.PutChunk(make([]byte, wire.FrameSize), wire.Head{Token: castToken, Seq: 71, Back: castSlot},
				wire.Chunk{Place: place, First: 2, Total: 8, Chain: 5}, b.sent.Data[int(place)*wire.ChunkSize:][:n], testTags)
			if err != nil {
				t.Fatal(err)
			}
			from, to := netip.MustParseAddrPort("10.2.0.105:7118"), netip.MustParseAddrPort("10.1.0.105:7117")
			if v6 {
				from, to = netip.MustParseAddrPort("[fd00::2:69]:7118"), netip.MustParseAddrPort("[fd00::1:69]:7117")
			}
			whole := NewPacket(want)
			whole.layers.ttl = 64
			whole.Addresses(from, to).MACs([6]byte{2, 1, 0, 0, 1, 105}, [6]byte{2, 1, 0, 0, 0, 105})
			if v != TX || !bytes.Equal(out, whole.Bytes) {
				t.Fatalf("%v\ngot  %x\nwant %x", v, out, whole.Bytes)
			}
			k := b.cast
			if k.Done != 1 || k.Answers != 1 || k.Arrived != 1234 || k.Pumped != 1 || k.Next[5] != place+1 || k.Next[4] != 4 || b.sent.Marks[6] != 1<<5 {
				t.Errorf("%+v", k)
			}
		}
	}
}

// What user space sends once leaves once for every head.
func TestEgress(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := newCastBench(t, Config{}, v6)
		b.cast.Heads[1].Interface = 0
		b.cast.Heads[3].Interface = 7
		b.cast.Heads[4].V6 ^= 1
		for _, checksum := range []bool{true, false} {
			p := b.packets(chunkFrame(t, 4, nil))
			p.layers.checksum = checksum
			p.Frame(p.Payload())
			packets, out := b.Egress(clone(p))
			if !slices.Equal(out, []uint32{1, 1, 7, 1}) || len(packets) != 4 {
				t.Fatal(out)
			}
			for i, chain := range []int{0, 2, 3, 5} {
				from, to := netip.MustParseAddrPort(fmt.Sprintf("10.2.0.%d:7118", 100+chain)), netip.MustParseAddrPort(fmt.Sprintf("10.1.0.%d:7117", 100+chain))
				if v6 {
					from, to = netip.MustParseAddrPort(fmt.Sprintf("[fd00::2:%x]:7118", 100+chain)), netip.MustParseAddrPort(fmt.Sprintf("[fd00::1:%x]:7117", 100+chain))
				}
				want := p.Clone().Addresses(from, to).MACs([6]byte{2, 1, 0, 0, 1, byte(100 + chain)}, [6]byte{2, 1, 0, 0, 0, byte(100 + chain)})
				if !bytes.Equal(packets[i], want.Bytes) {
					t.Errorf("chain %d:\ngot  %x\nwant %x", chain, packets[i], want.Bytes)
				}
			}
		}
		for name, c := range map[string]struct {
			head   func(h *wire.Head, c *wire.Chunk)
			packet func(p *Packet)
			memory func(b *castBench)
		}{
			"one chain's":      {head: func(_ *wire.Head, c *wire.Chunk) { c.Chain = 5 }},
			"direct":           {head: func(_ *wire.Head, c *wire.Chunk) { c.Chain = wire.ChainDirect }},
			"passed on":        {head: func(h *wire.Head, _ *wire.Chunk) { h.Hop = 1 }},
			"token":            {head: func(h *wire.Head, _ *wire.Chunk) { h.Token++ }},
			"slot":             {head: func(h *wire.Head, _ *wire.Chunk) { h.Back = 0 }},
			"slot beyond all":  {head: func(h *wire.Head, _ *wire.Chunk) { h.Back = 1 << 20 }},
			"kind":             {packet: func(p *Packet) { p.SetFrame(4, byte(wire.BroadcastAck)) }},
			"version":          {packet: func(p *Packet) { p.SetFrame(7, 2) }},
			"magic":            {packet: func(p *Packet) { p.SetFrame(0, 2) }},
			"short":            {packet: func(p *Packet) { p.Frame(p.Payload()[:95]) }},
			"closed":           {memory: func(b *castBench) { b.cast.Token = 0 }},
			"no chains":        {memory: func(b *castBench) { b.cast.Chains = 0 }},
			"no way to anyone": {memory: func(b *castBench) { b.cast.Heads = [64]wire.Hop{} }},
		} {
			b := newCastBench(t, Config{}, v6)
			if c.memory != nil {
				c.memory(b)
			}
			p := b.packets(chunkFrame(t, 4, c.head))
			if c.packet != nil {
				c.packet(p)
			}
			packets, out := b.Egress(clone(p))
			if len(packets) != 1 || !bytes.Equal(packets[0], p.Bytes) || !slices.Equal(out, []uint32{1}) {
				t.Errorf("%s: %d packets, or another", name, len(packets))
			}
		}
	}
}

// network is members and a source, joined by addresses 10.1.0.n.
type network struct {
	hosts  []*Host // 0 is the source
	sent   *shuffle.Content
	stored []*shuffle.Content // by host; nil for the source
	events []int
}

func hostHop(n int) wire.Hop {
	return wire.Hop{MACTo: [6]byte{2, 1, 0, 0, 0, byte(n)}, Interface: 1, PortTo: [2]byte{0x1b, 0xcd}, PortFrom: [2]byte{0x1b, 0xcd}, To: [16]byte{10, 1, 0, byte(n)}, From: [16]byte{10, 1, 0, 200}}
}

// newNetwork makes chains of members, and a message of chunks 1 and on of random bytes.
func newNetwork(t failer, chains []int, chunks, last int) *network {
	n := &network{hosts: []*Host{nil}, stored: []*shuffle.Content{nil}}
	limits := shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1, Jobs: 1, Regions: 1, Casts: 1, Chunks: chunks + 2}
	add := func() *Host {
		h := NewHost(Config{Limits: limits, Broadcasts: true})
		_ = h.SetJob(0, testTags.Job())
		return h
	}
	n.hosts[0] = add()
	var err error
	if n.sent, err = n.hosts[0].NewContent(chunks + 1); err != nil {
		t.Fatal(err)
	}
	size := wire.ChunkSize*chunks + last
	for i := wire.ChunkSize; i < size; i++ {
		n.sent.Data[i] = byte(rand.Uint32())
	}
	cast := &n.hosts[0].Ends().Casts[0]
	*cast = wire.Cast{
		Token: castToken, Content: n.sent.ID, Marks: n.sent.Mark, Chunks: uint32(chunks + 1), Chains: uint32(len(chains)), Flags: wire.FlagPump,
		First: 1, Total: uint32(chunks), Bytes: uint32(last), Wake: uint32(chunks * len(chains)),
	}
	for chain, members := range chains {
		cast.Want[chain] = 1<<members - 1
		cast.Heads[chain] = hostHop(len(n.hosts))
		for bit := range members {
			h := add()
			c, err := h.NewContent(chunks + 1)
			if err != nil {
				t.Fatal(err)
			}
			next := hostHop(len(n.hosts) + 1)
			if bit == members-1 {
				next = hostHop(0)
				next.Tail = 1
			}
			h.Ends().Regions[0] = wire.Region{
				Token: castToken, Content: c.ID, Marks: c.Mark, Chunks: uint32(chunks + 1), Chain: uint16(chain), Bit: uint8(bit), Hops: [2]wire.Hop{next},
			}
			_ = h.SetToken(castToken, 0)
			self := len(n.hosts)
			_ = h.OnEvent(func(wire.Event) { n.events = append(n.events, self) })
			n.hosts, n.stored = append(n.hosts, h), append(n.stored, c)
		}
	}
	return n
}

// member returns the host of a chain's member.
func (n *network) member(chains []int, chain, bit int) int {
	host := 1 + bit
	for _, members := range chains[:chain] {
		host += members
	}
	return host
}

// bypass links a chain around a member. It does not take part in what makes a chunk done any more.
func (n *network) bypass(chains []int, chain, bit int, out map[int]bool) {
	cast := &n.hosts[0].Ends().Casts[0]
	cast.Want[chain] &^= 1 << bit
	next, behind := hostHop(0), bit+1
	next.Tail = 1
	for ; behind < chains[chain]; behind++ {
		if host := n.member(chains, chain, behind); !out[host] {
			next = hostHop(host)
			break
		}
	}
	for before := bit - 1; before >= 0; before-- {
		if host := n.member(chains, chain, before); !out[host] {
			n.hosts[host].Ends().Regions[0].Hops[0] = next
			return
		}
	}
	if next.Tail != 0 {
		next = wire.Hop{} // nobody is left
	}
	cast.Heads[chain] = next
}

// pads are what the tags of frames have beside NH, and the tagged bytes of the one message that may have each.
type pads map[string]string

// note has a packet's pad be that of its message alone: with two, whoever sees both could make a third.
func (n pads) note(t failer, packet []byte) {
	f := PayloadOf(packet)
	h, err := wire.ParseFrame(f)
	if err != nil {
		t.Fatal(err)
	}
	if h.Kind != wire.Broadcast && h.Kind != wire.BroadcastAck {
		return
	}
	c := wire.ReadChunk(f[wire.HeadSize:])
	pad := fmt.Sprint(h.Token, h.Kind, h.Hop, c.Chain, h.Seq, c.Group)
	message := string(f[:wire.TaggedHead]) + string(f[wire.HeadSize:])
	if was, ok := n[pad]; ok && was != message {
		t.Fatal(fmt.Sprintf("two messages have the pad %s:\n%x\n%x", pad, was, message))
	}
	n[pad] = message
}

// One transmission goes down a chain twice, the second time around a member that was left out in between.
func TestPadsOfMendedChain(t *testing.T) {
	chains := []int{4}
	n := newNetwork(t, chains, 1, 100)
	f, err := wire.PutChunk(make([]byte, wire.FrameSize), wire.Head{Token: castToken, Seq: 1},
		wire.Chunk{Place: 1, First: 1, Total: 1, Chain: wire.ChainAll}, n.sent.Data[wire.ChunkSize:][:100], testTags)
	if err != nil {
		t.Fatal(err)
	}
	packets, _ := n.hosts[0].Egress(NewPacket(f).Ports(7117, 7117).Bytes)
	seen := pads{}
	for round := range 2 {
		p := slices.Clone(packets[0])
		var path []int
		for p[33] != 0 {
			seen.note(t, p)
			path = append(path, int(p[33]))
			v, next := n.hosts[p[33]].Handle(0, p)
			if v != TX {
				t.Fatalf("member %d: verdict %d", path, v)
			}
			p = next
		}
		seen.note(t, p)
		if want := [][]int{{1, 2, 3, 4}, {1, 3, 4}}[round]; !slices.Equal(path, want) {
			t.Fatalf("it went by %v, want %v", path, want)
		}
		n.bypass(chains, 0, 1, map[int]bool{2: true})
	}
	// The source's, four, and two that are new where the first member's next is another one.
	if len(seen) != 7 {
		t.Errorf("%d messages, want 7", len(seen))
	}
}

// Random chains under loss, duplication, damage, members that are left out, and any order: whoever is told that a message is
// whole has its bytes, the source believes of no chain what is not so, and no two messages share a pad. Without
// faults, the first window is all that user space sends.
func TestBroadcastNetworks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chains := rapid.SliceOfN(rapid.IntRange(1, 4), 1, 4).Draw(t, "chains")
		chunks := rapid.IntRange(1, 12).Draw(t, "chunks")
		last := rapid.IntRange(1, wire.ChunkSize).Draw(t, "last")
		window := rapid.IntRange(1, 3).Draw(t, "window")
		faults := rapid.Bool().Draw(t, "faults")
		n := newNetwork(t, chains, chunks, last)
		cast := &n.hosts[0].Ends().Casts[0]
		var flying [][]byte
		seen := pads{}
		out := map[int]bool{} // members that are left out
		send := func(place uint32) {
			bytes := wire.ChunkSize
			if int(place) == chunks {
				bytes = last
			}
			cast.Transmissions++
			f, err := wire.PutChunk(make([]byte, wire.FrameSize), wire.Head{Token: castToken, Seq: cast.Transmissions},
				wire.Chunk{Place: place, First: 1, Total: uint32(chunks), Chain: wire.ChainAll}, n.sent.Data[int(place)*wire.ChunkSize:][:bytes], testTags)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(cast.Heads[:len(chains)], func(h wire.Hop) bool { return h.Interface != 0 }) {
				return // nobody is left
			}
			packets, _ := n.hosts[0].Egress(NewPacket(f).Ports(7117, 7117).Bytes)
			for _, p := range packets {
				seen.note(t, p)
				flying = append(flying, slices.Clone(p))
			}
		}
		for i := range chains {
			cast.Next[i] = uint32(1 + min(window, chunks))
		}
		for i := range min(window, chunks) {
			send(uint32(1 + i))
		}
		wakes := 0
		for len(flying) > 0 {
			i := rapid.IntRange(0, len(flying)-1).Draw(t, "packet")
			p := flying[i]
			fault := 0
			if faults {
				fault = rapid.IntRange(0, 13).Draw(t, "fault")
			}
			switch fault {
			case 1: // lost
				flying = slices.Delete(flying, i, i+1)
				continue
			case 2: // comes again, but not for ever
				if len(flying) < 200 {
					flying = append(flying, slices.Clone(p))
				}
			case 3: // damaged in the frame
				at := rapid.IntRange(42, len(p)-1).Draw(t, "byte")
				p[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "xor"))
			case 4: // a member is left out, while packets are on their way to it
				chain := rapid.IntRange(0, len(chains)-1).Draw(t, "chain")
				if bit := rapid.IntRange(0, chains[chain]-1).Draw(t, "bit"); !out[n.member(chains, chain, bit)] {
					out[n.member(chains, chain, bit)] = true
					n.bypass(chains, chain, bit, out)
				}
			case 5: // and what a chain lacks is sent to it again
				if again := uint32(1 + rapid.IntRange(0, chunks-1).Draw(t, "again")); len(flying) < 200 {
					send(again)
				}
			}
			flying = slices.Delete(flying, i, i+1)
			to := int(p[33])
			if to >= len(n.hosts) {
				continue // damage made a chunk a probe, and that was answered
			}
			v, answer := n.hosts[to].Handle(0, p)
			switch {
			case v == TX:
				seen.note(t, answer)
				flying = append(flying, answer)
			case v == Pass && to == 0 && fault != 3:
				wakes++
			}
		}
		for _, self := range n.events {
			if !bytes.Equal(n.stored[self].Data, n.sent.Data) {
				t.Fatalf("member %d was told that it has all, and has not", self)
			}
		}
		if slices.Sort(n.events); len(slices.Compact(slices.Clone(n.events))) != len(n.events) {
			t.Fatalf("told twice: %v", n.events)
		}
		first := 1
		for chain, members := range chains {
			for place := 1; place <= chunks; place++ {
				if n.sent.Marks[place]>>chain&1 == 0 {
					continue
				}
				for m := first; m < first+members; m++ {
					if !out[m] && wire.MarkState(&n.stored[m].Marks[place]) != wire.MarkStored {
						t.Fatalf("the source thinks that member %d of chain %d has chunk %d", m, chain, place)
					}
				}
			}
			first += members
		}
		if !faults && (wakes != 1 || len(n.events) != first-1 || int(cast.Done) != chunks*len(chains)) {
			t.Fatalf("%d wakes, %d of %d members have all, %d done", wakes, len(n.events), first-1, cast.Done)
		}
	})
}

// Whatever comes: nothing that is not genuine is stored or counted.
func FuzzBroadcast(f *testing.F) {
	ports := func(frame []byte, v6 bool) []byte {
		if v6 {
			return NewPacket6(frame).Ports(7117, 7117).Bytes
		}
		return NewPacket(frame).Ports(7117, 7117).Bytes
	}
	for _, v6 := range []bool{false, true} {
		f.Add(ports(chunkFrame(f, 4, nil), v6), true)
		f.Add(ports(chunkFrame(f, 9, func(_ *wire.Head, c *wire.Chunk) { c.Chain = wire.ChainDirect }), v6), false)
		f.Add(ports(answerFrame(f, 6, 5, nil), v6), true)
	}
	f.Fuzz(func(t *testing.T, packet []byte, sealed bool) {
		b := newCastBench(t, Config{}, len(packet) > 12 && packet[12] == 0x86)
		genuine := false
		if p := packet; len(p) > 62 {
			p = PayloadOf(p)
			if h, _, _, err := wire.ParseChunk(p); err == nil {
				if sealed {
					testTags.SealChunk(p)
				}
				genuine = testTags.OpenChunk(p) && h.Token == castToken
			}
		}
		state, before := b.state(), bytes.Clone(packet)
		v, out := b.Handle(0, packet)
		r := b.counted()
		if changed := b.state() != state; changed && !genuine {
			t.Fatalf("%v changed something", r)
		}
		switch v {
		case Pass:
			if !bytes.Equal(out, before) {
				t.Fatalf("passed and changed: %v", r)
			}
		case TX:
			if r[wire.PassedOn]+r[wire.ChainAnswered]+r[wire.Pumped]+r[wire.Probed] != 1 {
				t.Fatalf("sent: %v", r)
			}
			if r[wire.Probed] == 0 {
				if _, _, _, err := wire.ParseChunk(PayloadOf(out)); err != nil || !testTags.OpenChunk(PayloadOf(out)) {
					t.Fatalf("sent something that no chunk is: %v", err)
				}
			}
		case Drop:
			if out != nil {
				t.Fatal("dropped, and bytes are left")
			}
		default:
			t.Fatal(v)
		}
	})
}
