// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/mapreduce/task"
	"golang.org/x/sys/unix"
)

const (
	// look is how often a child's memory and progress are looked at.
	look = 100 * time.Millisecond
	// Of a program's output, so much is told with an error.
	tailLines, tailBytes = 12, 2000
)

// parting is how long a child may take to end after its last reply. Tests shorten it.
var parting = 5 * time.Second

// Run runs a child until it has replied, or until ctx is done, and kills what is left
// of it. An error is an *Error, or that of ctx (its cause). After Run nothing of the
// child runs any more, and the log is complete.
func Run(ctx context.Context, spec Spec) (*task.Reply, error) {
	spec, err := spec.check()
	if err != nil {
		return nil, &Error{Kind: System, Message: "worker: " + err.Error(), Err: err}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	c := &child{spec: spec, ended: make(chan struct{})}
	if err := c.start(); err != nil {
		return nil, err
	}
	replied := make(chan struct{})
	go func() {
		defer close(replied)
		c.converse()
	}()
	c.watch(ctx, replied)
	<-c.ended // it is dead, and so is all that it started
	select {
	case <-replied: // what it wrote was read to the end
	case <-time.After(10 * time.Second): // who has escaped may hold the pipe open for ever
	}
	_ = c.conn.Close()
	<-replied
	<-c.logged
	return c.outcome(ctx)
}

type child struct {
	spec   Spec
	shared int64 // bytes of side inputs that are in every process's sum of memory
	cmd    *exec.Cmd
	conn   *task.Conn
	ended  chan struct{} // it was reaped
	logged chan struct{} // its output was read to the end

	mu     sync.Mutex
	reaped bool
	killed error // why it was killed; set once

	hello atomic.Bool  // it has reached its call of Run
	moves atomic.Int64 // how often it came on
	waits atomic.Int64 // what it asked and was not answered yet
	asked atomic.Int64 // the same, with what it does not stand still for
	reply *task.Reply  // the last one
	state *os.ProcessState
}

// start starts the child, from a thread that lives as long as it.
func (c *child) start() error {
	s := c.spec
	cmd := exec.Command(s.Binary, s.Args...)
	cmd.Env = s.environment()
	cmd.Dir = s.Dir
	if st, err := os.Stat(s.WorkDir); s.WorkDir != "" && err == nil && st.IsDir() {
		cmd.Dir = s.WorkDir
	}
	// The system kills it when the thread that started it ends: so when this process does.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	read, write, err := os.Pipe()
	if err != nil {
		return &Error{Kind: System, Message: "no pipe for the program's output: " + err.Error(), Err: err}
	}
	cmd.Stdout, cmd.Stderr = write, write
	conn, err := task.Pipe(cmd)
	if err != nil {
		_, _ = read.Close(), write.Close()
		return &Error{Kind: System, Message: err.Error(), Err: err}
	}
	c.handOn(cmd)
	c.cmd, c.conn, c.logged = cmd, conn, make(chan struct{})
	started := make(chan error)
	go c.live(started)
	err = <-started
	conn.Started()
	_ = write.Close()
	if err != nil {
		_, _ = read.Close(), conn.Close()
		return c.unstarted(err)
	}
	go func() {
		defer close(c.logged)
		defer read.Close()
		_, _ = io.Copy(s.Log, read) // to the end, or to the deadline below
	}()
	go func() {
		<-c.ended
		// Who has escaped may hold the pipe open for ever.
		_ = read.SetReadDeadline(time.Now().Add(time.Second))
	}()
	return nil
}

// handOn has the child inherit the side inputs, and the request tell where they are.
func (c *child) handOn(cmd *exec.Cmd) {
	req := *c.spec.Request
	req.SideInputs = nil
	for _, in := range c.spec.SideInputs {
		req.SideInputs = append(req.SideInputs, task.HandOn(cmd, in.Name, in.File, in.Offset, in.Size))
		c.shared += inMemory(in)
	}
	if req.Gang != nil {
		g := *req.Gang
		g.Vector = task.HandOnVector(cmd, c.spec.Vector)
		req.Gang = &g
	}
	c.spec.Request = &req
}

// inMemory is how many bytes of a side input count as memory of each process that maps it,
// though they are there once, and are this process's: of files in memory.
func inMemory(in SideInput) int64 {
	if in.File == nil {
		return 0
	}
	var fs unix.Statfs_t
	raw, err := in.File.SyscallConn()
	if err != nil {
		return 0
	}
	failed := raw.Control(func(fd uintptr) { err = unix.Fstatfs(int(fd), &fs) })
	if failed != nil || err != nil || fs.Type != unix.TMPFS_MAGIC {
		return 0
	}
	return in.Size + int64(os.Getpagesize()) // which it may begin within
}

// live is the child's life, on a thread that is nobody else's.
func (c *child) live(started chan<- error) {
	runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
	if c.spec.Umask != 0 && unix.Unshare(unix.CLONE_FS) == nil {
		unix.Umask(c.spec.Umask) // of this thread and what it starts
	}
	err := c.cmd.Start()
	for i := 0; i < 50 && errors.Is(err, syscall.ETXTBSY); i++ {
		// Another child that was being started when the file was written still holds it for a moment.
		time.Sleep(20 * time.Millisecond)
		err = c.again()
	}
	if err != nil {
		started <- err
		return
	}
	c.limit()
	started <- nil
	pid := c.cmd.Process.Pid
	for {
		// It stays a zombie, so that its number, which names the session, is nobody else's yet.
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != syscall.EINTR { //nolint:errorlint // it comes from the system as it is
			break
		}
	}
	clear(pid, c.spec.Dir)
	c.mu.Lock()
	c.reaped = true
	c.mu.Unlock()
	_ = c.cmd.Wait() // says what its state says, too
	c.state = c.cmd.ProcessState
	close(c.ended)
}

// again tries once more to start; a Cmd can't be used twice.
func (c *child) again() error {
	old := c.cmd
	c.cmd = exec.Command(c.spec.Binary, c.spec.Args...)
	c.cmd.Env, c.cmd.Dir, c.cmd.SysProcAttr = old.Env, old.Dir, old.SysProcAttr
	c.cmd.Stdout, c.cmd.Stderr, c.cmd.ExtraFiles = old.Stdout, old.Stderr, old.ExtraFiles
	return c.cmd.Start()
}

// limit sets what the child inherits from nobody. A Go program raises its limit of open files
// when it begins, so this is done once more when it says hello.
func (c *child) limit() {
	pid := c.cmd.Process.Pid
	_ = unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
	if n := c.spec.Files; n > 0 {
		var now unix.Rlimit
		if unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &now) == nil {
			n = min(n, now.Max)
			_ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}, nil)
		}
	}
	// When memory runs out in this machine it is the program that goes, not the worker.
	_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte("500"), 0)
}

// kill ends the child and its session. The first reason counts.
func (c *child) kill(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.killed == nil {
		c.killed = why
	}
	if !c.reaped {
		_ = unix.Kill(-c.cmd.Process.Pid, unix.SIGKILL)
	}
}

// maxAsked is how many questions of a member of a gang may be open. A program of ours asks one or two things at a time.
const maxAsked = 64

// converse sends the request and hears the child out.
func (c *child) converse() {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_ = c.conn.Send(c.spec.Request) // who does not read it ends without a reply, which says more
	}()
	defer func() { <-sent }()
	var last task.Progress
	for {
		r, err := c.conn.Recv()
		if err != nil {
			if errors.Is(err, task.ErrMessage) {
				c.kill(&Error{Kind: Unfit, Message: "the program sent something that is no reply (" + err.Error() + "): build it anew with the workers' version of the library", Err: err})
			}
			return
		}
		switch {
		case r.Hello != nil:
			if r.Hello.Protocol != task.Protocol {
				c.kill(&Error{Kind: Unfit, Message: fmt.Sprintf("the program speaks version %d of the task protocol and this worker version %d: build it anew with the workers' version of the library", r.Hello.Protocol, task.Protocol)})
				return
			}
			c.limit()
			c.hello.Store(true)
			c.moves.Add(1)
		case r.Progress != nil:
			if *r.Progress != last {
				last = *r.Progress
				c.moves.Add(1)
			}
			if c.spec.Progress != nil {
				c.spec.Progress(*r.Progress)
			}
		case r.Ready != nil || r.Sum != nil || r.Keep != nil:
			if c.spec.Request.Gang == nil {
				c.kill(&Error{Kind: Unfit, Message: "the program takes itself for a member of a gang, which it is not: build it anew with the workers' version of the library"})
				return
			}
			if c.asked.Add(1) > maxAsked {
				c.kill(&Error{Kind: Unfit, Message: "the program asks and does not read the answers: build it anew with the workers' version of the library"})
				return
			}
			waits := r.Keep == nil
			if waits {
				c.waits.Add(1)
			}
			c.spec.Member(r, func(a *task.Answer) {
				go func() { // the program may not read it, and whoever answers can't wait for that
					_ = c.conn.Send(a) // or has ended
					c.asked.Add(-1)
					if waits {
						c.moves.Add(1)
						c.waits.Add(-1)
					}
				}()
			})
		default:
			c.reply = r
			return
		}
	}
}

// watch kills the child when it must be, and returns when it has ended.
func (c *child) watch(ctx context.Context, replied <-chan struct{}) {
	s := c.spec
	tick := time.NewTicker(look)
	defer tick.Stop()
	var still time.Duration // without progress
	var moves int64
	before, done, talks := time.Now(), ctx.Done(), true
	for {
		select {
		case <-c.ended:
			return
		case <-done:
			c.kill(context.Cause(ctx))
			done = nil
		case <-replied:
			replied, talks, still = nil, false, 0
		case <-tick.C:
			// If this process, or the whole machine, was stopped for a while, the child is not to blame.
			now := time.Now()
			still += min(now.Sub(before), 2*look)
			before = now
			if n := c.moves.Load(); n != moves || c.waits.Load() > 0 {
				moves, still = n, 0
			}
			switch {
			case !talks && still > parting && c.reply != nil:
				c.kill(nil)
			case !talks && still > parting:
				c.kill(&Error{Kind: Crashed, Message: "the program closed its connection to the worker before it had done its task, and was killed"})
			case !talks:
			case !c.hello.Load() && still > s.HelloTimeout:
				c.kill(&Error{Kind: Silent, Message: fmt.Sprintf("the program did not reach its call of Run within %v, and was killed: what its main does before is done for every attempt, keep it short", s.HelloTimeout)})
			case c.hello.Load() && s.StallTimeout > 0 && still > s.StallTimeout:
				c.kill(&Error{Kind: Stalled, Message: fmt.Sprintf("the program made no progress for %v, and was killed", s.StallTimeout)})
			}
			if s.Memory > 0 {
				c.weigh()
			}
		}
	}
}

// taken is how much memory a process has taken that is no file's and no side input's.
func (c *child) taken(pid int) int64 {
	own, shared := taken(pid)
	return own + max(0, shared-c.shared)
}

// weigh kills the child if it takes too much memory.
func (c *child) weigh() {
	pid := c.cmd.Process.Pid
	sum := c.taken(pid)
	for _, p := range members(pid) {
		sum += c.taken(p)
	}
	if sum > c.spec.Memory {
		c.kill(&Error{Kind: Memory, Message: fmt.Sprintf("the program took %s of memory, its limit is %s, and was killed: give its tasks more, or have it hold less",
			humanize.IBytes(uint64(sum)), humanize.IBytes(uint64(c.spec.Memory)))})
	}
}

// outcome says how it went, when all is over.
func (c *child) outcome(ctx context.Context) (*task.Reply, error) {
	if err := c.spec.Log.Close(); err != nil {
		fmt.Fprintf(c.spec.Log, "\nthe log is not complete: %v\n", err)
	}
	if c.reply != nil {
		return c.reply, nil
	}
	if cause := context.Cause(ctx); cause != nil && errors.Is(c.killed, cause) {
		return nil, cause
	}
	var e *Error
	if !errors.As(c.killed, &e) {
		e = &Error{Kind: Crashed, Message: "the program " + c.end()}
	}
	e.Tail = c.spec.Log.lastWords(tailLines, tailBytes)
	return nil, e
}

// end says how the child ended by itself.
func (c *child) end() string {
	when := "before it reached its call of Run"
	if c.hello.Load() {
		when = "before it had done its task"
	}
	status, _ := c.state.Sys().(syscall.WaitStatus)
	switch {
	case status.Signaled() && status.Signal() == syscall.SIGKILL:
		return "was killed " + when + " (signal 9: by somebody, or by the system since memory ran out)"
	case status.Signaled():
		return fmt.Sprintf("was ended by signal %d (%v) %s", status.Signal(), status.Signal(), when)
	case !c.hello.Load() && status.ExitStatus() == 0:
		return "ended " + when + ", as if all were done: is the job run with these arguments?"
	}
	return fmt.Sprintf("ended with status %d %s", status.ExitStatus(), when)
}

// unstarted explains why there is no child.
func (c *child) unstarted(err error) error {
	path, here := c.spec.Binary, runtime.GOOS+"/"+runtime.GOARCH
	e := &Error{Kind: System, Err: err, Message: fmt.Sprintf("program %s can't be started: %v", path, err)}
	_, missing := os.Stat(path)
	switch {
	case missing != nil && errors.Is(err, os.ErrNotExist):
		e.Message = fmt.Sprintf("program %s is not there", path)
	case errors.Is(err, os.ErrNotExist):
		e.Kind, e.Message = Unfit, fmt.Sprintf("program %s needs a loader that this machine does not have: build it static, with CGO_ENABLED=0", path)
	case errors.Is(err, syscall.ENOEXEC):
		e.Kind, e.Message = Unfit, fmt.Sprintf("program %s is %s, and this worker runs %s: build it with GOOS=%s GOARCH=%s", path, platform(path), here, runtime.GOOS, runtime.GOARCH)
	case errors.Is(err, syscall.E2BIG):
		e.Kind, e.Message = Unfit, fmt.Sprintf("program %s: its arguments and environment are longer than this system takes", path)
	case errors.Is(err, os.ErrPermission):
		e.Message = fmt.Sprintf("program %s may not be executed here: is its file system mounted with noexec? %v", path, err)
	}
	return e
}

// platform says what an executable was built for.
func platform(path string) string {
	f, err := elf.Open(path)
	if err != nil {
		return "no Linux program"
	}
	defer f.Close()
	return "built for " + strings.ToLower(strings.TrimPrefix(f.Machine.String(), "EM_"))
}
