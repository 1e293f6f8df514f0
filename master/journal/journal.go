// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// Format is the version of what is stored. A journal of another one is refused.
const Format = 1

// File is the name of the journal in its folder.
const File = "journal.db"

var (
	// ErrDamaged is in errors about a journal that can't be read.
	ErrDamaged = errors.New("the journal is damaged")
	// ErrFormat is in errors about a journal of another version.
	ErrFormat = errors.New("the journal has another format")
	// ErrLocked is in errors about a journal that another process has open.
	ErrLocked = errors.New("the journal is in use")
	// ErrFull is in errors of Write when there is no room on the disk. The journal
	// is as it was before, and the write may be tried again.
	ErrFull = errors.New("the journal's disk is full")
	// ErrUnsure is in errors of Write when the disk failed so late that what was to be written may
	// be there or not. Who opens the journal again finds out.
	ErrUnsure = errors.New("nobody knows what the journal has")
)

var (
	metaBucket    = []byte("meta")
	jobsBucket    = []byte("jobs")
	historyBucket = []byte("history")
	leftBucket    = []byte("left")
	workersBucket = []byte("workers")

	formatKey  = []byte("format")
	clusterKey = []byte("cluster")
	epochKey   = []byte("epoch")
)

// Journal is an open journal. Its methods may be called from several goroutines.
type Journal struct {
	path    string
	db      *bbolt.DB
	cluster string
	epoch   uint64

	mu            sync.Mutex
	before, after func() error // of tests
}

// Open opens the journal in a folder, makes it if there is none, and counts its epoch up.
func Open(dir string) (j *Journal, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of the journal: %w", err)
	}
	path := filepath.Join(dir, File)
	defer faults()()
	defer guard(path, &err)
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:      time.Second,
		FreelistType: bbolt.FreelistMapType,
		NoStatistics: true,
	})
	if err != nil {
		return nil, openError(path, err)
	}
	j = &Journal{path: path, db: db}
	// A close after a panic within bbolt could wait for a lock that is never let go.
	if err := j.begin(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return j, nil
}

// faults has accesses to pages that the file does not have (any more) be panics in this
// goroutine, until what it returns is called. The file is mapped into memory.
func faults() (end func()) {
	old := debug.SetPanicOnFault(true)
	return func() { debug.SetPanicOnFault(old) }
}

// guard makes an error of a panic that damaged pages cause within bbolt.
func guard(path string, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: %s: %v; put back a copy, or move the file away to start with an empty one (running jobs and the history are lost)", ErrDamaged, path, p)
	}
}

func openError(path string, err error) error {
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("%w: %s is open in another process; stop the other master first", ErrLocked, path)
	case isFull(err):
		return fmt.Errorf("%w: %s: %w; make room and start again", ErrFull, path, err)
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return damaged(path, err)
	}
	var pathErr *os.PathError
	if errors.As(err, &pathErr) {
		return fmt.Errorf("journal: %w", err)
	}
	return damaged(path, err)
}

func damaged(path string, err error) error {
	return fmt.Errorf("%w: %s: %w; put back a copy, or move the file away to start with an empty one (running jobs and the history are lost)", ErrDamaged, path, err)
}

func (j *Journal) begin() error {
	err := j.db.Update(func(tx *bbolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		if meta == nil {
			if k, _ := tx.Cursor().First(); k != nil {
				return fmt.Errorf("%w: %s is a database, but not of a master", ErrFormat, j.path)
			}
			var err error
			if meta, err = tx.CreateBucket(metaBucket); err != nil {
				return err
			}
			if err := meta.Put(formatKey, []byte(strconv.Itoa(Format))); err != nil {
				return err
			}
			var id [16]byte
			if _, err := rand.Read(id[:]); err != nil {
				return err
			}
			if err := meta.Put(clusterKey, seal([]byte(hex.EncodeToString(id[:])))); err != nil {
				return err
			}
		}
		if f := string(meta.Get(formatKey)); f != strconv.Itoa(Format) {
			return fmt.Errorf("%w: %s has format %q, this version reads %d; use the version that wrote it, let its jobs end, and start the new one with an empty folder", ErrFormat, j.path, f, Format)
		}
		cluster, err := open(meta.Get(clusterKey))
		if err != nil {
			return damaged(j.path, fmt.Errorf("the cluster's name: %w", err))
		}
		j.cluster = string(cluster)
		if b := meta.Get(epochKey); b != nil {
			b, err := open(b)
			if err != nil || len(b) != 8 {
				return damaged(j.path, fmt.Errorf("the epoch: %w", errors.Join(err, errShort)))
			}
			j.epoch = binary.BigEndian.Uint64(b)
		}
		j.epoch++
		if err := meta.Put(epochKey, seal(binary.BigEndian.AppendUint64(nil, j.epoch))); err != nil {
			return err
		}
		for _, name := range [][]byte{jobsBucket, historyBucket, leftBucket, workersBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && isFull(err) {
		return fmt.Errorf("%w: %s: %w; make room and start again", ErrFull, j.path, err)
	}
	return err
}

// Close closes the journal. Nothing is lost without it.
func (j *Journal) Close() error { return j.db.Close() }

// Cluster is the name that was made with the journal, in hex.
func (j *Journal) Cluster() string { return j.cluster }

// Epoch counts how often the journal was opened, from 1.
func (j *Journal) Epoch() uint64 { return j.epoch }

// Path is where the journal is.
func (j *Journal) Path() string { return j.path }

// Watch has functions called before and after each write, for tests of what happens when
// writes fail or a master ends between two of them. Write returns their errors;
// what after finds is stored all the same.
func (j *Journal) Watch(before, after func() error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.before, j.after = before, after
}

// DontSync has writes return before they are on the disk. It is for tests, which survive no loss of power.
func (j *Journal) DontSync() { j.db.NoSync = true }

// Write stores entries, all or none. When it returns, they are on the disk. ErrFull,
// ErrUnsure, or another error after which nothing is stored.
func (j *Journal) Write(entries ...Entry) (err error) {
	if len(entries) == 0 {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.before != nil {
		if err := j.before(); err != nil {
			return err
		}
	}
	defer faults()()
	defer guard(j.path, &err)
	id := 0
	err = j.db.Update(func(tx *bbolt.Tx) error {
		id = tx.ID()
		for _, e := range entries {
			if err := e.put(tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && j.shows(id) {
		// Only the very last step failed. If it succeeds now, nothing has happened.
		if e := j.db.Sync(); e != nil {
			return fmt.Errorf("%w: %s: %w", ErrUnsure, j.path, errors.Join(err, e))
		}
		err = nil
	}
	switch {
	case err == nil:
		if j.after != nil {
			return j.after()
		}
		return nil
	case isFull(err):
		return fmt.Errorf("%w: %s: %w; make room, and it goes on by itself", ErrFull, j.path, err)
	}
	return fmt.Errorf("journal %s: %w", j.path, err)
}

// shows says whether who reads the journal sees what a transaction has written.
func (j *Journal) shows(id int) (shows bool) {
	err := j.db.View(func(tx *bbolt.Tx) error {
		shows = tx.ID() >= id
		return nil
	})
	return err != nil || shows
}

var (
	errShort    = errors.New("a record ends too early")
	errChecksum = errors.New("a record's checksum is wrong")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal puts a checksum before a record.
func seal(b []byte) []byte {
	s := make([]byte, 4, 4+len(b))
	binary.BigEndian.PutUint32(s, crc32.Checksum(b, castagnoli))
	return append(s, b...)
}

// open checks a record that seal made.
func open(b []byte) ([]byte, error) {
	if len(b) < 4 {
		return nil, errShort
	}
	if crc32.Checksum(b[4:], castagnoli) != binary.BigEndian.Uint32(b) {
		return nil, errChecksum
	}
	return b[4:], nil
}
