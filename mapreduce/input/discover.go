// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/quernmr/quern/mapreduce/objects"
)

const stdinPath = "-"

// sniffAll is the number of files up to which all of them are looked into when
// they are found. Beyond it only those are on whose content a decision hangs,
// and the small ones when they are read.
const sniffAll = 16384

// Discover finds the files that patterns name and splits them.
//
// A pattern is "-" or /dev/stdin for standard input (once at most), the name of
// a file, named pipe or directory that exists, or else a glob pattern, in which
// * ? [a-z] {a,b} match within a name and ** any number of directories.
// Directories, also those that a glob matches, are read with all that is below
// them, symbolic links followed; names that begin with . or _ are skipped there
// and by wildcards. The files of a directory or glob are in bytewise order of
// their paths; a file named twice is read twice.
//
// s3://BUCKET/KEY names an object, a folder of them (all keys that begin with it and a
// slash) or a pattern in the same way. Options.Uploads are found before what is on disk.
//
// The error names the pattern that matches nothing, the file that cannot be
// read, or what is wrong with the options. What was passed over is in
// Plan.Notes.
func Discover(ctx context.Context, patterns []string, opt Options) (*Plan, error) {
	s, err := newSettings(opt)
	if err != nil {
		return nil, err
	}
	return discover(ctx, patterns, s)
}

func discover(ctx context.Context, patterns []string, s *settings) (*Plan, error) {
	p := &Plan{set: s, Exact: true}
	w := &finder{ctx: ctx, allowEmpty: s.AllowEmpty}
	uploads, err := s.uploadTree()
	if err != nil {
		return nil, err
	}
	for _, pattern := range patterns {
		files, note, err := w.find(pattern, uploads)
		if err != nil {
			return nil, err
		}
		if note != "" {
			p.Notes = append(p.Notes, note)
		}
		p.include(files)
	}
	p.Notes = append(p.Notes, w.notes()...)
	if err := p.checkStdin(); err != nil {
		return nil, err
	}
	if s.Format == Parquet {
		if err := p.splitParquet(ctx); err != nil {
			return nil, err
		}
		return p, nil
	}
	if err := p.sniff(ctx); err != nil {
		return nil, err
	}
	if err := p.split(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// include adds files that were found.
func (p *Plan) include(files []found) {
	for _, f := range files {
		file := File{Path: f.path, Index: len(p.Files), Size: -1}
		switch info := f.info.(type) {
		case nil:
		case *leaf:
			file.Size, file.etag = info.size, info.etag
			if info.path != "" {
				file.Path = info.path
			}
		default:
			if info.Mode().IsRegular() {
				file.Size = info.Size()
				file.planned = info
			}
		}
		p.Files = append(p.Files, file)
	}
}

// checkStdin refuses to read what can be read only once a second time.
func (p *Plan) checkStdin() error {
	n := 0
	for i := range p.Files {
		if p.Files[i].Path == stdinPath {
			n++
		}
	}
	if n > 1 {
		return errors.New("input: standard input is named more than once, but can be read only once")
	}
	return nil
}

// find returns the files that one pattern names, or a note why there is none.
// Uploads that it names are all that it names.
func (w *finder) find(pattern string, uploads *tree) (files []found, note string, err error) {
	if pattern == stdinPath || pattern == "/dev/stdin" {
		return []found{{path: stdinPath}}, "", nil
	}
	if objects.IsURL(pattern) {
		listed, err := listObjects(w.ctx, pattern)
		if err != nil {
			return nil, "", fmt.Errorf("input: %w", err)
		}
		w.in = listed
		return w.resolve(pattern)
	}
	if uploads != nil {
		above := *w
		w.in = uploads
		if files, _, err = w.resolve(pattern); err == nil && len(files) > 0 {
			return files, "", nil
		}
		*w = above // what was passed over there is of no interest
	}
	w.in = disk{}
	return w.resolve(pattern)
}

// resolve returns the files of a namespace that one pattern names, or a note why there is none.
func (w *finder) resolve(pattern string) (files []found, note string, err error) {
	if pattern == "" {
		return nil, "", errors.New(`input: an empty name; name a file, a directory, a pattern, or "-" for standard input`)
	}
	if strings.IndexByte(pattern, 0) >= 0 {
		return nil, "", fmt.Errorf("input: %q is no file name: it holds a NUL byte", pattern)
	}
	info, err := w.in.stat(pattern)
	switch {
	case err == nil && info.IsDir():
		files, err = w.below(pattern, info)
		if err != nil {
			return nil, "", err
		}
		if len(files) == 0 {
			return nil, w.nothing(pattern, "holds no file to read"), w.nothingError(pattern, "holds no file to read")
		}
		sortFound(files)
		return files, "", nil
	case err == nil && info.Mode()&fs.ModeSocket != 0:
		return nil, "", fmt.Errorf("input: %s is a socket, which cannot be read as a file", pattern)
	case err == nil:
		return []found{{pattern, info}}, "", nil
	case errors.Is(err, syscall.ELOOP):
		return nil, "", fmt.Errorf("input: %s is a symbolic link that leads back to itself: %w", pattern, err)
	case !missing(err) && !(hasMeta(pattern) && errors.Is(err, syscall.EINVAL)):
		return nil, "", fmt.Errorf("input: %w", err)
	}
	if !hasMeta(pattern) {
		return nil, w.nothing(pattern, "does not exist"), w.nothingError(pattern, "does not exist")
	}
	if files, err = w.expand(pattern); err != nil {
		return nil, "", err
	}
	if len(files) == 0 {
		return nil, w.nothing(pattern, "matches no file"), w.nothingError(pattern, "matches no file")
	}
	sortFound(files)
	return files, "", nil
}

func (w *finder) nothing(pattern, what string) string { return pattern + " " + what }

func (w *finder) nothingError(pattern, what string) error {
	switch {
	case w.allowEmpty:
		return nil
	case w.whole:
		return fmt.Errorf("input: %s %s; check the name: %w", pattern, what, fs.ErrNotExist)
	}
	return fmt.Errorf("input: %s %s; check the name, or accept that with --allow-empty: %w", pattern, what, fs.ErrNotExist)
}

// sniff looks into files for compression and for what cannot be read as lines.
func (p *Plan) sniff(ctx context.Context) error {
	all := len(p.Files) <= sniffAll
	emptyNamed := 0
	example := ""
	var look []int
	for i := range p.Files {
		f := &p.Files[i]
		if f.Size == 0 && compressedSuffix(f.Path) {
			if emptyNamed++; example == "" {
				example = f.Path
			}
		}
		if f.Size >= 0 && (all || f.Size > min(p.set.SplitSize, streamSize)) {
			look = append(look, i)
		}
	}
	if emptyNamed > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%s of 0 bytes named like a compressed one counts as empty: %s", plural(emptyNamed, "file"), example))
	}
	return parallel(ctx, p.lookers(), len(look), func(i int) error { return p.sniffFile(ctx, &p.Files[look[i]]) })
}

func (p *Plan) sniffFile(ctx context.Context, file *File) error {
	f, err := p.set.openFrom(ctx, file, sniffSize)
	if err != nil {
		return err
	}
	defer f.Close()
	name, head, err := sniffAt(f, file.Size)
	if err != nil {
		return fmt.Errorf("input: reading %s: %w", file.Path, err)
	}
	if file.Size == 0 && len(head) > 0 {
		file.Size = -1 // files of /proc have no size, but something in them
		return nil
	}
	file.Compression = name
	switch {
	case name == "" && p.set.decoder == nil && isUTF16(head):
		return utf16Error(file.Path)
	case isParquet(f, head, file.Size):
		return parquetError(file.Path)
	}
	return nil
}

// lookers returns how many goroutines are to look into files at the same time:
// as many as there are CPUs, and more where it is a network that they wait for.
func (p *Plan) lookers() int {
	for i := range p.Files {
		if objects.IsURL(p.Files[i].Path) {
			return 32
		}
	}
	return runtime.GOMAXPROCS(0)
}

// parallel calls do for 0 to n-1 from several goroutines and returns the error
// of the lowest number that has one.
func parallel(ctx context.Context, workers, n int, do func(i int) error) error {
	workers = min(workers, n)
	var (
		next   atomic.Int64
		wg     sync.WaitGroup
		mu     sync.Mutex
		first  error
		firstI = n
		failed atomic.Bool
	)
	for range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				i := int(next.Add(1)) - 1
				if i >= n || failed.Load() || ctx.Err() != nil {
					return
				}
				if err := do(i); err != nil {
					mu.Lock()
					if i < firstI {
						first, firstI = err, i
					}
					mu.Unlock()
					failed.Store(true)
				}
			}
		}()
	}
	wg.Wait()
	if first != nil {
		return first
	}
	return ctx.Err()
}
