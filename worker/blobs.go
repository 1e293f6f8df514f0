// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/quernmr/quern/mapreduce/task"
)

// blobs keeps programs and uploads by their digest. Each is fetched once, checked,
// and never written again; those in use are not removed.
type blobs struct {
	dir   string
	limit int64 // bytes of those that nobody uses
	// fetch writes a blob from an offset on. It is called until all is there.
	fetch func(ctx context.Context, digest string, offset int64, w io.Writer) error

	mu     sync.Mutex
	byName map[string]*blob
	clock  int64 // counts uses
}

type blob struct {
	path string
	size int64
	refs int
	used int64
	// ready is closed when the blob is there, or err says why not.
	ready chan struct{}
	err   error
}

// errDigest is returned if a blob is not what its digest says.
var errDigest = errors.New("it does not have the digest that it was asked by")

func newBlobs(dir string, limit int64, fetch func(context.Context, string, int64, io.Writer) error) (*blobs, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("worker: its folder: %w", err)
	}
	return &blobs{dir: dir, limit: limit, fetch: fetch, byName: map[string]*blob{}}, nil
}

// get returns the path of a blob, which may be executed and read until release is called.
func (s *blobs) get(ctx context.Context, digest string) (path string, release func(), err error) {
	if b, err := hex.DecodeString(digest); err != nil || len(b) != sha256.Size || hex.EncodeToString(b) != digest {
		return "", nil, &task.Error{Message: fmt.Sprintf("%.80q is no digest of a blob: it must be a SHA-256 in hex", digest), Permanent: true}
	}
	for {
		s.mu.Lock()
		b := s.byName[digest]
		mine := b == nil
		if mine {
			b = &blob{path: filepath.Join(s.dir, digest), ready: make(chan struct{})}
			s.byName[digest] = b
		}
		b.refs++
		s.mu.Unlock()
		release := func() { s.release(b) }
		if mine {
			b.size, b.err = s.load(ctx, digest, b.path)
			if b.err != nil {
				s.mu.Lock()
				delete(s.byName, digest)
				s.mu.Unlock()
			}
			close(b.ready)
		} else {
			select {
			case <-b.ready:
			case <-ctx.Done():
				release()
				return "", nil, context.Cause(ctx)
			}
		}
		if b.err == nil {
			return b.path, release, nil
		}
		release()
		// If only the attempt that fetched it was stopped, this one goes on by itself.
		if mine || ctx.Err() != nil || !errors.Is(b.err, context.Canceled) && !errors.Is(b.err, errStopped) {
			return "", nil, fmt.Errorf("blob %.12s: %w", digest, b.err)
		}
	}
}

// load fetches a blob into a file that nobody can write.
func (s *blobs) load(ctx context.Context, digest, path string) (size int64, err error) {
	for try := 0; ; try++ {
		size, err = s.loadOnce(ctx, digest, path)
		if !errors.Is(err, errDigest) || try == 1 {
			return size, err
		}
	}
}

func (s *blobs) loadOnce(ctx context.Context, digest, path string) (size int64, err error) {
	part := path + ".part"
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(part)
		}
	}()
	w := &counted{w: f, sum: sha256.New()}
	if err := errors.Join(s.fetchAll(ctx, digest, w), f.Close()); err != nil {
		return 0, err
	}
	want, _ := hex.DecodeString(digest) // it was checked
	if !bytes.Equal(w.sum.Sum(nil), want) {
		return 0, fmt.Errorf("%d bytes came from the master: %w", w.n, errDigest)
	}
	if err := os.Chmod(part, 0o500); err != nil {
		return 0, err
	}
	return w.n, os.Rename(part, path)
}

func (s *blobs) fetchAll(ctx context.Context, digest string, w *counted) error {
	for {
		err := s.fetch(ctx, digest, w.n, w)
		if err == nil {
			return nil
		}
		if w.err != nil {
			return w.err // of the disk
		}
		if !errors.Is(err, errBroken) {
			return err
		}
	}
}

// errBroken is returned by blobs.fetch for a connection that broke: it goes on where it was.
var errBroken = errors.New("the connection to the master broke")

// counted counts and sums up what is written.
type counted struct {
	w   io.Writer
	sum hash.Hash
	n   int64
	err error
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.sum.Write(p[:n])
	c.n += int64(n)
	if err != nil {
		c.err = err
	}
	return n, err
}

func (s *blobs) release(b *blob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.refs--
	s.clock++
	b.used = s.clock
	// The least recently used go until the rest fits.
	for {
		var sum int64
		var oldest string
		for name, o := range s.byName {
			if o.refs > 0 {
				continue
			}
			sum += o.size
			if oldest == "" || o.used < s.byName[oldest].used {
				oldest = name
			}
		}
		if sum <= s.limit {
			return
		}
		_ = os.Remove(s.byName[oldest].path)
		delete(s.byName, oldest)
	}
}
