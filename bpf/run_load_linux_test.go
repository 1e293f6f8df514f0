// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

// budgetFile has a line per program: its name and the most instructions that the
// verifier may look at. QUERN_UPDATE=1 writes it anew, with a quarter to spare, since
// kernels differ.
var budgetFile = filepath.Join("testdata", "verifier.tsv")

func readBudget(t *testing.T) map[string]uint32 {
	f, err := os.Open(budgetFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	budget := map[string]uint32{}
	for s := bufio.NewScanner(f); s.Scan(); {
		name, number, ok := strings.Cut(s.Text(), "\t")
		n, err := strconv.ParseUint(number, 10, 32)
		if !ok || err != nil {
			t.Fatalf("%s: line %q is no name, tab and number", budgetFile, s.Text())
		}
		budget[name] = uint32(n)
	}
	return budget
}

// checkBudget checks what the verifier had to look at for every program that there is: the twins
// have loaded all sets. The kernel gives up at a million. The size of tables does not matter.
func checkBudget(t *testing.T, r *rig) {
	all := map[string]*ebpf.Program{}
	for name, p := range r.programs {
		all[name] = p
	}
	for _, s := range r.sets {
		for name, p := range s.programs {
			all[name] = p
		}
	}
	var lines []string
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
		lines = append(lines, fmt.Sprintf("%s\t%d", name, (n+n/4+99)/100*100))
		t.Logf("%-20s %7d verified, %5d bytes", name, n, size)
	}
	if os.Getenv("QUERN_UPDATE") != "" {
		slices.Sort(lines)
		if err := os.WriteFile(budgetFile, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
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
