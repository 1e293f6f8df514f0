// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/worker/process"
)

// logbook has the logs of attempts. Those of the jobs that were last heard of
// stay, as far as they fit.
type logbook struct {
	dir   string
	limit int64

	mu    sync.Mutex
	jobs  []*jobLogs // the one that was last heard of at the end
	count int
}

type jobLogs struct {
	job  string
	logs []*attemptLog
}

type attemptLog struct {
	attempt *api.Attempt
	log     *process.Log
	path    string
	size    int64
	ended   bool
	failed  bool
}

func newLogbook(dir string, limit int64) *logbook { return &logbook{dir: dir, limit: limit} }

// begin opens the log of an attempt.
func (b *logbook) begin(at *api.Attempt) *process.Log {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.jobs, func(j *jobLogs) bool { return j.job == at.GetJob() })
	j := &jobLogs{job: at.GetJob()}
	if i >= 0 {
		j = b.jobs[i]
		b.jobs = slices.Delete(b.jobs, i, i+1)
	}
	b.jobs = append(b.jobs, j)
	b.count++
	path := filepath.Join(b.dir, strconv.Itoa(b.count))
	l := &attemptLog{attempt: at, path: path, log: process.NewLog(path, 0)}
	j.logs = append(j.logs, l)
	return l.log
}

// end says how an attempt ended, and makes room.
func (b *logbook) end(at *api.Attempt, failed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, j := range b.jobs {
		if j.job != at.GetJob() {
			continue
		}
		for i, l := range j.logs {
			if keyOf(l.attempt) != keyOf(at) || l.ended {
				continue
			}
			l.ended, l.failed = true, failed
			if st, err := os.Stat(l.path); err == nil {
				l.size = st.Size()
			} else {
				// It wrote nothing, as most do: there may be very many.
				j.logs = slices.Delete(j.logs, i, i+1)
			}
			break
		}
	}
	b.fit()
}

// fit removes the oldest logs until the others fit.
func (b *logbook) fit() {
	var sum int64
	for _, j := range b.jobs {
		for _, l := range j.logs {
			sum += l.size
		}
	}
	for _, j := range b.jobs {
		j.logs = slices.DeleteFunc(j.logs, func(l *attemptLog) bool {
			if !l.ended || sum <= b.limit {
				return false
			}
			_ = os.Remove(l.path)
			sum -= l.size
			return true
		})
	}
	b.jobs = slices.DeleteFunc(b.jobs, func(j *jobLogs) bool { return len(j.logs) == 0 })
}

// find returns the logs that a request asks for, in the order in which they began.
func (b *logbook) find(r *api.LogsRequest) []*attemptLog {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []*attemptLog
	for _, j := range b.jobs {
		if j.job != r.GetJob() {
			continue
		}
		for _, l := range j.logs {
			name := fmt.Sprintf("%s %d", l.attempt.GetStage(), l.attempt.GetTask())
			if r.GetTask() != "" && r.GetTask() != name && !strings.EqualFold(r.GetTask(), l.attempt.GetStage()) || r.GetFailedOnly() && !l.failed {
				continue
			}
			found = append(found, &attemptLog{attempt: l.attempt, log: l.log})
		}
	}
	return found
}
