// SPDX-License-Identifier: Apache-2.0

package output

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/quernmr/quern/mapreduce/objects"
)

// ours says whether an object is this job's, and of which attempt.
func (p *bucketPlace) ours(at objects.Location) (attempt string, yes bool, err error) {
	o, err := p.client.Stat(p.ctx, at)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	return o.Meta[metaAttempt], o.Meta[metaJob] == p.Job, nil
}

// published says whether all of the output is there.
func (p *bucketPlace) published() (bool, error) {
	if _, yes, err := p.ours(p.key(successName)); err != nil || !yes {
		return false, err
	}
	parts := 0
	err := p.list(func(_ objects.Info, name string) error {
		if parts < p.Parts && name == PartName(parts, p.Format, p.Compression) {
			parts++ // they come in order
		}
		return nil
	})
	return parts == p.Parts, err
}

// settled says whether the output is whole and stays so. If somebody discards the
// job at this time, it waits until that is over: whoever discards may or may
// not have seen _SUCCESS.
func (p *bucketPlace) settled() (bool, error) {
	gone := false
	for n := 1; ; n++ {
		done, err := p.published()
		if err != nil || !done || gone {
			return done, err
		}
		state, err := p.state()
		switch {
		case err != nil:
			return false, err
		case state == placeOpen: // who discards from now on sees it
			return true, nil
		case state == placeGone: // nobody removes anything from now on, but it may just have been
			gone = true
			continue
		case n == publishTries:
			return false, fmt.Errorf("job %s is being discarded: %w", p.Job, ErrState)
		}
		pausePublishing(n)
	}
}

// publish makes the output whole, unless it is. Another process may be at it,
// too, and may be done at any time.
func (p *bucketPlace) publish(l *layout, names []string, success []byte) ([]string, error) {
	done, err := p.settled()
	if err == nil && !done {
		if err = p.try(l, names, success); err != nil {
			if done, failed := p.settled(); failed == nil && done {
				err = nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return p.cleanUp(), nil
}

func (p *bucketPlace) try(l *layout, names []string, success []byte) error {
	switch state, err := p.state(); {
	case err != nil:
		return err
	case state == placeGone:
		return p.endedError()
	case state == placeDiscarded:
		return fmt.Errorf("job %s is being discarded: %w", p.Job, ErrState)
	}
	stale, err := p.lookAround()
	if err != nil {
		return err
	}
	uploads, names, err := p.collect(l, names)
	if err != nil {
		return err
	}
	// From here on the former content is on its way out. Without _SUCCESS nobody
	// takes what is there for whole.
	if old, ok := stale[successName]; ok {
		delete(stale, successName)
		if err := p.removeStale(old); err != nil {
			return err
		}
	}
	if err := together(len(names), func(i int) error { return p.complete(i, names[i], uploads[i]) }); err != nil {
		return err
	}
	leave := make([]objects.Info, 0, len(stale))
	for _, o := range stale {
		leave = append(leave, o)
	}
	if err := together(len(leave), func(i int) error { return p.removeStale(leave[i]) }); err != nil {
		return err
	}
	return p.succeed(success)
}

// lookAround returns objects that are to go, by name, or ErrExists.
func (p *bucketPlace) lookAround() (map[string]objects.Info, error) {
	stale := map[string]objects.Info{}
	var parts []int
	next := 0
	err := p.list(func(o objects.Info, name string) error {
		for next < p.Parts && PartName(next, p.Format, p.Compression) < name {
			next++
		}
		if next < p.Parts && PartName(next, p.Format, p.Compression) == name {
			parts = append(parts, next) // it is replaced, or ours
			return nil
		}
		stale[name] = o
		return nil
	})
	if err != nil {
		return nil, err
	}
	if _, ok := stale[successName]; ok {
		// Whoever wrote it last has it: if that was this job, all but cleaning up was
		// done when we looked first, and parts were removed since.
		if _, yes, err := p.ours(p.key(successName)); err != nil {
			return nil, err
		} else if yes {
			delete(stale, successName)
		}
	}
	if p.target.opts.Overwrite {
		return stale, nil
	}
	if len(stale) > 0 {
		return nil, existsHint()
	}
	return nil, together(len(parts), func(i int) error {
		if _, yes, err := p.ours(p.part(parts[i])); err != nil || yes {
			return err
		}
		return existsHint()
	})
}

// collect reads the records of the winners.
func (p *bucketPlace) collect(l *layout, names []string) ([]uploadRecord, []string, error) {
	names = append([]string(nil), names...)
	uploads := make([]uploadRecord, len(names))
	err := together(len(names), func(i int) error {
		if names[i] == "" {
			name, err := p.writeEmpty(l, i)
			if err != nil {
				return err
			}
			names[i] = name
		}
		b, err := p.client.Get(p.ctx, p.record(names[i]), maxRecord)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("part %d: the record of its attempt %s is missing: %w", i, names[i], err)
		}
		if err != nil {
			return err
		}
		if err := json.Unmarshal(b, &uploads[i]); err != nil {
			return fmt.Errorf("%s: %w", p.record(names[i]), err)
		}
		if !uploads[i].Done {
			return fmt.Errorf("part %d: its attempt %s was not committed: %w", i, names[i], ErrState)
		}
		return nil
	})
	return uploads, names, err
}

// emptyAttempt begins the names of attempts that Publish makes for parts without rows.
const emptyAttempt = "empty-"

// writeEmpty writes a part without rows.
func (p *bucketPlace) writeEmpty(l *layout, index int) (string, error) {
	books, err := newLedger(p.target.path, p.Parts)
	if err != nil {
		return "", err
	}
	a, err := p.attempt(books, l, index, emptyAttempt+newOwner())
	if err != nil {
		return "", err
	}
	if err := a.part.fill(); err != nil {
		return "", err
	}
	return a.commit()
}

// complete makes an object of a winner's upload, unless that was done.
func (p *bucketPlace) complete(index int, name string, u uploadRecord) error {
	at := p.part(index)
	attempt := name[strings.LastIndexByte(name, '.')+1:]
	err := p.client.Complete(p.ctx, at, u.Upload, u.Tags, objects.WriteOptions{New: !p.target.opts.Overwrite})
	if errors.Is(err, objects.ErrUnsupported) { // it was looked at before
		err = p.client.Complete(p.ctx, at, u.Upload, u.Tags, objects.WriteOptions{})
	}
	if !errors.Is(err, objects.ErrNoUpload) && !errors.Is(err, objects.ErrTaken) {
		return err
	}
	by, yes, failed := p.ours(at)
	switch {
	case failed != nil:
		return failed
	case yes && (by == attempt || strings.HasPrefix(by, emptyAttempt) && strings.HasPrefix(attempt, emptyAttempt)):
		return nil
	case errors.Is(err, objects.ErrTaken):
		return existsHint()
	}
	return fmt.Errorf("part %d: its upload has ended, and the object at %s is not of attempt %s: %w", index, at, attempt, errors.Join(ErrState, err))
}

// removeStale removes an object of the former content, unless it was replaced
// since it was found or the job has ended meanwhile.
func (p *bucketPlace) removeStale(o objects.Info) error {
	at := objects.Location{Bucket: p.prefix.Bucket, Key: o.Key}
	now, err := p.client.Stat(p.ctx, at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if now.ETag != o.ETag || now.Size != o.Size {
		return fmt.Errorf("%s was written by somebody else while the output was published: %w", at, ErrExists)
	}
	if state, err := p.state(); err != nil || state != placeOpen {
		return errors.Join(p.endedError(), err)
	}
	return p.client.Delete(p.ctx, at)
}

// succeed writes _SUCCESS, which makes the output whole.
func (p *bucketPlace) succeed(success []byte) error {
	at := p.key(successName)
	opts := objects.WriteOptions{New: true, Meta: map[string]string{metaJob: p.Job}}
	err := p.client.Put(p.ctx, at, success, opts)
	if errors.Is(err, objects.ErrUnsupported) {
		opts.New = false
		err = p.client.Put(p.ctx, at, success, opts)
	}
	if errors.Is(err, objects.ErrTaken) {
		_, yes, failed := p.ours(at)
		if failed != nil {
			return failed
		}
		if !yes {
			return fmt.Errorf("another job has published there at the same time: %w", existsHint())
		}
		err = nil
	}
	if err != nil {
		return err
	}
	done, err := p.settled()
	if err == nil && !done {
		err = errors.Join(fmt.Errorf("job %s was discarded meanwhile: %w", p.Job, ErrState), p.removeOurs(at))
	}
	return err
}

func (p *bucketPlace) removeOurs(at objects.Location) error {
	if _, yes, err := p.ours(at); err != nil || !yes {
		return err
	}
	return p.client.Delete(p.ctx, at)
}

// cleanUp removes the place of a job that was published, and what lost.
func (p *bucketPlace) cleanUp() []string {
	if err := p.removePlace(); err != nil {
		return []string{fmt.Sprintf("output %s: it is complete, but what it was made of could not be removed and is left in %s: %v", p.target.path, p.folder(), err)}
	}
	return nil
}

// removePlace removes the place and all uploads that are of this job. The
// ticket goes first, so that attempts that are still at it notice.
func (p *bucketPlace) removePlace() error {
	if err := p.client.Delete(p.ctx, p.record(ticketName)); err != nil {
		return err
	}
	return p.removeRecords()
}

func (p *bucketPlace) removeRecords() error {
	folder := p.folder()
	var names []string
	err := p.client.List(p.ctx, folder, func(o objects.Info) error {
		if name := strings.TrimPrefix(o.Key, folder.Key); name != "" && name != ticketName {
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return errors.Join(
		together(len(names), func(i int) error { return p.removeRecord(names[i]) }),
		p.removeLost(),
	)
}

func (p *bucketPlace) removeRecord(name string) error {
	b, err := p.client.Get(p.ctx, p.record(name), maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var u uploadRecord
	if dot := strings.LastIndexByte(name, '.'); dot > 0 && json.Unmarshal(b, &u) == nil && u.Upload != "" {
		if err := p.client.Abort(p.ctx, p.key(name[:dot]), u.Upload); err != nil {
			return err
		}
	}
	return p.client.Delete(p.ctx, p.record(name))
}

// removeLost aborts uploads of attempts that were killed before they could keep a
// record. They are told from those of other jobs by there being no other job.
func (p *bucketPlace) removeLost() error {
	uploads, err := p.client.Uploads(p.ctx, p.prefix.Join(""))
	if err != nil || len(uploads) == 0 {
		return nil // not all stores list them, or let everybody
	}
	others := errors.New("others")
	err = p.client.List(p.ctx, p.prefix.Join(placePrefix), func(o objects.Info) error {
		if !strings.HasPrefix(o.Key, p.folder().Key) {
			return others
		}
		return nil
	})
	if errors.Is(err, others) {
		return nil
	}
	if err != nil {
		return err
	}
	parts := make(map[string]bool, p.Parts)
	for i := range p.Parts {
		parts[p.part(i).Key] = true
	}
	return together(len(uploads), func(i int) error {
		if !parts[uploads[i].Key] {
			return nil
		}
		return p.client.Abort(p.ctx, objects.Location{Bucket: p.prefix.Bucket, Key: uploads[i].Key}, uploads[i].ID)
	})
}

func (p *bucketPlace) discard() error {
	done, err := p.published()
	if err != nil {
		return err
	}
	state, err := p.state()
	if err != nil {
		return err
	}
	if done || state == placeGone { // only what others left while we look is left to do
		return p.removePlace()
	}
	if state == placeOpen {
		k := p.bucketTicket
		k.Discarded = true
		b, err := json.Marshal(k)
		if err != nil {
			return err
		}
		if err := p.client.Put(p.ctx, p.record(ticketName), b, objects.WriteOptions{}); err != nil {
			return err
		}
		// Perhaps it was published just before we said so.
		if done, err = p.published(); err != nil {
			return err
		}
		if done {
			return p.removePlace()
		}
	}
	// No upload can be completed after this.
	if err := p.removeRecords(); err != nil {
		return err
	}
	if err := p.removeParts(); err != nil {
		return err
	}
	if err := p.removePlace(); err != nil {
		return err
	}
	return p.removeOurs(p.key(successName))
}

// removeParts removes objects that a publication made before it failed.
func (p *bucketPlace) removeParts() error {
	var found []objects.Location
	if err := p.list(func(o objects.Info, name string) error {
		if name == successName || strings.HasPrefix(name, "part-") {
			found = append(found, objects.Location{Bucket: p.prefix.Bucket, Key: o.Key})
		}
		return nil
	}); err != nil {
		return err
	}
	return together(len(found), func(i int) error { return p.removeOurs(found[i]) })
}
