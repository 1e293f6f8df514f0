// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
)

// parseArgs is a small stand-in for the command line: flags become settings,
// all else inputs.
func parseArgs(t testing.TB, job string, args []string) (Definition, Options, Common, []string) {
	t.Helper()
	def, ok := Lookup(job)
	if !ok {
		t.Fatalf("there is no job %q", job)
	}
	options, common := def.New(), Common{}
	var inputs []string
	settings := append(Settings(options), Settings(&common)...)
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			inputs = append(inputs, arg)
			continue
		}
		found := false
		for _, s := range settings {
			if arg != "--"+s.Name && arg != "-"+s.Short {
				continue
			}
			found = true
			if s.Value.Kind() == reflect.Bool {
				s.Value.SetBool(true)
				break
			}
			text := args[0]
			args = args[1:]
			switch s.Value.Kind() {
			case reflect.String:
				s.Value.SetString(text)
			case reflect.Slice:
				s.Value.Set(reflect.Append(s.Value, reflect.ValueOf(text)))
			case reflect.Float64:
				f, err := strconv.ParseFloat(text, 64)
				if err != nil {
					t.Fatalf("%s %s: %v", arg, text, err)
				}
				s.Value.SetFloat(f)
			default:
				n, err := strconv.ParseInt(text, 10, 64)
				if err != nil {
					t.Fatalf("%s %s: %v", arg, text, err)
				}
				s.Value.SetInt(n)
			}
			break
		}
		if !found {
			t.Fatalf("job %s has no flag %s", job, arg)
		}
	}
	return def, options, common, inputs
}

// way is one way to run a job; all must give the same.
type way struct {
	split      int64
	workers    int
	memory     int64
	partitions int
}

// run runs a job and gives its rows, cells separated by tabs and escaped as TSV
// does, part by part.
func run(t testing.TB, w way, job string, args ...string) (rows []string, res *mapreduce.Result, err error) {
	t.Helper()
	def, options, common, inputs := parseArgs(t, job, args)
	runnable, opts, err := Prepare(def, options, common, inputs, new(bytes.Buffer))
	if err != nil {
		return nil, nil, err
	}
	opts.Input.SplitSize, opts.Workers, opts.Memory, opts.Partitions = w.split, w.workers, w.memory, w.partitions
	if common.Output == "" {
		parts := make([][]string, max(1, w.partitions))
		var mu sync.Mutex
		opts.Output = output.Func(func(part int, r *output.Row) error {
			text := rowText(t, r)
			mu.Lock()
			defer mu.Unlock()
			parts[part] = append(parts[part], text)
			return nil
		})
		defer func() {
			for _, p := range parts {
				rows = append(rows, p...)
			}
		}()
	}
	opts.SpillDir = t.TempDir()
	res, err = runnable.Run(context.Background(), opts)
	return rows, res, err
}

func rowText(t testing.TB, r *output.Row) string {
	keys := make([]output.Column, len(r.Keys))
	values := make([]output.Column, len(r.Values))
	e, err := output.NewEncoder(output.TSV, output.Schema{Keys: keys, Values: values})
	if err != nil {
		t.Error(err)
		return ""
	}
	return strings.TrimSuffix(string(e.AppendRow(nil, r)), "\n")
}

// write makes a file in a temporary folder and gives its path.
func write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
