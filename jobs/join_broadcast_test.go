// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quernmr/quern/mapreduce"
)

// joinFiles runs a join and returns its part files, one after the other behind their
// names, and the size of the table that was broadcast: 0 if there was none, -1 if there was
// not to be one.
func joinFiles(t testing.TB, w way, args ...string) (parts string, table int64, err error) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	_, res, err := run(t, w, "join", append([]string{"--output", out}, args...)...)
	if err != nil {
		return "", 0, err
	}
	table = -1
	for _, s := range res.SideInputs {
		table = s.Size
	}
	found, err := filepath.Glob(filepath.Join(out, "part-*"))
	if err != nil || len(found) != max(1, w.partitions) {
		t.Fatalf("%d parts, error %v", len(found), err)
	}
	var all strings.Builder
	for _, p := range found {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "== %s\n%s", filepath.Base(p), b)
	}
	return all.String(), table, nil
}

// sameBothWays holds a broadcast join to the repartition join of the same.
func sameBothWays(t testing.TB, ways []way, args ...string) {
	t.Helper()
	for _, w := range ways {
		want, table, err := joinFiles(t, w, append(args, "--strategy", "repartition")...)
		if err != nil {
			t.Fatal(err)
		}
		if table != -1 {
			t.Fatalf("a repartition join broadcast %d bytes", table)
		}
		got, table, err := joinFiles(t, w, append(args, "--strategy", "broadcast")...)
		if err != nil {
			t.Fatal(err)
		}
		if table < tableHead {
			t.Fatalf("a broadcast join had a table of %d bytes", table)
		}
		if got != want {
			t.Fatalf("%+v %q: broadcast gives\n%s\nrepartition\n%s", w, args, got, want)
		}
		if got, _, err = joinFiles(t, w, append(args, "--strategy", "auto")...); err != nil || got != want {
			t.Fatalf("%+v %q: auto gives (%v)\n%s\nwant\n%s", w, args, err, got, want)
		}
	}
}

// tableRow is a row of a table to be joined; a nil cell is null, where the format has that.
type tableRow [3]*string // k, v, w

// joinTables makes a small and a large table. Many keys occur several times, on both sides,
// and rows do too.
func joinTables(rng *rand.Rand, small, large, keys int) (a, b []tableRow) {
	odd := []string{"", " ", "x\ty", `q"q`, "l\nl", `\`, "a,b", "ä", "0", "k\x00k"}
	text := func(n int) *string {
		i := rng.IntN(n)
		s := fmt.Sprintf("k%d", i)
		if i < len(odd) {
			s = odd[i]
		}
		return &s
	}
	table := func(rows int) (all []tableRow) {
		for range rows {
			r := tableRow{text(keys), text(5), text(40)}
			if rng.IntN(12) == 0 {
				r[rng.IntN(3)] = nil
			}
			if rng.IntN(6) == 0 && len(all) > 0 {
				r = all[rng.IntN(len(all))]
			}
			all = append(all, r)
		}
		return all
	}
	return table(small), table(large)
}

// writeTable writes a table in a format and returns the file's name.
func writeTable(t testing.TB, rng *rand.Rand, format string, table []tableRow) string {
	t.Helper()
	var out bytes.Buffer
	text := func(c *string) string {
		if c == nil {
			return ""
		}
		return *c
	}
	order := []int{0, 1, 2}
	rng.Shuffle(3, func(i, j int) { order[i], order[j] = order[j], order[i] })
	names := [3]string{"k", "v", "w"}
	switch format {
	case "csv":
		w := csv.NewWriter(&out)
		_ = w.Write([]string{names[order[0]], names[order[1]], names[order[2]]})
		for _, r := range table {
			_ = w.Write([]string{text(r[order[0]]), text(r[order[1]]), text(r[order[2]])})
		}
		w.Flush()
	case "tsv":
		fmt.Fprintf(&out, "%s\t%s\t%s\n", names[order[0]], names[order[1]], names[order[2]])
		plain := strings.NewReplacer("\t", "_", "\n", "_", "\r", "_")
		for _, r := range table {
			fmt.Fprintf(&out, "%s\t%s\t%s\n", plain.Replace(text(r[order[0]])), plain.Replace(text(r[order[1]])), plain.Replace(text(r[order[2]])))
		}
	case "log":
		plain := strings.NewReplacer("\t", "_", "\n", "_", " ", "_")
		for _, r := range table {
			if r[1] == nil && rng.IntN(2) == 0 {
				out.WriteString("a line that does not match\n")
			}
			key := "" // the group takes no part then: null
			if r[0] != nil {
				key = "<" + plain.Replace(*r[0]) + ">"
			}
			fmt.Fprintf(&out, "%s%s %s\n", key, plain.Replace(text(r[1])), plain.Replace(text(r[2])))
		}
	case "jsonl":
		for _, r := range table {
			m := map[string]any{}
			for i, c := range r {
				if c != nil {
					m[names[i]] = *c
				} else if rng.IntN(2) == 0 {
					m[names[i]] = nil
				}
			}
			b, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			out.Write(append(b, '\n'))
		}
	}
	return write(t, "table."+format, out.String())
}

// toParquet makes a Parquet file of the rows of a JSON one.
func toParquet(t testing.TB, path string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "parquet")
	if _, _, err := run(t, usual, "aggregate", "--group-by", "k,v,w", "--count", "--output", out, "--format", "parquet", path); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(out, "part-00000.parquet")
}

// TestJoinBothWays joins random tables by both strategies, in every format.
func TestJoinBothWays(t *testing.T) {
	ways := []way{
		{split: 64, workers: 2, memory: 64 << 20, partitions: 1},
		{split: 1 << 10, workers: 3, memory: 64 << 20, partitions: 4},
	}
	for i, c := range []struct {
		format string
		args   []string
	}{
		{"csv", nil},
		{"csv", []string{"--left-columns", "w", "--right-columns", "v,k"}},
		{"csv", []string{"--format", "csv"}},
		{"tsv", nil},
		{"tsv", []string{"--no-header", "--on", "2"}},
		{"jsonl", nil},
		{"jsonl", []string{"--left-columns", "v", "--right-columns", "w,nothing", "--format", "jsonl"}},
		{"log", []string{"--pattern", `^(?:<(?P<k>.*)>)?(?P<v>[^ ]*) (?P<w>.*)$`, "--on-mismatch", "skip"}},
		{"parquet", []string{"--left-columns", "v", "--right-columns", "w"}},
	} {
		for _, kind := range []string{"inner", "left", "right"} {
			t.Run(fmt.Sprint(c.format, "/", kind, i), func(t *testing.T) {
				t.Parallel()
				seed := uint64(i)<<8 + uint64(len(kind))
				rng := rand.New(rand.NewPCG(seed, 1))
				small, large := joinTables(rng, 60, 500, 50)
				format := strings.TrimSuffix(c.format, "parquet")
				if format == "" {
					format = "jsonl"
				}
				a, b := writeTable(t, rng, format, small), writeTable(t, rng, format, large)
				if c.format == "parquet" {
					a, b = toParquet(t, a), toParquet(t, b)
				}
				inputs := []string{b, a} // the large one is the left one
				if kind == "right" || kind == "inner" && i%2 == 0 {
					inputs = []string{a, b}
				}
				args := append([]string{"--type", kind}, c.args...)
				if !slices.Contains(args, "--on") {
					args = append(args, "--on", "k")
				}
				sameBothWays(t, ways, append(args, inputs...)...)
			})
		}
	}
}

// TestJoinBothWaysAtTheEdges joins what is odd about sides as a whole.
func TestJoinBothWaysAtTheEdges(t *testing.T) {
	const head = "k,v\n"
	for _, c := range []struct {
		name         string
		left, right  string
		kinds        []string
		args         []string
		wantAnything bool
	}{
		{"no rows on the small side", head, head + "1,a\n2,b\n", []string{"inner", "right"}, nil, false},
		{"an empty file on the small side", "", head + "1,a\n2,b\n", []string{"inner", "right"}, []string{"--left-columns", "v"}, false},
		{"no rows at all", head, head + "", []string{"inner"}, nil, false},
		{"nothing but the key on the small side", "k\n" + strings.Repeat("1\n", 300), head + strings.Repeat("1,a\n2,b\n", 200), []string{"inner", "right"}, nil, true},
		{"the same size", head + "1,a\n2,b\n", head + "2,c\n2,d\n", []string{"inner", "right"}, nil, true},
		{"one key everywhere", head + strings.Repeat("1,a\n", 30), head + strings.Repeat("1,b\n", 40), []string{"inner", "right"}, nil, true},
		{"no partner anywhere", head + "1,a\n", head + "2,b\n3,c\n", []string{"inner", "right"}, nil, false},
		{"the large one on the left", head + "2,b\n3,c\n3,d\n", head + "3,x\n3,y\n", []string{"inner", "left"}, nil, true},
		{"quotes and line ends", head + "\"1\n1\",\"a\"\"\"\n", head + "\"1\n1\",\"b,\nb\"\r\n1,\n", []string{"inner", "right"}, nil, true},
		{"ragged rows that are skipped", head + "1,a\n1,b,c\n", head + "1,d\n1\n1,e\n1,f,g\n", []string{"inner", "right"}, []string{"--on-mismatch", "skip"}, true},
		{"--max-group that is just enough", head + "1,aaaaa\n1,bbbbb\n", head + strings.Repeat("1,x\n", 9), []string{"inner"}, []string{"--max-group", "28"}, true},
	} {
		for _, kind := range c.kinds {
			t.Run(c.name+"/"+kind, func(t *testing.T) {
				args := append([]string{"--on", "k", "--type", kind, write(t, "left.csv", c.left), write(t, "right.csv", c.right)}, c.args...)
				sameBothWays(t, []way{usual, {workers: 3, memory: 64 << 20, partitions: 5, split: 3}}, args...)
				parts, _, err := joinFiles(t, usual, args...)
				if rows := strings.Count(parts, "\n") - 1; err != nil || kind == "inner" && rows > 0 != c.wantAnything {
					t.Errorf("%d rows, error %v", rows, err)
				}
			})
		}
	}
}

// TestJoinSpillsBothWays has more rows than fit in memory, in parts that are cut by a sample
// which does not hold all keys.
func TestJoinSpillsBothWays(t *testing.T) {
	if testing.Short() {
		t.Skip("writes and sorts some 20 MB several times")
	}
	rng := rand.New(rand.NewPCG(7, 7))
	var a, b strings.Builder
	a.WriteString("k,a\n")
	b.WriteString("k,b\n")
	for range 40_000 {
		fmt.Fprintf(&a, "%d,x%d\n", rng.IntN(60_000), rng.IntN(9))
	}
	for range 300_000 {
		fmt.Fprintf(&b, "%d,%030d\n", rng.IntN(60_000), rng.IntN(1<<40))
	}
	sameBothWays(t, []way{{workers: 2, memory: 24 << 20, partitions: 7, split: 1 << 20}}, "--on", "k", write(t, "a.csv", a.String()), write(t, "b.csv", b.String()))
}

// TestJoinGroupLimitBothWays has a key with too many rows on the small side: the join fails by
// either strategy, though the large side does not have the key.
func TestJoinGroupLimitBothWays(t *testing.T) {
	small := write(t, "a.csv", "k,v\nsame,aaaaa\nsame,bbbbb\n")
	large := write(t, "b.csv", "k,v\n"+strings.Repeat("other,x\n", 9))
	for _, strategy := range []string{"repartition", "broadcast", "auto"} {
		_, _, err := joinFiles(t, usual, "--on", "k", "--max-group", "27", "--strategy", strategy, small, large)
		if err == nil || !strings.Contains(err.Error(), "--max-group") || !strings.Contains(err.Error(), `key "same": more than 27 bytes`) {
			t.Errorf("%s: the error does not name key and option: %v", strategy, err)
		}
	}
}

// TestJoinKeyText shows keys as users know them.
func TestJoinKeyText(t *testing.T) {
	for key, want := range map[string]string{"khot": `"hot"`, "k": `""`, "kk\n": `"k\n"`, "l": "missing (left side)", "m": "missing (right side)", "": `""`, "mm": `"mm"`} {
		if got := keyText([]byte(key)); got != want {
			t.Errorf("key %q: %s, want %s", key, got, want)
		}
	}
}

// TestJoinNoColumnBothWays has a column that one side does not have: that is said of the file,
// by whatever strategy.
func TestJoinNoColumnBothWays(t *testing.T) {
	small := write(t, "a.csv", "k,v\n1,a\n")
	large := write(t, "b.csv", "k,v\n"+strings.Repeat("1,x\n", 9))
	want := small + `:1: there is no column "nope"; the columns are "k", "v"`
	for _, strategy := range []string{"repartition", "broadcast", "auto"} {
		_, _, err := joinFiles(t, usual, "--on", "k", "--left-columns", "nope", "--strategy", strategy, small, large)
		if err == nil || err.Error() != want {
			t.Errorf("%s: error %v", strategy, err)
		}
	}
}

// TestJoinTurnsToRepartition has small sides that turn out to be too large when they are read.
func TestJoinTurnsToRepartition(t *testing.T) {
	var plain strings.Builder
	plain.WriteString("k,v\n")
	for i := range 20_000 {
		fmt.Fprintf(&plain, "%d,%d\n", i%5000, i%7)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write([]byte(plain.String())); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	if zipped.Len() > 60_000 {
		t.Fatalf("%d bytes compressed", zipped.Len())
	}
	small := write(t, "a.csv.gz", zipped.String())
	large := write(t, "b.csv", "k,v\n"+strings.Repeat("7,x\n8,y\n9999,z\n", 20_000))
	some := way{split: 16 << 10, workers: 2, memory: 64 << 20, partitions: 1}
	little := way{workers: 1, memory: 17 << 20, partitions: 1}
	no := way{workers: 1, memory: 16 << 20, partitions: 1}
	want, _, err := joinFiles(t, some, "--on", "k", "--strategy", "repartition", small, large)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		way   way
		args  []string
		table bool
		fails string
		note  string // why it was no broadcast; "": none
	}{
		{"fits", some, nil, true, "", ""},
		{"over the limit once decompressed", some, []string{"--broadcast-limit", "100kB"}, false, "", "it has more than the broadcast limit of 98 KiB, decompressed"},
		{"over the limit, but asked for", some, []string{"--broadcast-limit", "100kB", "--strategy", "broadcast"}, true, "", ""},
		{"no room in memory", no, nil, false, "", "no memory is left for it beside the records"},
		{"little room in memory", little, nil, false, "", "as a table it takes more than the 512 KiB of memory that are left for it ("},
		{"no room, but asked for", no, []string{"--strategy", "broadcast"}, false, "can't be broadcast: no memory is left for it beside the records; give more --memory (on a cluster --task-memory)", ""},
		{"little room, but asked for", little, []string{"--strategy", "broadcast"}, false, "as a table it takes more than the 512 KiB of memory that are left for it (", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append(c.args, "--on", "k", small, large)
			if c.fails == "" {
				_, res, err := run(t, c.way, "join", args...)
				if err != nil {
					t.Fatal(err)
				}
				said := slices.DeleteFunc(res.Notes, func(n string) bool { return !strings.Contains(n, "repartition") })
				if c.note == "" && len(said) > 0 || c.note != "" && (len(said) != 1 || !strings.HasPrefix(said[0], "a repartition join after all: the smaller side is the left one, and "+c.note)) {
					t.Errorf("notes %q", said)
				}
			}
			got, table, err := joinFiles(t, c.way, args...)
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) || !strings.Contains(err.Error(), "--strategy repartition") {
					t.Fatalf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Error("the result differs from that of a repartition join")
			}
			if (table > 0) != c.table || table < 0 {
				t.Errorf("a table of %d bytes", table)
			}
		})
	}
}

// TestJoinStrategy looks at what is chosen, and what is said about it.
func TestJoinStrategy(t *testing.T) {
	small := write(t, "a.csv", "k,v\n1,a\n")
	large := write(t, "b.csv", "k,v\n1,b\n2,c\n3,d\n")
	for _, c := range []struct {
		name string
		args []string
		why  string // how it begins; "": it is refused
		says []string
	}{
		{"auto", []string{small, large}, "broadcast: ", []string{"left one", "8 B", "64 MiB"}},
		{"auto, the right one", []string{large, small}, "broadcast: ", []string{"right one"}},
		{"over the limit", []string{small, large, "--broadcast-limit", "7"}, "repartition: ", []string{"left one (8 B), over the broadcast limit of 7 B"}},
		{"at the limit", []string{small, large, "--broadcast-limit", "8"}, "broadcast: ", nil},
		{"asked for one", []string{small, large, "--strategy", "repartition"}, "repartition: ", []string{"asked for"}},
		{"asked for the other", []string{small, large, "--strategy", "broadcast", "--broadcast-limit", "1"}, "broadcast: ", []string{"asked for"}},
		{"right, large one kept", []string{small, large, "--type", "right"}, "broadcast: ", nil},
		{"left, small one kept", []string{small, large, "--type", "left"}, "repartition: ", []string{"a left join asks for its rows that have no partner"}},
		{"full", []string{small, large, "--type", "full"}, "repartition: ", []string{"full join"}},
		{"left by broadcast", []string{small, large, "--type", "left", "--strategy", "broadcast"}, "", []string{"--strategy broadcast is not possible", "left join"}},
		{"full by broadcast", []string{small, large, "--type", "full", "--strategy", "broadcast"}, "", []string{"--strategy broadcast is not possible", "full join"}},
		{"no such strategy", []string{small, large, "--strategy", "hash"}, "", []string{`--strategy "hash"`, "auto, broadcast or repartition"}},
		{"no such size", []string{small, large, "--broadcast-limit", "much"}, "", []string{"--broadcast-limit"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			def, options, common, inputs := parseArgs(t, "join", append(c.args, "--on", "k"))
			runnable, opts, err := Prepare(def, options, common, inputs, new(bytes.Buffer))
			said := fmt.Sprint(err)
			if err == nil {
				var x *mapreduce.Explanation
				if x, err = runnable.Explain(context.Background(), opts); err != nil {
					t.Fatal(err)
				}
				said = x.Why[0]
				if made := strings.HasPrefix(said, "broadcast: "); made != strings.Contains(strings.Join(x.Why, "\n"), ` side" is a table of `+small+", read once") {
					t.Errorf("what is broadcast is not named: %q", x.Why)
				}
				if c.why == "" || !strings.HasPrefix(said, c.why) {
					t.Errorf("why: %s", said)
				}
			} else if c.why != "" {
				t.Fatal(err)
			}
			for _, s := range c.says {
				if !strings.Contains(said, s) {
					t.Errorf("%q is not in: %s", s, said)
				}
			}
		})
	}
}

// TestChooseOnce has a smaller side that can be read only once.
func TestChooseOnce(t *testing.T) {
	c := choice{strategy: strategyAuto, limit: 100, small: right, size: 1 << 40, once: true}
	if got, why, err := choose(c); got != strategyRepartition || !strings.Contains(why, "read only once") || err != nil {
		t.Errorf("%s, %s, error %v", got, why, err)
	}
	c.strategy = strategyBroadcast
	if _, _, err := choose(c); err == nil || !strings.Contains(err.Error(), "read only once") {
		t.Errorf("error %v", err)
	}
}
