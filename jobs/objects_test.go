// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quernmr/quern/internal/objectlab"
	"github.com/quernmr/quern/mapreduce/objects"
	"github.com/quernmr/quern/mapreduce/output"
)

// runArgs runs a job as the command line does.
func runArgs(t *testing.T, job string, args ...string) error {
	t.Helper()
	def, options, common, inputs := parseArgs(t, job, args)
	run, opts, err := Prepare(def, options, common, inputs, io.Discard)
	if err == nil {
		_, err = run.Run(context.Background(), opts)
	}
	return err
}

// TestJobsOverObjects runs jobs from objects to objects: the output is, byte for
// byte, what it is on disk.
func TestJobsOverObjects(t *testing.T) {
	s := objectlab.Start(t, "box")
	dir := t.TempDir()
	client, err := objects.Open()
	if err != nil {
		t.Fatal(err)
	}
	var words, people, sales strings.Builder
	people.WriteString("name,city\n")
	sales.WriteString("name,amount\n")
	for i := range 5000 {
		fmt.Fprintf(&words, "word%d and %d more\n", i*i%997, i%13)
		fmt.Fprintf(&sales, "n%d,%d.5\n", i%700, i)
		if i < 900 {
			fmt.Fprintf(&people, "n%d,\"city, %d\"\n", i, i%7)
		}
	}
	for name, text := range map[string]string{
		"words/a.txt": words.String(), "words/b.txt": "the end\n", "words/_skipped": "x\n", "people/1.csv": people.String(), "sales/1.csv": sales.String(),
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
		if err := client.Put(context.Background(), objects.Location{Bucket: "box", Key: "in/" + name}, []byte(text), objects.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		job    string
		inputs []string
		args   []string
	}{
		"wordcount": {"wordcount", []string{"words"}, []string{"--split-size", "10k", "--partitions", "3"}},
		"zstd":      {"wordcount", []string{"words/*.txt"}, []string{"--format", "csv", "--compress", "zstd"}},
		"parquet":   {"wordcount", []string{"words"}, []string{"--format", "parquet", "--overwrite"}},
		"aggregate": {"aggregate", []string{"sales"}, []string{"--group-by", "name", "--sum", "amount", "--split-size", "10k"}},
		"join":      {"join", []string{"people", "sales/1.csv"}, []string{"--on", "name", "--format", "jsonl"}},
	} {
		var onDisk, inBox []string
		for _, in := range c.inputs {
			onDisk, inBox = append(onDisk, filepath.Join(dir, in)), append(inBox, "s3://box/in/"+in)
		}
		out := filepath.Join(t.TempDir(), "out")
		if err := runArgs(t, c.job, append(append(onDisk, c.args...), "-o", out)...); err != nil {
			t.Errorf("%s on disk: %v", name, err)
			continue
		}
		if err := runArgs(t, c.job, append(append(inBox, c.args...), "-o", "s3://box/out/"+name)...); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want, err := os.ReadDir(out)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadDir(filepath.Join(s.Folder, "box", "out", name))
		if err != nil || len(got) != len(want) {
			t.Errorf("%s: %d objects, %d files; %v", name, len(got), len(want), err)
		}
		for _, f := range want {
			a, errA := os.ReadFile(filepath.Join(out, f.Name()))
			b, errB := os.ReadFile(filepath.Join(s.Folder, "box", "out", name, f.Name()))
			if errA != nil || errB != nil || string(a) != string(b) {
				t.Errorf("%s: %s differs; %v, %v", name, f.Name(), errA, errB)
			}
		}
	}
	if err := runArgs(t, "wordcount", "s3://box/in/words", "-o", "s3://box/out/wordcount"); !errors.Is(err, output.ErrExists) {
		t.Errorf("an output that exists: %v", err)
	}
	if err := runArgs(t, "wordcount", "s3://box/in/words", "-o", "s3://box/in", "--overwrite"); !errors.Is(err, output.ErrOverlap) {
		t.Errorf("over the input: %v", err)
	}
	if err := runArgs(t, "wordcount", "s3://box/in/none", "-o", "s3://box/out/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no input: %v", err)
	}
}
