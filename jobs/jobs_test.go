// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"slices"
	"strings"
	"testing"
)

// usual is a way to run a job with more than one of everything.
var usual = way{split: 16, workers: 2, memory: 64 << 20, partitions: 1}

const (
	sayings = "The mill grinds.\nthe MILL\tgrinds, it's  the miller’s mill\n\nÄpfel äpfel 'quoted' rock'n'roll a--b x1y\n"
	people  = "id,name,age,city\n1,Ada,36,London\n2,Bob,,Paris\n3,Cy,41.5,London\n4,Di,-2.25,\n5,\"E, F\",41.5,Paris\n"
	events  = `{"user":{"id":"u1"},"ms":12,"ok":true,"tags":["a","b"]}
{"user":{"id":"u2"},"ms":7.5,"ok":false}
{"user":{"id":"u1"},"ms":null,"ok":true}
{"ms":100}
`
	access = "10.0.0.1 GET /a 200\n10.0.0.2 GET /b 404\nnonsense\n10.0.0.1 PUT /a 200\n"
)

func TestJobs(t *testing.T) {
	for _, c := range []struct {
		name  string
		job   string
		file  string
		input string
		args  string // separated by spaces; _ stands for a space
		want  string // rows with | between
	}{
		{"words", "wordcount", "a.txt", "b a\na\u2003b\ra", "", "a\t3|b\t2"},
		{"words in lower case", "wordcount", "a.txt", sayings, "--lower --min-count 2", "mill\t3|the\t3|äpfel\t2"},
		{
			"words of letters", "wordcount", "a.txt", sayings, "--letters --lower",
			"a\t1|b\t1|grinds\t2|it's\t1|mill\t3|miller’s\t1|quoted\t1|rock'n'roll\t1|the\t3|x\t1|y\t1|äpfel\t2",
		},
		{"top words", "wordcount", "a.txt", "c b a c b d", "--top 3", "b\t2|c\t2|a\t1"},
		{"pairs of words", "wordcount", "a.txt", "a  b\tc\nb c a b\nx\n", "--ngrams 2", "a b\t2|b c\t2|c a\t1"},
		{"triples in lower case", "wordcount", "a.txt", "A b C Ä b c", "--ngrams 3 --lower", "a b c\t1|b c ä\t1|c ä b\t1|ä b c\t1"},
		{"words of records", "wordcount", "a.txt", "ab,cd e,ab", "--delimiter ,", "ab\t2|cd\t1|e\t1"},

		{"lines", "count", "a.txt", "x\ny\r\n\nx\nx\r", "", "\t1|x\t2|x\\r\t1|y\t1"},
		{"frequent lines", "count", "a.txt", "x\ny\nx\nz\nz\nz\n", "--min-count 2 --top 5", "z\t3|x\t2"},
		{"records", "count", "a.txt", "x;;y;;x\r", "--delimiter ;;", "x\t1|x\\r\t1|y\t1"},

		{"grep", "grep", "a.txt", "one\ntwo\nthree\none two", "--pattern o$", "two|one two"},
		{"grep inverted", "grep", "a.txt", "one\ntwo\nthree\none two", "--pattern o$ --invert", "one|three"},
		{"grep plain text", "grep", "a.txt", "a.b\naxb\nA.B\n", "--pattern a.b --fixed --ignore-case", "a.b|A.B"},
		{"grep with offset", "grep", "a.txt", "one\ntwo\nthree\none two", "--pattern two --with-offset", "4\ttwo|14\tone two"},

		{
			"sum and mean", "aggregate", "a.csv", people, "--group-by city --sum age --mean age --count",
			"\t-2.25\t-2.25\t1|London\t77.5\t38.75\t2|Paris\t41.5\t41.5\t2",
		},
		{"min and max", "aggregate", "a.csv", people, "--min age --max age", "-2.25\t41.5"},
		{"all blank", "aggregate", "a.csv", people, "--group-by name --sum age --where name=='Bob'", "Bob\t"},
		{"several columns", "aggregate", "a.csv", people, "--group-by city,age --count", "\t-2.25\t1|London\t36\t1|London\t41.5\t1|Paris\t\t1|Paris\t41.5\t1"},
		{"where numbers", "aggregate", "a.csv", people, "--count --where age!=''&&age>36", "2"},
		{"where odd name", "aggregate", "a.csv", "a_b,c\n1,2\n3,4\n", "--sum c --where $env['a_b']>2", "4"},
		{"nothing", "aggregate", "a.csv", "a,b\n", "--sum a --count", "\t0"},
		{"nothing to group", "aggregate", "a.csv", "a,b\n", "--group-by a --count", ""},
		{"rounded", "aggregate", "a.csv", "v\n0.125\n0.375\n1e3\n-0.005\n", "--sum v --decimals 2", "1000.5"},
		{"scales", "aggregate", "a.csv", "v\n1\n0.1\n0.001\n2.50\n", "--sum v --min v --max v", "3.601\t0.001\t2.5"},
		{
			"distinct values", "aggregate", "a.csv", people, "--group-by city --distinct age --distinct name --count",
			"\t1\t1\t1|London\t2\t2\t2|Paris\t2\t1\t2",
		},
		{"only distinct", "aggregate", "a.csv", people, "--distinct city", "2"},
		{"tsv", "aggregate", "a.tsv", "k\tv\na\t1\nb\t2\na\t3\n", "--group-by k --sum v", "a\t4|b\t2"},
		{"no header", "aggregate", "a.csv", "a;1\nb;2\na;3\n", "--comma ; --no-header --group-by 1 --sum 2", "a\t4|b\t2"},
		{"columns", "aggregate", "a.csv", "a,1\nb,2\na,3\n", "--columns k,v --group-by k --mean v", "a\t2|b\t2"},
		{"json paths", "aggregate", "a.jsonl", events, "--group-by user.id --sum ms --count", "\t100\t1|u1\t12\t2|u2\t7.5\t1"},
		{"json where", "aggregate", "a.jsonl", events, "--count --where ok==true&&'a'_in_(tags??[])", "1"},
		{
			"log", "aggregate", "a.log", access, `--pattern ^(?P<ip>\S+)_(?P<method>\S+)_\S+_(?P<status>\d+)$ --on-mismatch skip --group-by ip --count --max status`,
			"10.0.0.1\t200\t2|10.0.0.2\t404\t1",
		},

		{"distinct", "distinct", "a.txt", "a\nb\na\n\nb\r\n", "", "3"},
		{"distinct of nothing", "distinct", "a.txt", "", "", "0"},
		{"distinct words", "distinct", "a.txt", "a b a\nc", "--words", "3"},
		{"distinct field", "distinct", "a.csv", people, "--field city", "3"},
		{"distinct json", "distinct", "a.jsonl", events, "--field user.id", "2"},
		{"distinct estimate", "distinct", "a.txt", "a\nb\na\n\nb\r\n", "--approx", "3"},
		{"estimate of nothing", "distinct", "a.txt", "", "--approx", "0"},

		{"top lines", "topk", "a.txt", "a\nb\nb\nc\nc\n", "--k 2", "b\t2|c\t2"},
		{"top values", "topk", "a.csv", people, "--k 1 --field city", "London\t2"},
		{"top of words", "topk", "a.txt", "a b b\nc", "-k 1 --words", "b\t2"},

		{"bins", "histogram", "a.txt", "1\n1.5\n-0.5\n2\n\n", "", "-1\t1|1\t2|2\t1"},
		{"narrow bins", "histogram", "a.txt", "0.05\n0.1\n0.19\n0.2\n", "--width 0.1", "0\t1|0.1\t2|0.2\t1"},
		{"buckets", "histogram", "a.csv", people, "--field age --from 36 --to 46 --buckets 4", "-4\t1|36\t1|41\t2"},

		{"sort", "sort", "a.txt", "b\na\n\nb\nB", "", "|B|a|b|b"},
		{"sort reverse", "sort", "a.txt", "b\na\n\nb\nab\nB", "--reverse", "b|b|ab|a|B|"},
		{"sort unique", "sort", "a.txt", "b\na\nb\n", "--unique", "a|b"},
		{"sort numeric", "sort", "a.txt", "10\n9\nx\n-1.5\n1e3\n", "--numeric", "x|-1.5|9|10|1e3"},
		{"sort numeric reverse", "sort", "a.txt", "10\n9\nx\n-1.5\n10.0\n", "--numeric --reverse", "10.0|10|9|-1.5|x"},
		{"sort numeric unique", "sort", "a.txt", "10\n9\n10.0\n9\n", "--numeric --unique", "9|10"},
		{"sort by column", "sort", "a.csv", people, "--field age --numeric", "2,Bob,,Paris|4,Di,-2.25,|1,Ada,36,London|3,Cy,41.5,London|5,\"E, F\",41.5,Paris"},
		{"sort by word", "sort", "a.txt", "x 3\ny 1\nz\nw 2\n", "--field 2", "z|y 1|w 2|x 3"},

		{"dedup", "dedup", "a.txt", "b\na\nb\n\na\r\n", "", "|a|b"},
		{"dedup by column", "dedup", "a.csv", people, "--field city", "4,Di,-2.25,|1,Ada,36,London|2,Bob,,Paris"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := strings.Fields(c.args)
			for i := range args {
				if !strings.Contains(c.args, "a_b") {
					args[i] = strings.ReplaceAll(args[i], "_", " ")
				}
			}
			path := write(t, c.file, c.input)
			for _, w := range []way{usual, {workers: 1, memory: 64 << 20, partitions: 1}, {split: 3, workers: 4, memory: 64 << 20, partitions: 3}} {
				rows, _, err := run(t, w, c.job, append(args, path)...)
				if err != nil {
					t.Fatal(err)
				}
				want := []string(nil)
				if c.want != "" {
					want = strings.Split(c.want, "|")
				}
				if w.partitions > 1 && !slices.Contains([]string{"sort", "dedup", "grep"}, c.job) && !slices.Contains(args, "--top") && c.job != "topk" {
					slices.Sort(rows)
					slices.Sort(want)
				}
				if !slices.Equal(rows, want) {
					t.Fatalf("%+v:\n got %q\nwant %q", w, rows, want)
				}
			}
		})
	}
}
