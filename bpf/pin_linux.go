// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
)

// An instance's directory holds:
//
//	lock          locked by the process that has the instance
//	state.json    what is pinned
//	bpf/          a bpffs of its own
//	  live-ID/    what is pinned; state.json names it
//	    maps/ programs/ links/
//	    tables/NUMBER
//	    sets/N-LAYOUT/   a set's map of tables and programs
//	  new/        the same before it is whole, or a set before it is
//
// A directory of the bpffs is made under the name new and renamed when it is whole.
// Names in a bpffs have no dots.
const (
	lockFile  = "lock"
	stateFile = "state.json"
	mountDir  = "bpf"
	newName   = "new"
	newSet    = "new-set"
)

// stateFormat counts changes of what is pinned and how.
const stateFormat = 3

// state describes what is pinned. State that does not fit is not taken up.
type state struct {
	Format  int            `json:"format"`
	Boot    string         `json:"boot"`   // the kernel's own number of this boot
	Digest  string         `json:"digest"` // of the objects
	Live    string         `json:"live"`   // directory in the bpffs
	Netns   uint64         `json:"netns"`
	Devices []*device      `json:"devices"`
	XDP     string         `json:"xdp"`
	Port    int            `json:"port"`
	Limits  shuffle.Limits `json:"limits"`
	CPUs    int            `json:"cpus"`
	Filter  bool           `json:"filter"` // answers leave by a filter of clsact, which outlives its process
	// CloneFilter is the same for what clones chunks. NoBroadcasts says why there is nothing for broadcasts, and then not
	// for all-reduces either; NoReduces says it of these.
	CloneFilter  bool      `json:"clone_filter"`
	NoBroadcasts string    `json:"no_broadcasts,omitempty"`
	NoReduces    string    `json:"no_reduces,omitempty"`
	Made         time.Time `json:"made"`
}

var liveName = regexp.MustCompile(`^live-[0-9a-f]{16}$`)

// nothingThere is why nothing is taken up when there is nothing.
const nothingThere = "there is none"

// instance is an instance's directory, locked.
type instance struct {
	dir  string
	lock *os.File
}

func linkName(kind string, i int) string { return fmt.Sprintf("%s-%d", kind, i) }

func (i *instance) path(live string, parts ...string) string {
	return filepath.Join(append([]string{i.dir, mountDir, live}, parts...)...)
}

func (i *instance) tablePath(live string, id shuffle.TableID) string {
	return i.path(live, "tables", fmt.Sprintf("%08x", uint32(id)))
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// takeInstance makes and locks a directory.
func takeInstance(dir string) (*instance, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("instance directory: %w", err)
	}
	for range 100 {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("instance directory: %w", err)
		}
		lock, err := lockDir(dir, os.O_CREATE)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed by whoever had it
		}
		if err != nil {
			return nil, err
		}
		if err := lock.Truncate(0); err == nil {
			// For who finds it locked.
			_, _ = lock.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
		}
		return &instance{dir, lock}, nil
	}
	return nil, fmt.Errorf("instance directory %s: it vanishes whenever it is made", dir)
}

// lockDir locks the directory of an instance without waiting. An error that wraps
// fs.ErrNotExist says that the lock is not there, or was removed meanwhile.
func lockDir(dir string, flags int) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock instance: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			who := "another process"
			if text, _ := os.ReadFile(path); len(text) > 0 {
				who = "process " + strings.TrimSpace(string(text))
			}
			return nil, fmt.Errorf("%w: %s has %s; stop it or choose another directory", ErrInUse, who, dir)
		}
		return nil, fmt.Errorf("lock instance %s: %w", dir, err)
	}
	// The one who had it may have removed the file just before we locked it.
	mine, err1 := f.Stat()
	there, err2 := os.Lstat(path)
	if err1 != nil || err2 != nil || !os.SameFile(mine, there) {
		_ = f.Close()
		return nil, fmt.Errorf("lock instance %s: %w", dir, fs.ErrNotExist)
	}
	return f, nil
}

func (i *instance) unlock() {
	if i.lock != nil {
		_ = i.lock.Close()
		i.lock = nil
	}
}

// isBPFFS says whether a bpffs is mounted at a directory or above it.
func isBPFFS(path string) bool {
	var s unix.Statfs_t
	return unix.Statfs(path, &s) == nil && uint32(s.Type) == unix.BPF_FS_MAGIC
}

// mount mounts the bpffs, if it is not there already.
func (i *instance) mount() error {
	path := filepath.Join(i.dir, mountDir)
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("directory for pins: %w", err)
	}
	if isBPFFS(path) {
		return nil
	}
	err := unix.Mount("quern", path, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700")
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: keeping state over a restart needs CAP_SYS_ADMIN, or a bpffs that was mounted beforehand (mount -t bpf quern %s): %w", errNoMount, path, err)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: this kernel has no bpffs: %w", ErrUnsupported, err)
	case err != nil:
		return fmt.Errorf("mount a bpffs at %s: %w", path, err)
	}
	return nil
}

// readState reads the description; nil without an error means there is none.
func (i *instance) readState() (*state, error) {
	text, err := os.ReadFile(filepath.Join(i.dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what is pinned: %w", err)
	}
	s := &state{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("read what is pinned: %s: %w", stateFile, err)
	}
	if !liveName.MatchString(s.Live) {
		return nil, fmt.Errorf("read what is pinned: %s names directory %q", stateFile, s.Live)
	}
	for _, d := range s.Devices {
		if d == nil {
			return nil, fmt.Errorf("read what is pinned: %s has an empty device", stateFile)
		}
	}
	return s, nil
}

// writeState replaces the description.
func (i *instance) writeState(s *state) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("describe what is pinned: %w", err)
	}
	path := filepath.Join(i.dir, stateFile)
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("describe what is pinned: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("describe what is pinned: %w", err)
	}
	return nil
}

// pins returns the entries of a directory of the bpffs.
func (i *instance) pins(live string, parts ...string) ([]fs.DirEntry, error) {
	list, err := os.ReadDir(i.path(live, parts...))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return list, err
}

// wipe detaches and unpins all that is there. told hears what was removed.
// quiesce waits until no program runs.
func (i *instance) wipe(told func(string), quiesce func() error) (err error) {
	if told == nil {
		told = func(string) {}
	}
	s, stateErr := i.readState()
	if stateErr == nil && s != nil {
		if s.Filter {
			err = errors.Join(err, s.detachFilters(answerHook, told))
		}
		if s.CloneFilter {
			err = errors.Join(err, s.detachFilters(cloneHook, told))
		}
	}
	mount := filepath.Join(i.dir, mountDir)
	if isBPFFS(mount) {
		trees, rerr := os.ReadDir(mount)
		if rerr != nil {
			return errors.Join(err, fmt.Errorf("list pins: %w", rerr))
		}
		// The kernel puts files of its own there, whose names have dots.
		trees = slices.DeleteFunc(trees, func(e fs.DirEntry) bool { return strings.Contains(e.Name(), ".") })
		detached := false
		for _, tree := range trees {
			links, _ := i.pins(tree.Name(), "links")
			for _, e := range links {
				l, lerr := link.LoadPinnedLink(i.path(tree.Name(), "links", e.Name()), nil)
				if lerr != nil {
					err = errors.Join(err, fmt.Errorf("open pinned link %s: %w", e.Name(), lerr))
					continue
				}
				if derr := l.Detach(); derr != nil && !errors.Is(derr, unix.ENOLINK) {
					err = errors.Join(err, fmt.Errorf("detach pinned link %s: %w", e.Name(), derr))
				} else {
					told("link " + e.Name() + i.deviceOf(s, e.Name()))
				}
				_ = l.Close()
				detached = true
			}
		}
		if detached {
			// A program that runs must find its chain to the end.
			err = errors.Join(err, quiesce())
		}
		for _, tree := range trees {
			n := countFiles(filepath.Join(mount, tree.Name()))
			if rerr := os.RemoveAll(filepath.Join(mount, tree.Name())); rerr != nil {
				err = errors.Join(err, fmt.Errorf("unpin: %w", rerr))
				continue
			}
			told(fmt.Sprintf("%d pins", n))
		}
	}
	return errors.Join(err, removeIfThere(filepath.Join(i.dir, stateFile)), removeIfThere(filepath.Join(i.dir, stateFile+".new")))
}

// detachFilters removes a hook's filters.
func (s *state) detachFilters(k hook, told func(string)) (err error) {
	here, nerr := networkNamespace()
	for _, d := range s.Devices {
		if nerr != nil || here != s.Netns {
			told(fmt.Sprintf("cannot reach the filter on %s, which is in another network namespace", d.Name))
			continue
		}
		if derr := d.detachFilter(k); derr != nil {
			err = errors.Join(err, derr)
			continue
		}
		told("filter on " + d.Name)
	}
	return err
}

// deviceOf says which device a pinned link is on, for people.
func (i *instance) deviceOf(s *state, name string) string {
	if s != nil {
		for n, d := range s.Devices {
			if strings.HasSuffix(name, fmt.Sprintf("-%d", n)) {
				return " on " + d.Name
			}
		}
	}
	return ""
}

func countFiles(dir string) (n int) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return nil
	})
	return n
}

// dispose removes the whole directory and gives the lock up. Links are detached by then, or nobody waits.
func (i *instance) dispose(told func(string)) error {
	err := i.wipe(told, waitForPrograms)
	mount := filepath.Join(i.dir, mountDir)
	if isBPFFS(mount) {
		if uerr := unix.Unmount(mount, 0); uerr != nil && !errors.Is(uerr, unix.EPERM) && !errors.Is(uerr, unix.EINVAL) {
			if uerr = unix.Unmount(mount, unix.MNT_DETACH); uerr != nil {
				err = errors.Join(err, fmt.Errorf("unmount %s: %w", mount, uerr))
			}
		}
		if told != nil && !isBPFFS(mount) {
			told("mount " + mount)
		}
	}
	if !isBPFFS(mount) { // else somebody else's mount, which stays with its directory
		for _, path := range []string{mount, filepath.Join(i.dir, lockFile), i.dir} {
			err = errors.Join(err, removeIfThere(path))
		}
		if told != nil && err == nil {
			told("directory " + i.dir)
		}
	}
	i.unlock()
	return err
}

// waitForPrograms is Quiesce for who has no Host.
func waitForPrograms() error {
	h := &Host{}
	defer func() {
		for _, m := range h.dummy {
			if m != nil {
				_ = m.Close()
			}
		}
	}()
	if err := h.makeDummy(); err != nil {
		return err
	}
	return h.quiesce()
}

func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("find out the number of this boot: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// describe returns the state that this Host would leave.
func (h *Host) describe() (s state, err error) {
	s = state{
		Format:  stateFormat,
		Digest:  digest(),
		Devices: h.devices,
		XDP:     h.opts.XDP.String(),
		Port:    h.opts.Port,
		Limits:  h.opts.Limits,
		CPUs:    h.loader.cpus,
		Made:    time.Now().UTC().Truncate(time.Second),
	}
	if h.casting.err != nil {
		s.NoBroadcasts = oneLine(h.casting.err)
	}
	if h.reducing.err != nil {
		s.NoReduces = oneLine(h.reducing.err)
	}
	if s.Boot, err = bootID(); err != nil {
		return s, err
	}
	if s.Netns, err = networkNamespace(); err != nil {
		return s, err
	}
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		return s, fmt.Errorf("name what is pinned: %w", err)
	}
	s.Live = "live-" + hex.EncodeToString(id)
	return s, nil
}

// pinNew pins what there is, links excepted, under a name that nobody takes up.
func (h *Host) pinNew() (err error) {
	if h.state, err = h.describe(); err != nil {
		return err
	}
	for _, dir := range []string{"", "maps", "programs", "links", "sets", "tables"} {
		if err := os.Mkdir(h.inst.path(newName, dir), 0o700); err != nil {
			return fmt.Errorf("pin: %w", err)
		}
	}
	for name, m := range h.loader.shared {
		if err := m.Pin(h.inst.path(newName, "maps", name)); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	for name, p := range h.programs {
		if err := p.Pin(h.inst.path(newName, "programs", name)); err != nil {
			return fmt.Errorf("pin program %s: %w", name, err)
		}
	}
	return nil
}

// pinDone makes what was pinned the state to take up.
func (h *Host) pinDone() error {
	if err := h.inst.writeState(&h.state); err != nil {
		return err
	}
	if err := os.Rename(h.inst.path(newName), h.inst.path(h.state.Live)); err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	return nil
}

func setName(s *set) string {
	if s.layout.Dense {
		return fmt.Sprintf("%d-dense-b%d", s.id, s.layout.Bits)
	}
	return fmt.Sprintf("%d-c%d-l%d-b%d", s.id, s.layout.Class, s.layout.Lanes, s.layout.Bits)
}

// parseSetName is the reverse of setName.
func parseSetName(name string) (*set, error) {
	s := &set{}
	if _, err := fmt.Sscanf(name, "%d-c%d-l%d-b%d", &s.id, &s.layout.Class, &s.layout.Lanes, &s.layout.Bits); err != nil {
		s.layout = shuffle.TableLayout{Dense: true}
		if _, err := fmt.Sscanf(name, "%d-dense-b%d", &s.id, &s.layout.Bits); err != nil {
			return nil, fmt.Errorf("pinned set %q has no name of ours", name)
		}
	}
	if setName(s) != name || s.id < 0 || s.id >= maxSets {
		return nil, fmt.Errorf("pinned set %q has no name of ours", name)
	}
	return s, checkLayout(s.layout)
}

// pinSet pins a set's map and programs, whole or not at all.
func (i *instance) pinSet(live string, s *set) error {
	dir := i.path(newSet)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	if err := s.outer.Pin(filepath.Join(dir, "tables")); err != nil {
		return fmt.Errorf("pin a map of tables: %w", err)
	}
	for name, p := range s.programs {
		if err := p.Pin(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("pin program %s: %w", name, err)
		}
	}
	if err := os.Rename(dir, i.path(live, "sets", setName(s))); err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	return nil
}

// loadProgram and loadMap open pins.
func loadMap(path string) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return nil, fmt.Errorf("open pinned map %s: %w", filepath.Base(path), err)
	}
	return m, nil
}

func loadProgram(path string) (*ebpf.Program, error) {
	p, err := ebpf.LoadPinnedProgram(path, nil)
	if err != nil {
		return nil, fmt.Errorf("open pinned program %s: %w", filepath.Base(path), err)
	}
	return p, nil
}
