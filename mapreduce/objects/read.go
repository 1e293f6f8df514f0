// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
)

// Get returns a whole object, which is to be small: at most limit bytes.
func (c *Client) Get(ctx context.Context, at Location, limit int64) ([]byte, error) {
	for failed := 0; ; failed++ {
		data, err := c.get(ctx, at, limit)
		if err == nil || failed == c.retries || ctx.Err() != nil || permanent(err) {
			return data, err
		}
		if err := c.wait(ctx, failed); err != nil {
			return nil, err
		}
	}
}

func (c *Client) get(ctx context.Context, at Location, limit int64) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body, info, _, err := c.core.GetObject(ctx, at.Bucket, at.Key, minio.GetObjectOptions{})
	if err != nil {
		return nil, c.explain("read", at, err)
	}
	defer body.Close()
	if info.Size > limit {
		return nil, &fs.PathError{Op: "read", Path: at.String(), Err: &storeError{what: fmt.Sprintf("it has %d bytes, more than %d", info.Size, limit), kind: errTooLarge}}
	}
	data := make([]byte, info.Size)
	watch := time.AfterFunc(c.stall, func() { cancel(errStalled) })
	defer watch.Stop()
	if _, err := io.ReadFull(body, data); err != nil {
		return nil, c.explain("read", at, err)
	}
	return data, nil
}

// wait waits before what failed so often is tried again.
func (c *Client) wait(ctx context.Context, failed int) error {
	timer := time.NewTimer(c.backoff << min(failed, 7))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Object is an object as it was found: if it is replaced, reading is ErrChanged.
type Object struct {
	client *Client
	ctx    context.Context
	at     Location
	size   int64
	etag   string

	mu      sync.Mutex
	windows []*window // used last comes first
}

// Object returns an object of that size and ETag (see Info) for reading,
// without asking for it. ctx ends all reads.
func (c *Client) Object(ctx context.Context, at Location, size int64, etag string) *Object {
	return &Object{client: c, ctx: ctx, at: at, size: size, etag: etag}
}

// stream reads a range of an object from front to back. If that breaks off, it
// asks for what is left.
type stream struct {
	o       *Object
	pos     int64
	end     int64
	body    io.ReadCloser
	cancel  context.CancelCauseFunc // of body
	failed  int                     // times in a row
	lastErr error
}

func (o *Object) stream(from, to int64) *stream {
	return &stream{o: o, pos: from, end: min(to, o.size)}
}

func (s *stream) open() error {
	ctx, cancel := context.WithCancelCause(s.o.ctx)
	var opts minio.GetObjectOptions
	err := opts.SetRange(s.pos, s.end-1)
	if err == nil && s.o.etag != "" {
		err = opts.SetMatchETag(s.o.etag)
	}
	if err != nil {
		cancel(nil)
		return err
	}
	c := s.o.client
	body, _, _, err := c.core.GetObject(ctx, s.o.at.Bucket, s.o.at.Key, opts)
	if err != nil {
		cancel(nil)
		return err
	}
	s.body, s.cancel = body, cancel
	return nil
}

// errTooLarge means that an object is not what it was thought to be.
var errTooLarge = errors.New("too large")

// permanent says whether asking again would be in vain.
func permanent(err error) bool {
	for _, kind := range []error{fs.ErrNotExist, fs.ErrPermission, ErrTaken, ErrUnsupported, errTooLarge} {
		if errors.Is(err, kind) {
			return true
		}
	}
	var r minio.ErrorResponse
	if !errors.As(err, &r) {
		return false
	}
	switch status := r.StatusCode; status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, 499:
		return false
	case 0: // it was not even sent
		return strings.HasPrefix(r.Code, "Invalid")
	default:
		return status >= 400 && status < 500
	}
}

func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for s.pos < s.end {
		if err := s.o.ctx.Err(); err != nil {
			return 0, err
		}
		if s.body == nil {
			if s.failed > 0 {
				if err := s.o.client.wait(s.o.ctx, s.failed-1); err != nil {
					return 0, err
				}
			}
			if err := s.open(); err != nil {
				explained := s.o.client.explain("read", s.o.at, err)
				switch {
				case errors.Is(explained, ErrTaken):
					return 0, s.changed(err)
				case permanent(explained):
					return 0, explained
				}
				if err := s.fail(err); err != nil {
					return 0, err
				}
				continue
			}
		}
		if int64(len(p)) > s.end-s.pos {
			p = p[:s.end-s.pos]
		}
		n, err := s.read(p)
		s.pos += int64(n)
		if n > 0 {
			s.failed = 0
			if err != nil {
				s.close()
			}
			return n, nil
		}
		if err != nil {
			s.close()
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			if err := s.fail(err); err != nil {
				return 0, err
			}
		}
	}
	s.close()
	return 0, io.EOF
}

// read is one read from the body, which is ended if it brings nothing for too long.
func (s *stream) read(p []byte) (int, error) {
	watch := time.AfterFunc(s.o.client.stall, func() { s.cancel(errStalled) })
	defer watch.Stop()
	return s.body.Read(p)
}

func (s *stream) fail(err error) error {
	s.failed++
	s.lastErr = err
	if ctxErr := s.o.ctx.Err(); ctxErr != nil {
		return ctxErr
	}
	if s.failed > s.o.client.retries {
		return s.o.client.explain("read", s.o.at, fmt.Errorf("at byte %d, after %d tries: %w", s.pos, s.failed, err))
	}
	return nil
}

func (s *stream) changed(err error) error {
	return &fs.PathError{Op: "read", Path: s.o.at.String(), Err: &storeError{
		kind: ErrChanged,
		what: "it was replaced by another object while the job ran; run the job again once nobody writes to it",
		err:  err,
	}}
}

func (s *stream) close() {
	if s.body == nil {
		return
	}
	s.cancel(nil) // what is still under way is not worth reading
	_ = s.body.Close()
	s.body, s.cancel = nil, nil
}

// Cursor reads an object mostly from front to back. It is for one goroutine.
type Cursor struct {
	o     *Object
	until int64
	ahead int64 // bytes to ask for beyond until
	s     *stream
}

// firstAhead and longestAhead bound what a cursor asks for at once beyond
// where it was to end.
const (
	firstAhead   = 128 << 10
	longestAhead = 16 << 20
)

// Cursor returns a reader for positions up to until, and a little beyond: bytes up to
// there are asked for at once, as soon as the first one is read.
func (o *Object) Cursor(until int64) *Cursor {
	return &Cursor{o: o, until: min(until, o.size), ahead: firstAhead}
}

// ReadAt reads until p is full or the object ends (io.EOF). It is fast where off
// is where the call before ended.
func (c *Cursor) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		at := off + int64(n)
		if at >= c.o.size {
			return n, io.EOF
		}
		if c.s == nil || c.s.pos != at || at == c.s.end {
			if c.s != nil {
				c.s.close()
			}
			end := c.until
			if at >= end {
				end = at + max(c.ahead, int64(len(p)-n))
				c.ahead = min(2*c.ahead, longestAhead)
			}
			c.s = c.o.stream(at, end)
		}
		m, err := c.s.Read(p[n:])
		n += m
		if err != nil && !errors.Is(err, io.EOF) {
			return n, err
		}
	}
	return n, nil
}

// Close ends what is under way.
func (c *Cursor) Close() error {
	if c.s != nil {
		c.s.close()
		c.s = nil
	}
	return nil
}

// window holds some bytes of an object.
type window struct {
	from int64
	data []byte
}

const (
	firstWindow  = 128 << 10
	longestStep  = 2 << 20
	windowsBytes = 16 << 20 // of all windows of an object, about
	mostWindows  = 64
)

// ReadAt reads at any position, for several goroutines. It is made for files
// whose columns are read side by side: it keeps what lies around the positions
// that were read last.
func (o *Object) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("%s: read at byte %d", o.at, off)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for n < len(p) {
		at := off + int64(n)
		if at >= o.size {
			return n, io.EOF
		}
		w, err := o.window(at, len(p)-n)
		if err != nil {
			return n, err
		}
		n += copy(p[n:], w.data[at-w.from:])
	}
	return n, nil
}

// window returns one that holds the byte at a position.
func (o *Object) window(at int64, want int) (*window, error) {
	size := int64(firstWindow)
	reuse := -1
	for i, w := range o.windows {
		if at >= w.from && at < w.from+int64(len(w.data)) {
			o.use(i)
			return w, nil
		}
		if at == w.from+int64(len(w.data)) { // it goes on from there
			size = min(2*int64(len(w.data)), max(firstWindow, min(longestStep, windowsBytes/int64(len(o.windows)))))
			reuse = i
		}
	}
	size = min(max(size, int64(want)), o.size-at)
	w := &window{from: at, data: make([]byte, size)}
	s := o.stream(at, at+size)
	defer s.close()
	if _, err := io.ReadFull(s, w.data); err != nil {
		return nil, err
	}
	switch {
	case reuse >= 0:
		o.windows[reuse] = w
	case len(o.windows) < mostWindows:
		o.windows = append(o.windows, w)
		reuse = len(o.windows) - 1
	default:
		reuse = len(o.windows) - 1
		o.windows[reuse] = w
	}
	o.use(reuse)
	return w, nil
}

// use moves a window to the front.
func (o *Object) use(i int) {
	w := o.windows[i]
	copy(o.windows[1:i+1], o.windows[:i])
	o.windows[0] = w
}

// Close gives the memory back.
func (o *Object) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.windows = nil
	return nil
}
