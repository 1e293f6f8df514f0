// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestJoin(t *testing.T) {
	users := write(t, "users.csv", "id,name\n1,Ada\n2,Bob\n3,Cy\n2,Bo\n")
	visits := write(t, "visits.csv", "page,user,name\n/a,2,x\n/b,1,y\n/c,9,z\n/d,1,\n/e,2,w\n")
	usersJSON := write(t, "users.jsonl", `{"id":1,"name":"Ada"}`+"\n"+`{"id":null,"name":"?"}`+"\n"+`{"id":3}`+"\n")
	visitsJSON := write(t, "visits.jsonl", `{"u":{"id":1},"page":"/a"}`+"\n"+`{"page":"/b"}`+"\n")
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{
			"inner",
			[]string{"--left-on", "id", "--right-on", "user", users, visits},
			[]string{"1\tAda\t/b\ty", "1\tAda\t/d\t", "2\tBo\t/a\tx", "2\tBo\t/e\tw", "2\tBob\t/a\tx", "2\tBob\t/e\tw"},
		},
		{
			"left",
			[]string{"--left-on", "id", "--right-on", "user", "--type", "left", "--right-columns", "page", users, visits},
			[]string{"1\tAda\t/b", "1\tAda\t/d", "2\tBo\t/a", "2\tBo\t/e", "2\tBob\t/a", "2\tBob\t/e", "3\tCy\t"},
		},
		{
			"right",
			[]string{"--left-on", "user", "--right-on", "id", "--type", "right", "--left-columns", "page", visits, users},
			[]string{"1\t/b\tAda", "1\t/d\tAda", "2\t/a\tBo", "2\t/a\tBob", "2\t/e\tBo", "2\t/e\tBob", "3\t\tCy"},
		},
		{
			"full",
			[]string{"--left-on", "id", "--right-on", "user", "--type", "full", "--right-columns", "page", users, visits},
			[]string{"1\tAda\t/b", "1\tAda\t/d", "2\tBo\t/a", "2\tBo\t/e", "2\tBob\t/a", "2\tBob\t/e", "3\tCy\t", "9\t\t/c"},
		},
		{
			"with itself",
			[]string{"--on", "id", users, users},
			[]string{"1\tAda\tAda", "2\tBo\tBo", "2\tBo\tBob", "2\tBob\tBo", "2\tBob\tBob", "3\tCy\tCy"},
		},
		{
			"json whole records",
			[]string{"--left-on", "id", "--right-on", "u.id", usersJSON, visitsJSON},
			[]string{"1\t" + `{"id":1,"name":"Ada"}` + "\t" + `{"u":{"id":1},"page":"/a"}`},
		},
		{
			"json full",
			[]string{"--left-on", "id", "--right-on", "u.id", "--type", "full", "--left-columns", "name", "--right-columns", "page", usersJSON, visitsJSON},
			[]string{"\t?\t", "\t\t/b", "1\tAda\t/a", "3\t\t"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			slices.Sort(c.want)
			for _, w := range []way{usual, {split: 5, workers: 3, memory: 64 << 20, partitions: 3}, {workers: 1, memory: 16 << 20, partitions: 1}} {
				rows, _, err := run(t, w, "join", c.args...)
				if err != nil {
					t.Fatal(err)
				}
				slices.Sort(rows)
				if !slices.Equal(rows, c.want) {
					t.Fatalf("%+v:\n got %q\nwant %q", w, rows, c.want)
				}
			}
		})
	}
}

func TestJoinColumns(t *testing.T) {
	j := &joiner{}
	j.sides[left].columns = []string{"a", "b_right"}
	j.sides[right].columns = []string{"a", "b", "id"}
	if got, want := j.names("id"), []string{"id", "a", "b_right", "a_right", "b", "id_right"}; !slices.Equal(got, want) {
		t.Errorf("columns: got %q, want %q", got, want)
	}
}

// TestJoinLimit has a key that both sides have too often to be held.
func TestJoinLimit(t *testing.T) {
	var text strings.Builder
	text.WriteString("k,v\n")
	for i := range 100 {
		fmt.Fprintf(&text, "same,%0100d\n", i)
	}
	a, b := write(t, "a.csv", text.String()), write(t, "b.csv", text.String())
	_, _, err := run(t, usual, "join", "--on", "k", "--max-group", "4kB", a, b)
	if err == nil || !strings.Contains(err.Error(), "--max-group") || !strings.Contains(err.Error(), "same") {
		t.Errorf("error does not name key and option: %v", err)
	}
	rows, _, err := run(t, usual, "join", "--on", "k", a, b)
	if err != nil || len(rows) != 100*100 {
		t.Errorf("%d rows, error %v; want 10000", len(rows), err)
	}
}
