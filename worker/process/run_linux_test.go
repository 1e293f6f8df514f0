// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quernmr/quern/mapreduce/task"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// TestMain is also the job program that attempts run: what it does stands in PROGRAM.
func TestMain(m *testing.M) {
	if what := os.Getenv("PROGRAM"); what != "" {
		program(what)
		os.Exit(0)
	}
	parting = time.Second
	goleak.VerifyTestMain(m)
}

// program is a job program that behaves in one way.
func program(what string) {
	switch what {
	case "sleep":
		time.Sleep(time.Hour)
	case "runner": // a worker, in a process that can be killed
		spec := spec(os.Getenv("RUNNER_DIR"), "children")
		spec.Progress = func(task.Progress) { fmt.Println("running") }
		_, err := Run(context.Background(), spec)
		fmt.Println(err)
		return
	case "patient": // a worker that is stopped for longer than its attempt may stand still
		spec := spec(os.Getenv("RUNNER_DIR"), "await")
		spec.StallTimeout = 2 * time.Second
		once := false
		spec.Progress = func(task.Progress) {
			if !once {
				fmt.Println("running")
			}
			once = true
		}
		_, err := Run(context.Background(), spec)
		fmt.Println("result", err)
		return
	case "early":
		return
	case "usage":
		fmt.Fprintln(os.Stderr, "usage: program FILE")
		os.Exit(2)
	case "mute":
		time.Sleep(time.Hour)
	case "files": // does what it can
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 200, Max: 200})
	}
	h, ok, err := task.Attach()
	if !ok || err != nil {
		fmt.Fprintln(os.Stderr, "not started as a task:", err)
		os.Exit(9)
	}
	req, err := h.Request()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(9)
	}
	say := func(r *task.Reply) {
		if err := h.Reply(r); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(9)
		}
	}
	protocol := task.Protocol
	if what == "old" {
		protocol--
	}
	say(&task.Reply{Hello: &task.Hello{Protocol: protocol}})
	result := func(lines ...string) {
		say(&task.Reply{Commit: &task.CommitResult{Notes: lines}})
	}
	switch what {
	case "look":
		wd, _ := os.Getwd()
		var st unix.Rlimit
		_ = unix.Getrlimit(unix.RLIMIT_CORE, &st)
		mask := unix.Umask(0)
		in, _ := os.Readlink("/proc/self/fd/0")
		sid, _ := unix.Getsid(0)
		result(append(os.Environ(), "wd="+wd, fmt.Sprintf("core=%d", st.Cur), fmt.Sprintf("umask=%03o", mask), "stdin="+in,
			fmt.Sprintf("leader=%v", sid == os.Getpid() && unix.Getpgrp() == os.Getpid()), "request="+req.Job)...)
	case "sides": // what they hold, in memory where they lie
		var notes []string
		for _, in := range req.SideInputs {
			content, _, err := in.Map()
			if err != nil {
				notes = append(notes, err.Error())
				continue
			}
			sum := 0
			for _, b := range content {
				sum += int(b)
			}
			notes = append(notes, fmt.Sprintf("%s %d %d %q", in.Name, len(content), sum, content[:min(7, len(content))]))
		}
		if os.Getenv("THEN") == "stay" {
			for i := range 10 { // long enough to be weighed
				say(&task.Reply{Progress: &task.Progress{Records: int64(i)}})
				time.Sleep(look)
			}
		}
		result(notes...)
	case "files":
		n := 0
		for { // it was asked for by the hello, which may not have been heard yet
			var now unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil || now.Cur == 50 {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		for {
			if _, err := os.Open(os.DevNull); err != nil {
				break
			}
			n++
		}
		result(strconv.Itoa(n))
	case "member", "hanging member": // of a gang, who doubles five values
		fd := -1
		if req.Gang != nil {
			fd = req.Gang.Vector
		}
		say(&task.Reply{Ready: &task.Ready{Rounds: -1}})
		group, err := h.Answer()
		if err != nil || group.Group == nil {
			result(fmt.Sprint(group, err))
			return
		}
		vec := task.OpenVector(fd)
		list, err := vec.Int64(5, true)
		if err != nil {
			result(err.Error())
			return
		}
		for i := range list {
			list[i] = int64(i)
		}
		say(&task.Reply{Sum: &task.AllReduce{Width: 8, Count: 5}})
		sum, err := h.Answer()
		if what == "hanging member" { // it was answered
			time.Sleep(time.Hour)
		}
		result(fmt.Sprintf("%+v %+v %v %v", *group.Group, *sum.Reduced, err, list))
	case "pushy member": // who does not read what it is told
		for {
			say(&task.Reply{Ready: &task.Ready{}})
		}
	case "error":
		say(&task.Reply{Error: &task.Error{Message: "line 7 is no number", Permanent: true}})
	case "panic":
		panic("the job's own fault")
	case "segv":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV)
		time.Sleep(time.Hour)
	case "killed":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "exit":
		os.Exit(3)
	case "stall":
		for {
			say(&task.Reply{Progress: &task.Progress{Phase: "map", Records: 5}})
			time.Sleep(20 * time.Millisecond)
		}
	case "work":
		for i := range int64(20) {
			say(&task.Reply{Progress: &task.Progress{Records: i + 1}})
			time.Sleep(50 * time.Millisecond)
		}
		result()
	case "await":
		say(&task.Reply{Progress: &task.Progress{Records: 1}})
		for {
			if _, err := os.Stat(filepath.Join(os.Getenv("TMPDIR"), "go")); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		result()
	case "leak":
		leak()
	case "leakchild":
		self, _ := os.Executable()
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), "PROGRAM=leakalone")
		fmt.Println(cmd.Run())
	case "children":
		self, _ := os.Executable()
		for i := range 4 {
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), "PROGRAM=sleep")
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: i == 0, Setpgid: i == 1}
			if i == 1 || i == 2 {
				cmd.Env = []string{"PROGRAM=sleep", "OF=" + os.Getenv("TMPDIR")}
			}
			if err := cmd.Start(); err != nil {
				fmt.Println(err)
				os.Exit(9)
			}
		}
		say(&task.Reply{Progress: &task.Progress{Records: 1}})
		if os.Getenv("THEN") == "end" {
			result()
			return
		}
		time.Sleep(time.Hour)
	case "noise":
		line := bytes.Repeat([]byte("x"), 99)
		for i := range 100_000 {
			_, _ = fmt.Fprintf(os.Stdout, "%06d%s\n", i, line)
		}
		result()
	case "late": // goes on after its result
		result("done")
		time.Sleep(time.Hour)
	case "garbage":
		f := os.NewFile(4, "replies")
		_, _ = f.WriteString("hello world\n")
		time.Sleep(time.Hour)
	case "hangup":
		_ = os.NewFile(4, "replies").Close()
		time.Sleep(time.Hour)
	case "slow":
		time.Sleep(200 * time.Millisecond)
		result("slow")
	}
}

func init() {
	if os.Getenv("PROGRAM") == "leakalone" {
		leak()
	}
}

func leak() {
	var all [][]byte
	for {
		b := make([]byte, 4<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		all = append(all, b)
		time.Sleep(5 * time.Millisecond)
		runtime.KeepAlive(all)
	}
}

// spec runs this test's binary.
func spec(dir, what string, env ...string) Spec {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return Spec{
		Binary: self, Dir: dir, Environment: append([]string{"PROGRAM=" + what}, env...),
		Log: NewLog(filepath.Join(dir, "log"), 0), HelloTimeout: time.Minute, StallTimeout: time.Minute,
		Request: &task.Request{Protocol: task.Protocol, Kind: task.Map, Job: "cafe"},
	}
}

// none fails if a process is left that belongs to an attempt in dir.
func none(t *testing.T, dir string) {
	t.Helper()
	for _, e := range processes() {
		if !e.zombie && (marked(e.pid, dir) || strings.Contains(environ(e.pid), "OF="+dir+"\x00")) {
			t.Errorf("process %d is left", e.pid)
			_ = unix.Kill(e.pid, unix.SIGKILL)
		}
	}
}

func TestReply(t *testing.T) {
	t.Setenv("QUERN_TOKEN", "secret")
	t.Setenv("AWS_REGION", "eu-1")
	t.Setenv("TZ", "UTC")
	dir, work := t.TempDir(), t.TempDir()
	s := spec(dir, "look", "COLOR=blue", task.Env+"=8,9", "TMPDIR=/elsewhere")
	s.Inherit, s.WorkDir, s.Memory, s.Workers, s.Umask = []string{"AWS_REGION", "AWS_NONE"}, work, 1000<<20, 3, 0o027
	s.Request.Memory = 400 << 20 // and seven eighths of it are not the collector's: 950 - 350 MiB
	r, err := Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, n := range r.Commit.Notes {
		seen[n] = true
	}
	for _, want := range []string{
		"TMPDIR=" + dir, "HOME=" + dir, "LANG=C.UTF-8", "TZ=UTC", "PATH=" + os.Getenv("PATH"), "COLOR=blue", "AWS_REGION=eu-1",
		"GOMEMLIMIT=629145600", "GOMAXPROCS=3", "PROGRAM=look",
		"wd=" + work, "core=0", "umask=027", "stdin=/dev/null", "leader=true", "request=cafe",
	} {
		if !seen[want] {
			t.Errorf("the program has not %q", want)
		}
		delete(seen, want)
	}
	for left := range seen {
		if !strings.HasPrefix(left, "PWD=") {
			t.Errorf("the program saw %q", left)
		}
	}
	// This process's own is as it was.
	if mask := unix.Umask(0o022); mask == 0o027 {
		t.Error("the umask of this process was changed")
	} else {
		unix.Umask(mask)
	}
	none(t, dir)
}

func TestErrorReply(t *testing.T) {
	r, err := Run(t.Context(), spec(t.TempDir(), "error"))
	if err != nil || r.Error == nil || r.Error.Message != "line 7 is no number" || !r.Error.Permanent {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestWorkDirThatIsNotThere(t *testing.T) {
	dir := t.TempDir()
	s := spec(dir, "look")
	s.WorkDir = filepath.Join(dir, "none")
	r, err := Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(r.Commit.Notes, "\n"), "\nwd="+dir+"\n") {
		t.Errorf("it works elsewhere: %q", r.Commit.Notes)
	}
}

func TestFailures(t *testing.T) {
	for _, c := range []struct {
		program  string
		change   func(*Spec)
		kind     Kind
		contains []string
	}{
		{program: "early", kind: Crashed, contains: []string{"ended before it reached its call of Run, as if all were done"}},
		{program: "usage", kind: Crashed, contains: []string{"ended with status 2 before it reached its call of Run", "usage: program FILE"}},
		{program: "panic", kind: Crashed, contains: []string{"ended with status 2 before it had done its task", "panic: the job's own fault", "goroutine 1", "run_linux_test.go"}},
		{program: "segv", kind: Crashed, contains: []string{"SIGSEGV"}},
		{program: "killed", kind: Crashed, contains: []string{"was killed before it had done its task (signal 9"}},
		{program: "exit", kind: Crashed, contains: []string{"ended with status 3 before it had done its task"}},
		{program: "mute", change: func(s *Spec) { s.HelloTimeout = 300 * time.Millisecond }, kind: Silent, contains: []string{"did not reach its call of Run within 300ms"}},
		{program: "stall", change: func(s *Spec) { s.StallTimeout = 500 * time.Millisecond }, kind: Stalled, contains: []string{"no progress for 500ms"}},
		{program: "leak", change: func(s *Spec) { s.Memory = 64 << 20 }, kind: Memory, contains: []string{"its limit is 64 MiB"}},
		{program: "leakchild", change: func(s *Spec) { s.Memory = 64 << 20 }, kind: Memory, contains: []string{"its limit is 64 MiB"}},
		{program: "old", kind: Unfit, contains: []string{"speaks version 0 of the task protocol and this worker version 1"}},
		{program: "member", kind: Unfit, contains: []string{"takes itself for a member of a gang"}},
		{program: "hanging member", change: func(s *Spec) {
			memory, err := os.CreateTemp(s.Dir, "vector")
			if err != nil {
				panic(err)
			}
			s.Request.Gang, s.Vector, s.StallTimeout = &task.GangRequest{Size: 2}, memory, time.Second
			s.Member = func(r *task.Reply, answer func(*task.Answer)) {
				answer(&task.Answer{Group: &task.Group{}, Reduced: &task.Reduced{}})
			}
		}, kind: Stalled, contains: []string{"no progress for 1s"}},
		{program: "pushy member", change: func(s *Spec) {
			memory, err := os.CreateTemp(s.Dir, "vector")
			if err != nil {
				panic(err)
			}
			s.Request.Gang, s.Vector = &task.GangRequest{Size: 2}, memory
			s.Member = func(_ *task.Reply, answer func(*task.Answer)) {
				answer(&task.Answer{Reduced: &task.Reduced{Error: strings.Repeat("x", 1000)}})
			}
		}, kind: Unfit, contains: []string{"asks and does not read the answers"}},
		{program: "garbage", kind: Unfit, contains: []string{"hello world"}},
		{program: "hangup", kind: Crashed, contains: []string{"closed its connection to the worker"}},
	} {
		t.Run(c.program, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := spec(dir, c.program)
			if c.change != nil {
				c.change(&s)
			}
			r, err := Run(t.Context(), s)
			var e *Error
			if r != nil || !errors.As(err, &e) {
				t.Fatalf("got %+v, %v", r, err)
			}
			if e.Kind != c.kind {
				t.Errorf("kind is %d, want %d", e.Kind, c.kind)
			}
			for _, want := range c.contains {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
			if strings.Contains(e.Message, "\n") {
				t.Errorf("more than a sentence: %q", e.Message)
			}
			none(t, dir)
		})
	}
}

func TestProgressKeepsAlive(t *testing.T) {
	s := spec(t.TempDir(), "work") // for a second, with progress all the time
	s.StallTimeout = 600 * time.Millisecond
	var records []int64
	s.Progress = func(p task.Progress) { records = append(records, p.Records) }
	if _, err := Run(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if len(records) != 20 || records[19] != 20 {
		t.Errorf("got %v", records)
	}
}

// A member of a gang shares memory with this process, and may wait for its answers for as long as it takes.
func TestMember(t *testing.T) {
	dir := t.TempDir()
	s := spec(dir, "member")
	memory, err := os.CreateTemp(t.TempDir(), "vector")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	vec := task.OpenVector(int(memory.Fd()))
	defer vec.Close()
	s.Request.Gang, s.Vector, s.StallTimeout = &task.GangRequest{Size: 2}, memory, 300*time.Millisecond
	if _, err := Run(t.Context(), s); err == nil || !strings.Contains(err.Error(), "without somebody to hear it") {
		t.Errorf("nobody hears it: %v", err)
	}
	s.Member = func(r *task.Reply, answer func(*task.Answer)) {
		go func() {
			time.Sleep(time.Second)
			if r.Ready != nil {
				answer(&task.Answer{Group: &task.Group{Rank: 1, Size: 2}})
				return
			}
			list, err := vec.Int64(r.Sum.Count, false)
			if err != nil {
				t.Error(err)
			}
			for i := range list {
				list[i] *= 2
			}
			answer(&task.Answer{Reduced: &task.Reduced{}})
		}()
	}
	r, err := Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(r.Commit.Notes, "\n"), "{Rank:1 Size:2} {Error:} <nil> [0 2 4 6 8]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if s.Request.Gang.Vector != 0 {
		t.Error("the request was changed")
	}
}

func TestNotStarted(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	other := foreign(t, dir)
	for _, c := range []struct {
		name, binary string
		kind         Kind
		want         string
	}{
		{"missing", filepath.Join(dir, "none"), System, "is not there"},
		{"text", write("text", "just text"), Unfit, "is no Linux program"},
		{"foreign", other, Unfit, "built for"},
		{"interpreter", write("script", "#!/no/such/interpreter\n"), Unfit, "needs a loader that this machine does not have"},
		{"directory", dir, System, "may not be executed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := spec(dir, "look")
			s.Binary = c.binary
			_, err := Run(t.Context(), s)
			var e *Error
			if !errors.As(err, &e) || e.Kind != c.kind || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
	for name, s := range map[string]Spec{
		"no program":  {Dir: dir, Request: &task.Request{}},
		"no folder":   {Binary: "x", Request: &task.Request{}},
		"relative":    {Binary: "x", Dir: "here", Request: &task.Request{}},
		"no request":  {Binary: "x", Dir: dir},
		"environment": {Binary: "x", Dir: dir, Request: &task.Request{}, Environment: []string{"x"}},
		"zero byte":   {Binary: "x", Dir: dir, Request: &task.Request{}, Environment: []string{"x=a\x00b"}},
		"no file":     {Binary: "x", Dir: dir, Request: &task.Request{}, SideInputs: []SideInput{{Name: "x", Size: 1}}},
		"size":        {Binary: "x", Dir: dir, Request: &task.Request{}, SideInputs: []SideInput{{Name: "x", File: os.Stdin, Size: -1}}},
		"offset":      {Binary: "x", Dir: dir, Request: &task.Request{}, SideInputs: []SideInput{{Name: "x", File: os.Stdin, Offset: -1}}},
	} {
		if _, err := Run(t.Context(), s); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// foreign makes a program for a machine that this is not: a head without a body.
func foreign(t *testing.T, dir string) string {
	t.Helper()
	head := make([]byte, 64+56)
	copy(head, "\x7fELF\x02\x01\x01")
	head[16] = 2    // an executable
	head[18] = 0xf7 // for eBPF, which no machine runs as it is
	head[20] = 1
	head[32] = 64 // program headers follow
	head[52], head[54], head[56] = 64, 56, 1
	path := filepath.Join(dir, "foreign")
	if err := os.WriteFile(path, head, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// Side inputs reach the program, from any place of any file that can be mapped, also if it could
// not be started at first; and what the worker has in memory is not the program's.
func TestSideInputs(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "inputs")
	if err := os.WriteFile(path, append(make([]byte, 5000), "a list"...), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fd, err := unix.MemfdCreate("side input", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	memory := os.NewFile(uintptr(fd), "side input")
	defer memory.Close()
	const large = 96 << 20
	if err := memory.Truncate(large); err != nil {
		t.Fatal(err)
	}
	if _, err := memory.WriteAt([]byte{1, 2, 3}, large-3); err != nil {
		t.Fatal(err)
	}
	s := spec(filepath.Join(dir, "attempt"), "sides", "THEN=stay")
	if err := os.Mkdir(s.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s.Memory = 64 << 20
	s.SideInputs = []SideInput{{Name: "list", File: file, Offset: 5000, Size: 6}, {Name: "empty"}, {Name: "model", File: memory, Size: large}, {Name: "end", File: memory, Offset: large - 2, Size: 2}}
	before := *s.Request
	want := []string{`list 6 573 "a list"`, `empty 0 0 ""`, fmt.Sprintf(`model %d 6 "\x00\x00\x00\x00\x00\x00\x00"`, large), `end 2 5 "\x02\x03"`}
	r, err := Run(t.Context(), s)
	if err != nil || !slices.Equal(r.Commit.Notes, want) {
		t.Errorf("got %+v, %v", r, err)
	}
	if !reflect.DeepEqual(before, *s.Request) {
		t.Errorf("the request was changed: %+v", s.Request)
	}
	if _, err := file.Stat(); err != nil {
		t.Errorf("the file was closed: %v", err)
	}
	none(t, s.Dir)
}

// TestBusyBinary has a file executed that somebody still has open for writing, as a child does
// that was being started when the file was made.
func TestBusyBinary(t *testing.T) {
	dir := t.TempDir()
	s := spec(dir, "sides")
	list := filepath.Join(dir, "list")
	if err := os.WriteFile(list, []byte("a list"), 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(list)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	s.SideInputs = []SideInput{{Name: "list", File: in, Size: 6}}
	b, err := os.ReadFile(s.Binary)
	if err != nil {
		t.Fatal(err)
	}
	s.Binary = filepath.Join(dir, "program")
	f, err := os.OpenFile(s.Binary, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command(s.Binary).Run(); !errors.Is(err, syscall.ETXTBSY) {
		t.Skipf("this kernel lets a file be executed that is being written: %v", err)
	}
	time.AfterFunc(100*time.Millisecond, func() { _ = f.Close() })
	if r, err := Run(t.Context(), s); err != nil || len(r.Commit.Notes) != 1 || r.Commit.Notes[0] != `list 6 573 "a list"` {
		t.Errorf("got %v, %v", r, err)
	}
}

func TestStop(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	s := spec(dir, "children")
	why := errors.New("not wanted")
	s.Progress = func(task.Progress) { cancel(why) }
	r, err := Run(ctx, s)
	if r != nil || !errors.Is(err, why) {
		t.Errorf("got %v, %v", r, err)
	}
	none(t, dir)
	if _, err := Run(ctx, s); !errors.Is(err, why) {
		t.Errorf("began though it was stopped: %v", err)
	}
}

func TestGrandchildren(t *testing.T) {
	dir := t.TempDir()
	r, err := Run(t.Context(), spec(dir, "children", "THEN=end"))
	if err != nil || r.Commit == nil {
		t.Fatalf("got %v, %v", r, err)
	}
	none(t, dir)
}

func TestResultCounts(t *testing.T) {
	t.Parallel() // it waits for seconds
	dir := t.TempDir()
	r, err := Run(t.Context(), spec(dir, "late"))
	if err != nil || len(r.Commit.Notes) != 1 {
		t.Errorf("got %v, %v", r, err)
	}
	none(t, dir)
}

func TestFiles(t *testing.T) {
	s := spec(t.TempDir(), "files")
	s.Files = 50
	r, err := Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := strconv.Atoi(r.Commit.Notes[0]); n >= 50 || n < 30 {
		t.Errorf("%d files were opened, the limit is 50", n)
	}
}

func TestNoise(t *testing.T) {
	dir := t.TempDir()
	s := spec(dir, "noise")
	s.Log = NewLog(filepath.Join(dir, "log"), 20_000)
	if _, err := Run(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	// 100,000 lines of 106 bytes; 10,000 bytes are kept from either end.
	if len(text) > 20_100 || !bytes.HasPrefix(text, []byte("000000x")) || !bytes.HasSuffix(text, []byte("x\n")) ||
		!bytes.Contains(text, []byte("\n099999x")) || !bytes.Contains(text, []byte("\n[... 10580000 bytes left out ...]\n")) {
		t.Errorf("%d bytes: %.300q", len(text), text)
	}
}

// TestWorkerKilled has a worker killed that runs an attempt: the child dies with it, and
// the next worker ends what that has started.
func TestWorkerKilled(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "attempt")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	self, _ := os.Executable()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "PROGRAM=runner", "RUNNER_DIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	begun := make([]byte, 7)
	if _, err := io.ReadFull(out, begun); err != nil || string(begun) != "running" {
		t.Errorf("it does not run: %q %v", begun, err)
	}
	count := func() (children, all int) {
		for _, e := range processes() {
			if !e.zombie && marked(e.pid, dir) {
				all++
				if e.session == e.pid && e.parent == cmd.Process.Pid {
					children++
				}
			}
		}
		return children, all
	}
	if children, all := count(); children != 1 || all < 3 {
		t.Errorf("%d children and %d processes", children, all)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left := 0
		for _, e := range processes() {
			if !e.zombie && e.pid == e.session && marked(e.pid, dir) && strings.Contains(environ(e.pid), "PROGRAM=children") {
				left++
			}
		}
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the child outlives its worker")
		}
	}
	// These gave up every mark, and whoever knew their session is gone.
	for _, e := range processes() {
		if strings.Contains(environ(e.pid), "OF="+dir+"\x00") {
			_ = unix.Kill(e.pid, unix.SIGKILL)
		}
	}
	Sweep(parent)
	none(t, dir)
}

func environ(pid int) string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return string(b)
}

func TestSweepNeedsAPath(t *testing.T) {
	if Sweep("") != 0 || Sweep("relative") != 0 {
		t.Error("something was killed")
	}
}

// TestStoppedWorker has this check stand still longer than the attempt may: that is no
// fault of the attempt's.
func TestStoppedWorker(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, _ := os.Executable()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "PROGRAM=patient", "RUNNER_DIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	begun := make([]byte, 8)
	if _, err := io.ReadFull(out, begun); err != nil {
		t.Fatal(err)
	}
	time.Sleep(400 * time.Millisecond) // it has taken note of the progress
	_ = cmd.Process.Signal(syscall.SIGSTOP)
	time.Sleep(3 * time.Second)
	_ = cmd.Process.Signal(syscall.SIGCONT)
	time.Sleep(400 * time.Millisecond) // it looks after its attempt meanwhile
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Error(err)
	}
	rest, _ := io.ReadAll(out)
	_ = cmd.Wait()
	if !strings.Contains(string(rest), "result <nil>") {
		t.Errorf("got %q", rest)
	}
	none(t, dir)
}
