// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"encoding/hex"
	"math"
	"math/big"
	"net/netip"
	"testing"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

func TestPacketBytes(t *testing.T) {
	got := NewPacket([]byte{1, 2, 3}).Checksum().Bytes
	// IP: 4500 + 001f + 1234 + 4000 + 3d11 + 0a00 + 0001 + 0a00 + 0002 = e867 -> 1798.
	// UDP: 0a00 + 0001 + 0a00 + 0002 + 0011 + 000b + 9c40 + 1bcd + 000b + 0102 + 0300 = d039 -> 2fc6.
	want, _ := hex.DecodeString("020000000002" + "020000000001" + "0800" +
		"4500001f123440003d1117980a0000010a000002" + "9c401bcd000b2fc6" + "010203")
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
	got = NewPacket6([]byte{1, 2, 3, 4}).Checksum().Bytes
	// fd00 + 0001 + fd00 + 0002 + 0011 + 000c + 9c40 + 1bcd + 000c + 0102 + 0304 = 2 b63f -> b641 -> 49be.
	want, _ = hex.DecodeString("020000000002" + "020000000001" + "86dd" +
		"60000000000c113d" + "fd000000000000000000000000000001" + "fd000000000000000000000000000002" + "9c401bcd000c49be" + "01020304")
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}

func TestPacketChanges(t *testing.T) {
	p := NewPacket([]byte("frame"))
	q := p.Clone().Back()
	if !bytes.Equal(q.Bytes[:6], p.Bytes[6:12]) || !bytes.Equal(q.Bytes[26:30], p.Bytes[30:34]) || be.Uint16(q.Bytes[34:]) != 7117 {
		t.Errorf("%x", q.Bytes)
	}
	if !bytes.Equal(q.Clone().Back().Bytes, p.Bytes) {
		t.Error("back and back again")
	}
	r := p.Clone().Ports(1, 2).MACs([6]byte{1}, [6]byte{2}).SetFrame(1, 'l').SetUDP(0, 9).SetIP(1, 7).Set(13, 1).Append('!')
	if string(r.Payload()) != "flame!" || be.Uint16(r.Bytes[34:]) != 0x0901 || r.Bytes[15] != 7 || r.Bytes[13] != 1 || r.Bytes[0] != 2 || r.Bytes[6] != 1 {
		t.Errorf("%x", r.Bytes)
	}
	if !bytes.Equal(PayloadOf(p.Bytes), []byte("frame")) || !bytes.Equal(PayloadOf(NewPacket6([]byte("frame")).Bytes), []byte("frame")) {
		t.Error("payload")
	}
	s := p.Clone().Addresses(netip.MustParseAddrPort("192.0.2.1:5"), netip.MustParseAddrPort("192.0.2.9:6"))
	if !bytes.Equal(s.Bytes[26:38], []byte{192, 0, 2, 1, 192, 0, 2, 9, 0, 5, 0, 6}) {
		t.Errorf("%x", s.Bytes)
	}
	if len(p.Clone().Cut(3).Payload()) != 0 || len(p.Bytes) != 47 {
		t.Error("cut")
	}
}

func TestOracle(t *testing.T) {
	ops := []uint8{wire.OpSum, wire.OpMin, wire.OpMax, wire.OpAnd, wire.OpOr, wire.OpXor, wire.OpSumBound}
	all := Fold(ops,
		Pair{"a", []int64{math.MaxInt64, 4, 4, 0b1100, 0b1100, 0b1100, 1}},
		Pair{"b", []int64{0, 0, 0, 0, 0, 0, 0}},
		Pair{"a", []int64{5, -4, -4, 0b1010, 0b1010, 0b1010, 2}},
	)
	sum := new(big.Int).Add(big.NewInt(math.MaxInt64), big.NewInt(5))
	want := []*big.Int{sum, big.NewInt(-4), big.NewInt(4), big.NewInt(8), big.NewInt(14), big.NewInt(6), big.NewInt(3)}
	if d := Diff(all, map[string][]*big.Int{"a": want, "b": {sum.Sub(sum, sum), sum, sum, sum, sum, sum, sum}}); d == "" {
		t.Error("sum was changed, and no difference seen")
	}
	sum.Add(sum, big.NewInt(math.MaxInt64)).Add(sum, big.NewInt(5))
	zero := big.NewInt(0)
	if d := Diff(all, map[string][]*big.Int{"a": want, "b": {zero, zero, zero, zero, zero, zero, zero}}); d != "" {
		t.Error(d)
	}
	if Diff(all, map[string][]*big.Int{"a": want}) == "" || Diff(map[string][]*big.Int{"a": want}, all) == "" {
		t.Error("a key that only one has")
	}
	if got := Exact(-1, 2).String(); got != "36893488147419103231" { // 2^65 - 1
		t.Error(got)
	}
}

func TestHostIsAKernel(t *testing.T) {
	h := NewHost(Config{Limits: shuffle.Limits{Jobs: 2}, CPUs: 2})
	if err := h.SetJob(2, testTags.Job()); err == nil {
		t.Error("a job beyond the limit")
	}
	for _, l := range []shuffle.TableLayout{{Class: 4, Lanes: 1}, {Lanes: 5}, {Lanes: 0}, {Lanes: 1, Bits: 22}, {Lanes: 1, Bits: -1}} {
		if _, err := h.NewTables(l, 1); err == nil {
			t.Errorf("tables of %v", l)
		}
	}
	one, err := h.NewTables(shuffle.TableLayout{Lanes: 1, Bits: 4}, 2)
	if err != nil || one[0].ID != 0 || one[1].ID != 1 || len(one[0].Memory) != 64+24*24 {
		t.Fatal(one, err)
	}
	// Class and lanes of a vector mean nothing.
	dense, err := h.NewTables(shuffle.TableLayout{Dense: true, Class: 2, Lanes: 2, Bits: 4}, 1)
	if err != nil || dense[0].ID != 1<<24 || len(dense[0].Memory) != 64+128 {
		t.Fatal(dense, err)
	}
	again, err := h.NewTables(shuffle.TableLayout{Lanes: 1, Bits: 4}, 1)
	if err != nil || again[0].ID != 2 {
		t.Fatal(again, err)
	}
	if err := h.FreeTable(one[1]); err != nil {
		t.Error(err)
	}
	if err := h.FreeTable(one[1]); err == nil {
		t.Error("freed twice")
	}
	if len(h.Memory().Cells) != 512 || h.Memory().CPUs != 2 || h.MTU() != 1500 || h.Resumed() || h.Tables() != nil || h.Close() != nil || h.String() == "" {
		t.Error("the rest")
	}
	h.Handle(0, nil)
	if r, err := h.Reasons(); err != nil || r[wire.Foreign] != 1 {
		t.Error(r, err)
	}
}
