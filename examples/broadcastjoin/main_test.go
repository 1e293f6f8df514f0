// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTurnoverByHand(t *testing.T) {
	var out bytes.Buffer
	unknown, err := run(t.Context(), []string{"testdata/sales.txt"}, "testdata/prices.txt", "", &out)
	if err != nil {
		t.Fatal(err)
	}
	// 3 x 250 + 6 x 45 = 1020; 2 x 119 + 239 = 477; nobody knows what a candle costs.
	if want := "bakery\t1020\ndairy\t477\n"; out.String() != want || unknown != 1 {
		t.Errorf("got\n%sand %d unknown, want\n%sand 1", out.String(), unknown, want)
	}
}

// Some thousand sales against a loop.
func TestTurnoverAgainstALoop(t *testing.T) {
	var prices, sales []string
	cents, category, want, unsold := map[string]int64{}, map[string]string{}, map[string]int64{}, int64(0)
	for i := range 400 {
		name := fmt.Sprintf("p%d", i*3)
		cents[name], category[name] = int64(i*i%977), fmt.Sprintf("c%d", i%7)
		prices = append(prices, fmt.Sprintf("%s;%s;%d", name, category[name], cents[name]))
	}
	for i := range 20_000 {
		name, pieces := fmt.Sprintf("p%d", i*i%1500), int64(i%11-2)
		sales = append(sales, fmt.Sprintf("%d;%s;%d", i, name, pieces))
		if _, ok := cents[name]; !ok {
			unsold++
			continue
		}
		want[category[name]] += pieces * cents[name]
	}
	var rows []string
	for _, c := range slices.Sorted(maps.Keys(want)) {
		rows = append(rows, fmt.Sprintf("%s\t%d\n", c, want[c]))
	}

	dir := t.TempDir()
	p, s := filepath.Join(dir, "prices"), filepath.Join(dir, "sales")
	for path, lines := range map[string][]string{p: prices, s: sales} {
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	unknown, err := run(t.Context(), []string{s}, p, "", &out)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != strings.Join(rows, "") || unknown != unsold || unsold == 0 {
		t.Errorf("got\n%sand %d unknown, want\n%sand %d", out.String(), unknown, strings.Join(rows, ""), unsold)
	}
}

func TestErrors(t *testing.T) {
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const sales, prices = "testdata/sales.txt", "testdata/prices.txt"
	for _, c := range []struct {
		name, sales, prices string
		want                []string
	}{
		{"no price", sales, file("bread;bakery;250\nroll;bakery\n"), []string{"prices", "line 2", "want product;category;cents"}},
		{"two prices", sales, file("a;b;1\nc;d;2\na;b;3\n"), []string{"prices", "line 3", `"a" has a price already`}},
		{"no list", sales, "testdata/nothing", []string{"prices", "testdata/nothing"}},
		{"no sale", file("1;bread;2\nbread\n"), prices, []string{"file:2:", "want sale;product;pieces"}},
	} {
		_, err := run(t.Context(), []string{c.sales}, c.prices, "", &bytes.Buffer{})
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in: %v", c.name, want, err)
			}
		}
	}
}
