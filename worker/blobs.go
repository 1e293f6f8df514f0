// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/quernmr/quern/mapreduce/task"
)

// blobs keeps programs, uploads and side inputs by their digest. Each comes once, from the master or by a
// broadcast (see arrivals.go), is checked, and never written again; those in use are not removed.
type blobs struct {
	dir   string
	limit int64 // bytes of files that nobody uses
	// fetch writes a blob from an offset on. It is called until all is there.
	fetch func(ctx context.Context, digest string, offset int64, w io.Writer) error
	log   *slog.Logger
	// patience is how long a broadcast that was announced may give no sign of itself, and quiet how
	// long one may take to go on with its next window.
	patience, quiet time.Duration

	mu       sync.Mutex
	closed   bool
	byName   map[string]*blob
	clock    int64 // counts uses
	arrivals map[string]*arrival
	files    int                  // names given to arrivals
	jobs     map[string]*jobBlobs // those of which something came by broadcast
	ended    *recent              // jobs
	changed  chan struct{}        // closed, and made anew, when something has happened to an arrival
}

// blob is there, or somebody gets it: by a broadcast as long as fetching is false.
type blob struct {
	path   string  // "": it is in a region alone
	region *region // nil: it is a file alone
	size   int64
	refs   int
	used   int64
	jobs   map[string]bool // that keep the region

	fetching bool
	over     bool          // ready is closed
	ready    chan struct{} // the blob is there, or err says why not
	err      error
}

// region is memory that processes can map.
type region struct {
	file         *os.File
	offset, size int64
	close        func() error
}

// jobBlobs is what is known of a job's broadcasts.
type jobBlobs struct {
	sign   time.Time       // when a broadcast of it has last shown itself
	under  int             // broadcasts under way
	failed map[string]bool // digests whose broadcast has failed: not worth waiting for
	gone   map[string]bool // digests whose source is gone, as the master says: not taken any more
}

// errDigest is returned if a blob is not what its digest says.
var errDigest = errors.New("it does not have the digest that it was asked by")

func newBlobs(dir string, limit int64, fetch func(context.Context, string, int64, io.Writer) error, log *slog.Logger) (*blobs, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("worker: its folder: %w", err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &blobs{
		dir: dir, limit: limit, fetch: fetch, log: log, patience: patience, quiet: silence,
		byName: map[string]*blob{}, arrivals: map[string]*arrival{}, jobs: map[string]*jobBlobs{}, ended: newRecent(maxEnded), changed: make(chan struct{}),
	}, nil
}

// checkDigest says whether a text is a digest as blobs are named by it.
func checkDigest(digest string) error {
	if b, err := hex.DecodeString(digest); err != nil || len(b) != sha256.Size || hex.EncodeToString(b) != digest {
		return &task.Error{Message: fmt.Sprintf("%.80q is no digest of a blob: it must be a SHA-256 in hex", digest), Permanent: true}
	}
	return nil
}

// get returns the path of a blob, which may be executed and read until release is called. If
// coming is a job and not "", a broadcast of that job is expected to bring the blob.
func (s *blobs) get(ctx context.Context, digest, coming string) (path string, release func(), err error) {
	b, err := s.acquire(ctx, digest, coming)
	if err != nil {
		return "", nil, err
	}
	if path, err = s.file(digest, b); err != nil {
		s.release(b)
		return "", nil, fmt.Errorf("blob %.12s: %w", digest, err)
	}
	return path, func() { s.release(b) }, nil
}

// content is a blob to be mapped, until release is called.
type content struct {
	file         *os.File
	offset, size int64
	release      func()
}

// open returns a blob that a job's tasks map. What came into memory stays there as long as the job.
func (s *blobs) open(ctx context.Context, digest, job string, coming bool) (*content, error) {
	expected := ""
	if coming {
		expected = job
	}
	b, err := s.acquire(ctx, digest, expected)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	r, path, size := b.region, b.path, b.size
	if r != nil && !s.ended.has(job) {
		b.jobs[job] = true
	}
	s.mu.Unlock()
	if r != nil {
		return &content{r.file, r.offset, r.size, func() { s.release(b) }}, nil
	}
	f, err := os.Open(path)
	if err != nil {
		s.release(b)
		return nil, fmt.Errorf("blob %.12s: %w", digest, err)
	}
	return &content{f, 0, size, func() {
		_ = f.Close()
		s.release(b)
	}}, nil
}

// acquire gets a blob, and keeps it until release.
func (s *blobs) acquire(ctx context.Context, digest, coming string) (*blob, error) {
	if err := checkDigest(digest); err != nil {
		return nil, err
	}
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil, errLeft
		}
		b := s.byName[digest]
		mine := b == nil
		if mine {
			b = &blob{ready: make(chan struct{}), jobs: map[string]bool{}}
			s.byName[digest] = b
		}
		b.refs++
		s.mu.Unlock()
		if mine {
			s.load(ctx, digest, b, coming)
		} else {
			select {
			case <-b.ready:
			case <-ctx.Done():
				s.release(b)
				return nil, context.Cause(ctx)
			}
		}
		if b.err == nil {
			return b, nil
		}
		s.release(b)
		// If only the attempt that fetched it was stopped, this one goes on by itself.
		if mine || ctx.Err() != nil || !errors.Is(b.err, context.Canceled) && !errors.Is(b.err, errStopped) {
			return nil, fmt.Errorf("blob %.12s: %w", digest, b.err)
		}
	}
}

// load gets a blob that nobody else gets.
func (s *blobs) load(ctx context.Context, digest string, b *blob, coming string) {
	filled, err := s.await(ctx, digest, b, coming)
	if filled {
		return
	}
	path, size := filepath.Join(s.dir, digest), int64(0)
	if err == nil {
		size, err = s.fetchFile(ctx, digest, path)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.over { // a broadcast was faster than the end of ctx
		return
	}
	if b.path, b.size, b.err = path, size, err; err != nil {
		delete(s.byName, digest)
	}
	b.finish()
}

// finish tells those who wait. The caller holds the lock.
func (b *blob) finish() {
	b.fetching, b.over = false, true
	close(b.ready)
}

// fetchFile fetches a blob into a file that nobody can write.
func (s *blobs) fetchFile(ctx context.Context, digest, path string) (size int64, err error) {
	for try := 0; ; try++ {
		size, err = s.fetchOnce(ctx, digest, path)
		if !errors.Is(err, errDigest) || try == 1 {
			return size, err
		}
	}
}

func (s *blobs) fetchOnce(ctx context.Context, digest, path string) (size int64, err error) {
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
	if hex.EncodeToString(w.sum.Sum(nil)) != digest {
		return 0, fmt.Errorf("%d bytes came from the master: %w", w.n, errDigest)
	}
	return w.n, settleFile(part, path)
}

// settleFile gives a file that was checked its name.
func settleFile(part, path string) error {
	if err := os.Chmod(part, 0o500); err != nil {
		return err
	}
	return os.Rename(part, path)
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

// file has a blob that the caller has acquired be a file, too, and returns its path.
func (s *blobs) file(digest string, b *blob) (string, error) {
	s.mu.Lock()
	path, r := b.path, b.region
	if path == "" {
		s.files++
	}
	part := filepath.Join(s.dir, fmt.Sprintf("%s.%d.copy", digest, s.files))
	s.mu.Unlock()
	if path != "" {
		return path, nil
	}
	path = filepath.Join(s.dir, digest)
	// Two may do so at once: the second file takes the place of the first, which is the same.
	data, unmap, err := r.bytes()
	if err == nil {
		if err = errors.Join(os.WriteFile(part, data, 0o600), unmap()); err == nil {
			err = settleFile(part, path)
		}
	}
	if err != nil {
		_ = os.Remove(part)
		return "", err
	}
	s.mu.Lock()
	b.path = path
	s.mu.Unlock()
	return path, nil
}

// bytes maps a region.
func (r *region) bytes() (data []byte, unmap func() error, err error) {
	return task.SideInput{Descriptor: int(r.file.Fd()), Offset: r.offset, Size: r.size}.Map()
}

// put takes over a file, whose digest was checked, unless the blob is here or somebody gets it. Both
// are on one file system. It returns where the content is now, and stays until release is called.
func (s *blobs) put(digest, file string, size int64) (path string, release func(), err error) {
	if err := checkDigest(digest); err != nil {
		return "", nil, err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return "", nil, errLeft
	}
	if s.byName[digest] != nil {
		s.mu.Unlock()
		if path, release, err = s.have(digest, size); err != nil {
			return file, func() {}, nil
		}
		return path, release, nil
	}
	defer s.mu.Unlock()
	b := &blob{path: filepath.Join(s.dir, digest), size: size, refs: 1, ready: make(chan struct{}), jobs: map[string]bool{}}
	if err := settleFile(file, b.path); err != nil {
		return "", nil, err
	}
	b.finish()
	s.byName[digest] = b
	return b.path, func() { s.release(b) }, nil
}

func (s *blobs) release(b *blob) {
	s.mu.Lock()
	b.refs--
	s.clock++
	b.used = s.clock
	s.fit()
	free := s.loose()
	s.mu.Unlock()
	s.free(free)
}

// fit removes the files that were used least recently until the rest fits. The caller holds the lock.
func (s *blobs) fit() {
	for {
		var sum int64
		var oldest string
		for name, o := range s.byName {
			if o.refs > 0 || o.path == "" {
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
		o := s.byName[oldest]
		_ = os.Remove(o.path)
		if o.path = ""; o.region == nil {
			delete(s.byName, oldest)
		}
	}
}

// loose takes regions out that nobody keeps. The caller holds the lock, and frees them without it: who gives
// them takes its own lock then, and may hold that while it asks for ours.
func (s *blobs) loose() (free []*region) {
	for name, b := range s.byName {
		if b.region == nil || b.refs > 0 || len(b.jobs) > 0 && !s.closed {
			continue
		}
		free = append(free, b.region)
		if b.region = nil; b.path == "" {
			delete(s.byName, name)
		}
	}
	return free
}

func (s *blobs) free(list []*region) {
	for _, r := range list {
		if err := r.close(); err != nil {
			s.log.Warn("memory of a side input is not given back", "bytes", r.size, "error", err)
		}
	}
}

// forget ends a job's broadcasts here, and gives back what only that job has kept.
func (s *blobs) forget(job string) {
	s.mu.Lock()
	s.ended.add(job)
	var over []*arrival
	for _, a := range s.arrivals {
		if a.job == job {
			over = append(over, a)
		}
	}
	delete(s.jobs, job)
	for _, b := range s.byName {
		delete(b.jobs, job)
	}
	free := s.loose()
	s.mu.Unlock()
	s.free(free)
	for _, a := range over {
		a.fail(errors.New("its job has ended"))
	}
}

// known lists the jobs that have something here.
func (s *blobs) known() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{}
	for id := range s.jobs {
		seen[id] = true
	}
	for _, b := range s.byName {
		for id := range b.jobs {
			seen[id] = true
		}
	}
	for id := range seen {
		list = append(list, id)
	}
	return list
}

// close ends broadcasts and gives memory back. Nobody has acquired anything. Files go with the worker's folder.
func (s *blobs) close() {
	s.mu.Lock()
	s.closed = true
	var over []*arrival
	for _, a := range s.arrivals {
		over = append(over, a)
	}
	free := s.loose()
	s.mu.Unlock()
	s.free(free)
	for _, a := range over {
		a.fail(errLeft)
	}
}

// recent remembers the last n names.
type recent struct {
	n    int
	set  map[string]bool
	list []string
}

func newRecent(n int) *recent { return &recent{n: n, set: map[string]bool{}} }

func (m *recent) add(name string) {
	if m.set[name] {
		return
	}
	if len(m.list) == m.n {
		delete(m.set, m.list[0])
		m.list = m.list[1:]
	}
	m.set[strings.Clone(name)] = true
	m.list = append(m.list, name)
}

func (m *recent) has(name string) bool { return m.set[name] }
