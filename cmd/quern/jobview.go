// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/mapreduce/cluster"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"golang.org/x/term"
)

// stageText says what a job of a cluster does.
func stageText(s *api.JobStatus) string {
	switch s.GetState() {
	case api.JobState_JOB_QUEUED:
		if s.GetWaiting() != "" {
			return "waiting: " + s.GetWaiting()
		}
		return "waiting for workers"
	case api.JobState_JOB_PLANNING:
		return "looking at the input"
	case api.JobState_JOB_MAPPING:
		if i := s.GetIteration(); i != nil && i.GetRound() > 0 {
			return iterationText(i)
		}
		return fmt.Sprintf("reading, %s of %s", humanize.Comma(int64(s.GetMap().GetDone())), count(int64(s.GetMap().GetTasks()), "split"))
	case api.JobState_JOB_REDUCING:
		return fmt.Sprintf("writing, %s of %s", humanize.Comma(int64(s.GetReduce().GetDone())), count(int64(s.GetReduce().GetTasks()), "part"))
	case api.JobState_JOB_COMMITTING:
		return "publishing the result"
	}
	return stateText(s.GetState())
}

// troubles says what went wrong with a job on the way, and was mended.
func troubles(s *api.JobStatus) []string {
	var list []string
	add := func(n int64, one, many string) {
		if n == 1 {
			list = append(list, "1 "+one)
		} else if n > 1 {
			list = append(list, humanize.Comma(n)+" "+many)
		}
	}
	add(int64(s.GetMap().GetFailedAttempts())+int64(s.GetReduce().GetFailedAttempts()), "attempt failed", "attempts failed")
	add(int64(s.GetMap().GetLostAttempts())+int64(s.GetReduce().GetLostAttempts()), "attempt lost", "attempts lost")
	add(int64(s.GetReruns()), "split read again", "splits read again")
	add(int64(s.GetResets()), "part begun anew", "parts begun anew")
	if s.GetWaiting() != "" && s.GetState() != api.JobState_JOB_QUEUED {
		list = append(list, "waiting: "+s.GetWaiting())
	}
	return list
}

// jobText says in words how far a job of a cluster is.
func jobText(s *api.JobStatus) string {
	parts := []string{stageText(s)}
	switch s.GetState() {
	case api.JobState_JOB_MAPPING:
		if s.GetIteration().GetRound() > 0 {
			break // what was read is behind it
		}
		if s.GetTotalBytes() > 0 {
			parts[0] = fmt.Sprintf("reading %d %%, %s of %s", percent(s.GetBytes(), s.GetTotalBytes()), humanize.Comma(int64(s.GetMap().GetDone())), count(int64(s.GetMap().GetTasks()), "split"))
			parts = append(parts, size(s.GetBytes())+" of "+size(s.GetTotalBytes()))
		} else if s.GetBytes() > 0 {
			parts = append(parts, size(s.GetBytes()))
		}
		if n := s.GetMap().GetRunning(); n > 0 {
			parts = append(parts, fmt.Sprintf("%d at a time", n))
		}
	case api.JobState_JOB_REDUCING:
		if s.GetRows() > 0 {
			parts = append(parts, count(s.GetRows(), "row")+" written")
		}
	}
	return strings.Join(append(parts, troubles(s)...), ", ")
}

// viewOf is what a bar shows of a job of a cluster.
func viewOf(s *api.JobStatus) view {
	v := view{phase: stateText(s.GetState()), text: strings.Join(append([]string{stageText(s)}, troubles(s)...), ", "), spins: true}
	switch s.GetState() {
	case api.JobState_JOB_MAPPING:
		if i := s.GetIteration(); i.GetRound() > 0 {
			v.spins = i.GetRounds() == 0
			v.done, v.total = int64(i.GetRound()), int64(i.GetRounds())
			break
		}
		v.spins, v.bytes = false, true
		v.done, v.total = s.GetBytes(), s.GetTotalBytes()
	case api.JobState_JOB_REDUCING:
		v.spins = false
		v.done, v.total = int64(s.GetReduce().GetDone()), int64(s.GetReduce().GetTasks())
	}
	return v
}

// jobJSON is a job as --json prints it.
type jobJSON struct {
	Job       string           `json:"id"`
	Name      string           `json:"name"`
	State     string           `json:"state"`
	Error     string           `json:"error,omitempty"`
	Kind      string           `json:"kind,omitempty"` // of the error
	Waiting   string           `json:"waiting,omitempty"`
	User      string           `json:"user,omitempty"`
	Priority  int32            `json:"priority"`
	Submitted time.Time        `json:"submitted"`
	Seconds   float64          `json:"seconds"`
	Map       stageJSON        `json:"map"`
	Reduce    stageJSON        `json:"reduce"`
	Bytes     int64            `json:"bytes"`
	Total     int64            `json:"total_bytes"`
	Records   int64            `json:"records"`
	Emitted   int64            `json:"pairs_emitted"`
	Combined  int64            `json:"pairs_combined"`
	Kernel    int64            `json:"pairs_folded_by_kernel"`
	UserSpace int64            `json:"pairs_folded_in_user_space"`
	Pulled    int64            `json:"pairs_pulled"`
	Keys      int64            `json:"keys"`
	Rows      int64            `json:"rows"`
	Reruns    uint32           `json:"reruns"`
	Resets    uint32           `json:"resets"`
	Notes     []string         `json:"notes"`
	Why       []string         `json:"why"`
	Counters  map[string]int64 `json:"counters"`

	Broadcasts      []broadcastJSON `json:"broadcasts"`
	BroadcastTotals broadcastTotals `json:"broadcast_totals"`

	Iteration *iterationJSON `json:"iteration,omitempty"`
}

// stageJSON is a stage as --json prints it.
type stageJSON struct {
	Tasks       uint32 `json:"tasks"`
	Running     uint32 `json:"running"`
	Done        uint32 `json:"done"`
	Failed      uint32 `json:"failed_attempts"`
	Lost        uint32 `json:"lost_attempts"`
	Speculative uint32 `json:"speculative_attempts"`
}

func newStageJSON(s *api.StageStatus) stageJSON {
	return stageJSON{s.GetTasks(), s.GetRunning(), s.GetDone(), s.GetFailedAttempts(), s.GetLostAttempts(), s.GetSpeculative()}
}

func newJobJSON(s *api.JobStatus) jobJSON {
	j := jobJSON{
		Job: s.GetJob(), Name: s.GetName(), State: stateText(s.GetState()), Error: s.GetError(), Waiting: s.GetWaiting(), User: s.GetUser(), Priority: s.GetPriority(),
		Submitted: time.UnixMilli(s.GetSubmittedUnixMs()).UTC(), Seconds: ms(s.GetElapsedMs()).Seconds(),
		Map: newStageJSON(s.GetMap()), Reduce: newStageJSON(s.GetReduce()),
		Bytes: s.GetBytes(), Total: s.GetTotalBytes(), Records: s.GetRecords(), Emitted: s.GetPairsEmitted(), Combined: s.GetPairsCombined(),
		Kernel: s.GetPairsKernel(), UserSpace: s.GetPairsUser(), Pulled: s.GetPairsPulled(), Keys: s.GetKeys(), Rows: s.GetRows(),
		Reruns: s.GetReruns(), Resets: s.GetResets(), Notes: s.GetNotes(), Why: s.GetWhy(), Counters: s.GetCounters(),
		Broadcasts: broadcastsJSON(s.GetBroadcasts()), BroadcastTotals: totalsOf(s.GetBroadcasts()),
		Iteration: newIterationJSON(s.GetIteration()),
		Kind:      string(task.KindOf((&cluster.JobError{Status: s}).Cause())),
	}
	if j.Notes == nil {
		j.Notes = []string{}
	}
	if j.Why == nil {
		j.Why = []string{}
	}
	if j.Counters == nil {
		j.Counters = map[string]int64{}
	}
	return j
}

// pathsText says by which way pairs came; "" if there were none.
func pathsText(s *api.JobStatus) string {
	var list []string
	for _, p := range []struct {
		n    int64
		text string
	}{
		{s.GetPairsKernel(), "folded by the kernel"},
		{s.GetPairsUser(), "in user space"},
		{s.GetPairsPulled(), "pulled"},
	} {
		switch {
		case p.n == 0:
		case len(list) == 0:
			list = append(list, count(p.n, "pair")+" "+strings.Replace(p.text, "in user", "folded in user", 1))
		default:
			list = append(list, humanize.Comma(p.n)+" "+p.text)
		}
	}
	return strings.Join(list, ", ")
}

// clusterSummary is what --json says about a job that a cluster has done.
type clusterSummary struct {
	summary
	ID          string          `json:"id"`
	Kernel      int64           `json:"pairs_folded_by_kernel"`
	UserSpace   int64           `json:"pairs_folded_in_user_space"`
	Pulled      int64           `json:"pairs_pulled"`
	Failed      int64           `json:"failed_attempts"`
	Lost        int64           `json:"lost_attempts"`
	Speculative int64           `json:"speculative_attempts"`
	Reruns      uint32          `json:"reruns"`
	Resets      uint32          `json:"resets"`
	Broadcasts  []broadcastJSON `json:"broadcasts"`
	PeakRSS     *struct{}       `json:"peak_rss_bytes,omitempty"` // hides that of this process, which did no work
}

func newClusterSummary(job string, f followed) clusterSummary {
	r := *f.result
	s := f.status
	if r.Elapsed == 0 {
		r.Elapsed = ms(s.GetElapsedMs())
	}
	if len(r.Notes) == 0 {
		r.Notes = s.GetNotes()
	}
	both := func(get func(*api.StageStatus) uint32) int64 {
		return int64(get(s.GetMap())) + int64(get(s.GetReduce()))
	}
	sum := clusterSummary{
		summary: newSummary(job, &r), ID: s.GetJob(),
		Kernel: s.GetPairsKernel(), UserSpace: s.GetPairsUser(), Pulled: s.GetPairsPulled(),
		Failed: both((*api.StageStatus).GetFailedAttempts), Lost: both((*api.StageStatus).GetLostAttempts), Speculative: both((*api.StageStatus).GetSpeculative),
		Reruns: s.GetReruns(), Resets: s.GetResets(), Broadcasts: broadcastsJSON(s.GetBroadcasts()),
	}
	sum.summary.PeakRSS = 0
	return sum
}

// finishJob says what the user wants to know about a job that a cluster has done.
func (a *app) finishJob(job string, f followed, said report) {
	sum := newClusterSummary(job, f)
	if said.JSON {
		a.printJSON(sum)
		return
	}
	if said.Quiet {
		return
	}
	for _, note := range sum.Notes {
		fmt.Fprintln(a.stderr, "note: "+note)
	}
	if a.watched() || said.Verbose || ms(f.status.GetElapsedMs()) > worthASummary {
		parts := []string{sum.String()}
		if text := pathsText(f.status); text != "" {
			parts = append(parts, text)
		}
		parts = append(parts, troubles(f.status)...)
		fmt.Fprintf(a.stderr, "quern %s: %s\n", job, strings.Join(parts, ", "))
		if text := broadcastsText(f.status.GetBroadcasts()); text != "" {
			fmt.Fprintf(a.stderr, "quern %s: %s\n", job, text)
		}
	}
}

// watched says whether standard error is a terminal.
func (a *app) watched() bool { return term.IsTerminal(int(a.stderr.Fd())) }

// printJobs prints jobs as a table.
func printJobs(w io.Writer, list []*api.JobStatus, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "JOB\tNAME\tSTATE\tDONE\tTIME\tSUBMITTED\tBY")
	for _, s := range list {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", shortID(s.GetJob()), printable(s.GetName()), stateText(s.GetState()), doneText(s),
			ms(s.GetElapsedMs()).Round(time.Second/10), humanize.RelTime(time.UnixMilli(s.GetSubmittedUnixMs()), now, "ago", "from now"), printable(s.GetUser()))
	}
	return table.Flush()
}

// doneText says how much of a job is done.
func doneText(s *api.JobStatus) string {
	if cluster.Ended(s.GetState()) {
		if s.GetState() == api.JobState_JOB_DONE {
			return count(s.GetRows(), "row")
		}
		return ""
	}
	return fmt.Sprintf("%d/%d splits, %d/%d parts", s.GetMap().GetDone(), s.GetMap().GetTasks(), s.GetReduce().GetDone(), s.GetReduce().GetTasks())
}

// printable makes a text of others harmless for a terminal, and one line.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return ' '
		case r < ' ' || r == 0x7f:
			return '?'
		}
		return r
	}, text)
}

// firstLine is the first line of a text of others, made harmless.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return printable(strings.TrimRight(line, "\r"))
}

// printJob prints all about one job.
func printJob(w io.Writer, s *api.JobStatus) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(table, "%s\t%s\n", name, printable(value))
		}
	}
	row("job", s.GetJob())
	row("name", s.GetName())
	row("state", stateText(s.GetState()))
	row("error", s.GetError())
	row("waiting", s.GetWaiting())
	row("by", s.GetUser())
	if s.GetPriority() != 0 {
		row("priority", fmt.Sprint(s.GetPriority()))
	}
	row("submitted", time.UnixMilli(s.GetSubmittedUnixMs()).Format(time.DateTime))
	row("time", ms(s.GetElapsedMs()).Round(time.Millisecond).String())
	for _, stage := range []struct {
		name string
		s    *api.StageStatus
	}{{"splits", s.GetMap()}, {"parts", s.GetReduce()}} {
		if stage.s.GetTasks() == 0 {
			continue
		}
		text := fmt.Sprintf("%d of %d done", stage.s.GetDone(), stage.s.GetTasks())
		for _, n := range []struct {
			n    uint32
			text string
		}{{stage.s.GetRunning(), "running"}, {stage.s.GetSpeculative(), "of them copies of slow ones"}, {stage.s.GetFailedAttempts(), "attempts failed"}, {stage.s.GetLostAttempts(), "attempts lost"}} {
			if n.n > 0 {
				text += fmt.Sprintf(", %d %s", n.n, n.text)
			}
		}
		row(stage.name, text)
	}
	row("iteration", iterationText(s.GetIteration()))
	read := size(s.GetBytes())
	if s.GetTotalBytes() >= s.GetBytes() && s.GetTotalBytes() > 0 { // splits read on to the end of their last record
		read += " of " + size(s.GetTotalBytes())
	}
	row("read", read)
	if s.GetPairsEmitted() > 0 {
		row("pairs", fmt.Sprintf("%s emitted, %s after combining", humanize.Comma(s.GetPairsEmitted()), humanize.Comma(s.GetPairsCombined())))
	}
	row("travelled", pathsText(s))
	for _, line := range broadcastLines(s.GetBroadcasts()) {
		row("broadcast", line)
	}
	if s.GetRows() > 0 {
		row("rows", humanize.Comma(s.GetRows()))
	}
	if s.GetReruns() > 0 || s.GetResets() > 0 {
		row("mended", fmt.Sprintf("%s read again, %s begun anew", count(int64(s.GetReruns()), "split"), count(int64(s.GetResets()), "part")))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return printLists(w, s.GetWhy(), s.GetNotes())
}

// printLists prints what the planner chose and what the user is to be told.
func printLists(w io.Writer, why, notes []string) error {
	for _, list := range []struct {
		title string
		lines []string
	}{{"why", why}, {"notes", notes}} {
		if len(list.lines) == 0 {
			continue
		}
		text := "\n" + list.title + ":\n"
		for _, line := range list.lines {
			text += "  - " + printable(line) + "\n"
		}
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
	}
	return nil
}
