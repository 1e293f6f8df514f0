// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"strings"
	"testing"
)

// TestErrors looks at what people are told when something is wrong.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		job   string
		file  string
		input string
		args  string
		want  string // parts of the message, with | between
	}{
		{"no pattern group", "aggregate", "a.log", access, "--pattern GET --count --group-by ip", "group"},
		{"bad pattern", "grep", "a.txt", "x", "--pattern a(", "--pattern|a("},
		{"ngrams", "wordcount", "a.txt", "x", "--ngrams 0", "--ngrams 0"},
		{"k", "topk", "a.txt", "x", "-k 0", "--k 0"},
		{"nothing to compute", "aggregate", "a.csv", people, "--group-by city", "--count"},
		{"unknown column", "aggregate", "a.csv", people, "--sum agee", `a.csv:1|"agee"|"age"|"city"`},
		{"no number", "aggregate", "a.csv", people, "--sum name", `a.csv:2|"name"|"Ada"|number`},
		{"no number in the middle", "aggregate", "a.csv", "v\n1\n2\nx y\n3\n", "--sum v", `a.csv:4|"v"|"x y"`},
		{"blank", "aggregate", "a.csv", people, "--sum age --empty error", `a.csv:3|"age"|blank`},
		{"ragged", "aggregate", "a.csv", "a,b\n1,2\n3\n", "--sum a", "a.csv:3"},
		{"no JSON", "aggregate", "a.jsonl", "{\"a\":1}\n{\"a\"\n", "--sum a", "a.jsonl:2"},
		{"no match", "aggregate", "a.log", access, `--pattern ^(?P<ip>\S+)_(?P<method>\S+)_(?P<path>\S+)_(?P<s>\d+)$ --group-by ip --count`, "a.log:3"},
		{"where syntax", "aggregate", "a.csv", people, "--count --where age>", "--where"},
		{"where type", "aggregate", "a.csv", people, "--count --where name>3", "a.csv:2|--where|string"},
		{"where number", "aggregate", "a.csv", people, "--count --where id+1", "bool"},
		{"where column", "aggregate", "a.csv", people, "--count --where agee>1", `"agee"|"age"`},
		{"overflow", "aggregate", "a.csv", "v\n9223372036854775807\n1\n", "--sum v", `overflow|"v"|9223372036854775808`},
		{"too large", "aggregate", "a.csv", "v\n9223372036854775808\n", "--sum v", `a.csv:2|"9223372036854775808"|range`},
		{"scale", "aggregate", "a.csv", "v\n0.001\n9223372036854776\n", "--sum v", `--decimals`},
		{"decimals", "aggregate", "a.csv", "v\n1\n", "--sum v --decimals 19", "--decimals 19"},
		{"NaN", "aggregate", "a.csv", notFiniteColumn, "--floats --sum v", `a.csv:3|"v"|"NaN"|--nan skip`},
		{"infinite", "aggregate", "a.csv", notFiniteColumn, "--floats --max w", `a.csv:5|"w"|"nan"|--nan skip`},
		{"no float", "aggregate", "a.csv", "v\n1e5\n0x10\n", "--floats --sum v", `a.csv:3|"v"|"0x10"|number`},
		{"large float", "aggregate", "a.csv", "v\n1e5\n1e999\n", "--floats --sum v", `a.csv:3|"v"|"1e999"|1.8e308`},
		{"blank float", "aggregate", "a.csv", people, "--floats --sum age --empty error", `a.csv:3|"age"|blank`},
		{"sum of floats", "aggregate", "a.csv", "v\n1e308\n1e308\n", "--floats --sum v", `overflow|sum of "v"`},
		{"variance of floats", "aggregate", "a.csv", floatColumn, "--floats --group-by k --variance v", `overflow|variance of "v"|key "a"`},
		{"coarse floats", "aggregate", "a.csv", "v\n1e5\n-4e18\n4.7e18\n", "--floats --mean v --quantum 1", `a.csv:4|"v"|"4.7e18"|quantum`},
		{"floats alone", "aggregate", "a.csv", people, "--sum age --quantum 1", "--quantum goes with --floats"},
		{"variance alone", "aggregate", "a.csv", people, "--sum age --variance age", "--variance goes with --floats"},
		{"measure alone", "aggregate", "a.csv", people, "--floats --sum age --measure", "--measure|--quantum"},
		{"measure of means", "aggregate", "a.csv", people, "--floats --mean age --measure --quantum 1", "--measure|--sum"},
		{"quantum", "aggregate", "a.csv", people, "--floats --sum age --quantum -1", "--quantum -1"},
		{"nan", "aggregate", "a.csv", people, "--floats --sum age --nan ignore", "error, skip or count"},
		{"floats with decimals", "aggregate", "a.csv", people, "--floats --sum age --decimals 2", "--decimals"},
		{"input format", "aggregate", "a.csv", "v\n1\n", "--sum v --input-format xml", "xml|jsonl"},
		{"comma", "aggregate", "a.csv", "v\n1\n", "--sum v --comma ab", "--comma"},
		{"fields without a field", "distinct", "a.csv", people, "--no-header", "--no-header|--field"},
		{"histogram of words", "histogram", "a.txt", "1\nx\n", "", `a.txt:2|"x"`},
		{"histogram width", "histogram", "a.txt", "1\n", "--width -1", "wider"},
		{"histogram thirds", "histogram", "a.txt", "1\n", "--buckets 3 --from 0 --to 1", "1/3"},
		{"long lines", "count", "a.txt", "x", "--long-lines cut", "--long-lines"},
		{"size", "count", "a.txt", "x", "--memory many", "--memory"},
		{"delimiter", "count", "a.txt", "x", `--delimiter \q`, "--delimiter"},
		{"format", "count", "a.txt", "x", "--format xml", "--format"},
		{"join of one", "join", "a.csv", people, "--on id", "two inputs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := strings.Fields(c.args)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "_", " ")
			}
			path := write(t, c.file, c.input)
			for _, w := range []way{usual, {split: 1, workers: 4, memory: 64 << 20, partitions: 3}} {
				rows, _, err := run(t, w, c.job, append(args, path)...)
				if err == nil {
					t.Fatalf("no error, but rows %q", rows)
				}
				for part := range strings.SplitSeq(c.want, "|") {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("error does not contain %q: %v", part, err)
					}
				}
			}
		})
	}
}
