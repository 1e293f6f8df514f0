// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write what the scheduler does now into testdata/*.txt")

// A script is a list of steps: lines with events, which are applied together, a line "----", what
// the scheduler has to answer, and an empty line. Lines that begin with # are for people.
// testdata/README.md has the words.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(text))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("%s: %s", file, firstDifference(string(text), got))
			}
		})
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		a, b := "(end)", "(end)"
		if i < len(w) {
			a = w[i]
		}
		if i < len(g) {
			b = g[i]
		}
		if a != b {
			return fmt.Sprintf("line %d\nwant %s\ngot  %s\n\nall of it:\n%s", i+1, a, b, got)
		}
	}
	return "the same"
}

func runScript(t *testing.T, text string) string {
	r := &scripted{t: t, cfg: Config{Epoch: 1}, launched: map[Attempt]string{}}
	r.s = New(r.cfg)
	var out strings.Builder
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); {
		var step []string
		for ; i < len(lines) && lines[i] != "----"; i++ {
			l := strings.TrimSpace(lines[i])
			if i == len(lines)-1 && l == "" {
				break
			}
			out.WriteString(lines[i] + "\n")
			if l != "" && l[0] != '#' {
				step = append(step, l)
			}
		}
		if i >= len(lines) || lines[i] != "----" {
			if len(step) > 0 {
				t.Fatalf("the script ends within a step: %q", step)
			}
			break
		}
		for i++; i < len(lines) && lines[i] != ""; i++ {
			continue // what was expected
		}
		out.WriteString("----\n" + r.step(step))
	}
	return out.String()
}

type scripted struct {
	t        *testing.T
	cfg      Config
	s        *State
	now      time.Duration
	out      strings.Builder
	events   []Event // of this step, not yet applied
	launched map[Attempt]string
	// What is being restored.
	restored []RestoredJob
}

func (r *scripted) step(lines []string) string {
	r.out.Reset()
	for _, l := range lines {
		w := strings.Fields(l)
		if !eventWords[w[0]] {
			r.flush()
		}
		if e := r.command(w[0], w[1:], l); e != nil {
			r.events = append(r.events, e)
		}
	}
	r.flush()
	return r.out.String()
}

// flush applies events that were gathered.
func (r *scripted) flush() {
	if len(r.events) > 0 {
		r.show(r.s.Apply(r.now, r.events...))
		r.events = nil
	}
}

var eventWords = map[string]bool{
	"tick": true, "expect": true, "up": true, "down": true, "suspect": true, "trust": true, "drain": true, "job": true, "cancel": true, "forgotten": true,
	"planned": true, "done": true, "fail": true, "fail-for-good": true, "fail-infrastructure": true, "lost": true, "damaged": true, "progress": true,
}

func (r *scripted) show(actions []Action) {
	for _, a := range actions {
		if l, ok := a.(Launch); ok {
			r.launched[l.Attempt] = l.Worker
		}
		r.out.WriteString(r.action(a) + "\n")
	}
}

func (r *scripted) command(word string, args []string, line string) Event {
	t := r.t
	opt := map[string]string{}
	var pos []string
	for _, a := range args {
		if k, v, ok := strings.Cut(a, "="); ok && !strings.ContainsAny(k, "/ ") {
			opt[k] = v
		} else {
			pos = append(pos, a)
		}
	}
	arg := func(i int) string {
		if i >= len(pos) {
			t.Fatalf("%q: something is missing", line)
		}
		return pos[i]
	}
	num := func(k string) int {
		if opt[k] == "" {
			return 0
		}
		n, err := strconv.Atoi(opt[k])
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		return n
	}
	// at is a worker, or "." for that which the attempt was given to.
	at := func() string {
		if arg(1) != "." {
			return arg(1)
		}
		w, ok := r.launched[r.attempt(arg(0))]
		if !ok {
			t.Fatalf("%q: it was given to nobody", line)
		}
		return w
	}
	rest := func(n int) string { return strings.Join(args[min(n, len(args)):], " ") }
	switch word {
	case "config":
		r.config(opt, line)
		r.s = New(r.cfg)
		clear(r.launched)
	case "restart": // a new master, as from a journal; "restored" and "go" follow
		r.cfg.Epoch++
		r.s = New(r.cfg)
	case "restored":
		j := RestoredJob{Job: Job{ID: arg(0), MaxSlots: num("max-slots")}, Ending: opt["ending"], Aborting: opt["ending"] != "", Left: opt["left"] != "", GangDone: opt["over"] != ""}
		if opt["splits"] != "" {
			j.Planned = planned(t, opt)
		}
		r.restored = append(r.restored, j)
	case "began": // a reduce task that was begun anew
		a := r.attempt(arg(0))
		j := &r.restored[len(r.restored)-1]
		if j.StageAttempts == nil {
			j.StageAttempts = map[uint32]uint32{}
		}
		j.StageAttempts[a.Task] = a.StageAttempt
	case "committed":
		j := &r.restored[len(r.restored)-1]
		j.Commits = append(j.Commits, Finished{Attempt: r.attempt(arg(0)), Worker: arg(1), Digests: digestList(t, opt["digests"])})
	case "go":
		r.show(r.s.Restore(r.now, r.restored))
		r.restored = nil
	case "wait":
		until := r.now + duration(t, arg(0))
		for {
			at, ok := r.s.Next()
			if !ok || at > until {
				break
			}
			r.now = max(at, r.now)
			if got := r.s.Apply(r.now, Tick{}); len(got) > 0 {
				fmt.Fprintf(&r.out, "at %v\n", r.now)
				r.show(got)
			}
		}
		r.now = until
	case "tick":
		return Tick{}
	case "next":
		if at, ok := r.s.Next(); ok {
			fmt.Fprintf(&r.out, "next at %v\n", at)
		} else {
			r.out.WriteString("nothing is waited for\n")
		}
	case "expect":
		return WorkerExpected{arg(0)}
	case "up":
		w := Worker{ID: arg(0), Name: opt["name"], Slots: 1, Memory: int64(num("memory")), Platform: opt["platform"]}
		if opt["slots"] != "" {
			w.Slots = num("slots")
		}
		if opt["local"] != "" {
			w.Local = strings.Split(opt["local"], ",")
		}
		for _, a := range pos[1:] {
			if a[0] == '+' {
				w.Outputs = append(w.Outputs, r.attempt(a[1:]))
			} else {
				w.Running = append(w.Running, r.attempt(a))
			}
		}
		return WorkerUp{w}
	case "down":
		return WorkerDown{arg(0)}
	case "suspect":
		return WorkerSuspect{arg(0), true}
	case "trust":
		return WorkerSuspect{arg(0), false}
	case "drain":
		return WorkerDrain{arg(0)}
	case "job":
		return JobAdded{Job{ID: arg(0), Priority: num("priority"), MaxSlots: num("max-slots"), TaskMemory: int64(num("memory")), MaxAttempts: num("attempts"), Platform: opt["platform"]}}
	case "cancel":
		return JobCancelled{ID: arg(0), Reason: rest(1)}
	case "forgotten":
		return JobForgotten{ID: arg(0)}
	case "planned":
		return Finished{Attempt: r.attempt(arg(0)), Worker: at(), Planned: planned(t, opt)}
	case "done":
		return Finished{Attempt: r.attempt(arg(0)), Worker: at(), Digests: digestList(t, opt["digests"])}
	case "fail":
		return Failed{Attempt: r.attempt(arg(0)), Worker: arg(1), Error: rest(2)}
	case "fail-for-good":
		return Failed{Attempt: r.attempt(arg(0)), Worker: arg(1), Error: rest(2), Permanent: true}
	case "fail-infrastructure":
		return Failed{Attempt: r.attempt(arg(0)), Worker: arg(1), Error: rest(2), Infrastructure: true}
	case "lost":
		return OutputLost{Reader: r.attempt(arg(0)), Output: r.attempt(arg(1)), Worker: arg(2), Error: rest(3)}
	case "damaged":
		return OutputLost{Reader: r.attempt(arg(0)), Output: r.attempt(arg(1)), Worker: arg(2), Error: rest(3), Certain: true}
	case "ready":
		return GangReady{Attempt: r.attempt(arg(0)), Worker: at(), Generation: r.generation(opt["group"]), Rounds: int64(num("rounds")), Broken: opt["broken"]}
	case "joined":
		return GangJoined{Attempt: r.attempt(arg(0)), Worker: at(), Generation: r.generation(opt["group"])}
	case "formed":
		return GangFormed{Job: arg(0), Generation: r.generation(arg(1)), Error: rest(2)}
	case "over":
		return GangDone{arg(0)}
	case "progress":
		done, err := strconv.ParseFloat(arg(1), 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		return Progressed{Attempt: r.attempt(arg(0)), Done: done}
	case "offer":
		r.say(r.s.Offer(r.attempt(arg(0)), arg(1)), "would be taken")
	case "claim":
		r.say(r.s.Claim(r.attempt(arg(0)), arg(1)), "claimed")
	case "release":
		r.s.Release(r.attempt(arg(0)))
	case "changes":
		fmt.Fprintf(&r.out, "begin anew: %v\n", r.s.Changes(Finished{Attempt: r.attempt(arg(0)), Digests: digestList(t, opt["digests"])}))
	case "won":
		fmt.Fprintf(&r.out, "%v\n", r.s.Won(r.attempt(arg(0))))
	case "output":
		n, _ := strconv.Atoi(arg(1))
		a, w, ok := r.s.Output(arg(0), uint32(n))
		if !ok {
			r.out.WriteString("never made\n")
		} else {
			fmt.Fprintf(&r.out, "%s at %s\n", r.name(a), or(w, "no worker"))
		}
	case "show":
		r.showJob(arg(0))
	case "jobs":
		fmt.Fprintf(&r.out, "jobs %v\n", r.s.Jobs())
	case "workers":
		for _, w := range r.s.Workers() {
			fmt.Fprintf(&r.out, "%s %s slots=%d running=%d memory=%d/%d outputs=%d\n", w.Worker.ID, w.State, w.Worker.Slots, w.Running, w.Memory, w.Worker.Memory, w.Outputs)
		}
	default:
		t.Fatalf("%q: an unknown word", line)
	}
	return nil
}

// generation reads a group's generation: 2, or 2@1 of an earlier epoch.
func (r *scripted) generation(text string) uint64 {
	if text == "" {
		return 0
	}
	n, epoch, ok := strings.Cut(text, "@")
	e := r.cfg.Epoch
	if ok {
		e, _ = strconv.ParseUint(epoch, 10, 64)
	}
	g, err := strconv.ParseUint(n, 10, 32)
	if err != nil {
		r.t.Fatalf("generation %q: %v", text, err)
	}
	return e<<32 + g
}

// group writes a generation as generation reads it.
func (r *scripted) group(g uint64) string {
	if e := g >> 32; e != r.cfg.Epoch {
		return fmt.Sprintf("%d@%d", uint32(g), e)
	}
	return strconv.FormatUint(uint64(uint32(g)), 10)
}

func or(s, or string) string {
	if s == "" {
		return or
	}
	return s
}

func (r *scripted) say(err error, good string) {
	if err != nil {
		good = "refused: " + err.Error()
	}
	r.out.WriteString(good + "\n")
}

func (r *scripted) showJob(id string) {
	v, ok := r.s.Job(id)
	if !ok {
		r.out.WriteString("no such job\n")
		return
	}
	stage := func(name string, s StageView) {
		if s.Tasks > 0 {
			fmt.Fprintf(&r.out, "%s %d of %d done, %d running, %d failed, %d lost, %d copies\n", name, s.Done, s.Tasks, s.Running, s.Failed, s.Lost, s.Copies)
		}
	}
	fmt.Fprintf(&r.out, "%s at %s, reruns %d, resets %d", id, v.Stage, v.Reruns, v.Resets)
	if v.Waiting != "" {
		fmt.Fprintf(&r.out, ", waiting: %s", v.Waiting)
	}
	if v.Ending != "" {
		fmt.Fprintf(&r.out, ", ending: %s", v.Ending)
	}
	r.out.WriteString("\n")
	stage("map", v.Map)
	stage("reduce", v.Reduce)
	if g := v.Gang; g != nil {
		fmt.Fprintf(&r.out, "gang of %d: %d ready, together %v, %d groups, %s\n", g.Members, g.Ready, g.Together, g.Groups, or(g.Why, "none broke"))
	}
	for _, a := range r.s.Attempts(id) {
		fmt.Fprintf(&r.out, "%s %s at %s since %v done=%g %s\n", r.name(a.Attempt), a.State, or(a.Worker, "no worker"), a.Started, a.Done, a.Error)
	}
}

func (r *scripted) config(opt map[string]string, line string) {
	t := r.t
	for k, v := range opt {
		n, _ := strconv.Atoi(v)
		switch k {
		case "max-lost":
			r.cfg.MaxLost = n
		case "back-off":
			r.cfg.Backoff = duration(t, v)
		case "max-back-off":
			r.cfg.MaxBackoff = duration(t, v)
		case "speculate":
			f, err := strconv.ParseFloat(v, 64)
			if err != nil {
				t.Fatal(err)
			}
			r.cfg.Speculate = f
		case "speculate-after":
			r.cfg.SpeculateAfter = duration(t, v)
		case "local-wait":
			r.cfg.LocalWait = duration(t, v)
		case "settle":
			r.cfg.Settle = duration(t, v)
		case "max-tasks":
			r.cfg.MaxTasks = n
		case "max-outputs":
			r.cfg.MaxOutputs = n
		default:
			t.Fatalf("%q: an unknown setting", line)
		}
	}
}

func duration(t *testing.T, s string) time.Duration {
	if n, err := strconv.Atoi(s); err == nil {
		return time.Duration(n)
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// planned reads splits=BYTES[:PATH][*TIMES],... partitions=N [shuffle=N].
func planned(t *testing.T, opt map[string]string) *Planned {
	p := &Planned{}
	p.Partitions, _ = strconv.Atoi(opt["partitions"])
	p.Shuffle, _ = strconv.Atoi(opt["shuffle"])
	p.Gang = opt["gang"] != ""
	if opt["splits"] == "none" {
		return p
	}
	for _, f := range strings.Split(opt["splits"], ",") {
		f, times, ok := strings.Cut(f, "*")
		n := 1
		if ok {
			n, _ = strconv.Atoi(times)
		}
		bytes, path, _ := strings.Cut(f, ":")
		b, err := strconv.ParseInt(bytes, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			p.Splits = append(p.Splits, Split{Path: path, Bytes: b})
		}
	}
	return p
}

func digestList(t *testing.T, s string) []uint64 {
	if s == "" {
		return nil
	}
	var d []uint64
	for _, f := range strings.Split(s, ",") {
		v, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		d = append(d, v)
	}
	return d
}

// attempt reads JOB/STAGE/TASK[~STAGEATTEMPT].NUMBER[@EPOCH].
func (r *scripted) attempt(s string) Attempt {
	a := Attempt{Epoch: r.cfg.Epoch}
	parts := strings.Split(s, "/")
	if len(parts) != 3 {
		r.t.Fatalf("%q is no attempt", s)
	}
	a.Job = parts[0]
	stage, ok := ParseStage(parts[1])
	if !ok {
		r.t.Fatalf("%q is no stage", parts[1])
	}
	a.Stage = stage
	n, epoch, ok := strings.Cut(parts[2], "@")
	if ok {
		e, _ := strconv.Atoi(epoch)
		a.Epoch = uint64(e)
	}
	n, number, _ := strings.Cut(n, ".")
	n, sa, _ := strings.Cut(n, "~")
	for _, f := range []struct {
		s  string
		to *uint32
	}{{n, &a.Task}, {number, &a.Number}, {sa, &a.StageAttempt}} {
		if f.s == "" {
			continue
		}
		v, err := strconv.ParseUint(f.s, 10, 32)
		if err != nil {
			r.t.Fatalf("%q: %v", s, err)
		}
		*f.to = uint32(v)
	}
	return a
}

func (r *scripted) name(a Attempt) string {
	s := fmt.Sprintf("%s/%s/%d", a.Job, a.Stage, a.Task)
	if a.StageAttempt > 0 {
		s += fmt.Sprintf("~%d", a.StageAttempt)
	}
	s += fmt.Sprintf(".%d", a.Number)
	if a.Epoch != r.cfg.Epoch {
		s += fmt.Sprintf("@%d", a.Epoch)
	}
	return s
}

func (r *scripted) action(a Action) string {
	switch a := a.(type) {
	case Launch:
		s := "launch " + a.Worker + " " + r.name(a.Attempt)
		if a.Speculative {
			s += " copy"
		}
		if a.Memory > 0 {
			s += fmt.Sprintf(" memory=%d", a.Memory)
		}
		return s
	case Adopted:
		return "adopted " + a.Worker + " " + r.name(a.Attempt)
	case Stop:
		return "stop " + a.Worker + " " + r.name(a.Attempt) + ": " + a.Reason
	case Relocate:
		return "relocate " + a.Worker + " " + r.name(a.Reader) + ": " + r.name(a.Output) + " is at " + a.At
	case Reset:
		return fmt.Sprintf("reset %s/reduce/%d to stage attempt %d", a.Job, a.Task, a.StageAttempt)
	case Forget:
		return "forget " + a.Worker + " " + a.Job
	case Left:
		return "left " + a.Worker
	case JobStage:
		return "stage " + a.Job + " " + a.Stage.String()
	case JobCleared:
		return "cleared " + a.Job
	case JobEnded:
		switch {
		case a.Left:
			return "end " + a.Job + " with something left: " + a.Error
		case a.Cancelled:
			return "end " + a.Job + " cancelled: " + a.Error
		case a.Error != "":
			return "end " + a.Job + " failed: " + a.Error
		}
		return "end " + a.Job + " done"
	case GangForm:
		s := fmt.Sprintf("form %s group %s:", a.Job, r.group(a.Generation))
		for _, m := range a.Members {
			s += " " + r.name(m.Attempt) + " at " + m.Worker
		}
		return s
	case GangBreak:
		return fmt.Sprintf("break %s group %s at %s: %s", a.Job, r.group(a.Generation), strings.Join(a.Workers, ","), a.Reason)
	case Note:
		return "note " + a.Job + ": " + a.Text
	case SetAside:
		return fmt.Sprintf("aside %s until %v: %s", a.Worker, a.Until, a.Why)
	}
	return fmt.Sprintf("%#v", a)
}
