// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"math/big"
	"os"
	"strings"
	"testing"

	"github.com/dchest/siphash"
	"github.com/quernmr/quern/shuffle/pairs"
	"pgregory.net/rapid"
)

// The vector of SipHash's authors: key 00 01 ... 0f, message 00 01 ... 0f.
func TestPadIsSipHash(t *testing.T) {
	tags := TagsOf(&Job{Sip0: 0x0706050403020100, Sip1: 0x0f0e0d0c0b0a0908})
	got := tags.Pad(0x0706050403020100, 0x0f, 0x0e, 0x0d0c0b0a0908)
	if want := uint64(0x3f2acc7f57c29bdb); got != want {
		t.Errorf("%#x, not %#x", got, want)
	}
}

func TestKeysFromSecret(t *testing.T) {
	var secret [16]byte
	for i := range secret {
		secret[i] = byte(i)
	}
	job := NewTags(secret).Job()
	of := func(label byte, i byte) uint64 {
		m := make([]byte, 16)
		m[0], m[8] = label, i
		return siphash.Hash(0x0706050403020100, 0x0f0e0d0c0b0a0908, m)
	}
	if job.Sip0 != of('p', 0) || job.Sip1 != of('p', 1) {
		t.Error("keys of the pad")
	}
	for i, k := range job.NH {
		if k != of('n', byte(i)) {
			t.Errorf("word %d of NH's key", i)
		}
	}
}

// NH over a frame with a key that is zero but for a few words, by hand.
func TestTagByHand(t *testing.T) {
	job := Job{}
	frame := make([]byte, 128)
	h := Head{Magic: Magic, Version: 1, Kind: Data, Shape: 0, Count: 1, Length: 64, Token: 3, Stream: 5, Seq: 7, Back: 2}
	h.Put(frame)
	copy(frame[64:], []byte{0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0}) // words 2^32 - 1 and 2
	copy(frame[120:], []byte{10, 0, 0, 0, 20, 0, 0, 0})
	tags := TagsOf(&job)
	pad := tags.Pad(3, Data, 0, 2<<16|7)
	// With no key: magic x (kind | count << 16 | version << 24), token 3 x 0, 5 x 7, 2 x 64, then the body.
	want := uint64(0x314e5251)*0x01010001 + 0 + 35 + 128 + 0xffffffff*2 + 200
	if got := tags.Tag(frame, Nonce(2, 7)) - pad; got != want {
		t.Errorf("no key: %#x, not %#x", got, want)
	}
	// Word 8 of the key, 1, makes 2^32 - 1 wrap to 0; word 9, 5, makes 2 into 7.
	tags.job.NH[4] = 1 | 5<<32
	// The body's last 8 bytes meet words 22 and 23.
	tags.job.NH[11] = 90 | 1<<32
	want = uint64(0x314e5251)*0x01010001 + 35 + 128 + 0*7 + 100*21
	if got := tags.Tag(frame, Nonce(2, 7)) - pad; got != want {
		t.Errorf("with a key: %#x, not %#x", got, want)
	}
}

// The tag as docs/protocol.md defines it, in big integers.
func plainTag(frame []byte, job *Job, nonce uint64) uint64 {
	length := int(frame[28]) | int(frame[29])<<8
	m := append(append([]byte{}, frame[:32]...), frame[64:64+length]...)
	sum := new(big.Int)
	word := func(b []byte) *big.Int {
		return new(big.Int).SetUint64(uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24)
	}
	two32 := new(big.Int).Lsh(big.NewInt(1), 32)
	for j := 0; j < len(m)/8; j++ {
		k := job.NH[j]
		lo := new(big.Int).Add(word(m[8*j:]), new(big.Int).SetUint64(k&0xffffffff))
		hi := new(big.Int).Add(word(m[8*j+4:]), new(big.Int).SetUint64(k>>32))
		sum.Add(sum, lo.Mod(lo, two32).Mul(lo, hi.Mod(hi, two32)))
	}
	var p [16]byte
	copy(p[:8], frame[8:16])
	for i := range 6 {
		p[8+i] = byte(nonce >> (8 * i))
	}
	p[14], p[15] = frame[49], frame[4]
	sum.Add(sum, new(big.Int).SetUint64(siphash.Hash(job.Sip0, job.Sip1, p[:])))
	return sum.Mod(sum, new(big.Int).Lsh(big.NewInt(1), 64)).Uint64()
}

func TestTagIsAsDefined(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tags := NewTags([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "secret")))
		steps := rapid.IntRange(0, BodySize/BodyStep).Draw(t, "steps")
		frame := rapid.SliceOfN(rapid.Byte(), HeadSize+steps*BodyStep, HeadSize+steps*BodyStep).Draw(t, "frame")
		le.PutUint16(frame[28:], uint16(steps*BodyStep))
		nonce := rapid.Uint64Range(0, 1<<48-1).Draw(t, "nonce")
		want := plainTag(frame, tags.Job(), nonce)
		if got := tags.Tag(frame, nonce); got != want {
			t.Fatalf("%#x, not %#x", got, want)
		}
		tags.Seal(frame, nonce)
		if le.Uint64(frame[32:]) != want || !tags.Open(frame, nonce) {
			t.Fatal("a sealed frame does not open")
		}
	})
}

// Every bit under the tag counts, and no other.
func TestTagCoversHeadAndBody(t *testing.T) {
	tags := NewTags([16]byte{1, 2, 3})
	frame := make([]byte, FrameSize)
	for i := range frame {
		frame[i] = byte(i * 7)
	}
	h := Head{Magic: Magic, Version: 1, Kind: Data, Shape: 0, Count: 86, Length: BodySize, Token: 9, Seq: 5, Back: 77}
	h.Put(frame)
	tags.SealData(frame)
	for i := range frame {
		for bit := range 8 {
			frame[i] ^= 1 << bit
			free := i >= 40 && i < 64 && i != offHop
			if got := tags.OpenData(frame); got != free {
				t.Errorf("byte %d, bit %d changed: %v", i, bit, got)
			}
			frame[i] ^= 1 << bit
		}
	}
	if tags.Open(frame, Nonce(77, 6)) || tags.Open(frame, Nonce(78, 5)) || NewTags([16]byte{1, 2, 4}).OpenData(frame) {
		t.Error("another nonce or key opens it")
	}
}

func TestNonce(t *testing.T) {
	if got := Nonce(0xffffffff, 4095); got != 0xffffffff0fff || got>>48 != 0 {
		t.Errorf("%#x", got)
	}
	if got := Nonce(1, 2); got != 0x10002 {
		t.Errorf("%#x", got)
	}
}

func TestOpenOfShortFrames(t *testing.T) {
	tags := NewTags([16]byte{})
	frame := make([]byte, 1<<17)
	for _, c := range []struct {
		length uint16
		n      int
	}{{64, 127}, {0, 63}, {0, 0}, {1408, FrameSize}, {1408, 2000}, {0xffff, 1 << 17}, {0xffe0, 1 << 17}} {
		le.PutUint16(frame[28:], c.length)
		if tags.Open(frame[:c.n], 0) || tags.OpenData(frame[:c.n]) {
			t.Errorf("length %d in %d bytes opened", c.length, c.n)
		}
	}
	le.PutUint16(frame[28:], 40)
	tags.Seal(frame[:128], 5)
	if tags.Open(frame[:128], 5) {
		t.Error("a length that no frame has opened")
	}
}

// The hash as docs/protocol.md defines it.
func plainHash(s pairs.Seed, key []byte) uint64 {
	word := func(i int) *big.Int {
		v := new(big.Int)
		for j := 7; j >= 0; j-- {
			v.Lsh(v, 8)
			if i+j < len(key) {
				v.Add(v, big.NewInt(int64(key[i+j])))
			}
		}
		return v
	}
	mask := new(big.Int).SetUint64(^uint64(0))
	u := func(v uint64) *big.Int { return new(big.Int).SetUint64(v) }
	mul := func(a, b *big.Int) (hi, lo *big.Int) {
		p := new(big.Int).Mul(a, b)
		return new(big.Int).Rsh(p, 64), new(big.Int).And(p, mask)
	}
	xor := func(a, b *big.Int) *big.Int { return new(big.Int).Xor(a, b) }
	end := func(x *big.Int) uint64 {
		h := new(big.Int).Mul(x, u(0xff51afd7ed558ccd))
		h.And(h, mask)
		return xor(h, new(big.Int).Rsh(h, 32)).Uint64()
	}
	n := len(key)
	if n <= 16 {
		hi, lo := mul(xor(word(0), u(s.A)), xor(xor(word(8), u(s.B)), u(uint64(n)<<56)))
		return end(xor(hi, lo))
	}
	a, b := u(s.A), xor(u(s.B), u(uint64(n)))
	for i := 0; i+16 < n; i += 16 {
		hi, lo := mul(xor(word(i), a), xor(word(i+8), b))
		a = xor(xor(hi, lo), u(s.A))
		sum := new(big.Int).Add(hi, lo)
		b = xor(sum.And(sum, mask), u(s.B))
		high := new(big.Int).Rsh(a, 64-23)
		a = new(big.Int).And(new(big.Int).Lsh(a, 23), mask)
		a.Or(a, high)
	}
	hi, lo := mul(xor(word(n-16), a), xor(word(n-8), b))
	return end(xor(xor(hi, lo), a))
}

func TestHashIsAsDefined(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := pairs.Seed{A: rapid.Uint64().Draw(t, "a"), B: rapid.Uint64().Draw(t, "b")}
		key := rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "key")
		if got, want := s.HashBytes(key), plainHash(s, key); got != want {
			t.Fatalf("%x: %#x, not %#x", key, got, want)
		}
	})
}

// The example of docs/protocol.md, for whoever writes this anew.
func TestExampleOfTheProtocol(t *testing.T) {
	var secret [16]byte
	for i := range secret {
		secret[i] = byte(i)
	}
	seed := pairs.Seed{A: 0x1111111111111111, B: 0x2222222222222222}
	var b Builder
	b.Reset(make([]byte, FrameSize), Keyed(0, 1, false))
	for _, p := range []struct {
		key string
		v   int64
	}{{"the", 7}, {"quern", -1}} {
		if !b.Add(seed.HashBytes([]byte(p.key)), []byte(p.key), []int64{p.v}) {
			t.Fatal(b.Err())
		}
	}
	frame := b.Finish(Head{Token: 0x0123456789abcdef, Stream: 3, Seq: 1, Back: 2, Stamp: 5, Flags: FlagWantAck}, NewTags(secret))
	doc, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(bytes.ReplaceAll(bytes.ReplaceAll(doc, []byte(" "), nil), []byte("\n"), nil))
	if !strings.Contains(text, hex.EncodeToString(frame)) {
		var lines strings.Builder
		for i := 0; i < len(frame); i += 16 {
			lines.WriteString("    " + hex.EncodeToString(frame[i:i+8]) + " " + hex.EncodeToString(frame[i+8:i+16]) + "\n")
		}
		t.Errorf("docs/protocol.md lacks this frame:\n%s", lines.String())
	}
}
