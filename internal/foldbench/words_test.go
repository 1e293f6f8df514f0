// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/quernmr/quern/shuffle/push"
	"github.com/quernmr/quern/shuffle/receive"
	"github.com/quernmr/quern/shuffle/wire"
)

func TestWords(t *testing.T) {
	if got, want := sentWords(Sent{30_000_000, 1500 * time.Millisecond}), "30000000 pairs in 1.50 s, 20.0 M pairs/s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := pushedWords(&StreamPushed{Report: push.Report{Sent: 526, Retransmitted: 7}}), ", frames 526, again 7"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	s := StreamStats{Stats: receive.Stats{Kernel: [wire.Reasons]uint64{wire.Folded: 9}, Reasons: [wire.Reasons]uint64{wire.Duplicate: 2}, Tables: 3, Runs: 4}, Runs: 99}
	if got, want := statsWords(&s), "kernel: folded 9, user space: duplicate 2, tables made 3, runs written to disk 4"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTripsOnly(t *testing.T) {
	r := Report{tripsOnly: true, Results: []Result{
		{Path: "kernel", Keys: 1000, Condition: Busy, PairsPerSecond: 123.4e6, CPUNsPerPair: 55.5, RTTp50Us: 7},
		{Path: "socket", Keys: 1000, Condition: Busy, PairsPerSecond: 123.4e6, CPUNsPerPair: 111, RTTp50Us: 21},
	}}
	var b strings.Builder
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, unwanted := range []string{"pair", "program", "123.4", "55.5", "111", "2.00 x"} {
		if strings.Contains(b.String(), unwanted) {
			t.Errorf("%q in\n%s", unwanted, b.String())
		}
	}
	if !strings.Contains(b.String(), "3.00 x") || !strings.Contains(b.String(), "21.0") {
		t.Errorf("no round trips in\n%s", b.String())
	}
	r.tripsOnly = false
	b.Reset()
	if err := r.WriteTable(&b); err != nil || strings.Contains(b.String(), " 0.0  21.0") || !strings.Contains(b.String(), "123.4") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// TestMaxKeys holds the bound to what the parts can take.
func TestMaxKeys(t *testing.T) {
	if n := TableBits(MaxKeys); n > maxTableBits {
		t.Errorf("the baseline's table would have 2^%d slots", n)
	}
	if n := Partitions(MaxKeys) + 1; n > streamLimits.Targets {
		t.Errorf("%d targets of %d", n, streamLimits.Targets)
	}
	if _, err := run(t.Context(), Options{Keys: []int{MaxKeys + 1}}, nil); err == nil {
		t.Error("no error for more keys")
	}
}

// TestStop ends a role in the middle of a call, as a signal does: it closes what it has open.
func TestStop(t *testing.T) {
	linux(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := openStreams(ctx, here(t), here(t), "", Config{Keys: 10_000, Trips: 10})
	if err != nil {
		t.Fatal(err)
	}
	if len(foldersIn(t, temp)) != 1 || len(foldersIn(t, s.(*streamSession).folder.Path())) != 1 {
		t.Errorf("folders %q", foldersIn(t, temp))
	}
	time.AfterFunc(200*time.Millisecond, cancel)
	if _, err := s.bulk(ctx, 1<<40); err == nil {
		t.Error("the push went on")
	}
	began := time.Now()
	_ = s.self().send.Close()
	_ = s.self().receive.Close()
	if took := time.Since(began); took > stopTime-time.Second {
		t.Errorf("the roles did not end by themselves: %v", took)
	}
	if left := foldersIn(t, s.(*streamSession).folder.Path()); len(left) != 0 {
		t.Errorf("a role left %q", left)
	}
	if err := s.(*streamSession).folder.Close(); err != nil {
		t.Error(err)
	}
	if left := foldersIn(t, temp); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
}

func foldersIn(t *testing.T, path string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}
