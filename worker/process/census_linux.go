// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// entry is what /proc says of a process.
type entry struct {
	pid, parent, session int
	zombie               bool
}

// processes returns all that there are, of which something may be read.
func processes() []entry {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what was read is what there is to know
	var all []entry
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if e, ok := examine(pid); ok {
			all = append(all, e)
		}
	}
	return all
}

func examine(pid int) (e entry, ok bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return e, false
	}
	// The name, in parentheses, may hold anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 4 {
		return e, false
	}
	e.pid, e.zombie = pid, fields[0][0] == 'Z' || fields[0][0] == 'X'
	e.parent, _ = strconv.Atoi(string(fields[1]))
	e.session, _ = strconv.Atoi(string(fields[3]))
	return e, true
}

// marked says whether a process has the folder, or one in it, as its TMPDIR.
func marked(pid int, dir string) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false // it is gone, or another user's
	}
	want := mark(dir)
	for v := range strings.SplitSeq(string(env), "\x00") {
		if v == want || strings.HasPrefix(v, want+"/") {
			return true
		}
	}
	return false
}

// census is a list of processes that is at most a second old. All attempts share it.
var census struct {
	sync.Mutex
	at  time.Time
	all []entry
}

// members returns the processes of a session, as of a second ago at most.
func members(session int) (pids []int) {
	census.Lock()
	defer census.Unlock()
	if time.Since(census.at) > time.Second {
		census.all, census.at = processes(), time.Now()
	}
	for _, e := range census.all {
		if e.session == session && e.pid != session && !e.zombie {
			pids = append(pids, e.pid)
		}
	}
	return pids
}

// taken is how much memory of a process is no file's, in memory or swapped out, and how much
// is one's that is kept in memory.
func taken(pid int) (own, shared int64) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(status)) {
		name, rest, _ := strings.Cut(line, ":")
		if name == "RssAnon" || name == "RssShmem" || name == "VmSwap" {
			kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if name == "RssShmem" {
				shared += kib << 10
			} else {
				own += kib << 10
			}
		}
	}
	return own, shared
}

// clear kills what is left of a session, and what carries dir's mark, until
// nothing is. The session's leader has ended, but is not reaped.
func clear(session int, dir string) {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		_ = unix.Kill(-session, unix.SIGKILL) // there may be none
		left := 0
		for _, e := range processes() {
			switch {
			case e.pid == session || e.pid == os.Getpid():
			case e.zombie:
				// Orphans are ours to reap where this process is the first of its container.
				if e.session == session && e.parent == os.Getpid() {
					_, _ = unix.Wait4(e.pid, nil, unix.WNOHANG, nil)
				}
			case e.session == session || marked(e.pid, dir):
				if unix.Kill(e.pid, unix.SIGKILL) == nil {
					left++
				}
			}
		}
		if left == 0 || time.Now().After(end) {
			return
		}
	}
}

// Sweep kills processes of attempts whose folders are, or were, in dir: what a worker left
// that was killed. It returns how many there were.
func Sweep(dir string) (killed int) {
	if dir == "" || !filepath.IsAbs(dir) {
		return 0
	}
	dir = filepath.Clean(dir)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		left := 0
		for _, e := range processes() {
			if !e.zombie && e.pid != os.Getpid() && marked(e.pid, dir) && unix.Kill(e.pid, unix.SIGKILL) == nil {
				left++
			}
		}
		if left == 0 {
			break
		}
		killed = max(killed, left)
	}
	return killed
}
