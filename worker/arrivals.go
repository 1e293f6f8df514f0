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
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/broadcast"
)

// Kinds of what workers give to each other by broadcast. The name is its digest.
const (
	kindFile   = "file"
	kindMapped = "mapped" // kept in memory if it comes in one piece
)

const (
	// patience is how long a launch waits for a broadcast that was announced and has not begun.
	patience = 3 * time.Second
	// silence is how long a source may say nothing of a broadcast that is not over: a source that is alive ends it
	// when it fails, and of one that is gone the master says so once it knows (see sourceGone), so this is for those
	// that hang, or that went when the master did. It is longer than a source waits for a member that does not
	// answer, since others may have to wait for that, too.
	silence = 15 * time.Second
	// maxEnded is how many jobs are remembered to have ended: a source may not have heard it yet.
	maxEnded = 4096
)

// arrival is a blob that is on its way here by broadcast.
type arrival struct {
	s      *blobs
	digest string
	job    string
	kind   string
	size   int64
	// The lock of blobs guards these. Nodes end windows that nothing is heard of; the timer runs while none is open.
	open  int // windows
	timer *time.Timer
	over  bool

	mu     sync.Mutex // held while it is written
	ended  bool
	part   string
	file   *os.File
	have   []span
	sum    hash.Hash // of the first hashed bytes
	hashed int64
}

// span is a run of bytes.
type span struct{ from, to int64 }

// errWanted is why a broadcast is not taken by who gets the blob in another way.
var errWanted = errors.New("it is not wanted any more")

// incoming takes what another worker offers to give.
func (s *blobs) incoming(o broadcast.Offer) (broadcast.Sink, error) {
	k, err := s.offered(o)
	if err != nil {
		return nil, err
	}
	return k, nil
}

func (s *blobs) offered(o broadcast.Offer) (*sink, error) {
	refuse := func(format string, args ...any) (*sink, error) {
		return nil, fmt.Errorf("a broadcast of %.80q: "+format+": %w", append(append([]any{o.Name}, args...), shuffle.ErrRefused)...)
	}
	switch {
	case checkDigest(o.Name) != nil:
		return refuse("workers take blobs alone, by their SHA-256")
	case o.Kind != kindFile && o.Kind != kindMapped:
		return refuse("kind %.80q is not known here", o.Kind)
	case o.Size < 0 || o.Offset < 0 || o.Offset > o.Size:
		return refuse("offset %d of %d bytes", o.Offset, o.Size)
	}
	name := o.Job.String()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.ended.has(name) {
		return refuse("its job has ended here")
	}
	if b := s.byName[o.Name]; b != nil && (b.over || b.fetching) {
		if b.region != nil {
			b.jobs[name] = true
		}
		return nil, broadcast.ErrHave
	}
	a := s.arrivals[o.Name]
	if j := s.jobs[name]; j != nil && j.gone[o.Name] {
		return nil, broadcast.ErrHave // the source has come back, and it comes from elsewhere
	}
	switch {
	case a == nil && o.Offset > 0: // what was before did not come here
		return nil, broadcast.ErrHave
	case a == nil:
		a = &arrival{s: s, digest: o.Name, job: name, kind: o.Kind, size: o.Size, sum: sha256.New()}
		a.timer = time.AfterFunc(s.quiet, func() { a.fail(errQuiet) })
		s.arrivals[o.Name] = a
		s.job(name).under++
	case a.job != name:
		return nil, broadcast.ErrHave // from elsewhere
	case a.kind != o.Kind || a.size != o.Size:
		return refuse("it was offered with %d bytes as %s, and is now with %d as %s", a.size, a.kind, o.Size, o.Kind)
	}
	a.open++
	a.timer.Stop()
	s.moved(a)
	return &sink{a: a, at: o.Offset}, nil
}

var (
	errQuiet = errors.New("nothing more has come of it")
	errGone  = errors.New("its source is gone, says the master")
)

// sourceGone notes that nothing more comes of a job's broadcast. Nobody waits for it from now on, also if it has not begun
// yet, and what its source offers, should that come back, is not taken: it may end in the middle once more. What
// another job's broadcast brings of the same blob goes on. clean gives back what had come, and may take a while.
func (s *blobs) sourceGone(job, digest string) (clean func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.ended.has(job) || checkDigest(digest) != nil {
		return func() {}
	}
	j := s.job(job)
	j.failed[digest], j.gone[digest] = true, true
	a := s.arrivals[digest]
	if a == nil || a.job != job {
		s.tell()
		return func() {}
	}
	s.finished(a, true)
	return func() { a.discard(errGone) }
}

// job returns what is known of a job. The caller holds the lock.
func (s *blobs) job(name string) *jobBlobs {
	j := s.jobs[name]
	if j == nil {
		j = &jobBlobs{failed: map[string]bool{}, gone: map[string]bool{}}
		s.jobs[name] = j
	}
	return j
}

// moved notes a sign of an arrival. The caller holds the lock.
func (s *blobs) moved(a *arrival) {
	if !a.over && !s.ended.has(a.job) {
		s.job(a.job).sign = time.Now()
	}
	s.tell()
}

// tell wakes those who wait for arrivals. The caller holds the lock.
func (s *blobs) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// await waits as long as a broadcast may bring a blob. It returns false if it is to be fetched, or
// with the end of ctx.
func (s *blobs) await(ctx context.Context, digest string, b *blob, coming string) (filled bool, err error) {
	began := time.Now()
	for {
		s.mu.Lock()
		if b.over {
			s.mu.Unlock()
			return true, nil
		}
		left := time.Duration(0)
		switch a := s.arrivals[digest]; {
		case a != nil:
			left = time.Hour // it ends by itself
		case coming != "":
			// A job's broadcasts come one after the other, so any of them is a sign.
			j, last := s.jobs[coming], began
			if j != nil && j.failed[digest] {
				break
			}
			if j != nil && j.sign.After(last) {
				last = j.sign
			}
			if left = s.patience - time.Since(last); j != nil && j.under > 0 {
				left = time.Hour
			}
		}
		if left <= 0 {
			b.fetching = true
			s.mu.Unlock()
			return false, nil
		}
		changed := s.changed
		s.mu.Unlock()
		timer := time.NewTimer(left)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return false, context.Cause(ctx)
		}
		timer.Stop()
	}
}

// sink takes a window of an arrival.
type sink struct {
	a    *arrival
	at   int64 // of the next message
	took bool
}

// Message implements broadcast.Sink.
func (k *sink) Message(m *broadcast.Message) error {
	return k.take(m.Bytes(), func() (*region, error) {
		kept, err := m.Retain()
		if err != nil {
			return nil, err
		}
		return &region{kept.File, kept.Offset, kept.Size, kept.Close}, nil
	})
}

// take takes what has come, and by retain its memory.
func (k *sink) take(data []byte, retain func() (*region, error)) error {
	a, at := k.a, k.at
	k.at += int64(len(data))
	k.took = true
	err := a.take(at, data, retain)
	if err != nil {
		a.fail(err)
		return fmt.Errorf("blob %.12s: %w", a.digest, err)
	}
	return nil
}

// End implements broadcast.Sink.
func (k *sink) End(err error) {
	a, s := k.a, k.a.s
	wait := s.quiet
	if err != nil {
		if k.took || !errors.Is(err, broadcast.ErrEnded) {
			a.fail(err)
			return
		}
		// A source takes a window back that other members have no room for, and offers it once more.
		wait = s.patience
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.open--; a.open == 0 && !a.over {
		a.timer.Reset(wait)
		s.moved(a)
	}
}

func (a *arrival) take(at int64, data []byte, retain func() (*region, error)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return errWanted
	}
	if int64(len(data)) > a.size-at {
		return fmt.Errorf("%d bytes at %d of %d", len(data), at, a.size)
	}
	if a.kind == kindMapped && at == 0 && int64(len(data)) == a.size && len(a.have) == 0 {
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != a.digest {
			return fmt.Errorf("%d bytes came by broadcast: %w, %w", len(data), errDigest, shuffle.ErrDigest)
		}
		if r, err := retain(); err == nil {
			return a.settle(func(b *blob) error {
				b.region = r
				return nil
			}, r.close)
		}
		// There is no room to keep it: a file does as well.
	}
	if err := a.write(at, data); err != nil {
		return err
	}
	if len(a.have) != 1 || a.have[0] != (span{0, a.size}) {
		a.s.mu.Lock()
		a.s.moved(a)
		a.s.mu.Unlock()
		return nil
	}
	// Windows that came before their turn were not summed up yet.
	if _, err := io.Copy(a.sum, io.NewSectionReader(a.file, a.hashed, a.size-a.hashed)); err != nil {
		return err
	}
	if hex.EncodeToString(a.sum.Sum(nil)) != a.digest {
		return fmt.Errorf("%d bytes came by broadcast: %w, %w", a.size, errDigest, shuffle.ErrDigest)
	}
	if err := a.file.Close(); err != nil {
		return err
	}
	a.file = nil
	path := filepath.Join(a.s.dir, a.digest)
	return a.settle(func(b *blob) error {
		b.path = path
		return settleFile(a.part, path)
	}, func() error { return os.Remove(a.part) })
}

// write writes data where nothing has come before.
func (a *arrival) write(at int64, data []byte) error {
	if len(data) == 0 && a.size > 0 {
		return nil
	}
	if a.file == nil {
		a.s.mu.Lock()
		a.s.files++
		a.part = filepath.Join(a.s.dir, fmt.Sprintf("%s.%d.cast", a.digest, a.s.files))
		a.s.mu.Unlock()
		f, err := os.OpenFile(a.part, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		a.file = f
	}
	to := at + int64(len(data))
	i, _ := slices.BinarySearchFunc(a.have, at, func(s span, at int64) int {
		if s.to <= at {
			return -1
		}
		return 1
	})
	// What was summed up must not change, and nobody sends anything twice.
	if i < len(a.have) && a.have[i].from < to {
		return fmt.Errorf("%d bytes at %d come for the second time", len(data), at)
	}
	if _, err := a.file.WriteAt(data, at); err != nil {
		return err
	}
	if at == a.hashed {
		a.sum.Write(data)
		a.hashed = to
	}
	a.have = slices.Insert(a.have, i, span{at, to})
	if i+1 < len(a.have) && a.have[i+1].from == to {
		a.have[i].to = a.have[i+1].to
		a.have = slices.Delete(a.have, i+1, i+2)
	}
	if i > 0 && a.have[i-1].to == at {
		a.have[i-1].to = a.have[i].to
		a.have = slices.Delete(a.have, i, i+1)
	}
	return nil
}

// settle makes a blob of what has come whole, or drops it if the blob is here or is fetched. The
// caller holds the arrival's lock.
func (a *arrival) settle(place func(*blob) error, drop func() error) error {
	s := a.s
	a.ended = true
	s.mu.Lock()
	b := s.byName[a.digest]
	var err error
	wanted := !s.closed && !s.ended.has(a.job) && (b == nil || !b.over && !b.fetching)
	if wanted {
		if b == nil {
			b = &blob{ready: make(chan struct{}), jobs: map[string]bool{}}
			s.byName[a.digest] = b
		}
		if err = place(b); err == nil {
			b.size = a.size
			b.jobs[a.job] = true
			b.finish()
			s.clock++
			b.used = s.clock
			s.fit()
		} else if b.path, b.region = "", nil; b.refs == 0 {
			delete(s.byName, a.digest)
		}
	}
	s.finished(a, err != nil)
	inMemory := wanted && b.region != nil
	s.mu.Unlock()
	if !wanted || err != nil {
		return errors.Join(err, drop())
	}
	s.log.Info("a blob has come by broadcast", "blob", a.digest[:12], "job", a.job, "bytes", a.size, "in memory", inMemory)
	return nil
}

// finished ends an arrival. The caller holds the lock.
func (s *blobs) finished(a *arrival, failed bool) {
	if a.over {
		return
	}
	a.over = true
	a.timer.Stop()
	if s.arrivals[a.digest] == a {
		delete(s.arrivals, a.digest)
	}
	if j := s.jobs[a.job]; j != nil {
		j.under--
		j.sign = time.Now()
		if failed {
			j.failed[a.digest] = true
		}
	}
	s.tell()
}

// fail ends an arrival that brings nothing: who waits for it fetches the blob.
func (a *arrival) fail(why error) {
	s := a.s
	s.mu.Lock()
	was := a.over
	s.finished(a, true)
	s.mu.Unlock()
	if !was {
		a.discard(why)
	}
}

// discard gives back what has come of an arrival that was ended.
func (a *arrival) discard(why error) {
	a.s.log.Info("a broadcast has failed here: whoever needs it fetches it from the master", "blob", a.digest[:12], "job", a.job, "error", why)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	if a.file != nil {
		_ = a.file.Close()
		_ = os.Remove(a.part)
	}
}
