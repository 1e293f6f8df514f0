// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// ends is what programs of broadcasts and all-reduces share with user space.
type ends struct {
	shared   *shuffle.Ends
	groups   []wire.Group
	tokens   map[uint64]uint32
	contents map[uint32]*shuffle.Content
	marks    []uint64
	event    func(wire.Event)
	round    func(wire.Event)
}

var _ shuffle.Broadcasts = (*Host)(nil)

// Ends returns the shared memory of broadcasts.
func (h *Host) Ends() *shuffle.Ends { return h.ends.shared }

// NewContent makes room for that many chunks.
func (h *Host) NewContent(chunks int) (*shuffle.Content, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	used := make([]*shuffle.Content, 0, len(h.ends.contents))
	for _, c := range h.ends.contents {
		used = append(used, c)
	}
	slices.SortFunc(used, func(a, b *shuffle.Content) int { return int(a.Mark) - int(b.Mark) })
	at := 0
	for _, c := range used {
		if int(c.Mark)-at >= chunks {
			break
		}
		at = int(c.Mark) + len(c.Marks)
	}
	if chunks <= 0 || at+chunks > len(h.ends.marks) {
		return nil, fmt.Errorf("%w: room for %d chunks", shuffle.ErrBusy, chunks)
	}
	c := &shuffle.Content{
		Mark: uint32(at), Data: make([]byte, chunks*wire.ChunkSize), Marks: h.ends.marks[at:][:chunks:chunks],
		Open: func() (*os.File, error) { return nil, fmt.Errorf("%w: memory of a model", os.ErrInvalid) },
	}
	clear(c.Marks)
	for h.ends.contents[c.ID] != nil {
		c.ID++
	}
	h.ends.contents[c.ID] = c
	return c, nil
}

// FreeContent frees it.
func (h *Host) FreeContent(c *shuffle.Content) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ends.contents[c.ID] != c {
		return fmt.Errorf("content %d is not there", c.ID)
	}
	delete(h.ends.contents, c.ID)
	return nil
}

// SetToken has packets find a region, or a group, by a token.
func (h *Host) SetToken(token uint64, slot int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ends.tokens[token] = uint32(slot)
	return nil
}

// ClearToken takes that back.
func (h *Host) ClearToken(token uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ends.tokens, token)
	return nil
}

// Hop says how to send to a host: see [Config.Hop].
func (h *Host) Hop(to netip.AddrPort) (wire.Hop, error) {
	if h.cfg.Hop == nil {
		return wire.Hop{}, fmt.Errorf("no way to %s", to)
	}
	return h.cfg.Hop(to)
}

// OnEvent has f called for every message that is stored whole, within Handle and
// before that returns. It must not call the host.
func (h *Host) OnEvent(f func(wire.Event)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ends.event = f
	return nil
}

// Clones says whether there are programs for broadcasts: who sends gives packets to [Host.Egress].
func (h *Host) Clones() bool { return h.cfg.Broadcasts }

// Pumps says whether answers leave by programs.
func (h *Host) Pumps() bool { return h.cfg.Broadcasts && h.cfg.Answer != wire.AnswerUser }

// chunkFields is the part of a chunk's checks that needs no memory: step 61 but for the last part.
func chunkFields(hd *wire.Head, payload, hops, low, high int) bool {
	length := int(hd.Length)
	return hd.Shape == 0 && hd.Count == 0 && hd.Stream == 0 && hd.Flags == 0 && hd.Zero2 == 0 && int(hd.Hop) <= hops &&
		length%wire.BodyStep == 0 && length >= low && length <= high && payload >= wire.HeadSize+length
}

func chunkNumbers(c *wire.Chunk) bool {
	return c.Total > 0 && uint64(c.First)+uint64(c.Total) <= 1<<32-1 &&
		c.Place >= c.First && c.Place-c.First < c.Total && c.Zero == 0 &&
		(c.Chain < wire.MaxChains || c.Chain == wire.ChainDirect || c.Chain == wire.ChainAll)
}

// chunk is a member's end.
func (h *Host) chunk(p *packet) Verdict {
	hd, frame := &p.head, p.b[p.frame:]
	slot, ok := h.ends.tokens[hd.Token]
	if !ok || uint64(slot) >= uint64(len(h.ends.shared.Regions)) {
		return h.end(wire.UpRegion, Pass)
	}
	r := &h.ends.shared.Regions[slot]
	token := atomic.LoadUint64(&r.Token)
	content := h.ends.contents[r.Content]
	if token == 0 || token != hd.Token || h.job(r.Job) == nil || content == nil {
		return h.end(wire.UpRegion, Pass)
	}

	// What it says.
	if !chunkFields(hd, len(frame), wire.MaxChains-1, wire.ChunkAnswer, wire.BodySize) {
		return h.end(wire.Malformed, Drop)
	}
	if len(frame) > wire.HeadSize+int(hd.Length) {
		return h.end(wire.UpShape, Pass)
	}
	c := wire.ReadChunk(frame[wire.HeadSize:])
	if !chunkNumbers(&c) || c.Bytes == 0 || c.Bytes > wire.ChunkSize ||
		c.Bytes < wire.ChunkSize && c.Place-c.First != c.Total-1 ||
		wire.PaddedSize(wire.ChunkHead+int(c.Bytes)) != int(hd.Length) {
		return h.end(wire.Malformed, Drop)
	}
	direct := c.Chain == wire.ChainDirect
	if uint64(c.First)+uint64(c.Total) > uint64(r.Chunks) ||
		c.Chain != r.Chain && !direct && c.Chain != wire.ChainAll {
		return h.end(wire.ChunkPlace, Drop)
	}
	place := int(c.Place)
	mark, first := int(r.Marks)+place, int(r.Marks)+int(c.First)
	if (place+1)*wire.ChunkSize > len(content.Data) || mark >= len(h.ends.marks) {
		return h.end(wire.ChunkPlace, Drop)
	}
	tags := h.job(r.Job)
	if !tags.OpenChunk(frame) {
		return h.end(wire.ChunkTag, Drop)
	}

	// Stored once.
	m := &h.ends.marks[mark]
	switch {
	case wire.ClaimMark(m):
		copy(content.Data[place*wire.ChunkSize:], frame[wire.HeadSize+wire.ChunkHead:])
		wire.SetMark(m, wire.MarkStored)
		atomic.AddUint64(&r.Stored, 1)
		h.reasons[wire.Stored]++
		if wire.CountMark(&h.ends.marks[first]) == c.Total && h.ends.event != nil && r.Flags&wire.FlagQuiet == 0 {
			h.ends.event(wire.Event{Token: token, Slot: slot, First: c.First})
		}
	case wire.MarkState(m) == wire.MarkStored:
		h.reasons[wire.StoredBefore]++
	default:
		return h.end(wire.ChunkBusy, Drop)
	}

	// And sent on.
	hop := r.Hops[atomic.LoadUint32(&r.Hop)&1]
	out, answer, chain := h.cfg.Interface, true, uint16(wire.ChainDirect)
	if !direct {
		out, answer, chain = hop.Interface, hop.Tail != 0, r.Chain
	}
	if h.cfg.Answer == wire.AnswerUser || !direct && !h.serves(p, &hop) {
		return h.end(wire.UpHop, Pass)
	}
	wire.PassChunk(frame, chain, r.Bit&63, tags)
	if answer {
		p.b = p.b[:p.frame+len(wire.AnswerChunk(frame, tags))]
	}
	if direct {
		p.turn()
	} else {
		p.address(&hop)
	}
	p.finish()
	atomic.AddUint64(&r.Passed, 1)
	reason := wire.PassedOn
	if answer {
		reason = wire.ChainAnswered
	}
	return h.end(reason, h.leaves(out))
}

// job returns a job's tags, nil if there are none.
func (h *Host) job(slot uint32) *wire.Tags {
	if int(slot) >= len(h.jobs) {
		return nil
	}
	return h.jobs[slot]
}

// serves says whether the packet can be made one that goes to a host.
func (h *Host) serves(p *packet, hop *wire.Hop) bool {
	return hop.Interface != 0 && hop.V6 == map[bool]uint8{true: 1}[p.v6]
}

// leaves returns the verdict of a packet that leaves by an interface.
func (h *Host) leaves(out uint32) Verdict {
	switch {
	case out != h.cfg.Interface:
		return Redirect
	case h.cfg.Answer == wire.AnswerTC:
		return Pass
	}
	return TX
}

// address makes a host the packet's destination.
func (p *packet) address(hop *wire.Hop) {
	copy(p.b[0:], hop.MACTo[:])
	copy(p.b[6:], hop.MACFrom[:])
	if ip := p.b[p.ip:]; p.v6 {
		copy(ip[8:], hop.From[:])
		copy(ip[24:], hop.To[:])
		ip[7] = 64
	} else {
		copy(ip[12:], hop.From[:4])
		copy(ip[16:], hop.To[:4])
		ip[8] = 64
	}
	copy(p.b[p.udp:], hop.PortFrom[:])
	copy(p.b[p.udp+2:], hop.PortTo[:])
}

// collect is a source's end.
func (h *Host) collect(p *packet) Verdict {
	hd, frame := &p.head, p.b[p.frame:]
	if uint64(hd.Back) >= uint64(len(h.ends.shared.Casts)) {
		return h.end(wire.UpRegion, Pass)
	}
	cast := &h.ends.shared.Casts[hd.Back]
	token := atomic.LoadUint64(&cast.Token)
	if token == 0 || token != hd.Token || h.job(cast.Job) == nil {
		return h.end(wire.UpRegion, Pass)
	}

	// What it says.
	if !chunkFields(hd, len(frame), wire.MaxChains, wire.ChunkAnswer, wire.ChunkAnswer) {
		return h.end(wire.Malformed, Drop)
	}
	if len(frame) > wire.AnswerFrame {
		return h.end(wire.UpShape, Pass)
	}
	c := wire.ReadChunk(frame[wire.HeadSize:])
	if !chunkNumbers(&c) || c.Bytes != 0 || slices.ContainsFunc(frame[wire.HeadSize+wire.ChunkHead:], func(b byte) bool { return b != 0 }) {
		return h.end(wire.Malformed, Drop)
	}
	tags := h.job(cast.Job)
	if !tags.OpenChunk(frame) {
		return h.end(wire.AckTag, Drop)
	}
	direct := c.Chain == wire.ChainDirect
	if c.First != atomic.LoadUint32(&cast.First) || c.Total != atomic.LoadUint32(&cast.Total) || c.Place >= cast.Chunks ||
		!direct && (uint32(c.Chain) >= atomic.LoadUint32(&cast.Chains) || c.Chain >= wire.MaxChains) {
		return h.end(wire.AckStray, Drop)
	}

	// What is new of it.
	atomic.StoreUint64(&cast.Arrived, h.now())
	atomic.AddUint32(&cast.Answers, 1)
	if direct {
		if atomic.AddUint32(&cast.Direct, 1) == atomic.LoadUint32(&cast.DirectWake) {
			return h.end(wire.CollectedUp, Pass)
		}
		return h.end(wire.Collected, Drop)
	}
	want, at := atomic.LoadUint64(&cast.Want[c.Chain]), int(cast.Marks)+int(c.Place)
	if at >= len(h.ends.marks) || want == 0 || c.Group&want != want ||
		atomic.OrUint64(&h.ends.marks[at], 1<<c.Chain)>>c.Chain&1 != 0 {
		return h.end(wire.Collected, Drop)
	}
	if atomic.AddUint32(&cast.Done, 1) == atomic.LoadUint32(&cast.Wake) {
		return h.end(wire.CollectedUp, Pass)
	}
	if atomic.LoadUint32(&cast.Flags)&wire.FlagPump == 0 || atomic.LoadUint32(&cast.Next[c.Chain])-c.First >= c.Total {
		return h.end(wire.Collected, Drop)
	}
	return h.pump(p, cast, &c, tags)
}

// pump makes the answer of a chain into its next chunk.
func (h *Host) pump(p *packet, cast *wire.Cast, c *wire.Chunk, tags *wire.Tags) Verdict {
	hop, content := &cast.Heads[c.Chain], h.ends.contents[cast.Content]
	if content == nil || h.cfg.Answer == wire.AnswerUser || !h.serves(p, hop) {
		return h.end(wire.CollectedUp, Pass)
	}
	place := atomic.AddUint32(&cast.Next[c.Chain], 1) - 1
	bytes := uint32(wire.ChunkSize)
	if place-c.First == c.Total-1 {
		bytes = atomic.LoadUint32(&cast.Bytes)
	}
	end := (int(place) + 1) * wire.ChunkSize
	if place-c.First >= c.Total || end > len(content.Data) || bytes == 0 || bytes > wire.ChunkSize {
		return h.end(wire.Collected, Drop)
	}
	packet := make([]byte, p.frame+wire.FrameSize)
	copy(packet, p.b[:p.frame+wire.HeadSize])
	hd := p.head
	hd.Seq, hd.Hop, hd.Stamp = atomic.AddUint32(&cast.Transmissions, 1), 0, 0
	frame, err := wire.PutChunk(packet[p.frame:], hd,
		wire.Chunk{Place: place, First: c.First, Total: c.Total, Chain: c.Chain}, content.Data[end-wire.ChunkSize:][:bytes], tags)
	if err != nil {
		return h.end(wire.AnswerFailed, Drop)
	}
	p.b = packet[:p.frame+len(frame)]
	p.address(hop)
	p.finish()
	atomic.AddUint32(&cast.Pumped, 1)
	h.reasons[wire.Collected]++
	return h.end(wire.Pumped, h.leaves(hop.Interface))
}

// Egress does to a packet that user space sends what the program at the way out does. The packets that
// leave are returned, in the order in which they do, each with the number of its interface. The
// packet is the last of them and is changed in place.
func (h *Host) Egress(b []byte) (packets [][]byte, interfaces []uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	packets, interfaces = [][]byte{b}, []uint32{h.cfg.Interface}
	p := &packet{b: b}
	const whole = wire.HeadSize + wire.ChunkHead
	if !h.cfg.Broadcasts || !p.parse() || len(b) < p.frame+whole || p.head.Kind != wire.Broadcast || p.head.Version != wire.Version || p.head.Hop != 0 ||
		wire.ReadChunk(b[p.frame+wire.HeadSize:]).Chain != wire.ChainAll || uint64(p.head.Back) >= uint64(len(h.ends.shared.Casts)) {
		return packets, interfaces
	}
	cast := &h.ends.shared.Casts[p.head.Back]
	if token := atomic.LoadUint64(&cast.Token); token == 0 || token != p.head.Token {
		return packets, interfaces
	}
	packets, interfaces = nil, nil
	for i := range min(atomic.LoadUint32(&cast.Chains), wire.MaxChains) {
		if hop := &cast.Heads[i]; h.serves(p, hop) {
			one := &packet{b: slices.Clone(b), ip: p.ip, udp: p.udp, frame: p.frame, v6: p.v6}
			one.address(hop)
			one.setTTL(p)
			one.checksums(p)
			packets, interfaces = append(packets, one.b), append(interfaces, hop.Interface)
		}
	}
	if len(packets) == 0 {
		return [][]byte{b}, []uint32{h.cfg.Interface}
	}
	copy(b, packets[len(packets)-1])
	packets[len(packets)-1] = b
	return packets, interfaces
}

// setTTL leaves the hops that the packet may make as they were.
func (p *packet) setTTL(was *packet) {
	at := p.ip + 8
	if p.v6 {
		at = p.ip + 7
	}
	p.b[at] = was.b[at]
}

// checksums makes checksums right if they were; a UDP checksum that is not there is none.
func (p *packet) checksums(was *packet) {
	from := was.b[was.ip:was.frame]
	to := p.b[p.ip:p.frame]
	if !p.v6 {
		old := be.Uint16(from[10:])
		be.PutUint16(to[10:], moved(old, from[12:20], to[12:20]))
	}
	at := p.udp - p.ip
	if old := be.Uint16(from[at+6:]); old != 0 {
		sum := moved(old, from[8:at+4], to[8:at+4])
		if !p.v6 {
			sum = moved(old, from[12:at+4], to[12:at+4])
		}
		if sum == 0 {
			sum = 0xffff
		}
		be.PutUint16(to[at+6:], sum)
	}
}

// moved returns a checksum after some of what it is of has changed: RFC 1624, equation 3.
func moved(sum uint16, from, to []byte) uint16 {
	all := uint32(^sum)
	for i := 0; i < len(from); i += 2 {
		all += uint32(^be.Uint16(from[i:])) + uint32(be.Uint16(to[i:]))
	}
	return ^fold16(all)
}

// Marks returns the marks of all contents, as programs see them.
func (h *Host) Marks() []uint64 { return h.ends.marks }

// Content returns a content by its number, nil if there is none.
func (h *Host) Content(id uint32) *shuffle.Content {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ends.contents[id]
}
