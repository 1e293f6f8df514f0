// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/mapreduce/cluster/api"
)

// iterationText says how far an iteration is; "" if the job is none.
func iterationText(s *api.IterationStatus) string {
	if s == nil {
		return ""
	}
	text := "round " + humanize.Comma(int64(s.GetRound()))
	if n := s.GetRounds(); n > 0 && !s.GetFinal() {
		text += " of " + humanize.Comma(int64(n))
	}
	text += ", " + count(int64(s.GetMembers()), "member")
	if n := s.GetWaiting(); n > 0 && !s.GetFinal() {
		text += fmt.Sprintf(" (%d wait for the others)", n)
	}
	if n := s.GetGroups(); n > 1 {
		text += fmt.Sprintf(", came together %d times", n)
	}
	switch k := s.GetKept(); {
	case s.GetFinal():
		text += ", at its end"
	case k > 0:
		text += ", state kept after round " + humanize.Comma(int64(k))
	}
	return text
}

// iterationJSON is an iteration as --json prints it.
type iterationJSON struct {
	Round    uint64 `json:"round"`
	Rounds   uint64 `json:"rounds"` // at most; 0: as many as it takes
	Members  uint32 `json:"members"`
	Waiting  uint32 `json:"waiting"` // members, for the others
	Together bool   `json:"together"`
	Groups   uint32 `json:"groups"`
	Kept     uint64 `json:"kept"` // round whose state is kept
	Ended    bool   `json:"ended"`
}

func newIterationJSON(s *api.IterationStatus) *iterationJSON {
	if s == nil {
		return nil
	}
	return &iterationJSON{
		Round: s.GetRound(), Rounds: s.GetRounds(), Members: s.GetMembers(), Waiting: s.GetWaiting(), Together: s.GetTogether(), Groups: s.GetGroups(),
		Kept: s.GetKept(), Ended: s.GetFinal(),
	}
}
