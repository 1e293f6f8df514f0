// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Addresses at both ends of ranges and beside them, of both versions.
func TestByHand(t *testing.T) {
	const want = "??\t3\t11\nXA\t2\t612\nXB\t3\t5000000001\nXC\t1\t40\nXD\t1\t200\n"
	var out bytes.Buffer
	if err := run(t.Context(), []string{"testdata/access.log"}, "testdata/ranges.txt", "", &out); err != nil {
		t.Fatal(err)
	}
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	dir := filepath.Join(t.TempDir(), "out")
	if err := run(t.Context(), []string{"testdata/access.log"}, "testdata/ranges.txt", dir, nil); err != nil {
		t.Fatal(err)
	}
	if part, err := os.ReadFile(filepath.Join(dir, "part-00000")); err != nil || string(part) != want {
		t.Errorf("got %q, %v", part, err)
	}
}

// Random tables against a walk over all ranges.
func TestFindAgainstWalk(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		type span struct {
			first, last uint32
			country     string
		}
		var spans []span
		var text strings.Builder
		for at := rnd.Uint64N(5); at < 1000; at += 1 + rnd.Uint64N(30) {
			s := span{uint32(at), uint32(at + rnd.Uint64N(20)), string([]byte{'A' + byte(rnd.IntN(26)), 'Z'})}
			at = uint64(s.last)
			spans = append(spans, s)
			fmt.Fprintf(&text, "%08x %08x %s\n", s.first, s.last, s.country)
		}
		table, err := check([]byte(text.String()))
		if err != nil {
			t.Fatal(err)
		}
		for n := range uint32(1100) {
			want := "??"
			for _, s := range spans {
				if s.first <= n && n <= s.last {
					want = s.country
				}
			}
			var ip [4]byte
			binary.BigEndian.PutUint32(ip[:], n)
			if got := table.find(netip.AddrFrom4(ip)); string(got) != want {
				t.Fatalf("%d: %s, want %s", n, got, want)
			}
		}
	}
}

func TestFindAllocatesNothing(t *testing.T) {
	text, err := os.ReadFile("testdata/ranges.txt")
	if err != nil {
		t.Fatal(err)
	}
	table, err := check(text)
	if err != nil {
		t.Fatal(err)
	}
	address := netip.MustParseAddr("198.51.100.200")
	if n := testing.AllocsPerRun(100, func() { table.find(address) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestErrors(t *testing.T) {
	good, row := "192.0.2.1 / 1\n", "c0000200 c00002ff XA\n"
	for name, c := range map[string]struct{ log, table, want string }{
		"fields":    {"192.0.2.1 /\n", row, "in.log:1: 2 fields"},
		"address":   {good + "192.0.2 / 1\n", row, "in.log:2: ParseAddr"},
		"bytes":     {good + "192.0.2.1 / -1\n", row, "in.log:2: a negative number"},
		"cut off":   {good, row[:20], `side input "ranges": its 20 bytes are no lines of 21`},
		"no table":  {good, "c0000200,c00002ff,XA\n", `side input "ranges": line 1: "c0000200,c00002ff,XA\n": want FIRST LAST`},
		"backwards": {good, "c00002ff c0000200 XA\n", `side input "ranges": line 1: "c00002ff c0000200 XA\n": the last`},
		"unsorted":  {good, row + row, `side input "ranges": line 2: "c0000200 c00002ff XA\n": it does not follow line 1`},
	} {
		dir := t.TempDir()
		in, ranges := filepath.Join(dir, "in.log"), filepath.Join(dir, "ranges.txt")
		for path, text := range map[string]string{in: c.log, ranges: c.table} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		err := run(t.Context(), []string{in}, ranges, "", &out)
		if err == nil || !strings.Contains(err.Error(), c.want) || out.Len() != 0 {
			t.Errorf("%s: error %v, standard output %q", name, err, out.String())
		}
	}
}

func FuzzTable(f *testing.F) {
	f.Add([]byte("c0000200 c00002ff XA\n"), []byte{192, 0, 2, 1})
	f.Fuzz(func(t *testing.T, text, ip []byte) {
		table, err := check(text)
		address, ok := netip.AddrFromSlice(ip)
		if err == nil && ok && len(table.find(address)) != 2 {
			t.Errorf("%q: %v", text, address)
		}
	})
}
