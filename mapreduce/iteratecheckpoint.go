// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"github.com/zeebo/xxh3"
)

// checkpointFile is where an iteration in this process keeps its newest state. Its name is that of the program, its
// arguments and its input, so that no other iteration's is taken for ours.
type checkpointFile struct {
	path   string
	rounds int    // of the state that it has; 0: none
	state  []byte // that was found; nil: none was
}

// openCheckpoint looks for the state of an earlier run.
func openCheckpoint(folder string, m *member) (*checkpointFile, error) {
	for i := range m.e.plan.Files {
		if f := &m.e.plan.Files[i]; f.Size < 0 {
			return nil, &permanent{fmt.Errorf("there can be no checkpoints: %s can't be read again, nor be known again; save it as a file first", f.Path)}
		}
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return nil, fmt.Errorf("the folder for checkpoints: %w", err)
	}
	id, err := m.fingerprint()
	if err != nil {
		return nil, err
	}
	c := &checkpointFile{path: filepath.Join(folder, fmt.Sprintf("quern-%016x.state", id))}
	b, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("a checkpoint: %w", err)
	}
	s, err := decodeState(b)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w; remove it to begin anew", c.path, err)
	}
	c.rounds, c.state = s.rounds, b
	return c, nil
}

// fingerprint is that of an iteration before its first round, its input, and its program with the arguments.
func (m *member) fingerprint() (uint64, error) {
	program, err := programDigest()
	if err != nil {
		return 0, fmt.Errorf("the running program's file, by which its checkpoints are known: %w", err)
	}
	plan, err := m.e.plan.Pack()
	if err != nil {
		return 0, err
	}
	var h xxh3.Hasher
	_, _ = fmt.Fprintf(&h, "%x %q %q %d %v %x ", program, os.Args[1:], m.f.name, m.f.sums, m.f.quantum, m.state.digest())
	in := m.e.opts.Input
	_, _ = fmt.Fprintf(&h, "%v %q %d %v %q %q ", in.Format, in.Delimiter, in.MaxLine, in.LongLines, in.Encoding, in.Columns)
	_, _ = h.Write(plan)
	return h.Sum64(), nil
}

// programDigest is that of the file that this process runs.
var programDigest = sync.OnceValues(func() (uint64, error) {
	path, err := os.Executable()
	if err != nil {
		return 0, err
	}
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close() // it was only read
	var h xxh3.Hasher
	if _, err := io.Copy(&h, file); err != nil {
		return 0, err
	}
	return h.Sum64(), nil
})

// write replaces the state. A crash leaves the old one or the new one.
func (c *checkpointFile) write(rounds int, state []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("checkpoint: %w", err)
		}
	}()
	f, err := os.CreateTemp(filepath.Dir(c.path), filepath.Base(c.path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(state); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), c.path); err != nil {
		return err
	}
	c.rounds = rounds
	return syncFolder(filepath.Dir(c.path))
}

// syncFolder makes a rename last, where the system can.
func syncFolder(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}

func (c *checkpointFile) remove() error {
	if err := os.Remove(c.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the checkpoint is left: %w", err)
	}
	return nil
}
