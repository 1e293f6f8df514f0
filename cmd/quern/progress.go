// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

const (
	quietAtFirst = 2 * time.Second  // without a terminal nothing is said before
	betweenLines = 10 * time.Second // then this often
	barWidth     = 30
	barEvery     = 100 * time.Millisecond
)

// display shows how far a job is. Its methods may be called by several
// goroutines.
type display interface {
	// show shows the state of the job.
	show(p mapreduce.Progress)
	// showJob shows the state of a job of a cluster.
	showJob(s *api.JobStatus)
	// hide removes what is on the screen and shows nothing from then on.
	hide()
}

// newDisplay returns what suits w: a bar on a terminal, else lines.
func (a *app) newDisplay(job string, r report) display {
	switch {
	case r.Quiet:
		return silence{}
	case term.IsTerminal(int(a.stderr.Fd())) && os.Getenv("TERM") != "dumb":
		return &bar{w: a.stderr, job: job, color: os.Getenv("NO_COLOR") == ""}
	}
	return &lines{w: a.stderr, job: job, next: quietAtFirst}
}

type silence struct{}

func (silence) show(mapreduce.Progress) {}
func (silence) showJob(*api.JobStatus)  {}
func (silence) hide()                   {}

// lines writes a line now and then.
type lines struct {
	w    io.Writer
	job  string
	mu   sync.Mutex
	next time.Duration
	done bool
}

func (l *lines) show(p mapreduce.Progress) {
	if p.Phase != "done" {
		l.say(p.Elapsed, progressText(p))
	}
}

func (l *lines) showJob(s *api.JobStatus) {
	if !cluster.Ended(s.GetState()) {
		l.say(ms(s.GetElapsedMs()), jobText(s)+" (job "+shortID(s.GetJob())+")")
	}
}

// say writes a line if it is time for one.
func (l *lines) say(elapsed time.Duration, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done || elapsed < l.next {
		return
	}
	l.next = elapsed + betweenLines
	fmt.Fprintf(l.w, "quern %s: %s\n", l.job, text)
}

func (l *lines) hide() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = true
}

// progressText says in words how far a job is.
func progressText(p mapreduce.Progress) string {
	parts := []string{phaseText(p.Phase)}
	if p.Phase == "rounds" {
		return roundText(p)
	}
	if p.TotalBytes > 0 {
		parts[0] += fmt.Sprintf(" %d %%", percent(p.Bytes, p.TotalBytes))
		parts = append(parts, size(p.Bytes)+" of "+size(p.TotalBytes))
	} else {
		parts = append(parts, size(p.Bytes))
	}
	if seconds := p.Elapsed.Seconds(); p.Phase == "map" && seconds > 0 && p.Bytes > 0 {
		rate := float64(p.Bytes) / seconds
		parts = append(parts, size(int64(rate))+"/s")
		if p.TotalBytes > p.Bytes {
			left := time.Duration(float64(p.TotalBytes-p.Bytes) / rate * float64(time.Second))
			parts = append(parts, "about "+left.Round(time.Second).String()+" left")
		}
	}
	if p.Spills > 0 {
		parts = append(parts, count(p.Spills, "run")+" spilled")
	}
	if p.Rows > 0 {
		parts = append(parts, count(p.Rows, "row")+" written")
	}
	return strings.Join(parts, ", ")
}

// roundText says how far an iteration is.
func roundText(p mapreduce.Progress) string {
	text := "round " + humanize.Comma(int64(p.Round))
	if p.Rounds > 0 {
		text += " of " + humanize.Comma(int64(p.Rounds))
	}
	return text
}

func phaseText(phase string) string {
	switch phase {
	case "plan":
		return "looking at the input"
	case "map":
		return "reading"
	case "merge":
		return "merging"
	case "write":
		return "writing"
	case "load":
		return "loading"
	case "rounds":
		return "rounds"
	}
	return phase
}

func percent(n, of int64) int64 { return min(100, int64(float64(n)/float64(of)*100)) }

func size(bytes int64) string { return humanize.Bytes(uint64(max(0, bytes))) }

func count(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return humanize.Comma(n) + " " + what
}

// bar shows a progress bar while input of known size is read, else a spinner.
type bar struct {
	w     io.Writer
	job   string
	color bool

	mu    sync.Mutex
	done  bool
	phase string
	total int64
	pb    *progressbar.ProgressBar
}

func (b *bar) show(p mapreduce.Progress) {
	if p.Phase == "done" {
		return
	}
	v := view{phase: p.Phase, text: phaseText(p.Phase), total: p.TotalBytes, spins: true}
	if p.Spills > 0 {
		v.text += ", " + count(p.Spills, "run") + " spilled"
	}
	if p.Rows > 0 {
		v.text += ", " + count(p.Rows, "row")
	}
	if p.Phase == "map" || p.Phase == "load" {
		v.done, v.bytes, v.spins = p.Bytes, true, false
	}
	if p.Phase == "rounds" {
		v.text = roundText(p)
	}
	b.update(v)
}

func (b *bar) showJob(s *api.JobStatus) {
	if !cluster.Ended(s.GetState()) {
		b.update(viewOf(s))
	}
}

// view is what a bar shows.
type view struct {
	phase       string // a new one makes a new bar
	text        string
	done, total int64 // total 0: not known
	bytes       bool  // they are bytes
	spins       bool  // only that something happens is shown
}

// bounded says whether there is a length to show.
func (v view) bounded() bool { return !v.spins && v.total > 1 }

func (b *bar) update(v view) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return
	}
	if b.pb == nil || v.phase != b.phase || v.total != b.total {
		b.clear()
		b.phase, b.total = v.phase, v.total
		b.pb = b.start(v)
	}
	b.pb.Describe(b.job + ": " + v.text)
	switch {
	case v.bounded():
		// The bar must not reach its end here: that would remove it.
		_ = b.pb.Set64(min(v.done, v.total-1))
	case !v.spins:
		_ = b.pb.Set64(v.done)
	default:
		_ = b.pb.Add(1)
	}
}

func (b *bar) start(v view) *progressbar.ProgressBar {
	theme := progressbar.ThemeASCII
	if b.color {
		theme = progressbar.Theme{Saucer: "[green]━[reset]", SaucerHead: "[green]━[reset]", SaucerPadding: " ", BarStart: "|", BarEnd: "|"}
	}
	options := []progressbar.Option{
		progressbar.OptionSetWriter(b.w),
		progressbar.OptionSetWidth(barWidth),
		progressbar.OptionSetTheme(theme),
		progressbar.OptionEnableColorCodes(b.color),
		progressbar.OptionThrottle(barEvery),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionSetSpinnerChangeInterval(0), // or it starts a goroutine that nothing ends
		progressbar.OptionSpinnerType(14),
	}
	total := int64(-1)
	if v.bounded() {
		total = v.total
	}
	if !v.spins {
		options = append(options, progressbar.OptionShowBytes(v.bytes), progressbar.OptionShowCount())
	}
	return progressbar.NewOptions64(total, options...)
}

func (b *bar) clear() {
	if b.pb != nil {
		_ = b.pb.Clear()
		b.pb = nil
	}
}

func (b *bar) hide() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clear()
	b.done = true
}

// hiding is standard output of a job: the first row ends the display, which
// would else stand between rows if both go to the same terminal.
type hiding struct {
	io.Writer
	display display
	once    sync.Once
}

func (h *hiding) Write(p []byte) (int, error) {
	h.once.Do(h.display.hide)
	return h.Writer.Write(p)
}
