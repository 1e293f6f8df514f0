// SPDX-License-Identifier: Apache-2.0

package lloyd

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"

	"github.com/quernmr/quern/mapreduce"
)

// Settings say what is to be found in which fields.
type Settings struct {
	// Fields are the fields of a line that are a point's coordinates, from 1.
	Fields []int
	// Separator stands between the fields of a line; 0: a comma.
	Separator byte
	// K is how many clusters there are.
	K int
	// Centroids is where they begin: K points with len(Fields) coordinates each, one
	// after another. Nil: at points of the input, see Iteration.
	Centroids []float64
	// Rounds is how many there are at most; 0: as many as it takes.
	Rounds int
	// Tolerance is how far all centroids together may move, as the root of the sum of squares, in
	// a round that is taken for the last one. With 0 none may. If it is negative all Rounds are done.
	Tolerance float64
}

// extra is how many numbers a cluster has beside its coordinates: points and inertia.
const extra = 2

// Points are the points of a split: their coordinates, one point after another.
type Points []float64

// Iteration makes the iteration. Its state has a row for each cluster: the coordinates of
// its centroid, how many points are nearest to it, and their inertia, which is the sum of the squares of their distances to it. Both are
// those of the round that was done last, so of the centroids that it began with; with a Tolerance of 0
// these are the same in the end. A cluster without points stays where it is.
//
// Without Centroids the first round chooses them: every split gives as many of its points as others, evenly spaced. So they depend on
// the input and how it is cut, and on nothing else.
func Iteration(s Settings) (*mapreduce.Iteration[Points], error) {
	if s.Separator == 0 {
		s.Separator = ','
	}
	dims := len(s.Fields)
	switch {
	case dims == 0:
		return nil, errors.New("no fields: name those that are coordinates")
	case slices.Min(s.Fields) < 1:
		return nil, fmt.Errorf("field %d: the first one is 1", slices.Min(s.Fields))
	case s.K < 1:
		return nil, fmt.Errorf("%d clusters: at least 1 is needed", s.K)
	case s.Centroids != nil && len(s.Centroids) != s.K*dims:
		return nil, fmt.Errorf("%d coordinates of centroids: %d clusters of points with %d need %d", len(s.Centroids), s.K, dims, s.K*dims)
	case s.Tolerance < 0 && s.Rounds == 0:
		return nil, errors.New("set Rounds where no tolerance ends them")
	}
	for _, x := range s.Centroids {
		if !finite(x) {
			return nil, fmt.Errorf("coordinate %v of a centroid", x)
		}
	}
	it := &mapreduce.Iteration[Points]{
		Name: "kmeans",
		Load: func(_ mapreduce.Split, records iter.Seq[mapreduce.Record]) (Points, error) {
			return load(records, s.Fields, s.Separator)
		},
		Start: func() ([]float64, error) {
			state := make([]float64, s.K*(dims+extra))
			for k := range len(s.Centroids) / dims {
				copy(state[k*(dims+extra):], s.Centroids[k*dims:][:dims])
			}
			return state, nil
		},
		Round: func(r mapreduce.Round, p Points, sums []float64) error {
			if r.Number == 1 && s.Centroids == nil {
				choose(r, p, dims, s.K, sums)
			} else {
				assign(r.State, p, dims, sums)
			}
			return nil
		},
		Update: func(r mapreduce.Round, state, sums []float64) (bool, error) {
			if r.Number == 1 && s.Centroids == nil {
				return false, begin(r, state, sums, dims)
			}
			return move(state, sums, dims) <= s.Tolerance, nil
		},
		Rounds:     s.Rounds,
		KeyColumn:  "cluster",
		Checkpoint: 10,
	}
	for _, f := range s.Fields {
		it.Columns = append(it.Columns, "x"+strconv.Itoa(f))
	}
	it.Columns = append(it.Columns, "points", "inertia")
	return it, nil
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// load reads points. A first line of a file that is no point is its header.
func load(records iter.Seq[mapreduce.Record], fields []int, separator byte) (Points, error) {
	var p Points
	line := make([][]byte, slices.Max(fields))
	for rec := range records {
		if len(rec.Value) == 0 {
			continue
		}
		rest, n := rec.Value, 0
		for more := true; more && n < len(line); n++ {
			line[n], rest, more = bytes.Cut(rest, []byte{separator})
		}
		before := len(p)
		for _, f := range fields {
			if f > n {
				return nil, fmt.Errorf("field %d of %d in %q", f, n, rec.Value)
			}
			x, err := strconv.ParseFloat(string(bytes.TrimSpace(line[f-1])), 64)
			if err == nil && !finite(x) {
				err = errors.New("a coordinate must be finite")
			}
			if err != nil && rec.Offset == 0 {
				p = p[:before]
				break
			}
			if err != nil {
				return nil, fmt.Errorf("field %d, %q: %w", f, line[f-1], err)
			}
			p = append(p, x)
		}
	}
	return p, nil
}

// choose puts a split's points in the rows of those centroids that are its to choose.
func choose(r mapreduce.Round, p Points, dims, clusters int, sums []float64) {
	var mine []int
	for k := range clusters {
		if k*r.Splits/clusters == r.Split {
			mine = append(mine, k)
		}
	}
	points := len(p) / dims
	for i, k := range mine {
		if points < len(mine) {
			return // Update finds that nobody chose
		}
		at := (2*i + 1) * points / (2 * len(mine))
		row := sums[k*(dims+extra):]
		copy(row, p[at*dims:][:dims])
		row[dims] = 1
	}
}

// begin makes the points that splits chose the first centroids.
func begin(r mapreduce.Round, state, sums []float64, dims int) error {
	for k := 0; k < len(state); k += dims + extra {
		if sums[k+dims] != 1 {
			cluster := k / (dims + extra)
			split := cluster * r.Splits / (len(state) / (dims + extra))
			return fmt.Errorf("split %d of the input has too few points to choose centroid %d from them: ask for fewer clusters, or say where they begin", split, cluster)
		}
		copy(state[k:], sums[k:][:dims])
	}
	return nil
}

// assign adds every point to the row of its nearest centroid; of those at the same distance, to the first.
func assign(state []float64, p Points, dims int, sums []float64) {
	for len(p) > 0 {
		point := p[:dims:dims]
		p = p[dims:]
		nearest, least := 0, math.Inf(1)
		for k := 0; k < len(state); k += dims + extra {
			distance := 0.0
			for i, x := range state[k:][:dims:dims] {
				x -= point[i]
				distance += float64(x * x) // rounded, so that no machine makes one step of two
			}
			if distance < least {
				nearest, least = k, distance
			}
		}
		row := sums[nearest:][: dims+extra : dims+extra]
		for i, x := range point {
			row[i] += x
		}
		row[dims]++
		row[dims+1] += least
	}
}

// move puts the centroids in the middle of their points, and returns how far they went.
func move(state, sums []float64, dims int) float64 {
	moved := 0.0
	for k := 0; k < len(state); k += dims + extra {
		row, sum := state[k:][:dims+extra], sums[k:][:dims+extra]
		points := sum[dims]
		for i := range row[:dims] {
			if points == 0 {
				break
			}
			x := sum[i] / points
			moved += float64((x - row[i]) * (x - row[i]))
			row[i] = x
		}
		row[dims], row[dims+1] = points, sum[dims+1]
	}
	return math.Sqrt(moved)
}

// Cluster is what the iteration finds.
type Cluster struct {
	Centroid []float64
	Points   int64
	Inertia  float64
}

// Clusters reads a state. Centroids lie in its memory.
func Clusters(state []float64, dims int) []Cluster {
	var all []Cluster
	for row := range slices.Chunk(state, dims+extra) {
		all = append(all, Cluster{row[:dims:dims], int64(row[dims]), row[dims+1]})
	}
	return all
}

// Inertia is that of all clusters together.
func Inertia(all []Cluster) float64 {
	sum := 0.0
	for _, c := range all {
		sum += c.Inertia
	}
	return sum
}
