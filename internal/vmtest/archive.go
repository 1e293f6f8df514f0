// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"fmt"
	"io"
	"path"
	"strings"
)

// archive writes a cpio archive of the "newc" kind, which kernels take as
// initramfs (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w      io.Writer
	inode  int
	at     int
	made   map[string]bool // folders
	closed bool
	err    error
}

func newArchive(w io.Writer) *archive {
	return &archive{w: w, made: map[string]bool{".": true, "/": true}}
}

// File modes, as in stat.
const (
	modeFile = 0o100000
	modeDir  = 0o040000
	modeChar = 0o020000
)

// dir adds a folder and those above it.
func (a *archive) dir(name string) {
	name = strings.Trim(path.Clean(name), "/")
	if name == "" || a.made[name] {
		return
	}
	a.dir(path.Dir(name))
	a.made[name] = true
	a.entry(name, modeDir|0o755, 0, 0, nil)
}

// file adds a file and the folders above it.
func (a *archive) file(name string, mode int, data []byte) {
	name = strings.Trim(path.Clean(name), "/")
	a.dir(path.Dir(name))
	a.entry(name, modeFile|mode, 0, 0, data)
}

// device adds a character device.
func (a *archive) device(name string, major, minor int) {
	name = strings.Trim(path.Clean(name), "/")
	a.dir(path.Dir(name))
	a.entry(name, modeChar|0o600, major, minor, nil)
}

func (a *archive) entry(name string, mode, major, minor int, data []byte) {
	if int64(len(data)) >= 1<<32 {
		a.err = fmt.Errorf("%s has %d bytes: too large for an initramfs", name, len(data))
	}
	a.inode++
	links := 1
	if mode&modeDir != 0 {
		links = 2
	}
	a.write(fmt.Appendf(nil, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.inode, mode, 0, 0, links, 0, len(data), 0, 0, major, minor, len(name)+1, 0, name))
	a.pad()
	a.write(data)
	a.pad()
}

func (a *archive) write(b []byte) {
	if a.err != nil {
		return
	}
	n, err := a.w.Write(b)
	a.at += n
	a.err = err
}

func (a *archive) pad() { a.write(make([]byte, -a.at&3)) }

// close ends the archive.
func (a *archive) close() error {
	if !a.closed {
		a.closed = true
		a.entry("TRAILER!!!", 0, 0, 0, nil)
	}
	return a.err
}
