// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestJoinByHand(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"testdata/customers.txt", "testdata/orders.txt"}, "", &out); err != nil {
		t.Fatal(err)
	}
	const want = "3\tGrace\t1001\t19.90\n" +
		"3\tGrace\t1004\t7.25\n" +
		"7\tAda\t1002\t5.00\n" +
		"7\tAda\t1005\t120.00\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// Several thousand rows against a join of nested loops.
func TestJoinAgainstLoops(t *testing.T) {
	var customers, orders, want []string
	for i := range 300 {
		customers = append(customers, fmt.Sprintf("c%d;name %d", i*7%300, i))
	}
	for i := range 5000 {
		orders = append(orders, fmt.Sprintf("o%d;c%d;%d.%02d", i, i*i%400, i%90, i%100))
	}
	for _, customer := range customers {
		number, name, _ := strings.Cut(customer, ";")
		for _, order := range orders {
			if f := strings.Split(order, ";"); f[1] == number {
				want = append(want, strings.Join([]string{number, name, f[0], f[2]}, "\t"))
			}
		}
	}
	slices.Sort(want)

	dir := t.TempDir()
	c, o, out := filepath.Join(dir, "customers"), filepath.Join(dir, "orders"), filepath.Join(dir, "out")
	for path, lines := range map[string][]string{c: customers, o: orders} {
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(t.Context(), []string{c, o}, out, nil); err != nil {
		t.Fatal(err)
	}
	part, err := os.ReadFile(filepath.Join(out, "part-00000"))
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSuffix(string(part), "\n"), "\n")
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%d rows differ from %d of nested loops", len(got), len(want))
	}
}

func TestErrors(t *testing.T) {
	if err := run(t.Context(), []string{"testdata/customers.txt"}, "", nil); err == nil {
		t.Error("one file alone is accepted")
	}
	err := run(t.Context(), []string{"testdata/orders.txt", "testdata/customers.txt"}, "", &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "orders.txt:1: 3 fields") {
		t.Errorf("files in the wrong order: %v", err)
	}
}
