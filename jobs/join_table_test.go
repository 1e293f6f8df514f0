// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce/output"
)

// tester is a testing.TB or a *rapid.T.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// buildTable makes a table of rows of one cell.
func buildTable(t tester, keys, rows []string) []byte {
	t.Helper()
	b := &tableBuilder{maxGroup: 1 << 20, memory: 1 << 24, fingerprint: 7}
	for i, k := range keys {
		if err := b.add([]byte(k), appendCell(nil, []byte(rows[i]))); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.finish(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := b.write(&out); err != nil {
		t.Fatal(err)
	}
	if int64(out.Len()) != b.size {
		t.Fatalf("%d bytes were written, %d were announced", out.Len(), b.size)
	}
	return out.Bytes()
}

// found returns the rows of a key.
func found(t tester, table *joinTable, key string) (rows []string) {
	t.Helper()
	group, err := table.find([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	var held heldRows
	if err := held.take(group, 1); err != nil {
		t.Fatal(err)
	}
	for i := range held.count() {
		rows = append(rows, string(held.row(i)))
	}
	return rows
}

// TestTable holds a table to a map.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type row struct{ Key, Cell string }
		all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) row {
			return row{rapid.StringN(0, 3, 6).Draw(t, "key"), rapid.StringN(0, 200, -1).Draw(t, "cell")}
		}), 0, 300).Draw(t, "rows")
		want := map[string][]string{}
		var keys, cells []string
		for _, r := range all {
			keys, cells = append(keys, r.Key), append(cells, r.Cell)
			want[r.Key] = append(want[r.Key], string(appendCell(nil, []byte(r.Cell))))
		}
		data := buildTable(t, keys, cells)
		table, err := openTable(data, 7)
		if err != nil {
			t.Fatal(err)
		}
		if table.keys != int64(len(want)) || table.rows != int64(len(all)) {
			t.Fatalf("%d keys and %d rows, want %d and %d", table.keys, table.rows, len(want), len(all))
		}
		for k, rows := range want {
			slices.Sort(rows)
			if got := found(t, table, k); !slices.Equal(got, rows) {
				t.Fatalf("key %q: rows %q, want %q", k, got, rows)
			}
		}
		other := rapid.String().Draw(t, "other key")
		if got := found(t, table, other); len(got) != len(want[other]) {
			t.Fatalf("key %q: rows %q", other, got)
		}
		// In whatever order rows come, the table is the same.
		seed := rapid.Uint64().Draw(t, "order")
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(keys), func(i, j int) {
			keys[i], keys[j] = keys[j], keys[i]
			cells[i], cells[j] = cells[j], cells[i]
		})
		if !bytes.Equal(buildTable(t, keys, cells), data) {
			t.Fatal("another order of rows gives another table")
		}
	})
}

func TestTableRefuses(t *testing.T) {
	data := buildTable(t, []string{"a", "b"}, []string{"1", "2"})
	if _, err := openTable(data, 8); err == nil || !strings.Contains(err.Error(), "other options or another input") {
		t.Errorf("a table of another join: %v", err)
	}
	if table, err := openTable(nil, 7); table != nil || err != nil {
		t.Errorf("no table: %v, error %v", table, err)
	}
	for _, bad := range [][]byte{data[:10], data[:len(data)-1], append(slices.Clone(data), 0), bytes.Replace(data, []byte("quernjt1"), []byte("quernjt2"), 1)} {
		if _, err := openTable(bad, 7); !errors.Is(err, errTable) {
			t.Errorf("%d bytes: error %v", len(bad), err)
		}
	}

	b := &tableBuilder{maxGroup: 10, memory: 100}
	for range 4 { // 24 + 1 + 0 bytes each
		if err := b.add([]byte("k"), nil); err != nil {
			t.Fatal(err)
		}
	}
	var large *tooLargeError
	if err := b.add(nil, nil); !errors.As(err, &large) || large.rows != 4 {
		t.Errorf("a fifth row in 100 bytes: %v", err)
	}
	if err := b.finish(); !errors.As(err, &large) { // slots find no room
		t.Errorf("slots beyond the memory: %v", err)
	}
}

// FuzzTable opens what is no table, or a damaged one: whatever that gives, it gives it back.
func FuzzTable(f *testing.F) {
	data := buildTable(f, []string{"a", "b", "a", "long enough to matter"}, []string{"1", "2", "3", ""})
	f.Add(data, []byte("a"))
	f.Add(data[:70], []byte("b"))
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(_ *testing.T, data, key []byte) {
		table, err := openTable(data, 7)
		if err != nil || table == nil {
			return
		}
		group, err := table.find(key)
		if err != nil {
			return
		}
		var held heldRows
		if err := held.take(group, 3); err != nil {
			return
		}
		cells := make([]output.Value, 3)
		for i := range held.count() {
			_ = readCells(cells, held.row(i))
		}
	})
}
