// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ulikunitz/xz"
)

// Kernel is a kernel's files, as a distribution's package holds them.
type Kernel struct {
	Release string // as of uname -r
	Image   string // path of the bootable file
	Modules string // folder of modules; "": none
}

// FindKernel looks for a kernel in a folder that a package was unpacked to:
// boot/vmlinuz-RELEASE and lib/modules/RELEASE.
func FindKernel(dir string) (Kernel, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return Kernel{}, fmt.Errorf("%s: %d files match boot/vmlinuz-*, there has to be one", dir, len(images))
	}
	k := Kernel{Image: images[0], Release: strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")}
	for _, lib := range []string{"lib", "usr/lib"} {
		modules := filepath.Join(dir, lib, "modules", k.Release)
		if _, err := os.Stat(modules); err == nil {
			k.Modules = modules
		}
	}
	return k, nil
}

// module returns the contents of a module, nil if there is none of that name: it
// may be part of the kernel.
func (k Kernel) module(name string) ([]byte, error) {
	if k.Modules == "" {
		return nil, nil
	}
	var found string
	err := filepath.WalkDir(k.Modules, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := d.Name(); d.Type().IsRegular() && (base == name+".ko" || base == name+".ko.xz") {
			found = file
			return fs.SkipAll
		}
		return nil
	})
	if err != nil || found == "" {
		return nil, err
	}
	data, err := os.ReadFile(found)
	if err != nil || !strings.HasSuffix(found, ".xz") {
		return data, err
	}
	r, err := xz.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", found, err)
	}
	if data, err = io.ReadAll(r); err != nil {
		return nil, fmt.Errorf("module %s: %w", found, err)
	}
	return data, nil
}

// TestBinary is a package's tests, compiled without cgo for the machine.
type TestBinary struct {
	Name   string // import path of the package
	Path   string // of the binary
	Source string // folder of the package, for what its tests read; "": nothing
	Run    string // -test.run; "": all
	Skip   string // -test.skip
	Env    []string
	Long   bool // without -test.short
	// Timeout bounds the run; 0: 3 minutes.
	Timeout time.Duration
}

// Modules are the kernel modules that an image has where they exist, each after
// those it needs.
var Modules = []string{"veth", "dummy", "llc", "stp", "bridge", "sch_ingress", "cls_bpf"}

// maxSource is the largest file of a package's folder that goes along.
const maxSource = 4 << 20

// WriteImage writes an initramfs that runs the tests with the init of that path.
// Modules that the kernel does not have and Programs that are not installed
// are left out; the machine notes the latter.
func WriteImage(w io.Writer, k Kernel, init string, tests []TestBinary) error {
	out := bufio.NewWriterSize(w, 1<<20)
	a := newArchive(out)
	add := func(name, from string) error {
		data, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("initramfs: %w", err)
		}
		a.file(name, 0o755, data)
		return nil
	}
	for _, d := range []string{"dev", "proc", "sys", "tmp", "root", "run", "etc"} {
		a.dir(d)
	}
	a.device("dev/console", 5, 1)
	if err := add("init", init); err != nil {
		return err
	}
	p := Plan{Without: addPrograms(a, Programs)}
	for _, m := range Modules {
		data, err := k.module(m)
		if err != nil {
			return fmt.Errorf("initramfs: %w", err)
		}
		if data != nil {
			name := "/modules/" + m + ".ko"
			a.file(name, 0o644, data)
			p.Modules = append(p.Modules, name)
		}
	}
	for i, t := range tests {
		dir := fmt.Sprintf("/tests/%d", i)
		if err := add(dir+"/test", t.Path); err != nil {
			return err
		}
		a.dir(dir + "/source")
		if t.Source != "" {
			if err := addSource(a, dir+"/source", t.Source); err != nil {
				return fmt.Errorf("initramfs: %w", err)
			}
		}
		timeout := t.Timeout
		if timeout <= 0 {
			timeout = 3 * time.Minute
		}
		s := Step{
			Name: t.Name, Path: dir + "/test", Dir: dir + "/source",
			// The tests' own limit comes first, since then Go says where they hang.
			Args:    []string{"-test.v=test2json", "-test.count=1", "-test.timeout=" + (timeout - timeout/10).String()},
			Env:     append([]string{"QUERN_VM=1", "HOME=/root", "TMPDIR=/tmp", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, t.Env...),
			Timeout: timeout,
		}
		if !t.Long {
			s.Args = append(s.Args, "-test.short")
		}
		if t.Run != "" {
			s.Args = append(s.Args, "-test.run="+t.Run)
		}
		if t.Skip != "" {
			s.Args = append(s.Args, "-test.skip="+t.Skip)
		}
		p.Steps = append(p.Steps, s)
	}
	text, err := json.Marshal(&p)
	if err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	a.file(PlanFile, 0o644, text)
	return errors.Join(a.close(), out.Flush())
}

// addSource adds what a package's folder holds beside other packages.
func addSource(a *archive, to, from string) error {
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel != "." && strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxSource {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		a.file(to+"/"+filepath.ToSlash(rel), 0o644, data)
		return nil
	})
}
