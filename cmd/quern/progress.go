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
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done || p.Phase == "done" || p.Elapsed < l.next {
		return
	}
	l.next = p.Elapsed + betweenLines
	fmt.Fprintf(l.w, "quern %s: %s\n", l.job, progressText(p))
}

func (l *lines) hide() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = true
}

// progressText says in words how far a job is.
func progressText(p mapreduce.Progress) string {
	parts := []string{phaseText(p.Phase)}
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
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done || p.Phase == "done" {
		return
	}
	if b.pb == nil || p.Phase != b.phase || p.TotalBytes != b.total {
		b.clear()
		b.phase, b.total = p.Phase, p.TotalBytes
		b.pb = b.start(p)
	}
	b.pb.Describe(b.text(p))
	switch {
	case b.bounded(p):
		// The bar must not reach its end here: that would remove it.
		_ = b.pb.Set64(min(p.Bytes, p.TotalBytes-1))
	case p.Phase == "map":
		_ = b.pb.Set64(p.Bytes)
	default:
		_ = b.pb.Add(1)
	}
}

func (b *bar) bounded(p mapreduce.Progress) bool { return p.Phase == "map" && p.TotalBytes > 1 }

func (b *bar) text(p mapreduce.Progress) string {
	text := b.job + ": " + phaseText(p.Phase)
	if p.Spills > 0 {
		text += ", " + count(p.Spills, "run") + " spilled"
	}
	if p.Rows > 0 {
		text += ", " + count(p.Rows, "row")
	}
	return text
}

func (b *bar) start(p mapreduce.Progress) *progressbar.ProgressBar {
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
	if b.bounded(p) {
		total = p.TotalBytes
	}
	if p.Phase == "map" {
		options = append(options, progressbar.OptionShowBytes(true), progressbar.OptionShowCount())
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
