// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// castLab is hosts with programs at a bridge: the first is the source of what the others get.
type castLab struct {
	t     testing.TB
	net   *netlab.Lab
	hosts []*castHost
	tags  *wire.Tags
	token uint64
}

type castHost struct {
	*Host
	at     *netlab.Host
	conn   *net.UDPConn // on the port of frames
	events chan wire.Event
	free   []int // slots of regions
}

func newCastLab(t testing.TB, hosts int) *castLab {
	t.Helper()
	needRoot(t)
	n, err := netlab.New(netlab.Options{Hosts: hosts, StaticNeighbours: true})
	if err != nil {
		if none := netlab.Available(); none != nil {
			t.Skip(none)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	l := &castLab{t: t, net: n, tags: wire.NewTags([16]byte{5, 4, 3}), token: rand.Uint64()}
	for i := 1; i <= hosts; i++ {
		h := &castHost{at: n.Host(i), events: make(chan wire.Event, 64), free: []int{0, 1, 2, 3}}
		l.do(h, func() {
			o := Options{Interfaces: []string{netlab.InterfaceName}, Limits: small()}
			o.Limits.Chunks = 4000
			h.Host = openCasting(t, o)
			var err error
			if h.conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: h.Port()}); err != nil {
				t.Fatal(err)
			}
		})
		t.Cleanup(func() { h.conn.Close() })
		if err := acceptNoChecksum(h.conn); err != nil {
			t.Fatal(err)
		}
		if err := h.SetJob(3, l.tags.Job()); err != nil {
			t.Fatal(err)
		}
		if err := h.OnEvent(func(e wire.Event) { h.events <- e }); err != nil {
			t.Fatal(err)
		}
		l.hosts = append(l.hosts, h)
	}
	return l
}

func (l *castLab) do(h *castHost, f func()) {
	l.t.Helper()
	done := false
	err := h.at.Do(func() error { f(); done = true; return nil })
	if err != nil || !done {
		l.t.Fatal(err)
	}
}

func (h *castHost) address(v6 bool) netip.AddrPort {
	if v6 {
		return netip.AddrPortFrom(h.at.IPv6(), uint16(h.Port()))
	}
	return netip.AddrPortFrom(h.at.IPv4(), uint16(h.Port()))
}

// group is a source with its chains of members, who are numbers of hosts.
type group struct {
	l      *castLab
	v6     bool
	chains [][]int
	token  uint64
	source *castHost
	cast   *wire.Cast
	data   *shuffle.Content
	member map[int]*member
}

type member struct {
	h      *castHost
	slot   int
	region *wire.Region
	data   *shuffle.Content
}

func (l *castLab) hop(from, to *castHost, v6, tail bool) (hop wire.Hop) {
	l.t.Helper()
	hop, err := from.Hop(to.address(v6))
	if err != nil {
		l.t.Fatal(err)
	}
	if tail {
		hop.Tail = 1
	}
	return hop
}

// open opens a group as the owner of a broadcast does: tokens last.
func (l *castLab) open(chains [][]int, chunks int, v6 bool) *group {
	t := l.t
	t.Helper()
	l.token++
	g := &group{l: l, v6: v6, chains: chains, token: l.token, source: l.hosts[0], member: map[int]*member{}}
	var all sync.WaitGroup // each waits for programs
	make := func(h *castHost, c **shuffle.Content) {
		all.Go(func() {
			var err error
			if *c, err = h.NewContent(chunks); err != nil {
				t.Error(err)
			}
		})
	}
	make(g.source, &g.data)
	for _, chain := range chains {
		for _, n := range chain {
			m := &member{h: l.hosts[n], slot: l.hosts[n].free[0]}
			m.h.free = m.h.free[1:]
			g.member[n] = m
			make(m.h, &m.data)
		}
	}
	if all.Wait(); t.Failed() {
		t.FailNow()
	}
	g.cast = &g.source.Ends().Casts[1]
	*g.cast = wire.Cast{Job: 3, Content: g.data.ID, Marks: g.data.Mark, Chunks: uint32(chunks), Chains: uint32(len(chains))}
	for c, chain := range chains {
		for i, n := range chain {
			m := g.member[n]
			m.region = &m.h.Ends().Regions[m.slot]
			next, tail := g.source, i == len(chain)-1
			if !tail {
				next = l.hosts[chain[i+1]]
			}
			*m.region = wire.Region{
				Job: 3, Content: m.data.ID, Marks: m.data.Mark, Chunks: uint32(chunks), Chain: uint16(c), Bit: uint8(i),
				Hops: [2]wire.Hop{l.hop(m.h, next, v6, tail)},
			}
			atomic.StoreUint64(&m.region.Token, g.token)
			if err := m.h.SetToken(g.token, m.slot); err != nil {
				t.Fatal(err)
			}
			g.cast.Want[c] |= 1 << i
		}
		g.cast.Heads[c] = l.hop(g.source, l.hosts[chain[0]], v6, false)
	}
	atomic.StoreUint64(&g.cast.Token, g.token)
	return g
}

// close is what frees a group's ends, in the order that is safe.
func (g *group) close() {
	t := g.l.t
	t.Helper()
	for _, m := range g.member {
		if err := m.h.ClearToken(g.token); err != nil {
			t.Error(err)
		}
		atomic.StoreUint64(&m.region.Token, 0)
		m.h.free = append(m.h.free, m.slot)
	}
	atomic.StoreUint64(&g.cast.Token, 0)
	var all sync.WaitGroup
	free := func(h *castHost, c *shuffle.Content) {
		all.Go(func() {
			if err := h.Quiesce(); err != nil {
				t.Error(err)
			}
			if err := h.FreeContent(c); err != nil {
				t.Error(err)
			}
		})
	}
	free(g.source, g.data)
	for _, m := range g.member {
		free(m.h, m.data)
	}
	all.Wait()
}

// begin begins a message of that many bytes and returns its chunks.
func (g *group) begin(first, size, window int) (total int) {
	total = (size + wire.ChunkSize - 1) / wire.ChunkSize
	at := g.data.Data[first*wire.ChunkSize:]
	for i := range size {
		at[i] = byte(rand.Uint32())
	}
	c := g.cast
	c.First, c.Total, c.Bytes = uint32(first), uint32(total), uint32(size-(total-1)*wire.ChunkSize)
	c.Done, c.Wake, c.Flags = 0, uint32(total*len(g.chains)), wire.FlagPump
	for i := range g.chains {
		c.Next[i] = uint32(first + min(window, total))
	}
	return total
}

// frame makes the frame of a chunk of the message under way.
func (g *group) frame(place int, chain uint16) []byte {
	g.l.t.Helper()
	c := g.cast
	n := wire.ChunkSize
	if uint32(place) == c.First+c.Total-1 {
		n = int(c.Bytes)
	}
	f, err := wire.PutChunk(make([]byte, wire.FrameSize),
		wire.Head{Token: g.token, Seq: atomic.AddUint32(&c.Transmissions, 1), Back: 1},
		wire.Chunk{Place: uint32(place), First: c.First, Total: c.Total, Chain: chain},
		g.data.Data[place*wire.ChunkSize:][:n], g.l.tags)
	if err != nil {
		g.l.t.Fatal(err)
	}
	return f
}

// send sends frames from the source to a host, cut from one packet by the system if segment says so.
func (g *group) send(to *castHost, segment bool, frames ...[]byte) {
	t := g.l.t
	t.Helper()
	if !segment {
		for _, f := range frames {
			if _, err := g.source.conn.WriteToUDPAddrPort(f, to.address(g.v6)); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	oob := make([]byte, unix.CmsgSpace(2))
	h := (*unix.Cmsghdr)(unsafe.Pointer(unsafe.SliceData(oob)))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(oob[unix.CmsgLen(0):], uint16(len(frames[0])))
	if _, _, err := g.source.conn.WriteMsgUDPAddrPort(bytes.Join(frames, nil), oob, to.address(g.v6)); err != nil {
		t.Fatal(err)
	}
}

// woken waits until the source's socket gets a frame, and says which.
func (g *group) woken() (wire.Head, wire.Chunk) {
	t := g.l.t
	t.Helper()
	b := make([]byte, 2048)
	_ = g.source.conn.SetReadDeadline(time.Now().Add(time.Minute))
	n, _, err := g.source.conn.ReadFromUDPAddrPort(b)
	if err != nil {
		r, _ := g.source.Reasons()
		t.Fatalf("nobody wakes the source, whose %d chunks of %d are done: %v\n%s", g.cast.Done, g.cast.Total, err, notZero(r))
	}
	h, c, _, err := wire.ParseChunk(b[:n])
	if err != nil {
		t.Fatal(err)
	}
	if !g.l.tags.OpenChunk(b[:n]) {
		t.Error("the source is woken by a frame with a wrong tag")
	}
	return h, c
}

// nothingMore says what else came up to sockets.
func (g *group) nothingMore() {
	t := g.l.t
	t.Helper()
	b := make([]byte, 2048)
	for i, h := range g.l.hosts {
		_ = h.conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		if n, from, err := h.conn.ReadFromUDPAddrPort(b); !errors.Is(err, os.ErrDeadlineExceeded) {
			kind := wire.Kind(0)
			if n > 4 {
				kind = wire.Kind(b[4])
			}
			r, _ := h.Reasons()
			t.Errorf("%d bytes of kind %d came up at host %d from %s: %v\n%s", n, kind, i, from, err, notZero(r))
		}
	}
}

func notZero(r [wire.Reasons]uint64) (s string) {
	for i, n := range r {
		if n != 0 {
			s += fmt.Sprintf(" %d: %d", i, n)
		}
	}
	return s
}

// stored checks that all members have the message under way, and that each was told of it once.
func (g *group) stored(times int) {
	t := g.l.t
	t.Helper()
	first, total := int(g.cast.First), int(g.cast.Total)
	size := (total-1)*wire.ChunkSize + int(g.cast.Bytes)
	for n, m := range g.member {
		eventually(t, func() string {
			if got := wire.MarkCount(&m.data.Marks[first]); got != uint32(total) {
				return fmt.Sprintf("host %d has %d chunks of %d", n, got, total)
			}
			return ""
		})
		for i := range total {
			if s := wire.MarkState(&m.data.Marks[first+i]); s != wire.MarkStored {
				t.Fatalf("host %d: chunk %d is in state %d", n, first+i, s)
			}
		}
		at := first * wire.ChunkSize
		if !bytes.Equal(m.data.Data[at:at+size], g.data.Data[at:at+size]) {
			t.Fatalf("host %d has other bytes", n)
		}
		if want := uint64(times); atomic.LoadUint64(&m.region.Passed) != want {
			t.Errorf("host %d passed on %d, want %d", n, m.region.Passed, want)
		}
		select {
		case e := <-m.h.events:
			if want := (wire.Event{Token: g.token, Slot: uint32(m.slot), First: uint32(first)}); e != want {
				t.Errorf("host %d is told of %+v, want %+v", n, e, want)
			}
		case <-time.After(time.Minute):
			t.Errorf("host %d is not told of its message", n)
		}
		select {
		case e := <-m.h.events:
			t.Errorf("host %d is told of %+v, too", n, e)
		default:
		}
	}
}

// done checks that the source's marks have all chains of the message under way.
func (g *group) done() {
	t := g.l.t
	t.Helper()
	all := uint64(1)<<len(g.chains) - 1
	for i := range g.cast.Total {
		if got := atomic.LoadUint64(&g.data.Marks[g.cast.First+i]); got != all {
			t.Fatalf("of chunk %d chains %#b are done, want %#b", g.cast.First+i, got, all)
		}
	}
	if d := atomic.LoadUint32(&g.cast.Done); d != g.cast.Wake {
		t.Errorf("%d chunks are done, want %d", d, g.cast.Wake)
	}
}

// A chunk goes down a chain, and its answer comes to the source, whose user space is woken by the last one.
func TestBroadcastChain(t *testing.T) {
	l := newCastLab(t, 4)
	for _, v6 := range []bool{false, true} {
		g := l.open([][]int{{1, 2, 3}}, 40, v6)
		passed := 0
		for _, m := range []struct{ first, size int }{{0, 1}, {1, 1344}, {2, 1345}, {4, 7*1344 + 100}} {
			total := g.begin(m.first, m.size, 40)
			for i := range total {
				g.send(l.hosts[1], false, g.frame(m.first+i, 0))
			}
			h, c := g.woken()
			if h.Kind != wire.BroadcastAck || h.Token != g.token || h.Hop != 3 || c.Group != 0b111 || c.Chain != 0 || c.First != uint32(m.first) {
				t.Errorf("the source is woken by %+v %+v", h, c)
			}
			passed += total
			g.stored(passed)
			g.done()
		}
		// What came before is answered again, and not stored. Nobody is woken.
		f := g.frame(4, 0)
		answers := atomic.LoadUint32(&g.cast.Answers)
		g.send(l.hosts[1], false, f)
		eventually(t, func() string {
			if got := atomic.LoadUint32(&g.cast.Answers); got != answers+1 {
				return fmt.Sprintf("%d answers came, want %d", got, answers+1)
			}
			return ""
		})
		// A damaged one goes no further than the first member.
		f = g.frame(5, 0)
		f[len(f)-1] ^= 1
		before, err := l.hosts[1].Reasons()
		if err != nil {
			t.Fatal(err)
		}
		g.send(l.hosts[1], false, f)
		eventually(t, func() string {
			now, err := l.hosts[1].Reasons()
			if err != nil || now[wire.ChunkTag] != before[wire.ChunkTag]+1 {
				return fmt.Sprintf("a damaged chunk was not noticed: %v", err)
			}
			return ""
		})
		g.nothingMore()
		g.close()
	}
}

// The source's user space sends a window and sleeps: answers clock out a message of 1 MB.
func TestBroadcastPumps(t *testing.T) {
	l := newCastLab(t, 4)
	const size, window = 1 << 20, 16
	for name, c := range map[string]struct {
		chains [][]int
		v6     bool
		answer wire.AnswerMode
	}{
		"a chain":        {[][]int{{1, 2, 3}}, false, wire.AnswerTX},
		"a chain, IPv6":  {[][]int{{3, 2, 1}}, true, wire.AnswerTX},
		"a star":         {[][]int{{1}, {2}, {3}}, false, wire.AnswerTX},
		"two chains, tc": {[][]int{{1, 2}, {3}}, false, wire.AnswerTC},
	} {
		t.Run(name, func(t *testing.T) {
			l.t = t
			for _, h := range l.hosts {
				if err := h.SetAnswer(c.answer); err != nil {
					t.Fatal(err)
				}
			}
			g := l.open(c.chains, 800, c.v6)
			total := g.begin(3, size, window)
			for i := range window {
				for n, chain := range c.chains {
					g.send(l.hosts[chain[0]], false, g.frame(3+i, uint16(n)))
				}
			}
			if _, chunk := g.woken(); chunk.First != 3 {
				t.Errorf("it is woken for the message at %d", chunk.First)
			}
			g.stored(total)
			g.done()
			if want := uint32((total - window) * len(c.chains)); g.cast.Pumped != want {
				t.Errorf("programs sent %d chunks, want %d", g.cast.Pumped, want)
			}
			g.nothingMore()
			g.close()
		})
	}
}

// A chunk is sent once and cloned to the heads of all chains, one packet or several in one.
func TestBroadcastClones(t *testing.T) {
	most := 8
	if testing.Short() {
		most = 3 // emulated machines are slow
	}
	l := newCastLab(t, most+1)
	if !l.hosts[0].Clones() {
		t.Fatal("nothing clones")
	}
	for _, heads := range []int{1, 2, 5, 8} {
		if heads > most {
			break
		}
		for _, v6 := range []bool{false, true} {
			for _, segment := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d heads, IPv6 %v, segments %v", heads, v6, segment), func(t *testing.T) {
					l.t = t
					var chains [][]int
					for i := range heads {
						chains = append(chains, []int{i + 1})
					}
					g := l.open(chains, 30, v6)
					total := g.begin(2, 19*1344+77, 30)
					var frames [][]byte
					for i := range total {
						frames = append(frames, g.frame(2+i, wire.ChainAll))
					}
					g.send(l.hosts[1], segment, frames...)
					g.woken()
					g.stored(total)
					g.done()
					g.nothingMore()
					g.close()
				})
			}
		}
	}
	// What is not for all, or of no cast, is left alone.
	l.t = t
	g := l.open([][]int{{1}, {2}}, 30, false)
	g.begin(0, 2*1344, 30)
	f := g.frame(0, 0)
	g.send(l.hosts[1], false, f)
	eventually(t, func() string {
		if atomic.LoadUint64(&g.member[1].region.Stored) != 1 {
			return "it did not come"
		}
		return ""
	})
	if n := atomic.LoadUint64(&g.member[2].region.Stored); n != 0 {
		t.Errorf("the other head has %d chunks", n)
	}
	// An answer to a group that is closed by then would go up.
	eventually(t, func() string {
		if n := atomic.LoadUint32(&g.cast.Answers); n != 1 {
			return fmt.Sprintf("%d answers came, want 1", n)
		}
		return ""
	})
	g.close()
	g.nothingMore()
}

// Contents are freed and made anew while chunks of what was closed still come: nothing of them is written
// to what is somebody else's by then.
func TestFreeingUnderTraffic(t *testing.T) {
	l := newCastLab(t, 2)
	stop := make(chan struct{})
	stopped := make(chan struct{})
	var old atomic.Pointer[[][]byte] // frames of groups that were closed
	old.Store(&[][]byte{})
	source, to := l.hosts[0].conn, l.hosts[1].address(false)
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, f := range *old.Load() {
				_, _ = source.WriteToUDPAddrPort(f, to)
			}
			runtime.Gosched()
		}
	}()
	var all [][]byte
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		g := l.open([][]int{{1}}, 20, false)
		g.begin(0, 20*1344, 20)
		for i := range 20 {
			all = append(all, g.frame(i, 0))
		}
		frames := append([][]byte(nil), all...)
		old.Store(&frames)
		eventually(t, func() string {
			if got := wire.MarkCount(&g.member[1].data.Marks[0]); got != 20 {
				return fmt.Sprintf("%d chunks of 20 came", got)
			}
			return ""
		})
		<-g.member[1].h.events
		g.close()
		// Somebody else's now, zeros to the end.
		c := newContent(t, l.hosts[1].Host, 20)
		if c.ID != 0 || c.Mark != 0 {
			t.Fatalf("content %d with marks from %d on is not the one that was freed", c.ID, c.Mark)
		}
		before, _ := l.hosts[1].Reasons()
		eventually(t, func() string {
			now, _ := l.hosts[1].Reasons()
			if now[wire.UpRegion] < before[wire.UpRegion]+40 {
				return "no old chunks come"
			}
			return ""
		})
		for i := range c.Marks {
			if c.Marks[i] != 0 {
				t.Fatalf("mark %d is %#x", i, c.Marks[i])
			}
		}
		if !allZero(c.Data) {
			t.Fatal("a chunk of a closed group was written")
		}
		if err := l.hosts[1].FreeContent(c); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	<-stopped
}

// What comes for regions of an earlier process goes up, and is written nowhere.
func TestResumeUnderTraffic(t *testing.T) {
	l := newLab(t)
	o := Options{Interfaces: []string{"a0"}, Limits: small(), Dir: filepath.Join(instances(t), "one"), Port: holdPort}
	tags := wire.NewTags([16]byte{9})
	h := openCasting(t, o)
	far := hardwareOf(t, l)
	sh(t, "ip neigh replace %s dev a0 lladdr %s", l.addrB, far)
	region := func(h *Host) *shuffle.Content {
		t.Helper()
		if err := h.SetJob(0, tags.Job()); err != nil {
			t.Fatal(err)
		}
		c := newContent(t, h, 10)
		hop, err := h.Hop(netip.AddrPortFrom(netip.MustParseAddr(l.addrB), holdPort))
		if err != nil {
			t.Fatal(err)
		}
		hop.Tail = 1
		h.Ends().Regions[2] = wire.Region{Content: c.ID, Marks: c.Mark, Chunks: 10, Hops: [2]wire.Hop{hop}}
		atomic.StoreUint64(&h.Ends().Regions[2].Token, 77)
		if err := h.SetToken(77, 2); err != nil {
			t.Fatal(err)
		}
		return c
	}
	send := func(place uint32) {
		t.Helper()
		f, err := wire.PutChunk(make([]byte, wire.FrameSize), wire.Head{Token: 77, Seq: place}, wire.Chunk{Place: place, Total: 10}, bytes.Repeat([]byte{byte(place + 1)}, wire.ChunkSize), tags)
		if err != nil {
			t.Fatal(err)
		}
		l.far(func() {
			conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(l.addrB), Port: holdPort})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.WriteToUDPAddrPort(f, netip.AddrPortFrom(netip.MustParseAddr(l.addrA), holdPort)); err != nil {
				t.Fatal(err)
			}
		})
	}
	reasons := func(h *Host, r wire.Reason) uint64 {
		t.Helper()
		all, err := h.Reasons()
		if err != nil {
			t.Fatal(err)
		}
		return all[r]
	}
	until := func(h *Host, r wire.Reason, n uint64) {
		t.Helper()
		eventually(t, func() string {
			if got := reasons(h, r); got != n {
				return fmt.Sprintf("reason %d was counted %d times, want %d", r, got, n)
			}
			return ""
		})
	}
	region(h)
	send(0)
	until(h, wire.Stored, 1)
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	send(1) // nobody is there but programs, which go on
	h = openCasting(t, o)
	if !h.Resumed() {
		t.Fatal(h.Note())
	}
	until(h, wire.Stored, 2)
	send(2)
	until(h, wire.UpRegion, 1)
	// The next one of that number is another's, and works.
	c := region(h)
	if !allZero(c.Data) || c.Marks[0] != 0 {
		t.Error("something of the earlier process is there")
	}
	send(3)
	until(h, wire.Stored, 3)
	if got := c.Data[3*wire.ChunkSize]; got != 4 || wire.MarkCount(&c.Marks[0]) != 1 {
		t.Errorf("chunk 3 begins with %d, and %d are stored", got, wire.MarkCount(&c.Marks[0]))
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
}

// A member whose next one is behind another of its interfaces sends on by that.
func TestBroadcastAcrossInterfaces(t *testing.T) {
	l := newLab(t)
	sh(t, "ip link add c0 type veth peer name c1 netns %s", l.farN)
	sh(t, "ip addr add 10.78.0.1/24 dev c0")
	sh(t, "ip link set c0 up")
	sh(t, "ip -n %s addr add 10.78.0.2/24 dev c1", l.farN)
	sh(t, "ip -n %s link set c1 up", l.farN)
	h := openCasting(t, Options{Interfaces: []string{"a0", "c0"}, Port: holdPort})
	tags := wire.NewTags([16]byte{9})
	if err := h.SetJob(0, tags.Job()); err != nil {
		t.Fatal(err)
	}
	var from, next *net.UDPConn
	var far string
	l.far(func() {
		pass, err := AttachPass("c1")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { pass.Close() })
		i, err := net.InterfaceByName("c1")
		if err != nil {
			t.Fatal(err)
		}
		far = i.HardwareAddr.String()
		if from, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(l.addrB), Port: holdPort}); err != nil {
			t.Fatal(err)
		}
		if next, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP("10.78.0.2"), Port: holdPort}); err != nil {
			t.Fatal(err)
		}
	})
	defer from.Close()
	defer next.Close()
	sh(t, "ip neigh replace 10.78.0.2 dev c0 lladdr %s", far)
	c := newContent(t, h, 3)
	hop, err := h.Hop(netip.MustParseAddrPort(fmt.Sprintf("10.78.0.2:%d", holdPort)))
	if err != nil {
		t.Fatal(err)
	}
	h.Ends().Regions[1] = wire.Region{Token: 77, Content: c.ID, Marks: c.Mark, Chunks: 3, Chain: 2, Bit: 1, Hops: [2]wire.Hop{hop}}
	if err := h.SetToken(77, 1); err != nil {
		t.Fatal(err)
	}
	for place := range uint32(3) {
		f, err := wire.PutChunk(make([]byte, wire.FrameSize), wire.Head{Token: 77, Seq: place, Hop: 1}, wire.Chunk{Place: place, Total: 3, Chain: 2, Group: 1},
			bytes.Repeat([]byte{byte(place + 1)}, wire.ChunkSize), tags)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := from.WriteToUDPAddrPort(f, netip.AddrPortFrom(netip.MustParseAddr(l.addrA), holdPort)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 2048)
		_ = next.SetReadDeadline(time.Now().Add(time.Minute))
		n, at, err := next.ReadFromUDPAddrPort(b)
		if err != nil {
			r, _ := h.Reasons()
			t.Fatalf("nothing comes: %v\n%s", err, notZero(r))
		}
		head, chunk, data, err := wire.ParseChunk(b[:n])
		if err != nil || !tags.OpenChunk(b[:n]) || at.String() != fmt.Sprintf("10.78.0.1:%d", holdPort) ||
			head.Hop != 2 || chunk.Place != place || chunk.Group != 0b11 || data[1343] != byte(place+1) {
			t.Errorf("%+v %+v came from %s: %v", head, chunk, at, err)
		}
	}
}
