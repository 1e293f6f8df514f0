// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/quernmr/quern/shuffle/wire"
)

// ProbePath is a path to a peer, to be proved.
type ProbePath struct {
	// Conn is a UDP socket that nobody else reads meanwhile. What comes in and is
	// no answer to a probe is dropped.
	Conn *net.UDPConn
	Peer netip.AddrPort // where the peer takes frames
	// Body is the bytes of a probe behind its head, a multiple of wire.BodyStep; an
	// answer is as long. 0: wire.BodySize, so that the largest frame is proved to get through.
	Body int
	// Tries is the number of probes for each way of answering; 0: 5. Wait is how long
	// an answer is waited for; 0: 20 ms.
	Tries int
	Wait  time.Duration
	// Set makes the peer answer in another way, over the control plane. nil: it answers as it does.
	Set func(ctx context.Context, mode wire.AnswerMode) error
	// Begin is how the peer answers now.
	Begin wire.AnswerMode
}

// ErrNoPath says that no answer came, whoever was to give it.
var ErrNoPath = errors.New("no answer to a probe")

// Prove sends probes to a peer and sees who answers, first as the peer answers now, then, with
// Set, in the ways that are left, in the order of AnswerMode. It returns the first way that works, and says in one
// line what came of it. Without Set, if nothing comes, it returns the way to try next.
// ErrNoPath says that not even user space answers: frames of that size don't get through,
// or the peer does not listen. Each way takes Tries x Wait at most.
//
// An answer by XDP_TX is lost without a trace where the device at the other end of the peer's
// link needs an XDP program to take it and has none (a veth in a bridge, say). So this is done before a path is used.
func Prove(ctx context.Context, p ProbePath) (mode wire.AnswerMode, why string, err error) {
	if p.Tries <= 0 {
		p.Tries = 5
	}
	if p.Wait <= 0 {
		p.Wait = 20 * time.Millisecond
	}
	if p.Body == 0 {
		p.Body = wire.BodySize
	}
	if p.Conn == nil || !p.Peer.IsValid() || p.Body < 0 || p.Body > wire.BodySize || p.Body%wire.BodyStep != 0 || p.Begin > wire.AnswerUser {
		return 0, "", errors.New("prove a path: it needs a socket, a peer, and a body of whole steps that fits a frame")
	}
	if p.Peer.Addr().Unmap().Is6() {
		if err := acceptNoChecksum(p.Conn); err != nil {
			return 0, "", fmt.Errorf("prove the path to %s: %w", p.Peer, err)
		}
	}
	host := p.Peer.Addr()
	for mode = p.Begin; mode <= wire.AnswerUser; mode++ {
		if mode != p.Begin {
			if p.Set == nil {
				return mode, fmt.Sprintf("no answer of %s arrives by %s: try %s", host, answerName(p.Begin), answerName(mode)), nil
			}
			if err := p.Set(ctx, mode); err != nil {
				return 0, "", fmt.Errorf("make %s answer by %s: %w", p.Peer, answerName(mode), err)
			}
		}
		who, rtt, err := p.probe(ctx)
		switch {
		case err != nil:
			return 0, "", fmt.Errorf("prove the path to %s: %w", p.Peer, err)
		case who == wire.FromUser:
			return wire.AnswerUser, fmt.Sprintf("user space of %s answers, in %s", host, rtt), nil
		case who == wire.FromKernel:
			return mode, fmt.Sprintf("the kernel of %s answers by %s, in %s", host, answerName(mode), rtt), nil
		}
	}
	return 0, "", fmt.Errorf("prove the path to %s: %w of %d bytes, by the kernel or by user space", p.Peer, ErrNoPath, wire.HeadSize+p.Body)
}

func answerName(m wire.AnswerMode) string {
	switch m {
	case wire.AnswerTX:
		return "XDP_TX"
	case wire.AnswerTC:
		return "tc"
	}
	return "user space"
}

// probe says who answered first and how long it took; 0 if nobody did.
func (p *ProbePath) probe(ctx context.Context) (who uint8, rtt time.Duration, err error) {
	defer func() { _ = p.Conn.SetReadDeadline(time.Time{}) }()
	var frame, buf [wire.FrameSize]byte
	id := rand.Uint64() | 1 // answers to earlier probes don't count
	sent := make([]time.Time, p.Tries)
	for seq := range p.Tries {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		sent[seq] = time.Now()
		_, err := p.Conn.WriteToUDPAddrPort(wire.PutProbe(frame[:], id, uint32(seq), p.Body, 0), p.Peer)
		if err != nil && !passing(err) {
			return 0, 0, err
		}
		if err := p.Conn.SetReadDeadline(sent[seq].Add(p.Wait)); err != nil {
			return 0, 0, err
		}
		for {
			n, from, err := p.Conn.ReadFromUDPAddrPort(buf[:])
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil && !passing(err) {
				return 0, 0, err
			}
			h, err := wire.ParseProbe(buf[:n])
			if err != nil || h.Kind != wire.ProbeReply || h.Token != id || int64(h.Seq) > int64(seq) || int(h.Length) != p.Body ||
				from.Port() != p.Peer.Port() || from.Addr().Unmap() != p.Peer.Addr().Unmap() {
				continue
			}
			if h.Count == wire.FromKernel || h.Count == wire.FromUser {
				return h.Count, max(time.Since(sent[h.Seq]).Round(time.Microsecond), time.Microsecond), nil
			}
		}
	}
	return 0, 0, nil
}

// passing says whether an error of a socket is about one packet (an ICMP message that nobody
// listens, or that it is too large) and no reason to give up.
func passing(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EMSGSIZE) ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}
