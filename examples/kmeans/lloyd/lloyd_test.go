// SPDX-License-Identifier: Apache-2.0

package lloyd

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

const points = "../testdata/points.csv"

// iterate runs an iteration over files, which it cuts in splits of that many bytes.
func iterate(t *testing.T, s Settings, files []string, size int64, workers int) (*mapreduce.IterationResult, error) {
	t.Helper()
	it, err := Iteration(s)
	if err != nil {
		t.Fatal(err)
	}
	return mapreduce.Iterate(t.Context(), it, mapreduce.IterateOptions{Options: mapreduce.Options{
		Inputs: files, Input: input.Options{SplitSize: size}, Workers: workers,
	}})
}

func write(t *testing.T, text string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.csv")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{path}
}

// Four corners of a field that is longer than high, and a header.
func TestByHand(t *testing.T) {
	in := write(t, "name;y;x\na;0; 0\n\nb;2;0\nc;0;10\nd;2;10\n")
	for _, c := range []struct {
		name      string
		s         Settings
		want      []float64
		rounds    int
		converged bool
	}{
		{
			"left and right",
			Settings{K: 2, Centroids: []float64{1, 0, 9, 0}, Rounds: 9},
			[]float64{0, 1, 2, 2, 10, 1, 2, 2},
			2, true,
		},
		{
			"high and low, which is a stable division too",
			Settings{K: 2, Centroids: []float64{5, 0, 5, 3}},
			[]float64{5, 0, 2, 50, 5, 2, 2, 50},
			2, true,
		},
		// In one round the inertia is that of where it began: 2 x (1 + 0) + 2 x (1 + 4).
		{
			"one round",
			Settings{K: 2, Centroids: []float64{1, 0, 9, 0}, Rounds: 1},
			[]float64{0, 1, 2, 6, 10, 1, 2, 6},
			1, false,
		},
		{
			"it moves by the square root of 4 and no more",
			Settings{K: 2, Centroids: []float64{1, 0, 9, 0}, Tolerance: 2},
			[]float64{0, 1, 2, 6, 10, 1, 2, 6},
			1, true,
		},
		{
			"no centroid but the first is near",
			Settings{K: 2, Centroids: []float64{5, 1, -50, -50}},
			[]float64{5, 1, 4, 104, -50, -50, 0, 0},
			1, true,
		},
		{
			"all are as near",
			Settings{K: 3, Centroids: []float64{5, 1, 5, 1, 5, 1}},
			[]float64{5, 1, 4, 104, 5, 1, 0, 0, 5, 1, 0, 0},
			1, true,
		},
		{
			"all rounds",
			Settings{K: 1, Centroids: []float64{5, 1}, Tolerance: -1, Rounds: 7},
			[]float64{5, 1, 4, 104},
			7, false,
		},
		// One split: of four points the second (3/2 of 1 of 4) and the last (3/4).
		{
			"chosen",
			Settings{K: 2, Rounds: 1},
			[]float64{0, 2, 0, 0, 10, 2, 0, 0},
			1, false,
		},
		{
			"and then",
			Settings{K: 2},
			[]float64{0, 1, 2, 2, 10, 1, 2, 2},
			3, true,
		},
	} {
		c.s.Fields, c.s.Separator = []int{3, 2}, ';'
		res, err := iterate(t, c.s, in, 0, 1)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if !slices.Equal(res.State, c.want) || res.Rounds != c.rounds || res.Converged != c.converged {
			t.Errorf("%s: %v after %d rounds (converged: %v), want %v after %d (%v)",
				c.name, res.State, res.Rounds, res.Converged, c.want, c.rounds, c.converged)
		}
	}
}

// The same clusters, rounds and inertia as scikit-learn (testdata/reference.py), from the same beginnings.
func TestReference(t *testing.T) {
	var ref struct {
		Cases []struct {
			Start, Centroids [][]float64
			Rounds           int
			Points           []int64
			Inertia          float64
		}
	}
	text, err := os.ReadFile("../testdata/reference.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &ref); err != nil {
		t.Fatal(err)
	}
	if len(ref.Cases) != 5 {
		t.Fatalf("%d cases", len(ref.Cases))
	}
	for _, c := range ref.Cases {
		k := len(c.Start)
		res, err := iterate(t, Settings{Fields: []int{1, 2}, K: k, Centroids: slices.Concat(c.Start...)}, []string{points}, 5000, 2)
		if err != nil {
			t.Fatal(err)
		}
		if res.Result.Splits < 6 {
			t.Errorf("%d splits: too few to tell", res.Result.Splits)
		}
		if res.Rounds != c.Rounds || !res.Converged {
			t.Errorf("%d clusters: %d rounds, want %d", k, res.Rounds, c.Rounds)
		}
		got := Clusters(res.State, 2)
		for i, g := range got {
			if g.Points != c.Points[i] {
				t.Errorf("%d clusters: %d points in number %d, want %d", k, g.Points, i, c.Points[i])
			}
			// Both divide the sum of the same points by their number. 2000 additions of numbers
			// below 150, each rounded to 53 bits, are off by 2000 x 300,000 x 2^-53 at most
			// before the division, in either program; what they really are off is much less.
			for j, x := range g.Centroid {
				if math.Abs(x-c.Centroids[i][j]) > 1e-10 {
					t.Errorf("%d clusters: number %d at %v, want %v", k, i, g.Centroid, c.Centroids[i])
				}
			}
		}
		if inertia := Inertia(got); math.Abs(inertia/c.Inertia-1) > 1e-12 {
			t.Errorf("%d clusters: inertia %v, want %v", k, inertia, c.Inertia)
		}
		// The bound is for the sums, whose largest is 2000 x 100 or, of inertia, 3e6.
		if res.Bound > 1e-9 {
			t.Errorf("%d clusters: sums may be off by %v", k, res.Bound)
		}
	}
}

// However many workers there are, the state is the same to the last bit.
func TestWorkers(t *testing.T) {
	var want *mapreduce.IterationResult
	for _, workers := range []int{1, 2, 7} {
		res, err := iterate(t, Settings{Fields: []int{2, 1}, K: 13}, []string{points}, 1000, workers)
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = res
		}
		if !slices.Equal(res.State, want.State) || res.Rounds != want.Rounds || res.Rounds < 5 {
			t.Errorf("%d workers: %v after %d rounds, want %v after %d", workers, res.State, res.Rounds, want.State, want.Rounds)
		}
		for _, c := range Clusters(res.State, 2) {
			if c.Points == 0 {
				t.Errorf("cluster %+v has no points, though its centroid was one", c)
			}
		}
	}
}

// No round makes the inertia larger, and each puts every point in its nearest cluster.
func TestRounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dims := rapid.IntRange(1, 4).Draw(t, "dims")
		k := rapid.IntRange(1, 6).Draw(t, "k")
		coordinate := rapid.Float64Range(-1e3, 1e3)
		p := Points(rapid.SliceOfN(coordinate, dims, 40*dims).Draw(t, "points"))
		p = p[:len(p)/dims*dims]
		state := make([]float64, 0, k*(dims+extra))
		for range k {
			state = append(state, rapid.SliceOfN(coordinate, dims, dims).Draw(t, "centroid")...)
			state = append(state, 0, 0)
		}
		before := math.Inf(1)
		for range 10 {
			want := 0.0
			for point := range slices.Chunk(p, dims) {
				least := math.Inf(1)
				for _, c := range Clusters(state, dims) {
					d := 0.0
					for i, x := range c.Centroid {
						d = math.Hypot(d, x-point[i])
					}
					least = min(least, d*d)
				}
				want += least
			}
			sums := make([]float64, len(state))
			assign(state, p, dims, sums)
			move(state, sums, dims)
			all := Clusters(state, dims)
			n := int64(0)
			for _, c := range all {
				n += c.Points
			}
			if n != int64(len(p)/dims) {
				t.Fatalf("%d points in clusters of %d", n, len(p)/dims)
			}
			got := Inertia(all)
			if math.Abs(got-want) > 1e-9*(1+want) {
				t.Fatalf("inertia %v, want %v", got, want)
			}
			if got > before*(1+1e-9)+1e-6 {
				t.Fatalf("inertia %v, in the round before %v", got, before)
			}
			before = got
		}
	})
}

func TestSettings(t *testing.T) {
	for want, s := range map[string]Settings{
		"no fields":                   {K: 1},
		"field 0: the first one is 1": {K: 1, Fields: []int{1, 0}},
		"0 clusters":                  {Fields: []int{1}},
		"3 coordinates of centroids: 2 clusters of points with 2 need 4": {K: 2, Fields: []int{1, 2}, Centroids: []float64{1, 2, 3}},
		"coordinate NaN of a centroid":                                   {K: 1, Fields: []int{1}, Centroids: []float64{math.NaN()}},
		"set Rounds":                                                     {K: 1, Fields: []int{1}, Tolerance: -1},
	} {
		if _, err := Iteration(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", s, err, want)
		}
	}
}

func TestBadInput(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"1,2\n3\n", `in.csv:2: field 2 of 1 in "3"`},
		{"x,y\n1,two\n", `in.csv:2: field 2, "two": strconv.ParseFloat`},
		{"1,2\n3,NaN\n", `in.csv:2: field 2, "NaN": a coordinate must be finite`},
		{"1,2\n3,4\n", "split 0 of the input has too few points to choose centroid 0 from them"},
	} {
		if _, err := iterate(t, Settings{Fields: []int{1, 2}, K: 3}, write(t, c.text), 0, 1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want %q", c.text, err, c.want)
		}
	}
}

// A mixture is the same bytes on every machine and with every version of Go: those that
// scikit-learn was given.
func TestMixture(t *testing.T) {
	want, err := os.ReadFile(points)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := (Mixture{Points: 2000, Dims: 2, Clusters: 8, Spread: 6, Seed: 1}).Write(&got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Error("the mixture is no longer that of testdata/points.csv")
	}
	for _, m := range []Mixture{{Dims: 0, Clusters: 1}, {Dims: 1}, {Dims: 1, Clusters: 1, Spread: -1}, {Points: -1, Dims: 1, Clusters: 1}} {
		if err := m.Write(&got); err == nil {
			t.Errorf("%+v: no error", m)
		}
	}
}

// Points of one cluster spread as far as they are told to.
func TestSpread(t *testing.T) {
	var text bytes.Buffer
	if err := (Mixture{Points: 20_000, Dims: 1, Clusters: 1, Spread: 3, Seed: 9}).Write(&text); err != nil {
		t.Fatal(err)
	}
	res, err := iterate(t, Settings{Fields: []int{1}, K: 1}, write(t, text.String()), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Of so many points the standard deviation is 0.5 % off or so.
	c := Clusters(res.State, 1)[0]
	if deviation := math.Sqrt(c.Inertia / float64(c.Points)); c.Points != 20_000 || math.Abs(deviation-3) > 0.1 {
		t.Errorf("%d points with a standard deviation of %v, want 3", c.Points, deviation)
	}
}

func TestAppendUnits(t *testing.T) {
	for v, want := range map[int64]string{0: "0.0000", 1: "0.0001", -1: "-0.0001", 123_4567: "123.4567", -20_0000: "-20.0000"} {
		if got := string(appendUnits(nil, v)); got != want {
			t.Errorf("%d: %s, want %s", v, got, want)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte("x,y,z\n1,2,3\n4,5,6"), byte(','))
	f.Add([]byte("1; 2;;-3e5\n\n"), byte(';'))
	f.Fuzz(func(t *testing.T, text []byte, separator byte) {
		p, err := load(func(yield func(mapreduce.Record) bool) {
			offset := int64(0)
			for line := range bytes.Lines(text) {
				if !yield(mapreduce.Record{Value: bytes.TrimSuffix(line, []byte("\n")), Offset: offset}) {
					return
				}
				offset += int64(len(line))
			}
		}, []int{3, 1}, separator)
		if err == nil && (len(p)%2 != 0 || slices.ContainsFunc(p, func(x float64) bool { return !finite(x) })) {
			t.Errorf("%q: points %v", text, p)
		}
	})
}
