// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Ann's third hit comes exactly 30 minutes after her second and her fourth 30
// minutes and a second after that; Ben's second is written in another time zone.
func TestSessionsByHand(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"testdata"}, 30*time.Minute, "", &out); err != nil {
		t.Fatal(err)
	}
	const want = "ann\t2026-03-01T09:00:00Z\t2026-03-01T09:59:59Z\t3\t/home\n" +
		"ann\t2026-03-01T10:30:00Z\t2026-03-01T10:30:00Z\t1\t/home\n" +
		"ben\t2026-03-01T10:00:00Z\t2026-03-01T10:05:00Z\t2\t/news\n" +
		"ben\t2026-03-01T23:50:00Z\t2026-03-02T00:10:00Z\t2\t/late\n" +
		"cat\t2026-03-01T10:00:00Z\t2026-03-01T10:00:00Z\t1\t/home\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// Random hits, shuffled over two files, against sorted slices in plain Go.
func TestSessionsAgainstSlices(t *testing.T) {
	type visit struct {
		user string
		at   time.Time
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	from := time.Date(1969, 12, 31, 20, 0, 0, 0, time.UTC) // so that some lie before 1970
	var visits []visit
	for i := range 3000 {
		visits = append(visits, visit{fmt.Sprintf("u%02d", rnd.IntN(40)), from.Add(time.Duration(i) * 17 * time.Second)})
	}
	rnd.Shuffle(len(visits), func(i, j int) { visits[i], visits[j] = visits[j], visits[i] })
	var logs [2]strings.Builder
	for i, v := range visits {
		fmt.Fprintf(&logs[i%2], "%s %s /\n", v.at.Format(time.RFC3339), v.user)
	}
	dir := t.TempDir()
	var inputs []string
	for i := range logs {
		inputs = append(inputs, filepath.Join(dir, fmt.Sprint(i)))
		if err := os.WriteFile(inputs[i], []byte(logs[i].String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	slices.SortFunc(visits, func(a, b visit) int {
		return cmp.Or(cmp.Compare(a.user, b.user), a.at.Compare(b.at))
	})
	const gap = 20 * time.Minute
	var want strings.Builder
	for i := 0; i < len(visits); {
		j := i + 1
		for j < len(visits) && visits[j].user == visits[i].user && visits[j].at.Sub(visits[j-1].at) <= gap {
			j++
		}
		fmt.Fprintf(&want, "%s\t%s\t%s\t%d\t/\n", visits[i].user, visits[i].at.Format(time.RFC3339), visits[j-1].at.Format(time.RFC3339), j-i)
		i = j
	}

	out := filepath.Join(dir, "out")
	if err := run(t.Context(), inputs, gap, out, nil); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(out, "part-00000"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want.String() {
		t.Errorf("got\n%.300s\nwant\n%.300s", got, want.String())
	}
}

func TestBadLines(t *testing.T) {
	for name, line := range map[string]string{"fields": "2026-03-01T10:00:00Z ben", "time": "yesterday ben /"} {
		in := filepath.Join(t.TempDir(), "in.log")
		if err := os.WriteFile(in, []byte("2026-03-01T10:00:00Z ben /\n"+line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := run(t.Context(), []string{in}, time.Minute, "", &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), in+":2:") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
