// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/internal/netlab"
)

// built is the executable under test, made once.
var built struct {
	once   sync.Once
	folder string
	err    error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.folder != "" {
		_ = os.RemoveAll(built.folder)
	}
	os.Exit(code)
}

// executable builds quern, or skips the test where there can be no lab.
func executable(t *testing.T) string {
	t.Helper()
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	built.once.Do(func() {
		if built.folder, built.err = os.MkdirTemp("", "quern-chaos-test-"); built.err != nil {
			return
		}
		args := []string{"build", "-o", filepath.Join(built.folder, "quern")}
		if raceDetector {
			args = append(args, "-race")
		}
		out, err := exec.Command("go", append(args, "github.com/quernmr/quern/cmd/quern")...).CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.folder, "quern")
}

// kernelFolds says whether programs can fold here.
func kernelFolds(t *testing.T) bool {
	t.Helper()
	_, err := bpf.SelfTest()
	if err != nil {
		t.Logf("user space folds alone: %v", err)
	}
	return err == nil
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s=%s: %v", name, text, err)
	}
	return n
}

// TestChaos runs scenarios: a few, or as many as QUERN_CHAOS_RUNS says, from seed
// QUERN_CHAOS_SEED on. QUERN_CHAOS_LOGS names a folder where logs are kept.
func TestChaos(t *testing.T) {
	quern := executable(t)
	sample := 3
	if testing.Short() || raceDetector {
		sample = 1
	}
	if os.Getenv("QUERN_LONG") != "" {
		sample = 200
	}
	runs, first := number(t, "QUERN_CHAOS_RUNS", sample), number(t, "QUERN_CHAOS_SEED", 1)
	b, err := NewBench(quern, Programs{userProgram(t), descentProgram(t)}, t.TempDir(), uint64(first))
	if err != nil {
		t.Fatal(err)
	}
	b.Logs = os.Getenv("QUERN_CHAOS_LOGS")
	if b.Logs != "" {
		b.Say = t.Logf
	}
	kernel := kernelFolds(t)
	var failed int
	struck := map[Action]int{}
	var folded, spread, regroups, resumed int64
	for seed := first; seed < first+runs; seed++ {
		s := NewScenario(uint64(seed), kernel)
		report, err := b.Run(t.Context(), s)
		if err != nil {
			failed++
			t.Errorf("%v\n%v\nto repeat: make chaos RUNS=1 SEED=%d", s, err, seed)
			continue
		}
		for a, n := range report.Struck {
			struck[a] += n
		}
		folded += report.Kernel
		spread, regroups, resumed = spread+report.Spread, regroups+report.Regroups, resumed+min(1, report.Resumed)
		t.Logf("%v\n  %v", s, report)
	}
	t.Logf("%d runs, %d failed, events: %v, %d pairs folded in the kernel; given to %d workers by broadcast; members of iterations came together again %d times; %d went on from a state",
		runs, failed, struck, folded, spread, regroups, resumed)
	if runs >= 3 && failed == 0 && (len(struck) == 0 || kernel && folded == 0) {
		t.Errorf("events: %v, %d pairs of the kernel's: both were to be tried", struck, folded)
	}
}
