// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

type tx = *bbolt.Tx

// Keys within a job's bucket.
var (
	jobKey    = []byte("job")
	planKey   = []byte("plan")
	totalsKey = []byte("totals")
	endingKey = []byte("ending")
	commitKey = []byte("commit")
	stateKey  = []byte("state")

	mapsBucket    = []byte("map")
	reducesBucket = []byte("reduce")
	resetsBucket  = []byte("resets")

	broadcastsBucket = []byte("broadcasts")
)

func number(n uint32) []byte   { return binary.BigEndian.AppendUint32(nil, n) }
func number64(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func putJSON(b *bbolt.Bucket, key []byte, v any) error {
	s, err := sealJSON(v)
	if err != nil {
		return err
	}
	return b.Put(key, s)
}

func jobBucket(tx tx, id string) (*bbolt.Bucket, error) {
	b := tx.Bucket(jobsBucket).Bucket([]byte(id))
	if b == nil {
		return nil, fmt.Errorf("job %s is not in the journal", id)
	}
	return b, nil
}

func putIn(tx tx, id string, bucket, key []byte, v any) error {
	job, err := jobBucket(tx, id)
	if err != nil {
		return err
	}
	if bucket != nil {
		if job, err = job.CreateBucketIfNotExists(bucket); err != nil {
			return err
		}
	}
	return putJSON(job, key, v)
}

func (e JobAdded) put(tx tx) error {
	b, err := tx.Bucket(jobsBucket).CreateBucket([]byte(e.Job.ID))
	if err != nil {
		return err
	}
	return putJSON(b, jobKey, &e.Job)
}

func (e Planned) put(tx tx) error { return putIn(tx, e.Job, nil, planKey, &e.Plan) }

func (e Mapped) put(tx tx) error {
	job, err := jobBucket(tx, e.Job)
	if err != nil {
		return err
	}
	maps, err := job.CreateBucketIfNotExists(mapsBucket)
	if err != nil {
		return err
	}
	b, err := encodeMap(&e.Map)
	if err != nil {
		return err
	}
	if err := maps.Put(number(e.Map.Attempt.Task), seal(b)); err != nil {
		return err
	}
	if len(e.Reset) == 0 {
		return nil
	}
	resets, err := job.CreateBucketIfNotExists(resetsBucket)
	if err != nil {
		return err
	}
	for _, part := range e.Reset {
		n := uint32(0)
		if b := resets.Get(number(part)); b != nil {
			b, err := open(b)
			if err != nil || len(b) != 4 {
				return damaged(tx.DB().Path(), errors.Join(err, errShort))
			}
			n = binary.BigEndian.Uint32(b)
		}
		if err := resets.Put(number(part), seal(number(n+1))); err != nil {
			return err
		}
		if reduces := job.Bucket(reducesBucket); reduces != nil {
			if err := reduces.Delete(number(part)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e Settled) put(tx tx) error { return putIn(tx, e.Job, nil, totalsKey, &e.Totals) }

func (e Reduced) put(tx tx) error {
	return putIn(tx, e.Job, reducesBucket, number(e.Reduce.Attempt.Task), &e.Reduce)
}

func (e Broadcast) put(tx tx) error {
	job, err := jobBucket(tx, e.Job)
	if err != nil {
		return err
	}
	b, err := job.CreateBucketIfNotExists(broadcastsBucket)
	if err != nil {
		return err
	}
	return b.Put(number(e.Number), seal(e.Report))
}

func (e Kept) put(tx tx) error { return putIn(tx, e.Job, nil, stateKey, &e.State) }

func (e Committed) put(tx tx) error {
	return putIn(tx, e.Job, nil, commitKey, &commitRecord{e.Attempt, e.Result})
}

func (e Ends) put(tx tx) error { return putIn(tx, e.Job, nil, endingKey, &e.Ending) }

func (e Ended) put(tx tx) error {
	if err := tx.Bucket(jobsBucket).DeleteBucket([]byte(e.History.ID)); err != nil && !errors.Is(err, bolterrors.ErrBucketNotFound) {
		return err
	}
	if e.Left != nil {
		if err := putJSON(tx.Bucket(leftBucket), []byte(e.History.ID), e.Left); err != nil {
			return err
		}
	}
	return putJSON(tx.Bucket(historyBucket), number64(e.History.Seq), &e.History)
}

func (e Cleared) put(tx tx) error { return tx.Bucket(leftBucket).Delete([]byte(e.Job)) }

func (e Forgotten) put(tx tx) error {
	for _, h := range e.Jobs {
		if err := tx.Bucket(historyBucket).Delete(number64(h.Seq)); err != nil {
			return err
		}
		if err := tx.Bucket(leftBucket).Delete([]byte(h.ID)); err != nil {
			return err
		}
	}
	return nil
}

func (e WorkerSeen) put(tx tx) error {
	return putJSON(tx.Bucket(workersBucket), []byte(e.Worker.ID), &e.Worker)
}

func (e WorkerGone) put(tx tx) error { return tx.Bucket(workersBucket).Delete([]byte(e.ID)) }

// Load reads all of the journal.
func (j *Journal) Load() (c *Content, err error) {
	defer faults()()
	defer guard(j.path, &err)
	c = &Content{}
	err = j.db.View(func(tx *bbolt.Tx) error {
		err := tx.Bucket(jobsBucket).ForEach(func(id, _ []byte) error {
			b := tx.Bucket(jobsBucket).Bucket(id)
			if b == nil {
				return fmt.Errorf("job %q: %w", id, errShort)
			}
			r, err := loadJob(b)
			if err != nil {
				return fmt.Errorf("job %s: %w", id, err)
			}
			c.Running = append(c.Running, r)
			return nil
		})
		if err != nil {
			return err
		}
		err = tx.Bucket(historyBucket).ForEach(func(k, v []byte) error {
			var h History
			if err := openJSON(v, &h); err != nil {
				return fmt.Errorf("history %x: %w", k, err)
			}
			c.History = append(c.History, h)
			return nil
		})
		if err != nil {
			return err
		}
		err = tx.Bucket(leftBucket).ForEach(func(k, v []byte) error {
			var l Leftover
			if err := openJSON(v, &l); err != nil {
				return fmt.Errorf("left of job %q: %w", k, err)
			}
			c.Left = append(c.Left, l)
			return nil
		})
		if err != nil {
			return err
		}
		return tx.Bucket(workersBucket).ForEach(func(k, v []byte) error {
			var w Worker
			if err := openJSON(v, &w); err != nil {
				return fmt.Errorf("worker %q: %w", k, err)
			}
			c.Workers = append(c.Workers, w)
			return nil
		})
	})
	if err != nil {
		return nil, damaged(j.path, err)
	}
	slices.SortFunc(c.Running, func(a, b *Running) int { return cmp.Compare(a.Job.Seq, b.Job.Seq) })
	return c, nil
}

func loadJob(b *bbolt.Bucket) (*Running, error) {
	r := &Running{Resets: map[uint32]uint32{}}
	if err := openJSON(b.Get(jobKey), &r.Job); err != nil {
		return nil, err
	}
	if v := b.Get(planKey); v != nil {
		r.Plan = &Plan{}
		if err := openJSON(v, r.Plan); err != nil {
			return nil, fmt.Errorf("plan: %w", err)
		}
	}
	if v := b.Get(totalsKey); v != nil {
		if err := openJSON(v, &r.Totals); err != nil {
			return nil, fmt.Errorf("totals: %w", err)
		}
	}
	if v := b.Get(endingKey); v != nil {
		r.Ending = &Ending{}
		if err := openJSON(v, r.Ending); err != nil {
			return nil, fmt.Errorf("ending: %w", err)
		}
	}
	if v := b.Get(stateKey); v != nil {
		r.State = &State{}
		if err := openJSON(v, r.State); err != nil {
			return nil, fmt.Errorf("state: %w", err)
		}
	}
	if v := b.Get(commitKey); v != nil {
		var c commitRecord
		if err := openJSON(v, &c); err != nil {
			return nil, fmt.Errorf("commit: %w", err)
		}
		r.Commit, r.CommitBy = &c.Result, c.Attempt
	}
	err := each(b, broadcastsBucket, func(_ uint32, v []byte) error {
		v, err := open(v)
		r.Broadcasts = append(r.Broadcasts, slices.Clone(v)) // bbolt's memory is its own
		return err
	})
	if err != nil {
		return nil, err
	}
	err = each(b, reducesBucket, func(n uint32, v []byte) error {
		var d Reduce
		if err := openJSON(v, &d); err != nil {
			return err
		}
		r.Reduces = append(r.Reduces, d)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, each(b, resetsBucket, func(n uint32, v []byte) error {
		v, err := open(v)
		if err != nil {
			return err
		}
		if len(v) != 4 {
			return errShort
		}
		r.Resets[n] = binary.BigEndian.Uint32(v)
		return nil
	})
}

// each visits the numbered records of a bucket within a job's.
func each(b *bbolt.Bucket, name []byte, f func(n uint32, v []byte) error) error {
	b = b.Bucket(name)
	if b == nil {
		return nil
	}
	return b.ForEach(func(k, v []byte) error {
		if len(k) != 4 {
			return fmt.Errorf("%s %x: %w", name, k, errShort)
		}
		n := binary.BigEndian.Uint32(k)
		if err := f(n, v); err != nil {
			return fmt.Errorf("%s %d: %w", name, n, err)
		}
		return nil
	})
}

// Maps calls f with the results of map tasks that are stored of a job, by task. They may be large
// together, so they are not part of Load.
func (j *Journal) Maps(job string, f func(*Map) error) (err error) {
	defer faults()()
	defer guard(j.path, &err)
	err = j.db.View(func(tx *bbolt.Tx) error {
		b, err := jobBucket(tx, job)
		if err != nil {
			return err
		}
		return each(b, mapsBucket, func(_ uint32, v []byte) error {
			if v, err = open(v); err != nil {
				return err
			}
			m, err := decodeMap(v)
			if err != nil {
				return err
			}
			return f(m)
		})
	})
	if err != nil {
		return damaged(j.path, fmt.Errorf("job %s: %w", job, err))
	}
	return nil
}

// Map reads the result of a map task that is stored.
func (j *Journal) Map(job string, task uint32) (m *Map, err error) {
	defer faults()()
	defer guard(j.path, &err)
	err = j.db.View(func(tx *bbolt.Tx) error {
		b, err := jobBucket(tx, job)
		if err != nil {
			return err
		}
		if b = b.Bucket(mapsBucket); b == nil {
			return errShort
		}
		v, err := open(b.Get(number(task)))
		if err != nil {
			return err
		}
		m, err = decodeMap(v)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("map %d of job %s in %s: %w", task, job, j.path, err)
	}
	return m, nil
}
