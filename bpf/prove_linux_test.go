// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quernmr/quern/shuffle/wire"
)

// proof sets up a socket at the far end.
func (l *lab) proof(h *Host) ProbePath {
	l.t.Helper()
	var conn *net.UDPConn
	var err error
	l.far(func() { conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(l.addrB)}) })
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { conn.Close() })
	return ProbePath{
		Conn: conn,
		Peer: netip.AddrPortFrom(netip.MustParseAddr(l.addrA), uint16(h.Port())),
		Wait: 20 * time.Second, Tries: 3, // for what comes, however slow the machine is
		Set: func(_ context.Context, m wire.AnswerMode) (err error) {
			l.far(func() { err = h.SetAnswer(m) }) // wherever it is called
			return err
		},
	}
}

// waiting is a path whose probes wait that long, for where some get no answer.
func waiting(p ProbePath, wait time.Duration) ProbePath {
	p.Wait = wait
	return p
}

func TestProve(t *testing.T) {
	l := newLab(t)
	o := Options{Interfaces: []string{"a0"}, Limits: small(), Dir: filepath.Join(instances(t), "one")}
	h := open(t, o)
	p := l.proof(h)

	// b0 has no program, so XDP_TX is lost.
	const short = 100 * time.Millisecond
	fixed := waiting(p, short)
	fixed.Set = nil
	mode, why, err := Prove(t.Context(), fixed)
	if err != nil || mode != wire.AnswerTC || !strings.Contains(why, "XDP_TX") {
		t.Errorf("it says %d, %q, %v", mode, why, err)
	}
	mode, why, err = Prove(t.Context(), waiting(p, 2*time.Second)) // for the first ones in vain
	if err != nil || mode != wire.AnswerTC || h.Answer() != wire.AnswerTC || !strings.Contains(why, "by tc") {
		t.Fatalf("it says %d, %q, %v", mode, why, err)
	}
	links := 0
	if tcx.Have() == nil {
		links = 1
	}
	if len(h.answers.links) != links || h.answers.filter != (links == 0) {
		t.Errorf("there are %d links for answers, and filter is %v", len(h.answers.links), h.answers.filter)
	}
	// It stays so when another process takes over.
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	h = open(t, o)
	if !h.Resumed() || h.Answer() != wire.AnswerTC || len(h.answers.links) != links {
		t.Errorf("resumed %v (%s), answer %d, %d links", h.Resumed(), h.Note(), h.Answer(), len(h.answers.links))
	}
	p.Set = func(_ context.Context, m wire.AnswerMode) (err error) {
		l.far(func() { err = h.SetAnswer(m) }) // wherever it is called
		return err
	}
	again := p
	again.Begin, again.Set = wire.AnswerTC, nil
	if mode, why, err := Prove(t.Context(), again); err != nil || mode != wire.AnswerTC {
		t.Errorf("it says %d, %q, %v", mode, why, err)
	}
	r, err := h.Reasons()
	if err != nil || r[wire.Probed] == 0 {
		t.Errorf("reasons are %v, %v", r, err)
	}

	// With one, it arrives.
	l.far(func() {
		pass, err := AttachPass("b0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { pass.Close() })
	})
	if err := h.SetAnswer(wire.AnswerTX); err != nil {
		t.Fatal(err)
	}
	mode, why, err = Prove(t.Context(), p)
	if err != nil || mode != wire.AnswerTX || !strings.Contains(why, "by XDP_TX") {
		t.Errorf("it says %d, %q, %v", mode, why, err)
	}

	// Over IPv6, where programs leave the checksum out, too.
	six := p
	six.Peer = netip.AddrPortFrom(netip.MustParseAddr(l.sixA), uint16(h.Port()))
	l.far(func() { six.Conn, err = net.ListenUDP("udp6", &net.UDPAddr{IP: net.ParseIP(l.sixB)}) })
	if err != nil {
		t.Fatal(err)
	}
	defer six.Conn.Close()
	mode, why, err = Prove(t.Context(), six)
	if err != nil || mode != wire.AnswerTX || !strings.Contains(why, "by XDP_TX") {
		t.Errorf("over IPv6 it says %d, %q, %v", mode, why, err)
	}

	// Nobody answers at all.
	if err := h.SetAnswer(wire.AnswerUser); err != nil {
		t.Fatal(err)
	}
	p.Begin = wire.AnswerUser
	if mode, why, err = Prove(t.Context(), waiting(p, short)); !errors.Is(err, ErrNoPath) {
		t.Errorf("it says %d, %q, %v", mode, why, err)
	}
	// User space does.
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(l.addrA), Port: h.Port()})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			wire.AnswerProbe(buf[:n])
			_, _ = conn.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	mode, why, err = Prove(t.Context(), p)
	if err != nil || mode != wire.AnswerUser || !strings.Contains(why, "user space") {
		t.Errorf("it says %d, %q, %v", mode, why, err)
	}
	conn.Close()
	<-done

	// Too large for the way there.
	sh(t, "ip -n %s link set b0 mtu 1400", l.farN)
	if err := h.SetAnswer(wire.AnswerTX); err != nil {
		t.Fatal(err)
	}
	p.Begin = wire.AnswerTX
	if _, _, err := Prove(t.Context(), waiting(p, short)); err == nil {
		t.Error("a frame of 1,440 bytes got through an MTU of 1400")
	}
	if err := h.SetAnswer(wire.AnswerTX); err != nil {
		t.Fatal(err)
	}
	p.Body = 64
	if mode, why, err = Prove(t.Context(), p); err != nil || mode != wire.AnswerTX {
		t.Errorf("it says %d, %q, %v", mode, why, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Prove(ctx, p); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, _, err := Prove(t.Context(), ProbePath{}); err == nil {
		t.Error("a path to nowhere was proved")
	}
}

// In generic mode what is turned around leaves as any packet does: the far end needs no program.
func TestProveGeneric(t *testing.T) {
	l := newLab(t)
	h := open(t, Options{Interfaces: []string{"a0"}, XDP: Generic, Limits: small()})
	if mode, why, err := Prove(t.Context(), l.proof(h)); err != nil || mode != wire.AnswerTX {
		t.Errorf("it says %d, %q, %v", mode, why, err)
	}
}

// Before 6.6 the program that sends answers is attached by a filter.
func TestAnswerByFilter(t *testing.T) {
	l := newLab(t)
	dir := filepath.Join(instances(t), "one")
	o := Options{Interfaces: []string{"a0"}, Limits: small(), Dir: dir}
	h := open(t, o)
	// From wherever: the numbers of devices are those of the Host's namespace.
	l.far(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if err := h.attachHook(&h.answers, true); err != nil {
			t.Fatal(err)
		}
	})
	if err := h.SetAnswer(wire.AnswerTC); err != nil {
		t.Fatal(err)
	}
	if len(h.answers.links) != 0 {
		t.Fatal("there are links, too")
	}
	p := l.proof(h)
	p.Begin = wire.AnswerTC
	if mode, why, err := Prove(t.Context(), p); err != nil || mode != wire.AnswerTC {
		t.Errorf("it says %d, %q, %v", mode, why, err)
	}
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	h = open(t, o)
	if !h.Resumed() || !h.answers.filter || h.Answer() != wire.AnswerTC {
		t.Errorf("resumed %v (%s), filter %v, answer %d", h.Resumed(), h.Note(), h.answers.filter, h.Answer())
	}
	p.Set = func(_ context.Context, m wire.AnswerMode) error { return fmt.Errorf("set to %d", m) }
	if mode, why, err := Prove(t.Context(), p); err != nil || mode != wire.AnswerTC {
		t.Errorf("it says %d, %q, %v", mode, why, err)
	}
	l.far(func() {
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	})
	if f := sh(t, "tc filter show dev a0 ingress"); strings.Contains(f, tcProgram) {
		t.Errorf("filters are %q", f)
	}
}
