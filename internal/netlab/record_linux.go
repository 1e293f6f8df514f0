// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// recordsFolder has a file per lab, locked as long as the lab's process lives.
const recordsFolder = "/run/quern-lab"

const recordSuffix = ".json"

// record is a lab's file. By its lock others see that the lab lives; by its
// content they find what is left of one that does not.
type record struct {
	name string
	file *os.File
}

// recorded is the content of a record.
type recorded struct {
	PID        int             `json:"pid"`
	Namespaces []namespaceMark `json:"namespaces"`
}

// namespaceMark tells a namespace from others.
type namespaceMark struct {
	Inode  uint64 `json:"inode"`
	Cookie uint64 `json:"cookie"` // 0: not known
}

var labs atomic.Int64 // of this process, for their names

// newRecord takes a name, or one that is made up.
func newRecord(name string) (*record, error) {
	if err := os.MkdirAll(recordsFolder, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of the labs' records: %w", err)
	}
	made := name == ""
	for {
		if made {
			name = fmt.Sprintf("qn-lab-%d-%d", os.Getpid(), labs.Add(1))
		}
		file, taken, err := lockRecord(filepath.Join(recordsFolder, name+recordSuffix), os.O_CREATE)
		if err != nil {
			return nil, fmt.Errorf("record the lab: %w", err)
		}
		if !taken {
			return &record{name, file}, nil
		}
		if !made {
			return nil, fmt.Errorf("there is a lab named %s already; choose another name", name)
		}
	}
}

// lockRecord opens a record and locks it, unless another process has.
func lockRecord(path string, flags int) (file *os.File, taken bool, err error) {
	for {
		file, err := os.OpenFile(path, os.O_RDWR|flags, 0o644)
		if err != nil {
			return nil, false, err
		}
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			file.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, true, nil
			}
			return nil, false, fmt.Errorf("lock %s: %w", path, err)
		}
		// It may have been removed by a sweep between the two.
		locked, err1 := file.Stat()
		there, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(locked, there) {
			return file, false, nil
		}
		file.Close()
	}
}

// write notes a lab's namespaces.
func (r *record) write(namespaces []*namespace) error {
	content := recorded{PID: os.Getpid()}
	for _, ns := range namespaces {
		content.Namespaces = append(content.Namespaces, namespaceMark{ns.inode, ns.cookie})
	}
	text, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("record the lab: %w", err)
	}
	if _, err := r.file.WriteAt(append(text, '\n'), 0); err != nil {
		return fmt.Errorf("record the lab: %w", err)
	}
	return nil
}

// remove gives the name up.
func (r *record) remove() error {
	return errors.Join(os.Remove(r.file.Name()), r.file.Close())
}

// Sweep removes what labs have left whose process was killed: names that lead
// nowhere, and processes that still run in their hosts.
func Sweep() ([]Swept, error) {
	entries, err := os.ReadDir(recordsFolder)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for labs that were left: %w", err)
	}
	var all []Swept
	var failed error
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), recordSuffix)
		if !ok {
			continue
		}
		file, taken, err := lockRecord(filepath.Join(recordsFolder, e.Name()), 0)
		if taken || errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		swept, err := sweep(&record{name, file})
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("lab %s: %w", name, err))
		}
		all = append(all, swept)
	}
	if failed != nil {
		return all, fmt.Errorf("remove labs that were left: %w", failed)
	}
	return all, nil
}

// sweep removes what is left of one lab.
func sweep(r *record) (Swept, error) {
	s := Swept{Lab: r.name}
	var content recorded
	// A lab that was killed while it was made has no content yet, and no process.
	_ = json.NewDecoder(r.file).Decode(&content)
	killed, err := killLeftProcesses(content.Namespaces)
	s.Processes = killed
	names, globErr := filepath.Glob(filepath.Join(namesFolder, r.name+"-*"))
	err = errors.Join(err, globErr)
	for _, n := range names {
		rest := strings.TrimPrefix(filepath.Base(n), r.name+"-")
		_, notNumber := strconv.Atoi(strings.TrimPrefix(rest, "h"))
		target, linkErr := os.Readlink(n)
		if rest != "wire" && (rest[0] != 'h' || notNumber != nil) || linkErr != nil || !strings.HasPrefix(target, "/proc/") {
			continue // not ours
		}
		if e := os.Remove(n); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
			continue
		}
		s.Names++
	}
	if err != nil {
		return s, errors.Join(err, r.file.Close()) // the record stays, to try again
	}
	return s, r.remove()
}

// killLeftProcesses kills the processes in namespaces of a lab whose process is
// gone. Their inodes may have been given to other namespaces since; the cookies
// have not.
func killLeftProcesses(marks []namespaceMark) (int, error) {
	wanted := map[uint64]uint64{}
	for _, m := range marks {
		if m.Cookie != 0 {
			wanted[m.Inode] = m.Cookie
		}
	}
	killed := map[int]bool{}
	var failed error
	// What is killed may just have started another, and does not end at once.
	for range 100 {
		found := 0
		err := eachProcess(func(pid int, inode uint64) {
			if want, ok := wanted[inode]; !ok || cookieOf(pid) != want {
				return
			}
			found++
			killed[pid] = true
			failed = errors.Join(failed, signalProcess(pid, inode, unix.SIGKILL))
		})
		if err != nil {
			return len(killed), err
		}
		if found == 0 || failed != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return len(killed), failed
}

// cookieOf returns the cookie of a process's network namespace, or 0.
func cookieOf(pid int) (n uint64) {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	ns := &namespace{name: "of process " + strconv.Itoa(pid)}
	ns.fd = nsHandle(fd)
	defer unix.Close(fd)
	// What goes wrong means that it is not known.
	_ = ns.do(func() error {
		n = cookie()
		return nil
	})
	return n
}

// eachProcess calls fn for all processes but this one, with the inode of their
// network namespace.
func eachProcess(fn func(pid int, inode uint64)) error {
	folder, err := os.Open("/proc")
	if err != nil {
		return fmt.Errorf("look for processes: %w", err)
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("look for processes: %w", err)
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		if inode, ok := inodeOf(pid); ok {
			fn(pid, inode)
		}
	}
	return nil
}

// inodeOf returns the inode of a process's network namespace, unless the process
// has ended.
func inodeOf(pid int) (uint64, bool) {
	target, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return 0, false
	}
	inode, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(target, "net:["), "]"), 10, 64)
	return inode, err == nil
}

// signalProcess signals a process that is in a namespace, unless it has ended
// or left it since it was looked at.
func signalProcess(pid int, inode uint64, signal unix.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if now, ok := inodeOf(pid); !ok || now != inode {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	return nil
}

// endProcesses ends all processes in namespaces that this process holds: by
// SIGTERM, and those that are there after a grace by SIGKILL.
func endProcesses(namespaces []*namespace, grace time.Duration) error {
	ours := map[uint64]bool{}
	for _, ns := range namespaces {
		ours[ns.inode] = true
	}
	told := map[int]bool{}
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		found := 0
		var failed error
		patience := time.Since(begin)
		err := eachProcess(func(pid int, inode uint64) {
			if !ours[inode] {
				return
			}
			found++
			switch {
			case patience > grace:
				failed = errors.Join(failed, signalProcess(pid, inode, unix.SIGKILL))
			case !told[pid]:
				told[pid] = true
				failed = errors.Join(failed, signalProcess(pid, inode, unix.SIGTERM))
			}
		})
		if err = errors.Join(err, failed); err != nil {
			return err
		}
		if found == 0 {
			return nil
		}
		if patience > 2*grace {
			return fmt.Errorf("%d processes in the lab's hosts do not end", found)
		}
	}
}
