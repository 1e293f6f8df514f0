// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

var testStreamTags = NewStreamTags([16]byte{1, 2, 3})

// drawMessage draws a message that a stream may have, and what follows its head.
func drawMessage(t *rapid.T) (StreamHead, []byte) {
	nonce := rapid.Uint64Min(1)
	h := StreamHead{
		Kind: StreamKind(rapid.IntRange(int(StreamHello), int(StreamBye)).Draw(t, "kind")), From: uint8(rapid.IntRange(0, MaxMembers-1).Draw(t, "from")),
		Token: nonce.Draw(t, "token"), Call: rapid.Uint64().Draw(t, "call"), What: rapid.Uint32().Draw(t, "what"), Place: rapid.Uint64().Draw(t, "place"),
	}
	h.To = (h.From + uint8(rapid.IntRange(1, MaxMembers-1).Draw(t, "to"))) % MaxMembers
	if h.Kind <= StreamConfirm {
		h.Dialled = nonce.Draw(t, "dialled")
	}
	if h.Kind == StreamWelcome || h.Kind == StreamConfirm {
		h.Answered = nonce.Draw(t, "answered")
	}
	switch h.Kind {
	case StreamPart, StreamSum:
		h.Bytes = 4 * uint32(rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(250, 260), rapid.IntRange(PieceSize/4-3, PieceSize/4)).Draw(t, "values"))
	case StreamBye:
		h.Bytes = uint32(rapid.IntRange(0, ByeText).Draw(t, "text"))
	}
	values := make([]byte, h.Bytes)
	seed := rapid.Uint64().Draw(t, "seed")
	for i := range values {
		seed = seed*6364136223846793005 + 1442695040888963407
		values[i] = byte(seed >> 56)
	}
	return h, values
}

// What was put is read again, and has the right tag; with any bit changed, or on another connection, it has not.
func TestStreamMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, values := drawMessage(t)
		b := make([]byte, StreamHeadSize)
		dialled, answered := rapid.Uint64().Draw(t, "its dialled"), rapid.Uint64().Draw(t, "its answered")
		testStreamTags.Seal(b, &h, values, dialled, answered)
		got, err := ParseStreamHead(b)
		if err != nil || got != h {
			t.Fatalf("%+v came out as %+v, %v", h, got, err)
		}
		if !testStreamTags.Open(b, &got, values, dialled, answered) {
			t.Fatal("the tag is not right")
		}
		if testStreamTags.Open(b, &got, values, dialled+1, answered) || testStreamTags.Open(b, &got, values, dialled, answered+1) || NewStreamTags([16]byte{9}).Open(b, &got, values, dialled, answered) {
			t.Fatal("the tag is right with other nonces, or another secret")
		}
		if at := rapid.IntRange(0, 8*(len(b)+len(values))-1).Draw(t, "bit"); at < 8*len(b) {
			b[at/8] ^= 1 << (at % 8)
		} else {
			values[at/8-len(b)] ^= 1 << (at % 8)
		}
		if got, err = ParseStreamHead(b); err == nil && testStreamTags.Open(b, &got, values, dialled, answered) && got.Dialled == h.Dialled && got.Answered == h.Answered {
			t.Fatalf("%+v has the right tag, %+v was put", got, h)
		}
	})
}

// A piece that is addressed to one after the other has the tags that it would have had for each alone.
func TestStreamAddress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, values := drawMessage(t)
		b, alone := make([]byte, StreamHeadSize), make([]byte, StreamHeadSize)
		h.Put(b)
		hash := testStreamTags.Hash(b, values)
		for to := range uint8(MaxMembers) {
			mine := h
			testStreamTags.Address(b, &mine, hash, to, uint64(to), 7)
			other := h
			other.To = to
			testStreamTags.Seal(alone, &other, values, uint64(to), 7)
			if !bytes.Equal(b, alone) {
				t.Fatalf("to %d: %x, want %x", to, b, alone)
			}
		}
	})
}

// The hash is the one that is defined: NH of NH, by words.
func TestStreamHash(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, values := drawMessage(t)
		b := make([]byte, StreamHeadSize)
		h.Put(b)
		m := bytes.Clone(b[:56])
		m[7] = 0
		clear(m[40:])
		padded := append(bytes.Clone(values), make([]byte, PaddedPiece(len(values))-len(values))...)
		for len(padded) > 0 {
			n := min(1024, len(padded))
			m = le.AppendUint64(m, nhWords(padded[:n], testStreamTags.lower[:]))
			padded = padded[n:]
		}
		m = append(m, make([]byte, 56+8*64-len(m))...)
		if got, want := testStreamTags.Hash(b, values), nhWords(m, testStreamTags.upper[:]); got != want {
			t.Fatalf("%+v: %x, want %x", h, got, want)
		}
	})
}

// No two messages that differ in what tells them apart have the same pad.
func TestStreamPads(t *testing.T) {
	seen := map[uint64]string{}
	for i, h := range []StreamHead{
		{Kind: StreamPart, From: 1, To: 2, Token: 1, Call: 1},
		{Kind: StreamSum, From: 1, To: 2, Token: 1, Call: 1},
		{Kind: StreamPart, From: 2, To: 1, Token: 1, Call: 1},
		{Kind: StreamPart, From: 1, To: 3, Token: 1, Call: 1},
		{Kind: StreamPart, From: 1, To: 2, Token: 2, Call: 1},
		{Kind: StreamPart, From: 1, To: 2, Token: 1, Call: 2},
		{Kind: StreamPart, From: 1, To: 2, Token: 1, Call: 1, Place: 1},
	} {
		for nonces := range uint64(4) {
			pad := testStreamTags.Pad(&h, 5+nonces&1, 6+nonces>>1)
			if seen[pad] != "" {
				t.Errorf("message %d has a pad twice", i)
			}
			seen[pad] = "seen"
		}
	}
}

// Heads that no message has are refused.
func TestParseStreamHead(t *testing.T) {
	good := StreamHead{Kind: StreamPart, From: 0, To: 1, Token: 1, Bytes: 4}
	for name, tc := range map[string]struct {
		change func(*StreamHead)
		err    error
	}{
		"fine":              {func(*StreamHead) {}, nil},
		"largest":           {func(h *StreamHead) { h.Bytes = PieceSize }, nil},
		"no kind":           {func(h *StreamHead) { h.Kind = 0 }, ErrKind},
		"unknown kind":      {func(h *StreamHead) { h.Kind = StreamBye + 1 }, ErrKind},
		"empty piece":       {func(h *StreamHead) { h.Bytes = 0 }, ErrLength},
		"half a value":      {func(h *StreamHead) { h.Bytes = 6 }, ErrLength},
		"large piece":       {func(h *StreamHead) { h.Bytes = PieceSize + 4 }, ErrLength},
		"long text":         {func(h *StreamHead) { h.Kind, h.Bytes = StreamBye, ByeText+1 }, ErrLength},
		"hello with values": {func(h *StreamHead) { h.Kind, h.Dialled = StreamHello, 1 }, ErrLength},
		"to itself":         {func(h *StreamHead) { h.To = 0 }, ErrFormat},
		"no member":         {func(h *StreamHead) { h.From = MaxMembers }, ErrFormat},
		"to no member":      {func(h *StreamHead) { h.To = MaxMembers }, ErrFormat},
		"no token":          {func(h *StreamHead) { h.Token = 0 }, ErrFormat},
		"nonce in a piece":  {func(h *StreamHead) { h.Dialled = 1 }, ErrFormat},
		"answer in a piece": {func(h *StreamHead) { h.Answered = 1 }, ErrFormat},
		"hello without":     {func(h *StreamHead) { h.Kind, h.Bytes = StreamHello, 0 }, ErrFormat},
		"welcome without":   {func(h *StreamHead) { h.Kind, h.Bytes, h.Dialled = StreamWelcome, 0, 1 }, ErrFormat},
	} {
		h := good
		tc.change(&h)
		b := make([]byte, StreamHeadSize)
		h.Put(b)
		if _, err := ParseStreamHead(b); !errors.Is(err, tc.err) {
			t.Errorf("%s: %v, want %v", name, err, tc.err)
		}
		if _, err := ParseStreamHead(b[:StreamHeadSize-1]); !errors.Is(err, ErrShort) {
			t.Errorf("%s, cut: %v", name, err)
		}
	}
	b := make([]byte, StreamHeadSize)
	good.Put(b)
	for at, want := range map[int]error{0: ErrMagic, 4: ErrVersion} {
		c := bytes.Clone(b)
		c[at]++
		if _, err := ParseStreamHead(c); !errors.Is(err, want) {
			t.Errorf("byte %d changed: %v", at, err)
		}
	}
}

// What is read from the head of a message, put together again, is the head; limits hold.
func FuzzStreamHead(f *testing.F) {
	for kind := StreamHello; kind <= StreamBye; kind++ {
		b := make([]byte, StreamHeadSize)
		(&StreamHead{Kind: kind, To: 1, Token: 1, Bytes: 4}).Put(b)
		f.Add(bytes.Clone(b))
		(&StreamHead{Kind: kind, To: 1, Token: 1, Dialled: 2, Answered: 3}).Put(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseStreamHead(b)
		if err != nil {
			return
		}
		again := make([]byte, StreamHeadSize)
		h.Put(again)
		if !bytes.Equal(again, b[:StreamHeadSize]) {
			t.Fatalf("%x came out as %x", b, again)
		}
		if h.Bytes > PieceSize || h.From >= MaxMembers || h.To >= MaxMembers {
			t.Fatalf("%+v", h)
		}
		testStreamTags.Open(b, &h, b[StreamHeadSize:min(len(b), StreamHeadSize+PieceSize)], 1, 2)
	})
}

func BenchmarkStreamTags(b *testing.B) {
	head, values := make([]byte, StreamHeadSize), make([]byte, PieceSize)
	h := StreamHead{Kind: StreamPart, To: 1, Token: 1, Bytes: PieceSize}
	b.SetBytes(PieceSize)
	for b.Loop() {
		testStreamTags.Seal(head, &h, values, 1, 2)
	}
}
