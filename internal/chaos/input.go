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
// decimals, grouped ones, one of which has a total order.
var Jobs = []string{"wordcount", "aggregate", "join", "sort", "dedup", "topk", program}

// program is the job of a user's program, with a grouped reduce.
const program = "program"

// sizes of the inputs.
const (
	textLines = 25_000
	tableRows = 100_000
	sideRows  = 3_000
)

// split is small, so that a job has many tasks.
const split = "48KiB"

// Input is what jobs read.
type Input struct {
	Text, Table, Side string // paths
}

// WriteInput makes the inputs of a seed in a folder.
func WriteInput(dir string, seed uint64) (*Input, error) {
	in := &Input{filepath.Join(dir, "text.txt"), filepath.Join(dir, "table.csv"), filepath.Join(dir, "side.csv")}
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

// Command returns the arguments of quern for a job whose result goes to out, and whether
// they come behind those of the executable of a user's program instead.
func (in *Input) Command(job, out string) (args []string, own bool) {
	switch job {
	case program:
		return []string{"-o", out, "-grouped", "-keys", "50", "-split", "1024", "-map", "1ms", "-reduce", "2ms", in.Side}, true
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
	return append(args, "--split-size", split, "-o", out), false
}
