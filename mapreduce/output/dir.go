// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"unicode/utf8"

	"github.com/quernmr/quern/mapreduce/objects"
)

// DirOptions says how Dir writes.
type DirOptions struct {
	Format      Format // "": TSV
	Compression string // NoCompression, Gzip or Zstd; within Parquet files none means Zstd
	Overwrite   bool   // replace a target that exists and is not empty
	// ParquetBinary makes Bytes columns of Parquet files plain byte arrays.
	// Otherwise they are strings, and a value that is no UTF-8 is an error.
	ParquetBinary bool
}

// successName is the file that says that an output is whole.
const successName = "_SUCCESS"

// Dir returns a target that is a folder of part files (see PartName) and
// _SUCCESS.
//
// All is written to a folder .NAME.quern-RANDOM beside the target, every file
// is synced to disk, _SUCCESS last, and the folder takes the target's place in
// one step at Commit. Until then, and if anything fails, an existing target
// stays as it is. Only a process that is killed leaves its temporary folder
// behind; it may be deleted.
//
// Begin returns ErrExists if the target exists and is not empty, unless
// Overwrite is set; ErrOverlap, whatever is set, if the target is an input file
// or a folder with one in it; and ErrTarget if there can be no output folder at
// that path. Missing folders above the target are made. If the target is a
// symbolic link to a folder, that folder is replaced and the link stays.
//
// A path s3://BUCKET/NAME is a folder of objects (package objects says where it
// is). Each part appears in one step and whole, but one after the other, and
// _SUCCESS last. An existing folder that is to be replaced loses its _SUCCESS
// first; if the job fails from then on, it may be left without, and with some of its parts
// replaced. What a process that is killed leaves behind is in
// s3://BUCKET/NAME/_temporary-RANDOM/, and uploads that were begun.
//
// The target implements Shared.
func Dir(path string, opts DirOptions) Target {
	if objects.IsURL(path) {
		return &bucketTarget{path: path, opts: opts}
	}
	return &dirTarget{path: path, opts: opts, create: createFile, pause: pausePublishing}
}

// dirTarget implements Shared.
type dirTarget struct {
	path   string
	opts   DirOptions
	create func(path string) (file, error) // tests put failing files here
	steps  steps
	pause  func(n int) // before the n-th time that a publication looks again
}

// file is what of os.File a part needs.
type file interface {
	io.Writer
	Sync() error
	Close() error
}

func createFile(path string) (file, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err // and no typed nil
	}
	return f, nil
}

// layout checks what the job and the options say about the rows.
func (t *dirTarget) layout(info Info) (*layout, *ledger, error) {
	l, err := newLayout(t.opts.Format, t.opts.Compression, t.opts.ParquetBinary, info.Schema)
	if err != nil {
		return nil, nil, fmt.Errorf("output %s: %w", t.path, err)
	}
	books, err := newLedger(t.path, info.Parts)
	return l, books, err
}

// check looks whether the output can be written and may be.
func (t *dirTarget) check(info Info) (*layout, *place, error) {
	l, _, err := t.layout(info)
	if err != nil {
		return nil, nil, err
	}
	place, err := findPlace(t.path)
	if err != nil {
		return nil, nil, err
	}
	return l, place, place.check(info.Inputs, t.opts.Overwrite)
}

func (t *dirTarget) Begin(info Info) (Transaction, error) {
	l, place, err := t.check(info)
	if err != nil {
		return nil, err
	}
	books, err := newLedger(t.path, info.Parts)
	if err != nil {
		return nil, err
	}
	tx := &dirTransaction{target: t, place: place, layout: l, ledger: books}
	if err := tx.makeFolders(); err != nil {
		return nil, errors.Join(fmt.Errorf("output %s: %w%s", t.path, err, advice(err)), tx.Abort())
	}
	return tx, nil
}

type dirTransaction struct {
	target *dirTarget
	place  *place
	layout *layout
	ledger *ledger

	temp  string   // the folder in the making; "" before it exists
	made  []string // folders made above it, outermost first
	notes []string
}

func (t *dirTransaction) makeFolders() error {
	for _, dir := range t.place.missing {
		if err := os.Mkdir(dir, 0o777); err == nil {
			t.made = append(t.made, dir)
		} else if !errors.Is(err, fs.ErrExist) { // another job was faster: fine
			return err
		}
	}
	prefix := tempPrefix(t.place.real, 200)
	for range 1000 {
		temp := prefix + strconv.FormatUint(rand.Uint64(), 36)
		err := os.Mkdir(temp, 0o777)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		t.temp = temp
		return nil
	}
	return fmt.Errorf("no free name %sRANDOM: %w", prefix, fs.ErrExist)
}

// tempPrefix is the beginning of the temporary folder's path. A long name is
// cut to n bytes so that the whole stays within the 255 that file systems allow.
func tempPrefix(target string, n int) string {
	dir, name := filepath.Split(target)
	if len(name) > n {
		for n > 0 && !utf8.RuneStart(name[n]) {
			n--
		}
		name = name[:n]
	}
	return filepath.Join(dir, "."+name+".quern-")
}

func (t *dirTransaction) Part(index int) (Part, error) {
	p, err := t.part(index)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (t *dirTransaction) part(index int) (*ledgerPart, error) {
	return t.ledger.open(index, func() (Part, sink, error) {
		path := filepath.Join(t.temp, PartName(index, t.layout.format, t.layout.compression))
		f, err := t.target.create(path)
		if err != nil {
			return nil, nil, err
		}
		s := &fileSink{file: f}
		p, err := t.layout.open(s, t.layout.encoder)
		return p, s, err
	})
}

func (t *dirTransaction) Commit(success []byte) error {
	if err := t.ledger.complete(); err != nil {
		return err
	}
	for _, index := range t.ledger.missing() {
		p, err := t.part(index)
		if err != nil {
			return err
		}
		if err := p.fill(); err != nil {
			return err
		}
	}
	if err := t.writeSuccess(success); err != nil {
		return fmt.Errorf("output %s: %w%s", t.target.path, err, advice(err))
	}
	if err := t.publish(); err != nil {
		return err
	}
	t.ledger.end()
	return nil
}

func (t *dirTransaction) writeSuccess(content []byte) error {
	f, err := t.target.create(filepath.Join(t.temp, successName))
	if err != nil {
		return err
	}
	s := &fileSink{file: f}
	if _, err := s.Write(content); err != nil {
		s.abandon()
		return err
	}
	if err := s.finish(); err != nil {
		return err
	}
	return syncDir(t.temp)
}

// publish puts the finished folder in the target's place.
func (t *dirTransaction) publish() error {
	target, parent := t.place.real, filepath.Dir(t.place.real)
	if t.place.exists {
		// The new folder gets the rights of the one that it replaces. Where that
		// is not possible it keeps its own.
		_ = os.Chmod(t.temp, t.place.info.Mode()&(fs.ModePerm|fs.ModeSetgid|fs.ModeSticky))
	}
	var undo func() error
	old := "" // where the target's former content is now
	err := replaceEmpty(t.temp, target)
	switch {
	case err == nil:
		undo = func() error { return os.Rename(target, t.temp) }
	case errors.Is(err, fs.ErrExist) && !t.target.opts.Overwrite:
		// It was empty or not there when the job began.
		return existsError(t.target.path)
	case errors.Is(err, fs.ErrExist):
		if old, undo, err = swap(t.temp, target); err != nil {
			return fmt.Errorf("output %s: replace it: %w", t.target.path, err)
		}
	default:
		return fmt.Errorf("output %s: %w", t.target.path, err)
	}
	if err := t.syncParents(parent); err != nil {
		return fmt.Errorf("output %s: %w", t.target.path, errors.Join(err, undo()))
	}
	if old != "" {
		if err := os.RemoveAll(old); err != nil {
			t.notes = append(t.notes, fmt.Sprintf("output %s: it was replaced, but its former content could not be removed and is left in %s: %v", t.target.path, old, err))
		}
	}
	return nil
}

// syncParents makes the target's name last, and those of folders made above it.
func (t *dirTransaction) syncParents(parent string) error {
	if err := syncDir(parent); err != nil {
		return err
	}
	for _, dir := range t.made {
		if err := syncDir(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	return nil
}

// Notes returns what the user should be told after Commit.
func (t *dirTransaction) Notes() []string { return t.notes }

func (t *dirTransaction) Abort() error {
	if !t.ledger.end() {
		return nil
	}
	var err error
	if t.temp != "" {
		err = os.RemoveAll(t.temp)
	}
	for i := len(t.made) - 1; i >= 0; i-- {
		if os.Remove(t.made[i]) != nil { // somebody uses it by now
			break
		}
	}
	if err != nil {
		return fmt.Errorf("output %s: remove the temporary folder: %w", t.target.path, err)
	}
	return nil
}

// fileSink writes a part to its file.
type fileSink struct {
	file    file
	written int64 // bytes so far
	started int64 // of which the system was told to write them to disk
}

// writeBackStep is after how many bytes the system is told to start writing, so
// that the sync at the end has little left to wait for.
const writeBackStep = 8 << 20

func (s *fileSink) Write(p []byte) (int, error) {
	n, err := s.file.Write(p)
	s.written += int64(n)
	if s.written-s.started >= writeBackStep {
		startWriteBack(s.file, s.started, s.written-s.started)
		s.started = s.written
	}
	return n, err
}

func (s *fileSink) finish() error {
	return errors.Join(s.file.Sync(), s.file.Close())
}

func (s *fileSink) abandon() {
	_ = s.file.Close() // it is removed anyway
}

func existsError(path string) error {
	return fmt.Errorf("output %s: %w", path, existsHint())
}

// existsHint is ErrExists with what to do.
func existsHint() error {
	return fmt.Errorf("%w: name another folder, or have it replaced with --overwrite", ErrExists)
}
