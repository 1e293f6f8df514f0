// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/internal/labcluster"
	"github.com/quernmr/quern/internal/netlab"
	"golang.org/x/sys/unix"
)

// Limits of a run. They are generous: the machine may be slow, and it may do other things.
const (
	comeUp  = 90 * time.Second  // for a cluster to be there
	jobTime = 240 * time.Second // for a job, whatever happens to it
	stopIn  = 30 * time.Second  // for a process to stop when it is asked to
	settle  = 30 * time.Second  // for what a job has left to be cleaned up
)

// noWorkers is how long a job waits for workers before it fails.
const noWorkers = 15 * time.Second

// Bench is where scenarios are run: an executable, a folder, inputs and what the local
// engine makes of them.
type Bench struct {
	Quern    string
	Programs Programs
	Dir      string
	Input    *Input
	// Logs is where the logs of masters and workers are kept; "": nowhere.
	Logs string
	// Environ is the environment of all processes.
	Environ []string
	// Say is told what happens. nil: nobody is.
	Say func(format string, args ...any)

	mu   sync.Mutex
	want map[string]wanted // by job
}

// wanted is what the local engine makes of a job.
type wanted struct {
	dir  string // of the output
	said string // what a user's program wrote to standard output
}

// NewBench makes the inputs of a seed in a folder.
func NewBench(quern string, programs Programs, dir string, seed uint64) (*Bench, error) {
	in, err := WriteInput(dir, seed)
	if err != nil {
		return nil, err
	}
	return &Bench{Quern: quern, Programs: programs, Dir: dir, Input: in, Environ: os.Environ(), want: map[string]wanted{}}, nil
}

func (b *Bench) say(format string, args ...any) {
	if b.Say != nil {
		b.Say(format, args...)
	}
}

// Want returns what the local engine makes of a job.
func (b *Bench) Want(ctx context.Context, job string) (wanted, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w, ok := b.want[job]; ok {
		return w, nil
	}
	w := wanted{dir: filepath.Join(b.Dir, "local-"+job)}
	path := b.Quern
	args, own := b.Input.Command(b.Programs, job, w.dir)
	if own != "" {
		path = own
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"HOME=" + b.Dir, "PATH=" + os.Getenv("PATH")}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return w, fmt.Errorf("run %s locally: %w: %s%s", job, err, out, stderr.Bytes())
	}
	w.said = string(out)
	b.want[job] = w
	return w, nil
}

// Report says what a run showed.
type Report struct {
	OK      bool // else the job ended with an error, as it might
	Error   string
	Seconds float64        // that the job took
	Struck  map[Action]int // what was done while the job ran
	Kernel  int64          // pairs folded by programs
	User    int64
	Pulled  int64
	Reruns  int64
	Resets  int64
	Lost    int64 // attempts
	Failed  int64
	// Spread is how many workers were given something by broadcast, and SpreadKernel how many
	// of them by programs.
	Spread, SpreadKernel int64
	Regroups             int64 // of iterations' members, after the first time
	Resumed              int64 // rounds of a checkpoint that an iteration went on from
}

func (r *Report) String() string {
	if !r.OK {
		return fmt.Sprintf("an error after %.1f s: %s", r.Seconds, r.Error)
	}
	return fmt.Sprintf("%.1f s, %d events while it ran; pairs: %d kernel, %d user space, %d pulled; attempts: %d lost, %d failed; %d maps again, %d resets; "+
		"given to %d, by the kernel to %d; came together again %d times, resumed at %d",
		r.Seconds, r.Events(), r.Kernel, r.User, r.Pulled, r.Lost, r.Failed, r.Reruns, r.Resets, r.Spread, r.SpreadKernel, r.Regroups, r.Resumed)
}

// Events is how much was done while the job ran.
func (r *Report) Events() (n int) {
	for _, k := range r.Struck {
		n += k
	}
	return n
}

// run is one run of a scenario.
type run struct {
	bench    *Bench
	scenario *Scenario
	dir      string
	lab      *netlab.Lab
	cluster  *labcluster.Cluster
	mounted  []string
	struck   map[Action]int
	mu       sync.Mutex
	busy     map[string]*sync.Mutex // per process: events about one follow each other
}

// Run runs a scenario and returns what it showed, and all that is wrong with it.
func (b *Bench) Run(ctx context.Context, s *Scenario) (report *Report, err error) {
	r := &run{bench: b, scenario: s, dir: filepath.Join(b.Dir, fmt.Sprintf("seed-%d", s.Seed)), busy: map[string]*sync.Mutex{}, struck: map[Action]int{}}
	if err := os.MkdirAll(filepath.Join(r.dir, "out"), 0o755); err != nil {
		return nil, fmt.Errorf("prepare a run: %w", err)
	}
	defer func() { err = errors.Join(err, r.remove(err == nil)) }()
	if r.lab, err = netlab.New(netlab.Options{Hosts: s.Hosts, Seed: s.Seed}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.lab.Close()) }()
	if err := r.start(ctx); err != nil {
		return nil, r.withLogs(err)
	}
	report, err = r.jobs(ctx)
	if err == nil {
		err = r.checkAfter(ctx)
	}
	if stopErr := r.stop(); err == nil || stopErr == nil {
		err = errors.Join(err, stopErr)
	}
	err = errors.Join(err, r.cluster.Crashes())
	return report, r.withLogs(err)
}

func (r *run) withLogs(err error) error {
	if err == nil || r.cluster == nil {
		return err
	}
	return fmt.Errorf("%w\n%s", err, r.cluster.Logs())
}

// Sizes of the small file systems.
const (
	smallDisk    = 24 << 20
	smallJournal = 6 << 20
)

func (r *run) mount(dir string, size int64) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("prepare a small file system: %w", err)
	}
	if err := unix.Mount("quern-chaos", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		return fmt.Errorf("mount a small file system: %w", err)
	}
	r.mounted = append(r.mounted, dir)
	return nil
}

func (r *run) start(ctx context.Context) error {
	s := r.scenario
	o := labcluster.Options{
		Quern: r.bench.Quern, Dir: filepath.Join(r.dir, "cluster"), Slots: s.Slots, Lease: s.Lease, Environ: r.bench.Environ,
		MasterArgs: []string{"--no-workers", noWorkers.String()},
		WorkerArgs: func(host int) []string {
			args := []string{"--room", "1MiB"}
			if s.Shuffle == User || s.Shuffle == Mixed && host%2 == 0 {
				args = append(args, "--shuffle", "user")
			}
			return args
		},
	}
	if r.bench.Logs != "" {
		o.Logs = filepath.Join(r.bench.Logs, filepath.Base(r.dir))
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return fmt.Errorf("prepare a run: %w", err)
	}
	if s.SmallDisk > 0 {
		dir := o.DirOf(s.SmallDisk)
		if err := r.mount(dir, smallDisk); err != nil {
			return err
		}
	}
	if s.SmallJournal {
		o.MasterDir = filepath.Join(o.Dir, "master")
		if err := r.mount(o.MasterDir, smallJournal); err != nil {
			return err
		}
	}
	if s.Shuffle != User {
		o.Shuffle = "kernel"
	}
	var err error
	if r.cluster, err = labcluster.New(r.lab, o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, comeUp)
	defer cancel()
	if err := r.cluster.Start(ctx); err != nil {
		return err
	}
	return r.lab.SetFaults(s.Faults)
}

// submission is a job that was given to the cluster.
type submission struct {
	job, out string
	want     wanted
	cmd      *netlab.Command
	stdout   bytes.Buffer
	stderr   *watch
	ended    chan struct{} // closed
	err      error         // of waiting, when it has ended
}

// submit gives a job to the cluster.
func (r *run) submit(ctx context.Context, job, name string) (*submission, error) {
	want, err := r.bench.Want(ctx, job)
	if err != nil {
		return nil, err
	}
	s := &submission{job: job, out: filepath.Join(r.dir, "out", name), want: want, stderr: newWatch(" is submitted"), ended: make(chan struct{})}
	args, own := r.bench.Input.Command(r.bench.Programs, job, s.out)
	if own != "" {
		args = append([]string{"submit", own, "--json", "--verbose", "--"}, args...)
	} else {
		args = append(append([]string{"submit"}, args...), "--json", "--verbose")
	}
	s.cmd = r.cluster.Command(ctx, args...)
	s.cmd.Stdout, s.cmd.Stderr = &s.stdout, s.stderr
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("submit: %w", err)
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.ended)
	}()
	return s, nil
}

// id returns the beginning of the job's id, as the cluster's client says it.
func (s *submission) id() string {
	before, _, _ := strings.Cut(s.stderr.String(), " is submitted")
	return before[strings.LastIndexByte(before, ' ')+1:]
}

// jobs submits the scenario's jobs, lets happen what is to happen, and looks at what comes out.
func (r *run) jobs(ctx context.Context) (report *Report, err error) {
	jobCtx, cancel := context.WithTimeout(ctx, jobTime)
	defer cancel()
	var all []*submission
	for i, job := range r.scenario.Jobs() {
		s, err := r.submit(jobCtx, job, fmt.Sprintf("result%d", i))
		if err != nil {
			return nil, err
		}
		defer func() {
			cancel() // which ends it if it has not ended
			<-s.ended
		}()
		all = append(all, s)
	}
	// A job that was not taken yet may be refused when there is no master.
	for _, s := range all {
		select {
		case <-s.stderr.seen:
		case <-s.ended:
		}
	}
	begin := time.Now()
	events := r.scenario.Events
	eventsCtx, over := context.WithCancel(ctx)
	defer over()
	var wg sync.WaitGroup
	reducing := make(chan struct{})
	wg.Go(func() {
		r.awaitReduce(eventsCtx, all[0])
		close(reducing)
	})
	errs := make([]error, len(events))
	for i, e := range events {
		wg.Go(func() {
			if e.Reducing {
				<-reducing
			}
			errs[i] = r.happen(eventsCtx, e)
		})
	}
	for _, s := range all {
		<-s.ended
	}
	report = &Report{OK: true, Seconds: time.Since(begin).Seconds()}
	over()
	wg.Wait()
	report.Struck = r.struck
	if err := errors.Join(errs...); err != nil {
		return report, fmt.Errorf("what was to happen: %w", err)
	}
	if jobCtx.Err() != nil {
		return report, fmt.Errorf("not all jobs have ended within %v: %s", jobTime, tail(all[0].stderr.String()))
	}
	var names []string
	for _, s := range all {
		report.fill(s.stderr.String())
		if s.err == nil {
			names = append(names, filepath.Base(s.out))
		}
		err = errors.Join(err, r.check(s, report))
	}
	if err == nil && report.OK {
		err = r.checkOutputs(names)
	}
	return report, err
}

// awaitReduce returns when a job is in its reduce stage, or beyond. Of an iteration, the first
// round is enough: its rounds are what is to be struck.
func (r *run) awaitReduce(ctx context.Context, s *submission) {
	wanted := false
	for _, e := range r.scenario.Events {
		wanted = wanted || e.Reducing
	}
	if !wanted {
		return
	}
	for ; ctx.Err() == nil; sleep(ctx, 20*time.Millisecond) {
		// Without a master there is no answer, and another try.
		out, err := r.cluster.Command(ctx, "status", "--json", s.id()).Output()
		var status struct {
			State     string `json:"state"`
			Iteration struct {
				Round uint64 `json:"round"`
			} `json:"iteration"`
		}
		if err != nil || json.Unmarshal(out, &status) != nil {
			continue
		}
		switch status.State {
		case "queued", "planning", "mapping":
			if status.Iteration.Round > 0 {
				return
			}
		default:
			return
		}
	}
}

// check looks at what came of a job.
func (r *run) check(s *submission, report *Report) error {
	stderr := s.stderr.String()
	if s.err != nil {
		report.OK, report.Error = false, tail(stderr)
		return r.checkError(s.cmd.ProcessState, stderr, s.out)
	}
	if said := s.stdout.String(); said != s.want.said {
		return fmt.Errorf("%s: standard output is %.200q, with the local engine %.200q", s.job, said, s.want.said)
	}
	if err := checkSummary(lastLine(stderr)); err != nil {
		return fmt.Errorf("%s: %w", s.job, err)
	}
	if err := sameTree(s.out, s.want.dir); err != nil {
		return fmt.Errorf("%s: %w", s.job, err)
	}
	return nil
}

// watch keeps what is written, and says when a text was in it.
type watch struct {
	mu   sync.Mutex
	all  bytes.Buffer
	text string
	seen chan struct{} // closed
	done bool
}

func newWatch(text string) *watch { return &watch{text: text, seen: make(chan struct{})} }

func (w *watch) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Write(p)
	if !w.done && bytes.Contains(w.all.Bytes(), []byte(w.text)) {
		w.done = true
		close(w.seen)
	}
	return len(p), nil
}

func (w *watch) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}

// checkOutputs looks for what is in the output's parent folder and should not be there.
func (r *run) checkOutputs(spared []string) error {
	parent := filepath.Join(r.dir, "out")
	return within(settle, func() error {
		list, err := os.ReadDir(parent)
		if err != nil {
			return fmt.Errorf("look at the outputs: %w", err)
		}
		for _, e := range list {
			if !slices.Contains(spared, e.Name()) {
				return fmt.Errorf("left beside the output: %s", e.Name())
			}
		}
		return nil
	})
}

// checkError looks at a job that failed: it may, the error is one line, and nothing is left.
func (r *run) checkError(state *os.ProcessState, stderr, out string) error {
	var complaints int
	for line := range strings.Lines(stderr) {
		if strings.HasPrefix(line, "quern: ") && !strings.Contains(line, "is submitted") {
			complaints++
		}
	}
	switch {
	case !r.scenario.MayFail:
		return fmt.Errorf("the job failed (%v), though enough was left to run it: %s", state, tail(stderr))
	case complaints == 0:
		return fmt.Errorf("the job failed (%v) and does not say why: %s", state, tail(stderr))
	}
	if _, err := os.Lstat(out); err == nil {
		return errors.New("the job failed and left an output")
	}
	return nil
}

// checkSummary looks at the books that a job ends with.
func checkSummary(line string) error {
	var summary struct {
		OK    bool `json:"ok"`
		Audit struct {
			PairsEmitted  int64  `json:"pairs_emitted"`
			PairsCombined int64  `json:"pairs_combined"`
			PairsFolded   int64  `json:"pairs_folded"`
			SumCombined   uint64 `json:"sum_check_map"`
			SumFolded     uint64 `json:"sum_check_drain"`
		} `json:"audit"`
	}
	if err := json.Unmarshal([]byte(line), &summary); err != nil {
		return fmt.Errorf("read the summary: %w: %.300q", err, line)
	}
	a := summary.Audit
	switch {
	case !summary.OK:
		return fmt.Errorf("the summary does not say that all is well: %s", line)
	case a.PairsEmitted == 0 || a.PairsCombined == 0:
		return fmt.Errorf("the books are empty: %s", line)
	case a.PairsCombined != a.PairsFolded || a.SumCombined != a.SumFolded:
		return fmt.Errorf("the books do not balance: %s", line)
	}
	return nil
}

// fill adds what a job's standard error says of how it went.
func (r *Report) fill(text string) {
	var s struct {
		Kernel int64 `json:"pairs_folded_by_kernel"`
		User   int64 `json:"pairs_folded_in_user_space"`
		Pulled int64 `json:"pairs_pulled"`
		Reruns int64 `json:"reruns"`
		Resets int64 `json:"resets"`
		Lost   int64 `json:"lost_attempts"`
		Failed int64 `json:"failed_attempts"`

		Broadcasts []struct {
			Reached int64 `json:"reached"`
			Kernel  int64 `json:"reached_by_kernel"`
		} `json:"broadcasts"`
	}
	// A line of testdata/descent.
	if _, line, ok := strings.Cut(text, "descent: together "); ok {
		var groups, resumed int64
		if n, _ := fmt.Sscanf(line, "%d times, resumed at %d", &groups, &resumed); n == 2 {
			r.Regroups, r.Resumed = r.Regroups+groups-1, r.Resumed+resumed
		}
	}
	if json.Unmarshal([]byte(lastLine(text)), &s) == nil {
		for _, b := range s.Broadcasts {
			r.Spread, r.SpreadKernel = r.Spread+b.Reached, r.SpreadKernel+b.Kernel
		}
		r.Kernel, r.User, r.Pulled = r.Kernel+s.Kernel, r.User+s.User, r.Pulled+s.Pulled
		r.Reruns, r.Resets, r.Lost, r.Failed = r.Reruns+s.Reruns, r.Resets+s.Resets, r.Lost+s.Lost, r.Failed+s.Failed
	}
}

// lastLine returns the JSON object that a run with --json ends with, but for what a user's
// program says when its job is done.
func lastLine(text string) string {
	text = strings.TrimRight(text, "\n")
	if i := strings.LastIndex("\n"+text, "\n{"); i >= 0 {
		line, _, _ := strings.Cut(text[i:], "\n")
		return line
	}
	return text[strings.LastIndexByte(text, '\n')+1:]
}

func tail(text string) string {
	text = strings.TrimSpace(text)
	if len(text) > 1500 {
		text = "..." + text[len(text)-1500:]
	}
	return text
}

// lock makes what happens to one process happen one after the other.
func (r *run) lock(name string) *sync.Mutex {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[name] == nil {
		r.busy[name] = &sync.Mutex{}
	}
	return r.busy[name]
}

// strike counts something that was done.
func (r *run) strike(a Action) {
	r.mu.Lock()
	r.struck[a]++
	r.mu.Unlock()
}

// sleep waits; it returns false if the job has ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// happen lets an event happen and undoes it. When ctx ends before, nothing happens.
// Undoing is done in any case, at once when ctx ends.
func (r *run) happen(ctx context.Context, e Event) (err error) {
	if !sleep(ctx, e.At) {
		return nil
	}
	name := processName(e.Host)
	switch e.Do {
	case SpoilLinks, KillAll, CutHost, FillMaster, FillWorker:
		name = string(e.Do) + fmt.Sprint(e.Host)
	}
	m := r.lock(name)
	m.Lock()
	defer m.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	r.bench.say("%v", e)
	switch e.Do {
	case KillWorker, DrainWorker:
		p := r.cluster.Worker(e.Host)
		if _, gone := p.Ended(); gone {
			return nil
		}
		r.strike(e.Do)
		if e.Do == KillWorker {
			err = p.Kill()
		} else {
			err = r.drain(ctx, e.Host, p)
		}
		if err != nil || e.For == 0 {
			return err
		}
		sleep(ctx, e.For)
		return r.cluster.StartWorker(e.Host)
	case KillMaster:
		r.strike(e.Do)
		if err := r.cluster.Master().Kill(); err != nil {
			return err
		}
		sleep(ctx, e.For)
		return r.cluster.StartMaster()
	case StopWorker:
		r.strike(e.Do)
		return r.pause(ctx, r.cluster.Worker(e.Host), e.For)
	case StopMaster:
		r.strike(e.Do)
		return r.pause(ctx, r.cluster.Master(), e.For)
	case KillAll:
		return r.killAll(ctx, e)
	case SlowWorker:
		p := r.cluster.Worker(e.Host)
		r.strike(e.Do)
		end := time.Now().Add(e.For)
		for time.Now().Before(end) && ctx.Err() == nil && err == nil {
			err = r.pause(ctx, p, 200*time.Millisecond)
			sleep(ctx, 50*time.Millisecond)
		}
		return err
	case KillTask, StopTask:
		return r.task(ctx, e)
	case CutHost:
		r.strike(e.Do)
		if err := r.lab.Cut(e.Host); err != nil {
			return err
		}
		sleep(ctx, e.For)
		return r.lab.Heal(e.Host)
	case SpoilLinks:
		r.strike(e.Do)
		if err := r.lab.SetFaults(e.Faults); err != nil {
			return err
		}
		sleep(ctx, e.For)
		return r.lab.SetFaults(r.scenario.Faults)
	case FillWorker:
		r.strike(e.Do)
		return r.fill(ctx, r.cluster.Options().DirOf(e.Host), e.For)
	case FillMaster:
		r.strike(e.Do)
		return r.fill(ctx, r.cluster.Options().MasterDir, e.For)
	}
	return fmt.Errorf("there is no action %q", e.Do)
}

// drain asks a worker to leave, and waits until it has. One that can't be asked, since the master
// is away or the jobs have ended meanwhile, is killed.
func (r *run) drain(ctx context.Context, host int, p *labcluster.Process) error {
	if out, err := r.cluster.Command(ctx, "worker", "--drain", r.cluster.NameOf(host)).CombinedOutput(); err != nil {
		r.bench.say("drain: %v: %s", err, out)
		return p.Kill()
	}
	select {
	case <-p.Done():
		return nil
	case <-time.After(stopIn):
		return fmt.Errorf("%s was asked to leave and is there %v later: %s", p.Name, stopIn, p.Tail())
	}
}

// killAll kills all that runs, and starts what it has killed.
func (r *run) killAll(ctx context.Context, e Event) error {
	var locks []*sync.Mutex
	defer func() {
		for _, m := range locks {
			m.Unlock()
		}
	}()
	for h := 0; h <= r.scenario.Hosts; h++ {
		m := r.lock(processName(h))
		m.Lock()
		locks = append(locks, m)
	}
	if ctx.Err() != nil {
		return nil
	}
	r.strike(e.Do)
	var killed []int
	for h := 1; h <= r.scenario.Hosts; h++ {
		p := r.cluster.Worker(h)
		if _, gone := p.Ended(); !gone {
			killed = append(killed, h)
			if err := p.Kill(); err != nil {
				return err
			}
		}
	}
	if err := r.cluster.Master().Kill(); err != nil {
		return err
	}
	sleep(ctx, e.For)
	err := r.cluster.StartMaster()
	for _, h := range killed {
		err = errors.Join(err, r.cluster.StartWorker(h))
	}
	return err
}

// processName is what lock knows a process by: of the worker of a host, or of the master.
func processName(host int) string {
	if host == 0 {
		return "master"
	}
	return fmt.Sprintf("worker %d", host)
}

// pause stops a process, and has it go on.
func (r *run) pause(ctx context.Context, p *labcluster.Process, d time.Duration) error {
	if _, gone := p.Ended(); gone {
		return nil
	}
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	sleep(ctx, d)
	return p.Signal(syscall.SIGCONT)
}

// task does something to an attempt of a worker, the first that is found within a while.
func (r *run) task(ctx context.Context, e Event) error {
	host := r.lab.Host(e.Host)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		p := r.cluster.Worker(e.Host)
		if _, gone := p.Ended(); gone {
			return nil
		}
		children, err := childrenOf(host, p.PID())
		if err != nil {
			return err
		}
		if len(children) == 0 {
			continue
		}
		pid := children[0].pid
		r.strike(e.Do)
		if e.Do == KillTask {
			return ignoreGone(unix.Kill(pid, unix.SIGKILL))
		}
		if err := ignoreGone(unix.Kill(pid, unix.SIGSTOP)); err != nil {
			return err
		}
		sleep(ctx, e.For)
		// By then the number may be another process's: that takes no harm.
		return ignoreGone(unix.Kill(pid, unix.SIGCONT))
	}
	return nil
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// fill fills a file system, for a while.
func (r *run) fill(ctx context.Context, dir string, d time.Duration) error {
	path := filepath.Join(dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		return ignoreFull(err)
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	if err = ignoreFull(err); err == nil {
		sleep(ctx, d)
	}
	return errors.Join(err, os.Remove(path))
}

func ignoreFull(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return nil
	}
	return fmt.Errorf("fill a disk: %w", err)
}

// checkAfter starts again whoever is gone, and looks whether everybody forgets the job.
func (r *run) checkAfter(ctx context.Context) error {
	if err := r.lab.SetFaults(netlab.Faults{}); err != nil {
		return err
	}
	if _, gone := r.cluster.Master().Ended(); gone {
		return fmt.Errorf("the master has ended by itself: %s", r.cluster.Master().Tail())
	}
	for h := 1; h <= r.scenario.Hosts; h++ {
		p := r.cluster.Worker(h)
		if _, gone := p.Ended(); gone {
			// Only who was ended on purpose may have.
			if !r.scenario.ends(h) {
				return fmt.Errorf("the worker of host %d has ended by itself: %s", h, p.Tail())
			}
			if err := r.cluster.StartWorker(h); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, comeUp)
	defer cancel()
	if err := r.cluster.WaitWorkers(ctx, r.scenario.Hosts); err != nil {
		return fmt.Errorf("after the job: %w", err)
	}
	return within(settle, func() error {
		for h := 1; h <= r.scenario.Hosts; h++ {
			children, err := childrenOf(r.lab.Host(h), r.cluster.Worker(h).PID())
			if err != nil {
				return err
			}
			if len(children) > 0 {
				return fmt.Errorf("host %d still has processes of a job that is over: %v", h, children)
			}
			held, err := heldBy(r.cluster.Worker(h).PID())
			if err != nil {
				return err
			}
			r.bench.say("the worker of host %d holds %v", h, held)
			if len(held.memory) > 0 {
				return fmt.Errorf("the worker of host %d still holds memory and files of a job that is over: %q", h, held.memory)
			}
		}
		return r.checkIdle(ctx)
	})
}

// checkIdle asks the master whether anything runs, and looks for what it keeps of jobs that are over.
func (r *run) checkIdle(ctx context.Context) error {
	out, err := r.cluster.Command(ctx, "workers", "--json").Output()
	if err != nil {
		return fmt.Errorf("ask for the workers: %w", err)
	}
	var reply struct {
		Workers []struct {
			Name    string `json:"name"`
			Running int    `json:"running"`
		} `json:"workers"`
	}
	if err := json.Unmarshal(out, &reply); err != nil {
		return fmt.Errorf("ask for the workers: %w: %s", err, out)
	}
	for _, w := range reply.Workers {
		if w.Running > 0 {
			return fmt.Errorf("%d slots of %s are in use after all jobs", w.Running, w.Name)
		}
	}
	return r.checkBlobs()
}

// checkBlobs looks whether the master keeps states of iterations that are over. Programs and side
// inputs stay for a while, as the next job may need them.
func (r *run) checkBlobs() error {
	dir := r.cluster.Options().MasterDir
	if dir == "" {
		dir = filepath.Join(r.cluster.Options().Dir, "master")
	}
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "*"))
	if err != nil {
		return fmt.Errorf("look at the master's blobs: %w", err)
	}
	stay := map[string]bool{}
	for _, job := range r.scenario.Jobs() {
		if _, own := r.bench.Input.Command(r.bench.Programs, job, ""); own != "" {
			stay[own] = true
		}
		if job == joinSide || job == lookup {
			stay["side input of "+job] = true
		}
	}
	if len(blobs) > len(stay) {
		return fmt.Errorf("the master keeps the blobs %q of jobs that are over; programs and side inputs are %d", blobs, len(stay))
	}
	return nil
}

// ends says whether the scenario ends the worker of a host.
func (s *Scenario) ends(host int) bool {
	for _, e := range s.Events {
		if e.Host == host && (e.Do == KillWorker || e.Do == DrainWorker) || e.Do == KillAll {
			return true
		}
	}
	return false
}

// stop ends the cluster as an operator does and looks for what is left.
func (r *run) stop() error {
	if err := r.cluster.Stop(stopIn); err != nil {
		return err
	}
	for _, h := range r.lab.Hosts() {
		all, err := processesIn(h)
		if err != nil {
			return err
		}
		if len(all) > 0 {
			return fmt.Errorf("left on host %d: %v", h.Number(), all)
		}
		programs, err := programsOn(h)
		if err != nil {
			return err
		}
		if len(programs) > 0 {
			return fmt.Errorf("left on host %d: %v", h.Number(), programs)
		}
		dir := r.cluster.Options().DirOf(h.Number())
		left, err := entries(dir, func(string) bool { return false })
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("left in the folder of worker %d: %q", h.Number(), left)
		}
	}
	return nil
}

// remove takes the run's folder away, and in it what is mounted; if all is well, nothing is but
// what was mounted by us.
func (r *run) remove(wellDone bool) error {
	mounts, err := mountsBelow(r.dir)
	for _, m := range mounts {
		known := false
		for _, own := range r.mounted {
			known = known || m == own
		}
		if !known && wellDone {
			err = errors.Join(err, fmt.Errorf("left mounted: %s", m))
		}
	}
	// Instances of the kernel's programs whose process was killed hold mounts.
	for _, root := range []string{filepath.Join(r.dir, "cluster")} {
		list, _ := os.ReadDir(root)
		for _, e := range list {
			_, cleanErr := bpf.CleanAll(filepath.Join(root, e.Name()))
			err = errors.Join(err, cleanErr)
		}
	}
	for _, m := range r.mounted {
		err = errors.Join(err, unix.Unmount(m, unix.MNT_DETACH))
	}
	return errors.Join(err, os.RemoveAll(r.dir))
}
