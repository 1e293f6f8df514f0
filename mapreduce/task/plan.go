// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/json"
	"fmt"
)

// Splits is a job's plan (PlanResult.Plan), from which each map task gets what its
// split needs and no more.
type Splits struct {
	plan   packed
	needed [][]int // per split: the files it reads
}

// packed is what is to be known here of input's packed plans: the list of
// files, and the list of splits, which name their files by position.
type packed struct {
	Total  int               `json:"total"` // files of the whole plan
	Files  []json.RawMessage `json:"files"`
	Splits []json.RawMessage `json:"splits"`
}

// ParsePlan reads PlanResult.Plan.
func ParsePlan(plan json.RawMessage) (*Splits, error) {
	s := &Splits{}
	if err := json.Unmarshal(plan, &s.plan); err != nil {
		return nil, fmt.Errorf("a job's plan: %w", err)
	}
	if s.plan.Total != len(s.plan.Files) {
		return nil, fmt.Errorf("a job's plan has %d of %d files: it is not whole", len(s.plan.Files), s.plan.Total)
	}
	s.needed = make([][]int, len(s.plan.Splits))
	for i, raw := range s.plan.Splits {
		var split struct {
			Files []int `json:"files"`
		}
		if err := json.Unmarshal(raw, &split); err != nil {
			return nil, fmt.Errorf("a job's plan, split %d: %w", i, err)
		}
		for _, f := range split.Files {
			if f < 0 || f >= len(s.plan.Files) {
				return nil, fmt.Errorf("a job's plan, split %d: it names file %d of %d", i, f, len(s.plan.Files))
			}
		}
		s.needed[i] = split.Files
	}
	return s, nil
}

// Len returns the number of splits.
func (s *Splits) Len() int { return len(s.needed) }

// Split returns the plan for the map task of split i, for Request.Plan. Its cost is
// that of the files that the split reads.
func (s *Splits) Split(i int) (json.RawMessage, error) {
	if i < 0 || i >= len(s.needed) {
		return nil, fmt.Errorf("split %d of a plan of %d", i, len(s.needed))
	}
	return s.Share(i, i+1)
}

// Share returns the plan for a map task of the splits from first on and before end, of which there may
// be none.
func (s *Splits) Share(first, end int) (json.RawMessage, error) {
	if first < 0 || end < first || end > len(s.needed) {
		return nil, fmt.Errorf("splits %d to %d of a plan of %d", first, end, len(s.needed))
	}
	part := packed{Total: s.plan.Total, Splits: s.plan.Splits[first:end]}
	if end-first == 1 {
		for _, f := range s.needed[first] {
			part.Files = append(part.Files, s.plan.Files[f])
		}
		return json.Marshal(part)
	}
	taken := map[int]bool{}
	for _, needed := range s.needed[first:end] {
		for _, f := range needed {
			if !taken[f] {
				taken[f] = true
				part.Files = append(part.Files, s.plan.Files[f])
			}
		}
	}
	return json.Marshal(part)
}
