// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/quernmr/quern/shuffle/wire"
)

var (
	be = binary.BigEndian
	le = binary.LittleEndian
)

// Offsets within a frame of what programs change.
const (
	atMeta    = 0
	metaMask  = 1<<7 - 1
	ethBytes  = 14
	udpBytes  = 8
	ipv4Bytes = 20
	ipv6Bytes = 40
)

// packet is a parsed packet. The numbers are offsets.
type packet struct {
	b      []byte
	ip     int
	udp    int
	frame  int
	v6     bool
	head   wire.Head
	cpu    int
	stream *wire.Stream
}

// Handle does to a packet on a CPU what the programs do. It begins with the Ethernet header. The packet is
// changed in place; out is the part of it that is left, and nil if it was dropped.
func (h *Host) Handle(cpu int, b []byte) (verdict Verdict, out []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cpu < 0 || cpu >= h.cfg.CPUs {
		cpu = 0
	}
	p := &packet{b: b, cpu: cpu}
	if verdict = h.handle(p); verdict == Drop || verdict == Aborted {
		return verdict, nil
	}
	return verdict, p.b
}

func (h *Host) end(r wire.Reason, v Verdict) Verdict {
	h.reasons[r]++
	return v
}

// parse is step 1 of the order of checks.
func (p *packet) parse() bool {
	b := p.b
	if len(b) < ethBytes {
		return false
	}
	p.ip = ethBytes
	switch ip := b[ethBytes:]; be.Uint16(b[12:]) {
	case 0x0800:
		if len(ip) < ipv4Bytes || ip[0] != 0x45 || be.Uint16(ip[6:])&0x3fff != 0 || ip[9] != 17 {
			return false
		}
		p.udp = p.ip + ipv4Bytes
	case 0x86dd:
		if len(ip) < ipv6Bytes || ip[0]>>4 != 6 || ip[6] != 17 {
			return false
		}
		p.udp, p.v6 = p.ip+ipv6Bytes, true
	default:
		return false
	}
	p.frame = p.udp + udpBytes
	if len(b) < p.frame+wire.HeadSize {
		return false
	}
	p.head = wire.ReadHead(b[p.frame:])
	return p.head.Magic == wire.Magic
}

// ours is step 2.
func (p *packet) ours(port int) bool {
	from := int(be.Uint16(p.b[p.udp:])) == port
	to := int(be.Uint16(p.b[p.udp+2:])) == port
	switch p.head.Kind {
	case wire.Data, wire.Probe, wire.Broadcast, wire.Answer, wire.Reduce, wire.Reduced:
		return to
	case wire.Ack, wire.ProbeReply, wire.BroadcastAck:
		return from
	}
	return from || to
}

// lengths is the part of step 3 that is about lengths of headers.
func (p *packet) lengths() bool {
	ip := p.b[p.ip:]
	if p.v6 {
		if ipv6Bytes+int(be.Uint16(ip[4:])) != len(ip) {
			return false
		}
	} else if int(be.Uint16(ip[2:])) != len(ip) {
		return false
	}
	return int(be.Uint16(p.b[p.udp+4:])) == len(p.b)-p.udp
}

func (h *Host) handle(p *packet) Verdict {
	if !p.parse() || !p.ours(h.cfg.Port) {
		return h.end(wire.Foreign, Pass)
	}
	hd := &p.head
	if !p.lengths() || hd.Version != wire.Version || hd.Zero != 0 || hd.Kind < wire.Data || hd.Kind > wire.Reduced || hd.Kind == wire.Answer {
		return h.end(wire.Malformed, Drop)
	}
	switch hd.Kind {
	case wire.ProbeReply:
		return h.end(wire.UpShape, Pass)
	case wire.Broadcast, wire.BroadcastAck:
		switch {
		case !h.cfg.Broadcasts:
			return h.end(wire.UpChain, Pass)
		case hd.Kind == wire.Broadcast:
			return h.chunk(p)
		}
		return h.collect(p)
	case wire.Reduce, wire.Reduced:
		switch {
		case !h.cfg.Reduces:
			return h.end(wire.UpChain, Pass)
		case hd.Kind == wire.Reduce:
			return h.reduce(p)
		}
		return h.reduced(p)
	}
	payload := len(p.b) - p.frame
	want := wire.HeadSize + int(hd.Length)
	if !fields(hd) || payload < want {
		return h.end(wire.Malformed, Drop)
	}
	if payload > want {
		return h.end(wire.UpShape, Pass)
	}
	switch hd.Kind {
	case wire.Ack:
		return h.absorb(p)
	case wire.Probe:
		return h.probe(p)
	}
	return h.data(p)
}

// fields is step 5, but for the UDP payload.
func fields(hd *wire.Head) bool {
	low, high := 0, wire.BodySize
	counted := false
	switch hd.Kind {
	case wire.Data:
		low = wire.MinBody
		counted = hd.Shape < wire.KeyedShapes || hd.Shape == wire.Long
		if !counted && hd.Shape != wire.Dense && hd.Shape != wire.Dense|wire.Wide {
			return false
		}
	case wire.Ack:
		low, high = wire.AckSize, wire.AckSize
		fallthrough
	default:
		if hd.Shape != 0 {
			return false
		}
	}
	length := int(hd.Length)
	return hd.Flags&^wire.FlagWantAck == 0 && hd.Hop == 0 && hd.Zero2 == 0 &&
		length%wire.BodyStep == 0 && length >= low && length <= high && counted == (hd.Count != 0)
}

func (h *Host) data(p *packet) Verdict {
	hd, frame := &p.head, p.b[p.frame:]

	// Whose it is.
	if uint64(hd.Stream) >= uint64(len(h.memory.Streams)) {
		return h.end(wire.BadToken, Drop)
	}
	st := &h.memory.Streams[hd.Stream]
	token := atomic.LoadUint64(&st.Token)
	if token == 0 || token != hd.Token || int(st.Job) >= len(h.jobs) || h.jobs[st.Job] == nil {
		return h.end(wire.BadToken, Drop)
	}
	p.stream = st
	if hd.Seq >= st.Frames || hd.Seq >= wire.Segment {
		return h.end(wire.BadSeq, Drop)
	}

	// Whether it can be folded here.
	dense := hd.Shape&wire.Dense != 0
	if st.Flags&wire.FlagFold == 0 || !wire.ValidOps(st.Ops) || hd.Shape == wire.Long ||
		dense && wire.OpOf(st.Ops, 0) == wire.OpSum {
		return h.end(wire.UpShape, Pass)
	}
	body := frame[wire.HeadSize:]
	class, lanes, items, size := 0, 0, 0, 0
	if dense {
		n := uint64(le.Uint32(body[4:]))
		if n == 0 || n > wire.BodySize {
			return h.end(wire.Malformed, Drop)
		}
		items = int(n)
		size = 8 + items*hd.Shape.ValueBytes()
	} else {
		class, lanes, items = hd.Shape.Class(), hd.Shape.Lanes(), int(hd.Count)
		size = items * hd.Shape.PairSize()
	}
	if lanes != int(st.Lanes) || int(hd.Length) != wire.PaddedSize(size) {
		return h.end(wire.Malformed, Drop)
	}

	// Whether it is genuine, and new.
	if !h.jobs[st.Job].Open(frame, wire.Nonce(hd.Back, hd.Seq)) {
		return h.end(wire.BadTag, Drop)
	}
	if st.Claimed(hd.Seq) {
		h.reasons[wire.Duplicate]++
		return h.answer(p)
	}

	// Where it goes.
	index := uint64(st.Target)*uint64(h.cfg.CPUs) + uint64(p.cpu)
	if index >= uint64(len(h.memory.Cells)) {
		return h.end(wire.UpTable, Pass)
	}
	cell := &h.memory.Cells[index]
	id, shift := cell.Place(class)
	if id == 0 {
		atomic.OrUint32(&cell.Want, 1<<class)
		atomic.AddUint64(&cell.Missing, 1)
		return h.end(wire.UpTable, Pass)
	}
	if dense {
		shift = 0
	}
	hd.SCell, hd.STable, hd.SOps, hd.SShift, hd.SSet = uint32(index), (id-1)&0xffffff, st.Ops, shift, uint8((id-1)>>24)
	hd.Put(frame)
	be.PutUint16(p.b[p.udp+6:], 0)

	// Pass one, the claim, pass two.
	fold := h.folding(id, dense, class, lanes, st.Ops)
	if fold == nil {
		return h.end(wire.UpChain, Pass)
	}
	if !fold.find(hd.Shape, items, body, shift) {
		atomic.AddUint64(&cell.Full, 1)
		return h.end(wire.UpFull, Pass)
	}
	if h.cfg.BeforeClaim != nil {
		h.cfg.BeforeClaim(hd.Stream, hd.Seq)
	}
	if !st.ClaimKernel(hd.Seq) {
		h.reasons[wire.LostClaim]++
		return h.answer(p)
	}
	fold.apply(hd.Shape, items, body)
	atomic.AddUint64(&cell.Pairs, uint64(items))
	atomic.AddUint64(&cell.Frames, 1)
	h.reasons[wire.Folded]++
	return h.answer(p)
}

// answer is step 30.
func (h *Host) answer(p *packet) Verdict {
	if p.head.Flags&wire.FlagWantAck == 0 {
		return Drop
	}
	nonce := wire.AckNonce(p.cpu, h.answers[p.cpu])
	h.answers[p.cpu]++
	body := wire.AckBody{Nonce: nonce, Stamp: p.head.Stamp, Share: atomic.LoadUint32(&p.stream.Share), From: wire.FromKernel}
	body.Window(&p.stream.Seen, p.head.Seq)
	p.b = p.b[:p.frame+wire.AckFrame]
	wire.PutAck(p.b[p.frame:], p.head, body, h.jobs[p.stream.Job])
	if h.cfg.Answer == wire.AnswerUser {
		p.b[p.frame+4] = byte(wire.Answer)
		p.finish()
		return h.end(wire.AnswerUp, Pass)
	}
	p.turn()
	p.finish()
	if h.cfg.Answer == wire.AnswerTC {
		return h.end(wire.Answered, Pass)
	}
	return h.end(wire.Answered, TX)
}

func (h *Host) probe(p *packet) Verdict {
	if h.cfg.Answer == wire.AnswerUser {
		return h.end(wire.AnswerUp, Pass)
	}
	hd := p.head
	hd.Kind, hd.Count = wire.ProbeReply, wire.FromKernel
	hd.Put(p.b[p.frame:])
	p.turn()
	p.finish()
	if h.cfg.Answer == wire.AnswerTC {
		return h.end(wire.Probed, Pass)
	}
	return h.end(wire.Probed, TX)
}

// turn makes the sender the receiver.
func (p *packet) turn() {
	swap(p.b[0:6], p.b[6:12])
	if ip := p.b[p.ip:]; p.v6 {
		swap(ip[8:24], ip[24:40])
		ip[7] = 64
	} else {
		swap(ip[12:16], ip[16:20])
		ip[8] = 64
	}
	swap(p.b[p.udp:p.udp+2], p.b[p.udp+2:p.udp+4])
}

// finish makes lengths and checksums right.
func (p *packet) finish() {
	ip := p.b[p.ip:]
	if p.v6 {
		be.PutUint16(ip[4:], uint16(len(ip)-ipv6Bytes))
	} else {
		be.PutUint16(ip[2:], uint16(len(ip)))
		be.PutUint16(ip[10:], 0)
		be.PutUint16(ip[10:], ^fold16(sum16(ip[:ipv4Bytes])))
	}
	be.PutUint16(p.b[p.udp+4:], uint16(len(p.b)-p.udp))
	be.PutUint16(p.b[p.udp+6:], 0)
}

func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}

// absorb takes an acknowledgement in.
func (h *Host) absorb(p *packet) Verdict {
	hd, frame := &p.head, p.b[p.frame:]
	a, err := wire.ParseAckBody(frame[wire.HeadSize:])
	if err != nil {
		return h.end(wire.Malformed, Drop)
	}
	if uint64(hd.Back) >= uint64(len(h.memory.Outgoing)) {
		return h.end(wire.AckStray, Drop)
	}
	out := &h.memory.Outgoing[hd.Back]
	token := atomic.LoadUint64(&out.Token)
	if token == 0 || token != hd.Token || int(out.Job) >= len(h.jobs) || h.jobs[out.Job] == nil {
		return h.end(wire.AckStray, Drop)
	}
	if !h.jobs[out.Job].Open(frame, a.Nonce) {
		return h.end(wire.AckTag, Drop)
	}
	fresh := uint64(a.Absorb(&out.Acked))
	count := atomic.AddUint64(&out.Count, fresh)
	// The last to come, not the largest: a damaged stamp is not to stay.
	atomic.StoreUint64(&out.Stamp, a.Stamp)
	atomic.StoreUint64(&out.Arrived, h.now())
	atomic.StoreUint32(&out.Share, a.Share)
	atomic.StoreUint32(&out.From, uint32(a.From))
	atomic.AddUint32(&out.Answers, 1)
	if wake := atomic.LoadUint64(&out.Wake); count-fresh < wake && count >= wake {
		return h.end(wire.AbsorbedUp, Pass)
	}
	return h.end(wire.Absorbed, Drop)
}

func (h *Host) now() uint64 {
	if h.cfg.Now == nil {
		return 0
	}
	return h.cfg.Now()
}
