// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/quernmr/quern/mapreduce/output"
)

// places is where a job reads and writes. It tells what a failed system call
// was about.
type places struct {
	inputs []string
	output string // "": standard output
	spill  string // "": the system's folder for temporary files
}

// exitCode maps a job's error to the code that quern ends with.
func (p places) exitCode(err error) int {
	path, failed := failedPath(err)
	var bare syscall.Errno
	switch {
	case errors.Is(err, output.ErrExists), errors.Is(err, output.ErrOverlap), errors.Is(err, output.ErrTarget):
		return exitOutput
	case errors.Is(err, output.ErrUnsupported):
		return exitUsage
	case !failed && errors.Is(err, fs.ErrNotExist): // a pattern that matches nothing
		return exitInput
	case !failed && p.output != "" && errors.As(err, &bare): // inputs' errors have paths
		return exitOutput
	case !failed:
		return exitFailed
	case path == os.Stdout.Name() && p.output == "":
		return exitOutput
	case p.isOutput(path):
		return exitOutput
	case p.isInput(path):
		return exitInput
	case within(path, p.spillDir()), errors.Is(err, syscall.ENOSPC):
		return exitFailed
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return exitInput
	}
	return exitFailed
}

// failedPath returns the path that a failed system call was given.
func failedPath(err error) (string, bool) {
	var onPath *fs.PathError
	var onLink *os.LinkError
	switch {
	case errors.As(err, &onLink):
		return onLink.New, true
	case errors.As(err, &onPath):
		return onPath.Path, true
	}
	return "", false
}

// isOutput reports whether path is the output folder, lies in it, is the
// folder it is to be made in, or is a temporary folder beside it.
func (p places) isOutput(path string) bool {
	if p.output == "" {
		return false
	}
	target, path := absolute(p.output), absolute(path)
	if within(path, target) {
		return true
	}
	parent, name := filepath.Dir(target), filepath.Base(target)
	if path == parent {
		return !p.isInput(path)
	}
	rel, err := filepath.Rel(parent, path)
	if err != nil {
		return false
	}
	beside, _, _ := strings.Cut(rel, string(filepath.Separator))
	if beside != ".." && beside[0] == '.' && strings.Contains(beside, name) {
		return true
	}
	// A parent that is missing itself.
	return within(target, path) && !p.isInput(path)
}

// isInput reports whether path is one of the inputs or lies below one.
func (p places) isInput(path string) bool {
	for _, in := range p.inputs {
		if path == in || within(absolute(path), absolute(in)) {
			return true
		}
	}
	return path == "-" || path == os.Stdin.Name()
}

func (p places) spillDir() string {
	if p.spill != "" {
		return p.spill
	}
	return os.TempDir()
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return filepath.Clean(path)
}

// within reports whether path is folder or lies below it.
func within(path, folder string) bool {
	rel, err := filepath.Rel(absolute(folder), absolute(path))
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}
