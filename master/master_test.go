// SPDX-License-Identifier: Apache-2.0

package master

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWholeJobs(t *testing.T) {
	for name, d := range map[string]*model{
		"fold":           {splits: 7, parts: 3},
		"scales":         {splits: 7, parts: 3, scales: true},
		"grouped":        {splits: 5, parts: 4, grouped: true},
		"total order":    {splits: 5, parts: 4, total: true},
		"one":            {splits: 1, parts: 1},
		"nothing at all": {splits: 0, parts: 2},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMaster(t)
			w := newWorld()
			startWorker(t, m.addr, w, d, "a")
			startWorker(t, m.addr, w, d, "b")
			job := m.submit(jobFile())
			s := m.wantDone(job, d)
			if w.published[job] != 1 {
				t.Errorf("published %d times", w.published[job])
			}
			if len(s.Why) != 2 || len(s.Notes) != 2 || s.Name != "model" {
				t.Errorf("why %q, notes %q, name %q", s.Why, s.Notes, s.Name)
			}
			w.check(t)
		})
	}
}
