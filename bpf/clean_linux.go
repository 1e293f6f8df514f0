// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Clean removes what is left of the instance in a directory, if its process is gone: it detaches programs,
// unpins, unmounts, and removes the directory. It returns what it removed, for people.
// Of an instance that lives it touches nothing and returns an error that wraps
// ErrInUse. It must be called in the network namespace of the instance if that answered by a filter.
func Clean(dir string) (removed []string, err error) {
	lock, err := lockDir(dir, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	i := &instance{dir, lock}
	err = i.dispose(func(s string) { removed = append(removed, s) })
	if err != nil {
		return removed, fmt.Errorf("clean %s: %w", dir, err)
	}
	return removed, nil
}

// CleanAll cleans every instance below a directory ([Root], usually) whose process is gone.
func CleanAll(root string) (removed []string, err error) {
	list, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for leftovers: %w", err)
	}
	for _, e := range list {
		dir := filepath.Join(root, e.Name())
		if !e.IsDir() || !instanceName.MatchString(e.Name()) {
			continue
		}
		if _, serr := os.Lstat(filepath.Join(dir, lockFile)); errors.Is(serr, fs.ErrPermission) {
			err = errors.Join(err, fmt.Errorf("%w to look into %s: run this as root", ErrRights, dir))
			continue
		} else if serr != nil {
			continue
		}
		r, cerr := Clean(dir)
		removed = append(removed, r...)
		if !errors.Is(cerr, ErrInUse) {
			err = errors.Join(err, cerr)
		}
	}
	return removed, err
}

// instanceOn returns the directory below root of the instance that has an XDP program pinned, "" if
// there is none, and why its lock can't be had: an error that wraps ErrInUse if its process lives.
func instanceOn(root string, program uint32) (dir string, lock error) {
	list, _ := os.ReadDir(root) // what can't be seen is not found
	for _, e := range list {
		i := &instance{dir: filepath.Join(root, e.Name())}
		s, err := i.readState()
		if err != nil || s == nil {
			continue
		}
		p, err := loadProgram(i.path(s.Live, "programs", dispatchProgram))
		if err != nil {
			continue
		}
		info, err := p.Info()
		_ = p.Close()
		if err != nil {
			continue
		}
		if id, ok := info.ID(); !ok || uint32(id) != program {
			continue
		}
		held, err := lockDir(i.dir, 0)
		if err == nil {
			_ = held.Close()
		}
		return i.dir, err
	}
	return "", nil
}

// Leftovers lists the instances below a directory whose process is gone.
func Leftovers(root string) (dirs []string) {
	list, err := os.ReadDir(root)
	if err != nil {
		return nil
	}
	for _, e := range list {
		dir := filepath.Join(root, e.Name())
		if lock, err := lockDir(dir, 0); err == nil {
			_ = lock.Close()
			dirs = append(dirs, dir)
		}
	}
	return dirs
}
