// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// Jobs are the jobs of scenarios: folds with keys short and long, one with
// decimals, grouped ones, one of which has a total order, ones whose workers are all given
// the same, and iterations.
var Jobs = []string{"wordcount", "aggregate", "join", "sort", "dedup", "topk", program, joinSide, lookup, descent, wideDescent}

// Jobs that take more than a command line. All but joinSide are a user's program, which
// workers are given by broadcast, as they are side inputs.
const (
	program     = "program"      // with a grouped reduce
	joinSide    = "join side"    // one side is a side input
	lookup      = "lookup"       // reads a side input in its map and its reduce function
	descent     = "descent"      // an iteration of many short rounds
	wideDescent = "wide descent" // one of few rounds with long vectors
)

// iterates says whether a job is an iteration.
func iterates(job string) bool { return job == descent || job == wideDescent }

// sizes of the inputs.
const (
	textLines = 25_000
	tableRows = 100_000
	sideRows  = 3_000
	// Only what has 64 KiB is spread by broadcast.
	nameRows = 8_000
	points   = 3_000
)

// split is small, so that a job has many tasks.
const split = "48KiB"

// Input is what jobs read.
type Input struct {
	Text, Table, Side, Names, Points string // paths
}

// WriteInput makes the inputs of a seed in a folder.
func WriteInput(dir string, seed uint64) (*Input, error) {
	in := &Input{}
	for path, name := range map[*string]string{&in.Text: "text.txt", &in.Table: "table.csv", &in.Side: "side.csv", &in.Names: "names.csv", &in.Points: "points.txt"} {
		*path = filepath.Join(dir, name)
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	zipf := rand.NewZipf(rng, 1.1, 4, 30_000)
	err := writeLines(in.Text, textLines, func(w *bufio.Writer, _ int) {
		for i := range 4 + rng.IntN(16) {
			if i > 0 {
				w.WriteByte(' ')
			}
			writeWord(w, zipf.Uint64())
		}
	})
	if err != nil {
		return nil, err
	}
	err = writeLines(in.Table, tableRows+1, func(w *bufio.Writer, i int) {
		if i == 0 {
			w.WriteString("id,group,amount")
			return
		}
		fmt.Fprintf(w, "%d,g%d,%d.%02d", rng.IntN(2*sideRows), zipf.Uint64()%5000, rng.IntN(2000)-1000, rng.IntN(100))
	})
	if err != nil {
		return nil, err
	}
	err = writeLines(in.Side, sideRows+1, func(w *bufio.Writer, i int) {
		if i == 0 {
			w.WriteString("id,name")
			return
		}
		fmt.Fprintf(w, "%d,name %d", 2*i, rng.IntN(1000))
	})
	if err != nil {
		return nil, err
	}
	err = writeLines(in.Names, nameRows+1, func(w *bufio.Writer, i int) {
		if i == 0 {
			w.WriteString("id,name")
			return
		}
		fmt.Fprintf(w, "%d,the name %d of %d", i-1, rng.IntN(1_000_000), i)
	})
	if err != nil {
		return nil, err
	}
	err = writeLines(in.Points, points, func(w *bufio.Writer, _ int) {
		fmt.Fprintf(w, "%d.%03d", rng.IntN(1000), rng.IntN(1000))
	})
	return in, err
}

// writeWord writes the word of a number: most are short, some of every class of keys,
// and some longer than all of them.
func writeWord(w *bufio.Writer, n uint64) {
	fmt.Fprintf(w, "w%d", n)
	switch {
	case n%97 == 0:
		w.WriteString(strings.Repeat("x", 80))
	case n%31 == 0:
		w.WriteString(strings.Repeat("y", 40))
	case n%13 == 0:
		w.WriteString(strings.Repeat("z", 20))
	case n%3 == 0:
		w.WriteString("suffix")
	}
}

func writeLines(path string, n int, line func(*bufio.Writer, int)) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write an input: %w", err)
	}
	w := bufio.NewWriter(f)
	for i := range n {
		line(w, i)
		w.WriteByte('\n')
	}
	if err := w.Flush(); err != nil {
		f.Close()
		return fmt.Errorf("write an input: %w", err)
	}
	return f.Close()
}

// Programs are executables of users' programs.
type Programs struct {
	Program, Descent string // of testdata/program and testdata/descent
}

// Command returns the arguments of quern for a job whose result goes to out, or those of a
// user's program, and that.
func (in *Input) Command(p Programs, job, out string) (args []string, own string) {
	switch job {
	case program:
		return []string{"-o", out, "-grouped", "-keys", "50", "-split", "1024", "-map", "1ms", "-reduce", "2ms", in.Side}, p.Program
	case lookup:
		return []string{"-o", out, "-grouped", "-side", in.Names, "-keys", "50", "-split", "1024", "-map", "1ms", "-reduce", "2ms", in.Side}, p.Program
	case descent:
		return []string{"-o", out, "-rounds", "300", "-nap", "3ms", in.Points}, p.Descent
	case wideDescent:
		return []string{"-o", out, "-rounds", "40", "-size", "60000", "-nap", "15ms", in.Points}, p.Descent
	case joinSide:
		args = []string{"join", in.Names, in.Table, "--on", "id", "--type", "right", "--strategy", "broadcast", "--partitions", "4"}
	case "wordcount":
		args = []string{"wordcount", in.Text, "--partitions", "8"}
	case "aggregate":
		args = []string{"aggregate", in.Table, "--group-by", "group", "--sum", "amount", "--min", "amount", "--mean", "amount", "--max", "amount", "--partitions", "6"}
	case "join":
		args = []string{"join", in.Side, in.Table, "--on", "id", "--type", "full", "--partitions", "4"}
	case "sort":
		args = []string{"sort", in.Text, "--partitions", "4"}
	case "dedup":
		args = []string{"dedup", in.Table, "--partitions", "3"}
	case "topk":
		args = []string{"topk", in.Table, "--field", "group", "-k", "50"}
	}
	return append(args, "--split-size", split, "-o", out), ""
}
