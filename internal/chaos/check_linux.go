// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/vishvananda/netlink"
)

// sameTree compares two folders, byte for byte.
func sameTree(got, want string) error {
	a, err := readTree(got)
	if err != nil {
		return err
	}
	b, err := readTree(want)
	if err != nil {
		return err
	}
	var diffs []string
	for name, text := range b {
		other, ok := a[name]
		switch {
		case !ok:
			diffs = append(diffs, name+" is missing")
		case !bytes.Equal(other, text):
			diffs = append(diffs, name+": "+firstDifference(other, text))
		}
	}
	for name := range a {
		if _, ok := b[name]; !ok {
			diffs = append(diffs, name+" should not be there")
		}
	}
	if len(diffs) == 0 {
		return nil
	}
	slices.Sort(diffs)
	return fmt.Errorf("the output differs from the local engine's: %s", strings.Join(diffs, "; "))
}

// firstDifference shows the first line in which two texts differ.
func firstDifference(got, want []byte) string {
	g, w := bytes.Split(got, []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range min(len(g), len(w)) {
		if !bytes.Equal(g[i], w[i]) {
			return fmt.Sprintf("line %d is %.100q, want %.100q", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

func readTree(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files[name], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read an output: %w", err)
	}
	return files, nil
}

// entries lists all that is below a folder, but not what spare says.
func entries(root string, spare func(path string) bool) ([]string, error) {
	var all []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && path != root && !spare(path) {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		return all, fmt.Errorf("look for files that were left: %w", err)
	}
	return all, nil
}

// process is one that runs on a host.
type process struct {
	pid, parent int
	command     string
	stopped     bool
}

func (p process) String() string {
	return fmt.Sprintf("%d (child of %d): %s", p.pid, p.parent, p.command)
}

// processesIn lists the processes on a host, those that have ended but for their parent's
// attention left out.
func processesIn(host *netlab.Host) ([]process, error) {
	var inode string
	err := host.Do(func() (err error) {
		inode, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find the namespace of %v: %w", host, err)
	}
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("look for processes: %w", err)
	}
	var all []process
	for _, e := range names {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// What has ended meanwhile is none of ours.
		at, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil || at != inode {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		_, rest, _ := bytes.Cut(stat, []byte(") "))
		fields := bytes.Fields(rest)
		if len(fields) < 2 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
			continue
		}
		p := process{pid: pid, stopped: fields[0][0] == 'T'}
		p.parent, _ = strconv.Atoi(string(fields[1]))
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		p.command = string(bytes.ReplaceAll(bytes.TrimRight(line, "\x00"), []byte{0}, []byte(" ")))
		all = append(all, p)
	}
	return all, nil
}

// childrenOf lists the processes on a host that a process has started, directly or not.
func childrenOf(host *netlab.Host, pid int) ([]process, error) {
	all, err := processesIn(host)
	if err != nil {
		return nil, err
	}
	family := map[int]bool{pid: true}
	var found []process
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if family[p.parent] && !family[p.pid] {
				family[p.pid], grown = true, true
				found = append(found, p)
			}
		}
	}
	return found, nil
}

// holdings are what a process holds that files do not show.
type holdings struct {
	memory  []string       // files in memory, and such that were removed
	objects map[string]int // of the kernel's, by kind
}

func (h holdings) String() string { return fmt.Sprintf("%q, %v", h.memory, h.objects) }

// heldBy looks at what a process has open, and what it has mapped.
func heldBy(pid int) (h holdings, err error) {
	h.objects = map[string]int{}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, err := os.ReadDir(dir)
	if err != nil {
		return h, fmt.Errorf("look at open files: %w", err)
	}
	for _, e := range list {
		// What was closed meanwhile is not held.
		at, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		if kind, ok := strings.CutPrefix(at, "anon_inode:"); ok {
			h.objects[kind]++
		} else if strings.HasPrefix(at, "/memfd:") || strings.HasSuffix(at, " (deleted)") {
			h.memory = append(h.memory, at)
		}
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return h, fmt.Errorf("look at mapped memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 6 {
			continue
		}
		switch at := strings.Join(fields[5:], " "); {
		case strings.HasPrefix(at, "/memfd:"), strings.HasSuffix(at, " (deleted)"):
			h.memory = append(h.memory, "mapped: "+at)
		case strings.HasPrefix(at, "anon_inode:"):
			h.objects["mapped "+strings.TrimPrefix(at, "anon_inode:")]++
		}
	}
	return h, nil
}

// programsOn says which XDP programs and filters of ours are at a host's interface.
func programsOn(host *netlab.Host) (found []string, err error) {
	err = host.Do(func() error {
		link, err := netlink.LinkByName(netlab.InterfaceName)
		if err != nil {
			return fmt.Errorf("find the interface of %v: %w", host, err)
		}
		if x := link.Attrs().Xdp; x != nil && x.Attached {
			found = append(found, fmt.Sprintf("XDP program %d", x.ProgId))
		}
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			filters, err := netlink.FilterList(link, parent)
			if err != nil {
				continue // there is no place for filters
			}
			for _, f := range filters {
				found = append(found, "filter "+f.Type())
			}
		}
		return nil
	})
	return found, err
}

// mountsBelow lists what is mounted below a folder.
func mountsBelow(dir string) ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("look for mounts: %w", err)
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			found = append(found, fields[4])
		}
	}
	return found, nil
}

// within waits until what is wrong is so no more, and returns what still is.
func within(limit time.Duration, wrong func() error) error {
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		err := wrong()
		if err == nil || time.Since(begin) > limit {
			return err
		}
	}
}
