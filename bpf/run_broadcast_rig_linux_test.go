// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/wire"
)

// castTwins are programs of broadcasts and the reference model, which are given the
// same packets.
type castTwins struct {
	*twins
	ends     *shuffle.Ends // of the programs
	marks    []uint64
	contents map[uint32][]byte
	reader   *ringbuf.Reader
	events   []wire.Event // of the model
}

var castLimits = shuffle.Limits{
	Streams: twinStreams, Targets: twinTargets, Outgoing: twinOutgoing, Jobs: 2,
	Regions: 4, Casts: 3, Chunks: 256,
}

const (
	castContents = 4
	castChunks   = 48 // of each content
	// testRunInterface is what packets of test runs come in by: the loopback interface.
	testRunInterface = 1
)

// withBroadcasts adds the programs of broadcasts to a rig.
func withBroadcasts(r *rig) (ends *shuffle.Ends, marks []uint64) {
	for _, name := range []string{"chunk", "collect", "pump", "clone"} {
		spec := r.spec(name)
		for m, n := range map[string]int{
			"regions": r.limits.Regions, "casts": r.limits.Casts, "tokens": r.limits.Regions + r.limits.Groups, "contents": castContents, "marks": r.limits.Chunks,
		} {
			if spec.Maps[m] != nil {
				spec.Maps[m].MaxEntries = uint32(n)
			}
		}
		program := "quern_" + name
		r.programs[program] = r.load(spec, program).programs[program]
	}
	for slot, program := range []string{2: "quern_chunk", 3: "quern_collect", 4: "quern_pump"} {
		if program != "" {
			r.check(r.maps["chain"].Put(uint32(slot), r.programs[program]))
		}
	}
	return &shuffle.Ends{
		Regions: mapped[wire.Region](r, "regions", r.limits.Regions),
		Casts:   mapped[wire.Cast](r, "casts", r.limits.Casts),
	}, mapped[uint64](r, "marks", r.limits.Chunks)
}

// newContent makes a content for programs.
func (r *rig) newContent(id uint32, chunks int) []byte {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "content", Type: ebpf.Array, KeySize: 4, ValueSize: wire.ChunkSize, MaxEntries: uint32(chunks), Flags: unix.BPF_F_MMAPABLE | unix.BPF_F_INNER_MAP,
	})
	r.check(err)
	defer m.Close()
	r.check(r.maps["contents"].Put(id, m))
	return r.mmap(m, chunks*wire.ChunkSize)
}

func newCastTwins(t testing.TB) *castTwins {
	t.Helper()
	r := newRig(t, castLimits)
	onCPU(t, twinCPU)
	ends, marks := withBroadcasts(r)
	c := &castTwins{
		twins: &twins{
			t: t, rig: r,
			model:  model.NewHost(model.Config{Limits: castLimits, CPUs: r.cpus, Broadcasts: true, Interface: testRunInterface}),
			tables: map[shuffle.TableLayout][2]*twinTable{},
		},
		ends: ends, marks: marks, contents: map[uint32][]byte{},
	}
	for i := range c.tags {
		c.tags[i] = wire.NewTags([16]byte{byte(i + 1)})
		r.check(r.SetJob(i, c.tags[i].Job()))
		r.check(c.model.SetJob(i, c.tags[i].Job()))
	}
	for range castContents {
		m, err := c.model.NewContent(castChunks)
		r.check(err)
		c.contents[m.ID] = r.newContent(m.ID, castChunks)
	}
	reader, err := ringbuf.NewReader(r.maps["events"])
	r.check(err)
	t.Cleanup(func() { _ = reader.Close() })
	c.reader = reader
	r.check(c.model.OnEvent(func(e wire.Event) { c.events = append(c.events, e) }))
	return c
}

// bothEnds calls fn for what programs and model share with user space.
func (c *castTwins) bothEnds(fn func(e *shuffle.Ends)) {
	fn(c.ends)
	fn(c.model.Ends())
}

// bothMarks and bothContents do the same for marks and a content.
func (c *castTwins) bothMarks(fn func(marks []uint64)) {
	fn(c.marks)
	fn(c.model.Marks())
}

func (c *castTwins) bothContents(id uint32, fn func(b []byte)) {
	fn(c.contents[id])
	fn(c.model.Content(id).Data)
}

// resetCasts clears all that is of broadcasts too.
func (c *castTwins) resetCasts() {
	c.reset()
	c.bothEnds(func(e *shuffle.Ends) { clear(e.Regions); clear(e.Casts) })
	c.bothMarks(func(m []uint64) { clear(m) })
	for id := range c.contents {
		c.bothContents(id, func(b []byte) { clear(b) })
	}
	for slot := range castLimits.Regions {
		token := castToken(slot)
		_ = c.rig.maps["tokens"].Delete(token) // or it was not there
		c.rig.check(c.model.ClearToken(token))
	}
	c.readEvents()
	c.events = nil
}

func castToken(slot int) uint64 { return 0xca57_0000_1234_0000 + uint64(slot) }

// region opens a member's end on both sides.
func (c *castTwins) region(slot int, r wire.Region) {
	c.bothEnds(func(e *shuffle.Ends) { e.Regions[slot] = r })
	c.rig.check(c.rig.maps["tokens"].Put(r.Token, uint32(slot)))
	c.rig.check(c.model.SetToken(r.Token, slot))
}

// cast opens a source's end.
func (c *castTwins) cast(slot int, k wire.Cast) {
	c.bothEnds(func(e *shuffle.Ends) { e.Casts[slot] = k })
}

// both versions of IP: where packets of these tests go to.
func hopTo(n int, v6 bool, out uint32) wire.Hop {
	h := wire.Hop{
		MACTo: [6]byte{2, 0, 0, 1, 0, byte(n)}, MACFrom: [6]byte{2, 0, 0, 2, 0, byte(n)}, Interface: out,
		PortTo: [2]byte{0x1b, byte(n)}, PortFrom: [2]byte{0x1b, 0xcd},
	}
	to, from := netip.MustParseAddr(fmt.Sprintf("10.1.%d.7", n)), netip.MustParseAddr("10.9.8.7")
	if v6 {
		h.V6 = 1
		to, from = netip.MustParseAddr(fmt.Sprintf("2001:db8:1:2:3:4:5:%x", n)), netip.MustParseAddr("2001:db8:ff:ee:dd:cc:bb:aa")
	}
	copy(h.To[:], to.AsSlice())
	copy(h.From[:], from.AsSlice())
	return h
}

// readEvents returns what programs have told since the last call.
func (c *castTwins) readEvents() (all []wire.Event) {
	c.t.Helper()
	c.reader.SetDeadline(time.Unix(1, 0)) // what is there, and no more
	for {
		record, err := c.reader.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return all
		}
		c.rig.check(err)
		b := record.RawSample
		all = append(all, wire.Event{Token: le.Uint64(b), Slot: le.Uint32(b[8:]), First: le.Uint32(b[12:])})
	}
}

// stepCast gives both a packet and compares all that came of it.
func (c *castTwins) stepCast(packet []byte) (model.Verdict, []byte) {
	c.t.Helper()
	verdict, out := c.step(packet)
	if d := c.compareCasts(); d != "" {
		c.t.Fatalf("%s\npacket %x", d, packet)
	}
	return verdict, out
}

// compareCasts says what differs in what is of broadcasts.
func (c *castTwins) compareCasts() string {
	k, m := c.ends, c.model.Ends()
	for i := range k.Regions {
		if k.Regions[i] != m.Regions[i] {
			return fmt.Sprintf("region %d is %+v\nnot %+v", i, k.Regions[i], m.Regions[i])
		}
	}
	for i := range k.Casts {
		if (k.Casts[i].Answers == 0) != (k.Casts[i].Arrived == 0) {
			return fmt.Sprintf("cast %d: %d answers, the last at %d", i, k.Casts[i].Answers, k.Casts[i].Arrived)
		}
		m.Casts[i].Arrived = k.Casts[i].Arrived
		if k.Casts[i] != m.Casts[i] {
			return fmt.Sprintf("cast %d is %+v\nnot %+v", i, k.Casts[i], m.Casts[i])
		}
	}
	for i, mark := range c.model.Marks() {
		if c.marks[i] != mark {
			return fmt.Sprintf("mark %d is %#x, not %#x", i, c.marks[i], mark)
		}
	}
	if got := c.readEvents(); !slices.Equal(got, c.events) {
		return fmt.Sprintf("events are %+v, not %+v", got, c.events)
	}
	c.events = nil
	for id, b := range c.contents {
		if want := c.model.Content(id).Data; !bytes.Equal(b, want) {
			at := 0
			for b[at] == want[at] {
				at++
			}
			return fmt.Sprintf("content %d differs at %d (chunk %d)", id, at, at/wire.ChunkSize)
		}
	}
	return ""
}
