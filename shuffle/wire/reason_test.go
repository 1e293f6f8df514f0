// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every reason has a name of its own, docs/protocol.md explains it, and quern.h has it in this order.
func TestReasonsAreExplained(t *testing.T) {
	doc, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	header, err := os.ReadFile("../../bpf/c/quern.h")
	if err != nil {
		t.Fatal(err)
	}
	var inC []string
	for _, m := range regexp.MustCompile(`(?m)^\tQUERN_R_(\w+)( = 0)?,`).FindAllStringSubmatch(string(header), -1) {
		inC = append(inC, strings.ToLower(strings.ReplaceAll(m[1], "_", "-")))
	}
	var names []string
	for r := range Reasons {
		name := r.String()
		if slices.Contains(names, name) || name == "" {
			t.Errorf("reason %d is called %q", r, name)
		}
		names = append(names, name)
		if !strings.Contains(string(doc), "\n| "+name+" |") && !strings.Contains(string(doc), "\n| *"+name+"* |") {
			t.Errorf("docs/protocol.md does not explain %s", name)
		}
	}
	if !slices.Equal(inC, names) {
		t.Errorf("quern.h has %v\nand Go has %v", inC, names)
	}
	if Reasons.String() != "unknown" {
		t.Error(Reasons.String())
	}
}
