// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// place is where a target is, with symbolic links followed.
type place struct {
	path    string // as given
	real    string // absolute
	exists  bool
	info    fs.FileInfo // if it exists
	missing []string    // folders above it that do not exist, outermost first
}

func findPlace(path string) (*place, error) {
	if path == "" {
		return nil, fmt.Errorf("output: an empty path: %w", ErrTarget)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("output %s: %w", path, err)
	}
	p := &place{path: path}
	// Go up to what exists, and from there down again.
	var below []string
	for at := abs; ; {
		real, err := filepath.EvalSymlinks(at)
		if err == nil {
			return p, p.settle(real, below)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("output %s: %w", path, err)
		}
		if _, err := os.Lstat(at); err == nil {
			return nil, fmt.Errorf("output %s: %w: %s is a symbolic link that leads nowhere", path, ErrTarget, at)
		}
		up := filepath.Dir(at)
		if up == at {
			return nil, fmt.Errorf("output %s: %w", path, err)
		}
		below = append(below, filepath.Base(at))
		at = up
	}
}

// settle fills in a place of which real exists and below, innermost first, does not.
func (p *place) settle(real string, below []string) error {
	info, err := os.Stat(real)
	if err != nil {
		return fmt.Errorf("output %s: %w", p.path, err)
	}
	if len(below) == 0 {
		p.real, p.exists, p.info = real, true, info
		return nil
	}
	if !info.IsDir() {
		return fmt.Errorf("output %s: %w: %s is a file", p.path, ErrTarget, real)
	}
	for _, name := range slices.Backward(below) {
		real = filepath.Join(real, name)
		p.missing = append(p.missing, real)
	}
	p.real, p.missing = real, p.missing[:len(p.missing)-1]
	return nil
}

// check says why the target must not be written.
func (p *place) check(inputs []string, overwrite bool) error {
	if !p.exists {
		return nil // nothing is in it, nothing can be lost
	}
	if input, overlaps := p.overlap(inputs); overlaps {
		return fmt.Errorf("output %s: %w: %s: name another folder", p.path, ErrOverlap, input)
	}
	if !p.info.IsDir() {
		return fmt.Errorf("output %s: %w: it is a file: name a folder, or remove the file first", p.path, ErrTarget)
	}
	// Replacing these would pull the ground from under the user's feet.
	in := insider{target: p.info, known: map[string]bool{}}
	if cwd, err := os.Getwd(); err == nil && in.folder(cwd) {
		return fmt.Errorf("output %s: %w: the current folder is (in) it: name a new folder", p.path, ErrTarget)
	}
	if home, err := os.UserHomeDir(); err == nil && in.folder(home) {
		return fmt.Errorf("output %s: %w: the home folder is (in) it: name a new folder", p.path, ErrTarget)
	}
	if filepath.Dir(p.real) == p.real || isMountPoint(p.real) {
		return fmt.Errorf("output %s: %w: a file system is mounted there, so that it cannot be replaced: name a folder in it", p.path, ErrTarget)
	}
	if overwrite {
		return nil
	}
	empty, err := isEmpty(p.real)
	if err != nil {
		return fmt.Errorf("output %s: %w", p.path, err)
	}
	if !empty {
		return existsError(p.path)
	}
	return nil
}

func isEmpty(dir string) (bool, error) {
	f, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// overlap returns the first input that the target is or holds, by the path as
// given or after following links.
func (p *place) overlap(inputs []string) (string, bool) {
	cwd, _ := os.Getwd() // "" leaves paths relative, which is as good
	in := insider{target: p.info, known: map[string]bool{}}
	for _, input := range inputs {
		if input == "-" {
			continue
		}
		path := input
		if !filepath.IsAbs(path) {
			path = filepath.Join(cwd, path)
		}
		if in.folder(filepath.Dir(path)) {
			return input, true
		}
		info, err := os.Lstat(path)
		if err != nil {
			continue // whoever reads it will say so
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			real, err := filepath.EvalSymlinks(path)
			if err != nil {
				continue
			}
			if in.folder(filepath.Dir(real)) {
				return input, true
			}
			if info, err = os.Stat(real); err != nil {
				continue
			}
		}
		if os.SameFile(info, p.info) {
			return input, true
		}
	}
	return "", false
}

// insider tells which folders are the target or within it. Inputs are many and
// their folders few, so it remembers.
type insider struct {
	target fs.FileInfo
	known  map[string]bool
}

func (in *insider) folder(dir string) bool {
	inside, ok := in.known[dir]
	if ok {
		return inside
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		real = dir
	}
	inside = in.walk(real)
	in.known[dir] = inside
	return inside
}

// walk goes up a path without links.
func (in *insider) walk(dir string) bool {
	for {
		if info, err := os.Stat(dir); err == nil && os.SameFile(info, in.target) {
			return true
		}
		up := filepath.Dir(dir)
		if up == dir {
			return false
		}
		dir = up
	}
}
