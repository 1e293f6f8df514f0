// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
)

const example = "testdata/edges.txt"

func rank(t *testing.T, s settings, path string, splits int64, workers int) *mapreduce.IterationResult {
	t.Helper()
	it, err := iteration(s)
	if err != nil {
		t.Fatal(err)
	}
	res, err := mapreduce.Iterate(t.Context(), it, mapreduce.IterateOptions{Options: mapreduce.Options{
		Inputs: []string{path}, Input: input.Options{SplitSize: splits}, Workers: workers,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.txt")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Ranks after one round and two, with a damping of 1/2 and nodes of 1, 2 or 4 links: all fractions are exact.
func TestByHand(t *testing.T) {
	// 0 links twice to 1 and to 2, 1 to 2, and 2 to itself; 3 has no links.
	in := write(t, "# from to\n0 1\n0\t1\n\n 0  2\r\n0 2\n1 2\n2 2\n")
	dir := filepath.Join(t.TempDir(), "out")
	var out, notes bytes.Buffer
	// Links of 0: half to 1, half to 2. Each begins with 1/4; 1/8 goes anywhere, and 1/32 more of node 3.
	// 0: 5/32. 1: 5/32 + 1/2 x 1/8 = 7/32. 2: 5/32 + 1/2 x (1/8 + 1/4 + 1/4) = 15/32. 3: 5/32.
	s := settings{nodes: 4, damping: 0.5, rounds: 1}
	if err := run(t.Context(), []string{in}, s, dir, &out, &notes); err != nil {
		t.Fatal(err)
	}
	part, err := os.ReadFile(filepath.Join(dir, "part-00000"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "0\t0.15625\t4\n1\t0.21875\t1\n2\t0.46875\t1\n3\t0.15625\t0\n"; string(part) != want || out.Len() != 0 {
		t.Errorf("part %q, want %q; standard output %q", part, want, out.String())
	}
	if !strings.HasPrefix(notes.String(), "pagerank: 1 rounds, ended by their number; sums are off by ") {
		t.Errorf("notes: %s", notes.String())
	}

	// Anywhere: 1/8 + 1/2 x 5/32 / 4 = 37/256. 1: 37/256 + 1/2 x 1/2 x 5/32 = 47/256.
	// 2: 37/256 + 1/2 x (1/2 x 5/32 + 7/32 + 15/32) = 37/256 + 98/256.
	s.rounds = 2
	if err := run(t.Context(), []string{in}, s, "", &out, &notes); err != nil {
		t.Fatal(err)
	}
	if want := "0\t0.14453125\t4\n1\t0.18359375\t1\n2\t0.52734375\t1\n3\t0.14453125\t0\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}

	// Where no link is followed all nodes are alike.
	res := rank(t, settings{nodes: 4, damping: 0, tolerance: 1e-12}, in, 0, 1)
	if want := []float64{0.25, 4, 0.25, 1, 0.25, 1, 0.25, 0}; !slices.Equal(res.State, want) || !res.Converged || res.Rounds != 2 {
		t.Errorf("got %v after %d rounds, want %v", res.State, res.Rounds, want)
	}
}

// The ranks of numpy (testdata/reference.py), which solves the equations that they fulfil.
func TestReference(t *testing.T) {
	var ref struct {
		Damping, Tolerance float64
		Rounds             int
		WithoutLinks       int `json:"without_links"`
		Ranks              []float64
	}
	text, err := os.ReadFile("testdata/reference.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &ref); err != nil {
		t.Fatal(err)
	}
	if len(ref.Ranks) != 1000 {
		t.Fatalf("%d ranks", len(ref.Ranks))
	}
	s := settings{nodes: len(ref.Ranks), damping: ref.Damping, tolerance: ref.Tolerance}
	res := rank(t, s, example, 2000, 0)
	if res.Result.Splits < 10 {
		t.Errorf("%d splits: too few to tell", res.Result.Splits)
	}
	if got := res.Rounds - 1; got != ref.Rounds || !res.Converged {
		t.Errorf("%d rounds, want %d", got, ref.Rounds)
	}
	off, sum, without := 0.0, 0.0, 0
	for i, want := range ref.Ranks {
		off += math.Abs(res.State[columns*i] - want)
		sum += res.State[columns*i]
		if res.State[columns*i+1] == 0 {
			without++
		}
	}
	// A round makes what ranks are off 0.85 times as large or less. So after one that changed them by no more
	// than the tolerance they are off by 0.85 / (1 - 0.85) times that; rounding adds less than 1e-12.
	if limit := ref.Damping/(1-ref.Damping)*ref.Tolerance + 1e-12; off > limit {
		t.Errorf("ranks are off by %v, by %v at most", off, limit)
	}
	if math.Abs(sum-1) > 1e-12 || without != ref.WithoutLinks {
		t.Errorf("ranks add up to %v, and %d nodes are without links, want %d", sum, without, ref.WithoutLinks)
	}

	// More rounds come as near as floats allow, up to one that changes nothing at all.
	s.tolerance, s.rounds = 0, 300
	res = rank(t, s, example, 2000, 0)
	off = 0
	for i, want := range ref.Ranks {
		off += math.Abs(res.State[columns*i] - want)
	}
	if off > 1e-13 || !res.Converged {
		t.Errorf("after %d rounds ranks are off by %v", res.Rounds-1, off)
	}
}

// However many workers there are, ranks are the same to the last bit.
func TestWorkers(t *testing.T) {
	s := settings{nodes: 1000, damping: 0.85, tolerance: 1e-10}
	want := rank(t, s, example, 1000, 1)
	for _, workers := range []int{2, 7} {
		if got := rank(t, s, example, 1000, workers); !slices.Equal(got.State, want.State) || got.Rounds != want.Rounds {
			t.Errorf("%d workers: other ranks than one worker's", workers)
		}
	}
}

// Ranks of any graph add up to 1, and no node has less than what comes from anywhere.
func TestUpdate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := settings{nodes: rapid.IntRange(1, 12).Draw(t, "nodes"), damping: rapid.Float64Range(0, 0.99).Draw(t, "damping"), rounds: 5}
		node := rapid.Uint32Range(0, uint32(s.nodes-1))
		edges := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) edge {
			return edge{node.Draw(t, "from"), node.Draw(t, "to")}
		}), 0, 40).Draw(t, "edges")
		it, err := iteration(s)
		if err != nil {
			t.Fatal(err)
		}
		state, err := it.Start()
		if err != nil {
			t.Fatal(err)
		}
		for round := range 6 {
			r := mapreduce.Round{Number: round + 1, State: slices.Clone(state)}
			sums := make([]float64, s.nodes)
			if err := it.Round(r, edges, sums); err != nil {
				t.Fatal(err)
			}
			if _, err := it.Update(r, state, sums); err != nil {
				t.Fatal(err)
			}
			sum := 0.0
			for i := range s.nodes {
				rank := state[columns*i]
				if least := (1 - s.damping) / float64(s.nodes); rank < least*(1-1e-12) {
					t.Fatalf("round %d: rank %v, want %v at least", round, rank, least)
				}
				sum += rank
			}
			if math.Abs(sum-1) > 1e-12 {
				t.Fatalf("round %d: ranks add up to %v", round, sum)
			}
		}
	})
}

// The links are those that numpy was given, on every machine and with every version of Go.
func TestGenerate(t *testing.T) {
	want, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := generate(&got, 1000); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Error("the links are no longer those of testdata/edges.txt")
	}
}

func TestErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.txt")
	good := settings{nodes: 3, damping: 0.5, rounds: 1}
	for _, c := range []struct {
		input, want string
		s           settings
	}{
		{missing, missing, good},
		{missing, "0 nodes: say how many there are", settings{}},
		{missing, "damping 1: want 0 to less than 1", settings{nodes: 1, damping: 1}},
		{missing, "tolerance NaN and 0 rounds", settings{nodes: 1, tolerance: math.NaN()}},
		{missing, "set a tolerance or rounds", settings{nodes: 1}},
		{write(t, "0 1\n1\n"), `in.txt:2: "1": want two nodes`, good},
		{write(t, "0 1\n1 2 3\n"), `in.txt:2: node "2 3": strconv.ParseUint`, good},
		{write(t, "0 1\n-1 2\n"), `in.txt:2: node "-1": strconv.ParseUint`, good},
		{write(t, "0 1\n1 3\n"), `in.txt:2: node "3": there are 3 nodes, from 0`, good},
	} {
		var out, notes bytes.Buffer
		err := run(t.Context(), []string{c.input}, c.s, "", &out, &notes)
		if err == nil || !strings.Contains(err.Error(), c.want) || out.Len()+notes.Len() != 0 {
			t.Errorf("error %v, want %q; output %q, notes %q", err, c.want, out.String(), notes.String())
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte("# from to\n0 1\n1\t2\n"))
	f.Add([]byte("4294967296 0\n 7"))
	f.Fuzz(func(t *testing.T, text []byte) {
		edges, err := load(func(yield func(mapreduce.Record) bool) {
			for line := range bytes.Lines(text) {
				if !yield(mapreduce.Record{Value: line}) {
					return
				}
			}
		}, 3)
		if err == nil && slices.ContainsFunc(edges, func(e edge) bool { return e.from > 2 || e.to > 2 }) {
			t.Errorf("%q: links %v", text, edges)
		}
	})
}
