// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"
)

func read(t *testing.T, kind resultKind, f form, text string) digest {
	t.Helper()
	d, err := digestRows(strings.NewReader(text), kind, f)
	if err != nil {
		t.Fatalf("%.80q: %v", text, err)
	}
	return d
}

func TestCompareResults(t *testing.T) {
	long := strings.Repeat("x", 3<<20) // longer than the reader's buffer
	tests := []struct {
		name         string
		kind         resultKind
		form1, form2 form
		text1, text2 string
		differs      string // part of the message; "": they are equal
	}{
		{"any order", lineCounts, plainTab, plainTab, "a\t1\nb\t2\n", "b\t2\na\t1", ""},
		{"other form", lineCounts, escapedTab, uniqCount, "a b\t12\nb\t2\n", "     12 a b\n      2 b\n", ""},
		{"escapes", lineCounts, escapedTab, plainTab, "a\\\\n\t1\nd\\re\t3\n", "a\\n\t1\nd\re\t3\n", ""},
		{"escaped tab", lineCounts, escapedTab, uniqCount, "b\\tc\t2\n", "2 b\tc\n", ""},
		{"long key", lineCounts, escapedTab, plainTab, long + "\t1\ny\t2\n", "y\t2\n" + long + "\t1\n", ""},
		{"nothing", wordCounts, escapedTab, plainTab, "", "", ""},
		{"words that one tool did not cut", wordCounts, escapedTab, plainTab, "a\t3\nb\t1\n", "a\u00a0b\t1\na\t1\n\f\t7\na\f\t1\n", ""},
		{"a count", lineCounts, plainTab, plainTab, "a\t1\nb\t2\n", "a\t1\nb\t3\n", "3 pairs and 4"},
		{"counts swapped", lineCounts, plainTab, plainTab, "a\t1\nb\t2\n", "a\t2\nb\t1\n", "not the same count for every key"},
		{"a key", lineCounts, plainTab, plainTab, "a\t1\n", "A\t1\n", "not the same count for every key"},
		{"temperatures", minMeanMax, plainTab, plainTab, "a\t-1.5\t2.0000001\t3\n", "a\t2\t-1.5\t3.0\n", ""},
		{"a mean", minMeanMax, plainTab, plainTab, "a\t-1.5\t2.01\t3\n", "a\t-1.5\t2\t3.0\n", `station "a"`},
		{"a station", minMeanMax, plainTab, plainTab, "a\t1\t2\t3\n", "", "1 stations and 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			why := read(t, tt.kind, tt.form1, tt.text1).differs(read(t, tt.kind, tt.form2, tt.text2))
			if (why == "") != (tt.differs == "") || !strings.Contains(why, tt.differs) {
				t.Errorf("differs: %q, want %q", why, tt.differs)
			}
		})
	}
}

func TestBadRows(t *testing.T) {
	tests := []struct {
		name string
		kind resultKind
		form form
		text string
		want string
	}{
		{"no tab", lineCounts, plainTab, "a 1\n", "line 1"},
		{"no count", lineCounts, plainTab, "a\t1\nb\tx\n", "line 2"},
		{"unknown escape", lineCounts, escapedTab, "a\\x\t1\n", "line 1"},
		{"open escape", lineCounts, escapedTab, "a\\\t1\n", "line 1"},
		{"key twice", lineCounts, escapedTab, "a\t1\na\t1\n", `key "a" does not come after "a"`},
		{"not in order", lineCounts, escapedTab, "b\t1\na\t1\n", `key "a" does not come after "b"`},
		{"two temperatures", minMeanMax, plainTab, "a\t1\t2\n", "2 values"},
		{"no temperature", minMeanMax, plainTab, "a\t1\t2\tx\n", "line 1"},
		{"station twice", minMeanMax, plainTab, "a\t1\t2\t3\na\t1\t2\t3\n", "twice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := digestRows(strings.NewReader(tt.text), tt.kind, tt.form)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func FuzzDigestRows(f *testing.F) {
	f.Add("a\\tb\t1\n", uint8(1), uint8(1))
	f.Add("  12 a b\n", uint8(0), uint8(2))
	f.Add("a\t1\t2\t3\n", uint8(2), uint8(0))
	f.Fuzz(func(t *testing.T, text string, kind, form1 uint8) {
		d, err := digestRows(strings.NewReader(text), resultKind(kind%3), form(form1%3))
		if err == nil && d.rows > int64(strings.Count(text, "\n"))+1 {
			t.Errorf("%d rows in %q", d.rows, text)
		}
		if err != nil && errors.Unwrap(err) == nil && !strings.Contains(err.Error(), "does not come after") {
			t.Errorf("an error of its own: %v", err)
		}
	})
}
