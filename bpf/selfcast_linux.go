// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/quernmr/quern/shuffle/wire"
)

// selfChunks is the number of chunks of the self-test's message.
const selfChunks = 2

// selfBroadcast has programs store a known message and answer its chunks, which come twice, and damaged too.
func (h *Host) selfBroadcast() error {
	tags := wire.NewTags([16]byte{16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1})
	if err := h.SetJob(0, tags.Job()); err != nil {
		return err
	}
	c, err := h.NewContent(selfChunks)
	if err != nil {
		return err
	}
	const token, loopback, bytesOfLast = 0xfedcba9876543210, 1, 100
	message := make([]byte, wire.ChunkSize+bytesOfLast)
	for i := range message {
		message[i] = byte(i * 7)
	}
	r := &h.Ends().Regions[0]
	*r = wire.Region{
		Content: c.ID, Marks: c.Mark, Chunks: selfChunks, Chain: 5, Bit: 3,
		Hops: [2]wire.Hop{{
			MACTo: [6]byte{2, 0, 0, 0, 0, 9}, Interface: loopback, PortTo: [2]byte{0x11, 0x22}, PortFrom: [2]byte{0x33, 0x44},
			Tail: 1, To: [16]byte{192, 0, 2, 9}, From: [16]byte{192, 0, 2, 1},
		}},
	}
	atomic.StoreUint64(&r.Token, token)
	if err := h.SetToken(token, 0); err != nil {
		return err
	}
	for i, f := range []struct {
		name  string
		place uint32
		spoil bool
		want  uint32
		ends  []wire.Reason
	}{
		{"the last", 1, false, xdpTX, []wire.Reason{wire.Stored, wire.ChainAnswered}},
		{"a damaged one", 0, true, xdpDrop, []wire.Reason{wire.ChunkTag}},
		{"the first", 0, false, xdpTX, []wire.Reason{wire.Stored, wire.ChainAnswered}},
		{"one that came before", 1, false, xdpTX, []wire.Reason{wire.StoredBefore, wire.ChainAnswered}},
	} {
		data := message[f.place*wire.ChunkSize:]
		frame, err := wire.PutChunk(make([]byte, wire.FrameSize), wire.Head{Token: token, Seq: uint32(i), Back: 7},
			wire.Chunk{Place: f.place, Total: selfChunks, Chain: wire.ChainAll}, data[:min(len(data), wire.ChunkSize)], tags)
		if err != nil {
			return err
		}
		packet := append(h.selfHeaders(len(frame)), frame...)
		if f.spoil {
			packet[len(packet)-1] ^= 1
		}
		before, err := h.Reasons()
		if err != nil {
			return err
		}
		verdict, out, err := h.Run(packet)
		if err != nil {
			return err
		}
		after, err := h.Reasons()
		if err != nil {
			return err
		}
		if verdict != f.want {
			return fmt.Errorf("chunk %q ended with verdict %d, want %d", f.name, verdict, f.want)
		}
		for _, reason := range f.ends {
			if after[reason] != before[reason]+1 {
				return fmt.Errorf("chunk %q: reason %d was counted %d times, want once", f.name, reason, after[reason]-before[reason])
			}
		}
		if f.want == xdpTX {
			if err := checkChainAnswer(tags, out, f.place); err != nil {
				return fmt.Errorf("chunk %q: %w", f.name, err)
			}
		}
	}
	if !bytes.Equal(c.Data[:len(message)], message) || len(bytes.Trim(c.Data[len(message):], "\x00")) != 0 {
		return errors.New("what is stored is not what was sent")
	}
	if n := wire.MarkCount(&c.Marks[0]); n != selfChunks {
		return fmt.Errorf("%d chunks are stored, want %d", n, selfChunks)
	}
	return nil
}

// checkChainAnswer looks at the answer that a chunk was turned into.
func checkChainAnswer(tags *wire.Tags, packet []byte, place uint32) error {
	if len(packet) != headersV4+wire.AnswerFrame {
		return fmt.Errorf("the answer has %d bytes, want %d", len(packet), headersV4+wire.AnswerFrame)
	}
	if !bytes.Equal(packet[30:34], []byte{192, 0, 2, 9}) || !bytes.Equal(packet[34:38], []byte{0x33, 0x44, 0x11, 0x22}) {
		return errors.New("the answer goes elsewhere")
	}
	h, c, _, err := wire.ParseChunk(packet[headersV4:])
	if err != nil {
		return fmt.Errorf("the answer: %w", err)
	}
	if h.Kind != wire.BroadcastAck || h.Back != 7 || h.Hop != 1 || c.Place != place || c.Chain != 5 || c.Group != 1<<3 || !tags.OpenChunk(packet[headersV4:]) {
		return fmt.Errorf("the answer is wrong: %+v %+v", h, c)
	}
	return nil
}
