// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"pgregory.net/rapid"
)

func TestNearest(t *testing.T) {
	candidates := []string{"wordcount", "count", "grep", "sort", "memory", "min-count"}
	for name, want := range map[string]string{
		"wordcuont": "wordcount",
		"WordCount": "wordcount",
		"coutn":     "count",
		"gerp":      "grep",
		"word":      "wordcount", // a beginning
		"memroy":    "memory",
		"mincount":  "min-count",
		"xylophone": "",
		"":          "",
	} {
		if got := nearest(name, candidates); got != want {
			t.Errorf("nearest(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abc", "bc", 1}, {"kitten", "sitting", 3}, {"ca", "abc", 3}} {
		if got := editDistance(c.a, c.b); got != c.want {
			t.Errorf("editDistance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.StringMatching(`[ab]{0,8}`).Draw(t, "a"), rapid.StringMatching(`[ab]{0,8}`).Draw(t, "b")
		d := editDistance(a, b)
		if d != editDistance(b, a) || (d == 0) != (a == b) || d > max(len(a), len(b)) {
			t.Errorf("editDistance(%q, %q) = %d", a, b, d)
		}
	})
}
