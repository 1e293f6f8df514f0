// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"

	"github.com/quernmr/quern/mapreduce"
)

// settings say how nodes are ranked.
type settings struct {
	nodes     int     // numbered from 0
	damping   float64 // how likely it is that a walk goes on by a link
	tolerance float64 // a round that changes all ranks together by no more than this is the last one
	rounds    int     // at most; 0: as many as it takes
}

// The state has two numbers for each node: its rank and how many links it has.
const columns = 2

// edge is a link from one node to another.
type edge struct{ from, to uint32 }

// iteration makes the ranking. The first round counts the links of nodes: a split has not all of a node's.
func iteration(s settings) (*mapreduce.Iteration[[]edge], error) {
	switch {
	case s.nodes < 1 || s.nodes > math.MaxInt32:
		return nil, fmt.Errorf("%d nodes: say how many there are, 2^31 - 1 at most", s.nodes)
	case !(s.damping >= 0 && s.damping < 1):
		return nil, fmt.Errorf("damping %v: want 0 to less than 1", s.damping)
	case !(s.tolerance >= 0) || s.rounds < 0:
		return nil, fmt.Errorf("tolerance %v and %d rounds: neither may be below 0", s.tolerance, s.rounds)
	case s.tolerance == 0 && s.rounds == 0:
		return nil, errors.New("set a tolerance or rounds, so that there is an end")
	}
	it := &mapreduce.Iteration[[]edge]{
		Name: "pagerank",
		Load: func(_ mapreduce.Split, records iter.Seq[mapreduce.Record]) ([]edge, error) {
			return load(records, s.nodes)
		},
		Start: func() ([]float64, error) {
			state := make([]float64, columns*s.nodes)
			for i := 0; i < len(state); i += columns {
				state[i] = 1 / float64(s.nodes)
			}
			return state, nil
		},
		Sums: s.nodes,
		Round: func(r mapreduce.Round, edges []edge, sums []float64) error {
			if r.Number == 1 {
				for _, e := range edges {
					sums[e.from]++
				}
				return nil
			}
			for _, e := range edges {
				from := r.State[columns*e.from:]
				sums[e.to] += from[0] / from[1]
			}
			return nil
		},
		Update: func(r mapreduce.Round, state, sums []float64) (bool, error) {
			if r.Number == 1 {
				for i, links := range sums {
					state[columns*i+1] = links
				}
				return false, nil
			}
			return s.update(state, sums) <= s.tolerance, nil
		},
		Columns:   []string{"rank", "links"},
		KeyColumn: "node",
	}
	if s.rounds > 0 {
		it.Rounds = s.rounds + 1 // and the one that counts links
	}
	return it, nil
}

// update makes the next ranks of what came in by links, and returns how much they change together.
func (s settings) update(state, sums []float64) (change float64) {
	// A walk that comes to a node without links goes on anywhere.
	dangling := 0.0
	for i := 0; i < len(state); i += columns {
		if state[i+1] == 0 {
			dangling += state[i]
		}
	}
	anywhere := (1 - s.damping + float64(s.damping*dangling)) / float64(s.nodes)
	for i, in := range sums {
		rank := anywhere + float64(s.damping*in) // rounded, so that no machine makes one step of two
		change += math.Abs(rank - state[columns*i])
		state[columns*i] = rank
	}
	return change
}

// load reads links, lines of two numbers with white space between them. Lines that begin with # are comments.
func load(records iter.Seq[mapreduce.Record], nodes int) ([]edge, error) {
	var edges []edge
	number := func(text []byte) (uint32, error) {
		n, err := strconv.ParseUint(string(text), 10, 32)
		if err == nil && n >= uint64(nodes) {
			err = fmt.Errorf("there are %d nodes, from 0", nodes)
		}
		if err != nil {
			return 0, fmt.Errorf("node %q: %w", text, err)
		}
		return uint32(n), nil
	}
	for rec := range records {
		text := bytes.TrimSpace(rec.Value)
		if len(text) == 0 || text[0] == '#' {
			continue
		}
		i := bytes.IndexAny(text, " \t")
		if i < 0 {
			return nil, fmt.Errorf("%q: want two nodes", text)
		}
		from, err := number(text[:i])
		if err != nil {
			return nil, err
		}
		to, err := number(bytes.TrimSpace(text[i:]))
		if err != nil {
			return nil, err
		}
		edges = append(edges, edge{from, to})
	}
	return edges, nil
}
