// SPDX-License-Identifier: Apache-2.0

package blobs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

var (
	// ErrDigest is in errors about digests that are none, or that a blob has not.
	ErrDigest = errors.New("not the digest")
	// ErrSize is in errors about blobs that are larger than allowed, or not as large as was said.
	ErrSize = errors.New("not the size")
	// ErrMissing is in errors about blobs that are not here.
	ErrMissing = errors.New("no such blob")
	// ErrFull is in errors when there is no room on the disk.
	ErrFull = errors.New("the disk of blobs is full")
)

const unfinished = "unfinished-"

// Store is a folder of blobs. Its methods may be called from several goroutines.
type Store struct {
	dir   string
	limit int64
}

// Open opens a folder, makes it if there is none, and removes what writers that were
// killed have left. limit is the largest size of a blob in bytes; 0: no limit.
func Open(dir string, limit int64) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of blobs: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, unfinished+"*"))
	if err != nil {
		return nil, fmt.Errorf("folder of blobs: %w", err)
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("unfinished blob: %w", err)
		}
	}
	return &Store{dir, limit}, nil
}

// Check says what is wrong with a digest: it is the SHA-256 of a blob, in 64 lower-case hex digits.
func Check(digest string) error {
	if b, err := hex.DecodeString(digest); err != nil || len(b) != sha256.Size || strings.ToLower(digest) != digest {
		return fmt.Errorf("%w: %.80q; give SHA-256 as 64 lower-case hex digits", ErrDigest, digest)
	}
	return nil
}

// path must only be called with checked digests.
func (s *Store) path(digest string) string { return filepath.Join(s.dir, digest) }

// Has says whether a blob is here, and notes that somebody asked for it, so that it is
// not collected before it is used.
func (s *Store) Has(digest string) (bool, error) {
	if err := Check(digest); err != nil {
		return false, err
	}
	now := time.Now()
	switch err := os.Chtimes(s.path(digest), now, now); {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	default:
		return false, fmt.Errorf("blob: %w", err)
	}
}

// Size returns a blob's size in bytes. ErrMissing.
func (s *Store) Size(digest string) (int64, error) {
	if err := Check(digest); err != nil {
		return 0, err
	}
	info, err := os.Stat(s.path(digest))
	if err != nil {
		return 0, s.failure(digest, err)
	}
	return info.Size(), nil
}

// Open opens a blob from an offset on, and returns the size of all of it. ErrMissing, ErrSize.
func (s *Store) Open(digest string, offset int64) (r io.ReadCloser, size int64, err error) {
	if err := Check(digest); err != nil {
		return nil, 0, err
	}
	f, err := os.Open(s.path(digest))
	if err != nil {
		return nil, 0, s.failure(digest, err)
	}
	defer func() {
		if err != nil {
			_ = f.Close() // it was only read
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, fmt.Errorf("blob: %w", err)
	}
	if offset < 0 || offset > info.Size() {
		return nil, 0, fmt.Errorf("%w: offset %d of blob %s, which has %d bytes", ErrSize, offset, digest, info.Size())
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil, 0, fmt.Errorf("blob: %w", err)
	}
	return f, info.Size(), nil
}

func (s *Store) failure(digest string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s; store it first", ErrMissing, digest)
	}
	return fmt.Errorf("blob: %w", full(err))
}

func full(err error) error {
	if err != nil && isFull(err) {
		return fmt.Errorf("%w: %w; make room and try again", ErrFull, err)
	}
	return err
}

// Writer takes the bytes of a blob. It belongs to one goroutine.
type Writer struct {
	store  *Store
	digest string
	size   int64
	left   int64
	file   *os.File
	hash   hash.Hash
}

// Create begins a blob of a digest and size. Close must be called. ErrDigest, ErrSize, ErrFull.
func (s *Store) Create(digest string, size int64) (*Writer, error) {
	if err := Check(digest); err != nil {
		return nil, err
	}
	if size < 0 || s.limit > 0 && size > s.limit {
		return nil, fmt.Errorf("%w: blob %s has %d bytes, the master takes at most %d; put large inputs on a shared file system or S3", ErrSize, digest, size, s.limit)
	}
	f, err := os.CreateTemp(s.dir, unfinished+"*")
	if err != nil {
		return nil, fmt.Errorf("blob: %w", full(err))
	}
	return &Writer{s, digest, size, size, f, sha256.New()}, nil
}

// Write appends bytes. ErrSize if they are more than was said, ErrFull.
func (w *Writer) Write(p []byte) (int, error) {
	if int64(len(p)) > w.left {
		return 0, fmt.Errorf("%w: blob %s was said to have %d bytes, and has more", ErrSize, w.digest, w.size)
	}
	n, err := w.file.Write(p)
	w.left -= int64(n)
	w.hash.Write(p[:n])
	if err != nil {
		return n, fmt.Errorf("blob: %w", full(err))
	}
	return n, nil
}

// Commit makes the blob be there, on the disk. ErrSize if bytes are missing, ErrDigest if they are not those of the digest.
func (w *Writer) Commit() error {
	if w.left != 0 {
		return fmt.Errorf("%w: blob %s was said to have %d bytes, and %d are missing", ErrSize, w.digest, w.size, w.left)
	}
	if got := hex.EncodeToString(w.hash.Sum(nil)); got != w.digest {
		return fmt.Errorf("%w: what came as blob %s has digest %s; it was damaged on its way, or changed meanwhile: send it again", ErrDigest, w.digest, got)
	}
	if err := w.file.Sync(); err != nil {
		return fmt.Errorf("blob: %w", full(err))
	}
	if err := w.file.Close(); err != nil {
		return fmt.Errorf("blob: %w", full(err))
	}
	// Should two have written the same blob, either one is right.
	if err := os.Rename(w.file.Name(), w.store.path(w.digest)); err != nil {
		return fmt.Errorf("blob: %w", full(err))
	}
	w.file = nil
	return syncFolder(w.store.dir)
}

// Close removes what was written, unless it was committed.
func (w *Writer) Close() error {
	if w.file == nil {
		return nil
	}
	_ = w.file.Close() // its content is not wanted
	err := os.Remove(w.file.Name())
	w.file = nil
	if err != nil {
		return fmt.Errorf("unfinished blob: %w", err)
	}
	return nil
}

// Remove removes a blob, if it is there. Who reads it goes on.
func (s *Store) Remove(digest string) error {
	if err := Check(digest); err != nil {
		return err
	}
	if err := os.Remove(s.path(digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("blob: %w", err)
	}
	return nil
}

// Collect removes blobs that nobody has stored or asked for since a time, and that keep does not
// want. It returns how many.
func (s *Store) Collect(since time.Time, keep func(digest string) bool) (removed int, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return 0, fmt.Errorf("folder of blobs: %w", err)
	}
	for _, e := range entries {
		if Check(e.Name()) != nil || keep(e.Name()) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.ModTime().After(since) {
			continue
		}
		if err != nil {
			return removed, fmt.Errorf("blob: %w", err)
		}
		if err := os.Remove(s.path(e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, fmt.Errorf("blob: %w", err)
		}
		removed++
	}
	return removed, nil
}
