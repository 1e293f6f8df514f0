// SPDX-License-Identifier: Apache-2.0

package mapreduce_test

import (
	"bytes"
	"context"
	"os"
	"fmt"
	"path/filepath"
	"testing"
	"strings"
	"sort"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
)

func words(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
	for w := range bytes.FieldsSeq(rec.Value) {
		emit.Emit(w, 1)
	}
	return nil
}

func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	text := strings.Repeat("a b c a\nfoo bar\n\n  x\ty a\n", 1000)
	for i := range 20000 {
		text += fmt.Sprintf("word%d common%d verylongcommonprefixword%d\n", i, i%7, i*7919%30000)
	}
	os.WriteFile(filepath.Join(dir, "a.txt"), []byte(text), 0o600)
	want := map[string]int{}
	for _, w := range strings.Fields(text) {
		want[w]++
	}
	var keys []string
	for k := range want {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	var exp strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&exp, "%s\t%d\n", k, want[k])
	}
	for _, mem := range []int64{16 << 20, 1 << 30} {
		for _, total := range []bool{false, true} {
			for _, parts := range []int{1, 3} {
				var buf bytes.Buffer
				job := &mapreduce.Job[[]byte, int64, int64]{Name: "wc", Map: words, Fold: mapreduce.Sum[int64]()}
				res, err := job.Run(context.Background(), mapreduce.Options{
					Inputs: []string{dir}, Memory: mem, Partitions: parts, TotalOrder: total,
					Output: output.Stream(&buf, output.StreamOptions{Format: output.TSV}),
				})
				if err != nil {
					t.Fatal(err)
				}
				got := buf.String()
				if parts > 1 && !total {
					l := strings.SplitAfter(got, "\n")
					sort.Strings(l)
					got = strings.Join(l, "")
					l = strings.SplitAfter(exp.String(), "\n")
					sort.Strings(l)
					if got != strings.Join(l, "") {
						t.Errorf("mem %d total %v parts %d: wrong set", mem, total, parts)
					}
				} else if got != exp.String() {
					t.Errorf("mem %d total %v parts %d: got %d bytes want %d", mem, total, parts, len(got), exp.Len())
				}
				t.Logf("%+v", *res)
			}
		}
	}
}

func TestBig(t *testing.T) {
	f := os.Getenv("QUERN_BIG")
	if f == "" {
		t.Skip()
	}
	out, _ := os.Create("/tmp/d/wc/out")
	job := &mapreduce.Job[[]byte, int64, int64]{Name: "wc", Map: words, Fold: mapreduce.Sum[int64]()}
	var mem int64
	fmt.Sscan(os.Getenv("QUERN_MEM"), &mem)
	res, err := job.Run(context.Background(), mapreduce.Options{
		Inputs: []string{f}, Memory: mem<<20,
		Output: output.Stream(out, output.StreamOptions{Format: output.TSV}),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", *res)
}
