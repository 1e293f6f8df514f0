// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// keepChunk is how many bytes of a side input are in a message to the master.
	keepChunk = 1 << 20
	// keepTries is how often a master is asked to take one that answers with errors.
	keepTries = 5
)

// keepSideInputs takes over what a plan attempt has left in its folder: to this worker's blobs, and to the master,
// which is asked for it by workers that get it by no broadcast.
func (a *attempt) keepSideInputs(list []task.SideFile, dir string) error {
	a.enter("storing side inputs")
	defer a.enter("")
	for i := range list {
		if err := a.keepSideInput(&list[i], dir); err != nil {
			return fmt.Errorf("side input %s: %w", list[i].Name, err)
		}
	}
	return nil
}

func (a *attempt) keepSideInput(s *task.SideFile, dir string) error {
	if s.File == "" || s.File != filepath.Base(s.File) || s.File == "." || s.File == ".." {
		return &own{fmt.Errorf("the program left it in %q, which is no file of its folder", s.File)}
	}
	path := filepath.Join(dir, s.File)
	if st, err := os.Lstat(path); err != nil || !st.Mode().IsRegular() {
		return &own{fmt.Errorf("the program says that it left it in file %q, which is not there", s.File)}
	}
	if err := checkFile(path, s.Digest, s.Size); err != nil {
		return &own{err}
	}
	path, release, err := a.w.blobs.put(s.Digest, path, s.Size)
	if err != nil {
		return &own{err}
	}
	defer release()
	return a.w.keepBlob(a.ctx, s.Digest, path, s.Size)
}

// checkFile says whether a file is what a digest and a size say.
func checkFile(path, digest string, size int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	switch {
	case err != nil:
		return err
	case n != size || hex.EncodeToString(sum.Sum(nil)) != digest:
		return fmt.Errorf("file %s has %d bytes and digest %x, the program said %d and %s", filepath.Base(path), n, sum.Sum(nil), size, digest)
	}
	return nil
}

// have returns the file of a blob that is here, until release is called.
func (s *blobs) have(digest string, size int64) (path string, release func(), err error) {
	s.mu.Lock()
	b := s.byName[digest]
	if b == nil || !b.over || b.size != size {
		s.mu.Unlock()
		return "", nil, errors.New("it is not here")
	}
	b.refs++
	s.mu.Unlock()
	if path, err = s.file(digest, b); err != nil {
		s.release(b)
		return "", nil, err
	}
	return path, func() { s.release(b) }, nil
}

// keepBlob has the master store a blob, unless it has it. It waits while there is no master.
func (w *Worker) keepBlob(ctx context.Context, digest, path string, size int64) error {
	pause := w.opt.pause
	for try := 1; ; try++ {
		l, err := w.current(ctx)
		if err != nil {
			return err
		}
		err = w.keepOnce(ctx, l, digest, path, size)
		var e *own
		switch {
		case err == nil || ctx.Err() != nil || errors.As(err, &e):
			return err
		case l.ctx.Err() != nil: // another master, or the same one, will be there
			try = 0
			continue
		}
		switch status.Code(err) {
		case codes.OutOfRange, codes.InvalidArgument, codes.PermissionDenied, codes.Unimplemented:
			return &task.Error{Message: "the master does not take it: " + status.Convert(err).Message(), Permanent: true}
		}
		if try == keepTries {
			return &own{fmt.Errorf("the master does not take it: %w", err)}
		}
		w.opt.Log.Warn("a side input could not be stored at the master, it is tried again", "digest", digest, "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause = min(2*pause, maxOffer)
	}
}

// keepOnce sends a blob by a link. The context's cause is returned if that is done.
func (w *Worker) keepOnce(ctx context.Context, l *link, digest, path string, size int64) (err error) {
	linked, cancel := context.WithCancel(l.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	if had, err := w.masterHas(linked, l, digest, size); had || err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return &own{err}
	}
	defer f.Close()
	stream, err := l.client.KeepBlob(linked)
	if err != nil {
		return err
	}
	m := &api.BlobChunk{Digest: digest, Size: size}
	for left := size; ; m = new(api.BlobChunk) {
		m.Data = make([]byte, min(left, keepChunk)) // it may be kept until it is sent
		if _, err := io.ReadFull(f, m.Data); err != nil {
			return &own{fmt.Errorf("reading it again: %w", err)}
		}
		left -= int64(len(m.Data))
		if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
			return err
		} else if err != nil || left == 0 { // io.EOF: the master has answered, CloseAndRecv says what
			break
		}
	}
	_, err = stream.CloseAndRecv()
	return err
}

// masterHas asks for the end of a blob.
func (w *Worker) masterHas(ctx context.Context, l *link, digest string, size int64) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := l.client.GetBlob(ctx, &api.GetBlobRequest{Digest: digest, Offset: size})
	if err == nil {
		_, err = stream.Recv()
	}
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return true, nil
	case status.Code(err) == codes.NotFound:
		return false, nil
	}
	return false, err
}
