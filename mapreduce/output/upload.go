// SPDX-License-Identifier: Apache-2.0

package output

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/quernmr/quern/mapreduce/objects"
)

// Sizes of the parts of an upload. The first are small, since each open part of
// the output holds two in memory; a long one gets larger ones, since there may be no
// more than objects.MaxParts. So one part of an output may have 570 GiB.
const (
	smallUpload  = 8 << 20
	largeUpload  = 64 << 20
	smallUploads = 1000
)

// uploadSink writes a part of the output as an upload to its final key. There
// is no object until the upload is completed, which is not done here.
type uploadSink struct {
	client *objects.Client
	ctx    context.Context
	cancel context.CancelFunc
	at     objects.Location
	meta   map[string]string
	begun  func(id string) error // called once, when the upload is known

	id      string
	tags    []string // of parts that are uploaded
	buf     []byte   // bytes not yet being uploaded
	spare   []byte   // the buffer that is not in use
	written int64
	flying  chan uploaded // not nil: a part is on its way
	err     error
}

type uploaded struct {
	tag string
	buf []byte
	err error
}

func (s *uploadSink) limit() int {
	if len(s.tags) < smallUploads {
		return smallUpload
	}
	return largeUpload
}

func (s *uploadSink) Write(p []byte) (int, error) {
	n := 0
	for len(p) > 0 {
		if s.err != nil {
			return n, s.err
		}
		piece := p[:min(len(p), s.limit()-len(s.buf))]
		s.buf = append(s.buf, piece...)
		p = p[len(piece):]
		n += len(piece)
		s.written += int64(len(piece))
		if len(s.buf) >= s.limit() {
			s.err = s.send()
		}
	}
	return n, s.err
}

// land waits for the part that is on its way.
func (s *uploadSink) land() error {
	if s.flying == nil {
		return nil
	}
	u := <-s.flying
	s.flying = nil
	s.spare = u.buf[:0]
	if u.err != nil {
		return u.err
	}
	s.tags = append(s.tags, u.tag)
	return nil
}

// send has what is in the buffer uploaded while the next part is gathered.
func (s *uploadSink) send() error {
	if s.id == "" {
		id, err := s.client.NewUpload(s.ctx, s.at, s.meta)
		if err != nil {
			return err
		}
		s.id = id
		if err := s.begun(id); err != nil {
			return err
		}
	}
	if err := s.land(); err != nil {
		return err
	}
	if len(s.tags) == objects.MaxParts {
		return fmt.Errorf("%s has %d bytes, and no more fit in an object: ask for more partitions", s.at, s.written)
	}
	n, buf, flying := len(s.tags)+1, s.buf, make(chan uploaded, 1)
	go func() {
		tag, err := s.client.PutPart(s.ctx, s.at, s.id, n, buf)
		flying <- uploaded{tag, buf, err}
	}()
	s.flying, s.buf, s.spare = flying, s.spare, nil
	return nil
}

// finish uploads what is left.
func (s *uploadSink) finish() error {
	if s.err == nil && (len(s.buf) > 0 || s.id == "") { // an empty object has one part, too
		s.err = s.send()
	}
	if err := s.land(); s.err == nil {
		s.err = err
	}
	s.buf, s.spare = nil, nil
	if s.err == nil {
		s.err = s.ctx.Err()
	}
	return s.err
}

// abandon ends what is under way; the upload is aborted by whoever knows of it.
func (s *uploadSink) abandon() { s.cancel() }

// closedError says that an output was aborted while it was written.
func closedError(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fs.ErrClosed
	}
	return err
}
