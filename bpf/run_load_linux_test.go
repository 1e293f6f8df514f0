// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// budgetFile has a line per program: its name, the most instructions that a verifier may
// look at, and how many each kernel's looked at when the file was written. QUERN_UPDATE=1
// writes it anew, with a quarter to spare, from this kernel and the logs that make test-kernels left.
var budgetFile = filepath.Join("testdata", "verifier.tsv")

const kernelLogs = "../.cache/kernels/logs/*/tests.log"

func readBudget(t *testing.T) map[string]uint32 {
	f, err := os.Open(budgetFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	budget := map[string]uint32{}
	s := bufio.NewScanner(f)
	s.Scan() // names of columns
	for s.Scan() {
		f := strings.Split(s.Text(), "\t")
		if len(f) < 2 {
			t.Fatalf("%s: line %q is no name, tab and number", budgetFile, s.Text())
		}
		n, err := strconv.ParseUint(f[1], 10, 32)
		if err != nil {
			t.Fatalf("%s: line %q: %v", budgetFile, s.Text(), err)
		}
		budget[f[0]] = uint32(n)
	}
	return budget
}

var verifiedLine = regexp.MustCompile(`(\w+) +(\d+) verified`)

// writeBudget writes the budget from what kernels looked at.
func writeBudget(t *testing.T, here map[string]uint32) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	short := func(release string) string { return strings.Join(strings.SplitN(release, ".", 3)[:2], ".") }
	kernels := map[string]map[string]uint32{short(unix.ByteSliceToString(uts.Release[:])): here}
	logs, _ := filepath.Glob(kernelLogs)
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]uint32{}
		for _, m := range verifiedLine.FindAllSubmatch(text, -1) {
			n, _ := strconv.ParseUint(string(m[2]), 10, 32)
			counts[string(m[1])] = uint32(n)
		}
		kernels[short(filepath.Base(filepath.Dir(path)))] = counts
	}
	releases := slices.Sorted(maps.Keys(kernels))
	lines := []string{"program\tbudget\t" + strings.Join(releases, "\t")}
	for _, name := range slices.Sorted(maps.Keys(here)) {
		var most uint32
		counts := ""
		for _, r := range releases {
			most = max(most, kernels[r][name])
			counts += fmt.Sprintf("\t%d", kernels[r][name])
		}
		lines = append(lines, fmt.Sprintf("%s\t%d%s", name, (most+most/4+99)/100*100, counts))
	}
	if err := os.WriteFile(budgetFile, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// checkBudget checks what the verifier had to look at for every program that there is: the twins
// have loaded all sets, and those of broadcasts and all-reduces are loaded here. The kernel gives up at a million. The size of tables does not matter.
func checkBudget(t *testing.T, r *rig) {
	withBroadcasts(r)
	withGroups(r)
	all := map[string]*ebpf.Program{}
	for name, p := range r.programs {
		all[name] = p
	}
	for _, s := range r.sets {
		for name, p := range s.programs {
			all[name] = p
		}
	}
	used := map[string]uint32{}
	for name, p := range all {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, ok := info.VerifiedInstructions()
		if !ok {
			t.Skip("this kernel does not tell how many instructions its verifier looked at (5.16 does)")
		}
		used[name] = n
		size, _ := info.JitedSize()
		t.Logf("%-20s %7d verified, %5d bytes", name, n, size)
	}
	if os.Getenv("QUERN_UPDATE") != "" {
		writeBudget(t, used)
	}
	budget := readBudget(t)
	for name, n := range used {
		switch most, ok := budget[name]; {
		case !ok:
			t.Errorf("%s: no budget for %s (QUERN_UPDATE=1 writes one)", budgetFile, name)
		case n > most:
			t.Errorf("the verifier looked at %d instructions of %s; its budget is %d", n, name, most)
		}
	}
	for name := range budget {
		if _, ok := used[name]; !ok {
			t.Errorf("%s: there is no program %s", budgetFile, name)
		}
	}
}
