// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Programs are the machine's own programs that an image has, where they are
// installed, with the libraries they need.
var Programs = []string{"ip", "tc", "mount", "umount", "ethtool", "sh"}

// libraries is where the loader of Debian on x86 looks.
var libraries = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"}

// addPrograms adds programs to an image. It returns those that could not be
// added, with the reason: the tests that need them will say so too.
func addPrograms(a *archive, names []string) (without []string) {
	added := map[string]bool{}
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err == nil {
			err = addELF(a, "/usr/bin/"+name, path, added)
		}
		if err != nil {
			without = append(without, fmt.Sprintf("%s: %v", name, err))
		}
	}
	return without
}

var errForeign = errors.New("is no program for x86-64")

// addELF adds a program or library and what it needs. added holds what is there.
func addELF(a *archive, to, from string, added map[string]bool) error {
	if added[to] {
		return nil
	}
	f, err := elf.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Machine != elf.EM_X86_64 {
		return fmt.Errorf("%s: %w", from, errForeign)
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		text, err := io.ReadAll(p.Open())
		if err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		loader := strings.TrimRight(string(text), "\x00")
		if err := addELF(a, loader, loader, added); err != nil {
			return err
		}
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	for _, name := range needed {
		path, err := findLibrary(name)
		if err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		if err := addELF(a, "/lib/x86_64-linux-gnu/"+name, path, added); err != nil {
			return err
		}
	}
	added[to] = true
	a.file(to, 0o755, data)
	return nil
}

func findLibrary(name string) (string, error) {
	for _, dir := range libraries {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("library %s is in none of %v", name, libraries)
}
