// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestSplitsGetWhatTheyNeed(t *testing.T) {
	s, err := ParsePlan(json.RawMessage(`{"total":3,"files":[{"p":"a"},{"p":"b"},{"p":"c"}],"splits":[{"files":[0],"end":9},{"files":[2,1],"end":-1},{"files":[]}]}`))
	if err != nil || s.Len() != 3 {
		t.Fatal(err)
	}
	for i, want := range []string{
		`{"total":3,"files":[{"p":"a"}],"splits":[{"files":[0],"end":9}]}`,
		`{"total":3,"files":[{"p":"c"},{"p":"b"}],"splits":[{"files":[2,1],"end":-1}]}`,
		`{"total":3,"files":null,"splits":[{"files":[]}]}`,
	} {
		if got, err := s.Split(i); err != nil || string(got) != want {
			t.Errorf("split %d: %s, %v", i, got, err)
		}
	}
	for _, i := range []int{-1, 3} {
		if _, err := s.Split(i); err == nil {
			t.Errorf("split %d: no error", i)
		}
	}
	for _, bad := range []string{
		``, `[]`, `{"total":1}`, `{"total":1,"files":[1],"splits":[{"files":[1]}]}`,
		`{"total":1,"files":[1],"splits":[{"files":[-1]}]}`, `{"total":0,"splits":[3]}`,
	} {
		if _, err := ParsePlan(json.RawMessage(bad)); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

func FuzzParsePlan(f *testing.F) {
	f.Add([]byte(`{"total":2,"files":[{"p":"a"},{"p":"b"}],"splits":[{"files":[0,1],"end":9}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParsePlan(b)
		if err != nil {
			return
		}
		for i := range s.Len() {
			if _, err := s.Split(i); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A plan of many splits is cut without reading it again for each.
func BenchmarkSplit(b *testing.B) {
	const n = 10_000
	var files, splits []string
	for i := range n {
		files = append(files, fmt.Sprintf(`{"i":%d,"p":"/data/part-%05d","s":1234567,"t":1700000000000000000,"f":true}`, i, i))
		splits = append(splits, fmt.Sprintf(`{"files":[%d],"end":1234567}`, i))
	}
	s, err := ParsePlan(json.RawMessage(fmt.Sprintf(`{"total":%d,"files":[%s],"splits":[%s]}`, n, strings.Join(files, ","), strings.Join(splits, ","))))
	if err != nil {
		b.Fatal(err)
	}
	i := 0
	for b.Loop() {
		if _, err := s.Split(i % n); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
