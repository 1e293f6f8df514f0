// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Means by hand: (18.0 - 23.0 + 59.2) / 3 = 18.0666..., (0.3 - 0.4) / 2 = -0.05.
func TestByHand(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"testdata"}, "", &out); err != nil {
		t.Fatal(err)
	}
	if want := "{Abha=-23.0/18.1/59.2, Zürich=-0.4/0.0/0.3}\n"; out.String() != want {
		t.Errorf("got %s, want %s", out.String(), want)
	}

	dir := filepath.Join(t.TempDir(), "out")
	if err := run(t.Context(), []string{"testdata"}, dir, nil); err != nil {
		t.Fatal(err)
	}
	part, err := os.ReadFile(filepath.Join(dir, "part-00000"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "Abha\t-23.0\t18.1\t59.2\nZürich\t-0.4\t0.0\t0.3\n"; string(part) != want {
		t.Errorf("got %q, want %q", part, want)
	}
}

func TestNoRows(t *testing.T) {
	in := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(in, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{in}, "", &out); err != nil || out.String() != "{}\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

// Random rows against sums in a map.
func TestAgainstMap(t *testing.T) {
	type sums struct{ min, max, sum, n int64 }
	rnd := rand.New(rand.NewPCG(3, 4))
	stations := map[string]*sums{}
	var text strings.Builder
	for range 20_000 {
		name, v := fmt.Sprintf("Station %d", rnd.IntN(50)), rnd.Int64N(1999)-999
		fmt.Fprintf(&text, "%s;%.1f\n", name, float64(v)/10)
		s := stations[name]
		if s == nil {
			s = &sums{min: v, max: v}
			stations[name] = s
		}
		s.min, s.max, s.sum, s.n = min(s.min, v), max(s.max, v), s.sum+v, s.n+1
	}
	var rows []string
	for _, name := range slices.Sorted(maps.Keys(stations)) {
		s := stations[name]
		mean := (2*s.sum + s.n) / (2 * s.n) // rounded: halves up
		if (2*s.sum+s.n)%(2*s.n) < 0 {
			mean--
		}
		rows = append(rows, fmt.Sprintf("%s=%.1f/%.1f/%.1f", name, float64(s.min)/10, float64(mean)/10+0, float64(s.max)/10))
	}
	in := filepath.Join(t.TempDir(), "in.txt")
	if err := os.WriteFile(in, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{in}, "", &out); err != nil {
		t.Fatal(err)
	}
	if want := "{" + strings.Join(rows, ", ") + "}\n"; out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		line, station string
		tenths        int64
		ok            bool
	}{
		{"Abha;-23.0", "Abha", -230, true},
		{"Abha;0.0", "Abha", 0, true},
		{"a;b;7.5", "a;b", 75, true},
		{";1.0", "", 10, true},
		{"x;99999999999999999.9", "x", 999999999999999999, true},
		{"x;100000000000000000.0", "", 0, false},
		{"x;12", "", 0, false},
		{"x;1.25", "", 0, false},
		{"x;.5", "", 0, false},
		{"x;-.5", "", 0, false},
		{"x;--1.5", "", 0, false},
		{"x1.5", "", 0, false},
		{"1.5", "", 0, false},
		{"-1.5", "", 0, false},
		{"", "", 0, false},
	} {
		station, tenths, ok := parse([]byte(c.line))
		if ok != c.ok || ok && (string(station) != c.station || tenths != c.tenths) {
			t.Errorf("%q: %q, %d, %v", c.line, station, tenths, ok)
		}
	}
}

// What is written as a line reads back equal.
func TestParseReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		station := rapid.String().Draw(t, "station")
		tenths := rapid.Int64Range(-999_999_999_999_999_999, 999_999_999_999_999_999).Draw(t, "tenths")
		got, n, ok := parse([]byte(station + ";" + degrees(tenths)))
		if !ok || string(got) != station || n != tenths {
			t.Fatalf("%q, %d, %v", got, n, ok)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"Abha;-23.0", "x;1.", ";0.0", "x;-.5"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		station, _, ok := parse(line)
		if ok && !bytes.HasPrefix(line, append(bytes.Clone(station), ';')) {
			t.Errorf("%q: station %q", line, station)
		}
	})
}

func TestBadLine(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.txt")
	if err := os.WriteFile(in, []byte("a;1.0\nb;one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := run(t.Context(), []string{in}, "", &out)
	if err == nil || !strings.Contains(err.Error(), in+":2:") || out.Len() != 0 {
		t.Errorf("got %v, %q", err, out.String())
	}
}
