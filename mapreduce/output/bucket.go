// SPDX-License-Identifier: Apache-2.0

package output

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"regexp"
	"strings"
	"sync"

	"github.com/quernmr/quern/mapreduce/objects"
)

// bucketTarget writes the parts to objects. It implements Shared.
//
// A part is an upload to its final key, in several pieces, which is completed only
// when the output is published: completing makes the object in one step,
// costs the same for any size, and needs no copy (a copy of every part
// would cost the store as much as writing it). Until then nothing is there that a
// reader could see. Which upload belongs to which attempt is kept in objects of the place,
//
//	PREFIX/_temporary-JOB/ticket          what Prepare found
//	PREFIX/_temporary-JOB/part-...ATTEMPT the upload of an attempt
//
// whose name begins with _, so that whoever reads the output passes over them.
// Objects of the output say in their metadata which job and attempt made
// them. So a publication that was killed is repeated step by step: an upload
// that has ended was completed before if the object says so.
type bucketTarget struct {
	path string
	opts DirOptions
}

const (
	metaJob     = "quern-job"
	metaAttempt = "quern-attempt"
	placePrefix = "_temporary-"
	// atOnce is how many requests are made at the same time while an output is published.
	atOnce = 16
)

// bucketTicket is what all calls for one job must agree on.
type bucketTicket struct {
	Version     int    `json:"version"`
	Job         string `json:"job"`
	URL         string `json:"url"`
	Parts       int    `json:"parts"`
	Format      Format `json:"format"`
	Compression string `json:"compression,omitempty"`
	Discarded   bool   `json:"discarded,omitempty"` // of the place's own copy: Discard is at it
}

const bucketTicketVersion = 1

// bucketPlace is a job's output in a bucket.
type bucketPlace struct {
	bucketTicket
	target *bucketTarget
	client *objects.Client
	ctx    context.Context
	prefix objects.Location // of the output
}

func (t *bucketTarget) layout(info Info) (*layout, error) {
	l, err := newLayout(t.opts.Format, t.opts.Compression, t.opts.ParquetBinary, info.Schema)
	if err != nil {
		return nil, fmt.Errorf("output %s: %w", t.path, err)
	}
	_, err = newLedger(t.path, info.Parts)
	return l, err
}

// locate returns where the output is to be.
func (t *bucketTarget) locate() (*objects.Client, objects.Location, error) {
	at, err := objects.Parse(t.path)
	if err != nil {
		return nil, at, fmt.Errorf("output: %w: %w", err, ErrTarget)
	}
	if !bucketName(at.Bucket) {
		// The store would be asked again and again.
		return nil, at, fmt.Errorf("output %s: %w: %q is no name of a bucket: 3 to 63 letters, digits, dots and dashes", t.path, ErrTarget, at.Bucket)
	}
	at.Key = strings.TrimRight(at.Key, "/")
	if at.Key == "" {
		return nil, at, fmt.Errorf("output %s: %w: it is a whole bucket: name a folder in it, such as %s", t.path, ErrTarget, at.Join("NAME"))
	}
	client, err := objects.Open()
	if err != nil {
		return nil, at, fmt.Errorf("output %s: %w", t.path, err)
	}
	return client, at, nil
}

var bucketPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{1,61}[A-Za-z0-9]$`)

// bucketName says whether a bucket may have that name. It is as tolerant as the oldest stores.
func bucketName(name string) bool {
	if _, err := netip.ParseAddr(name); err == nil {
		return false
	}
	return bucketPattern.MatchString(name) && !strings.Contains(name, "..") && !strings.Contains(name, ".-") && !strings.Contains(name, "-.")
}

func (p *bucketPlace) fail(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("output %s: %w", p.target.path, err)
}

func (p *bucketPlace) key(name string) objects.Location { return p.prefix.Join(name) }

func (p *bucketPlace) folder() objects.Location { return p.prefix.Join(placePrefix + p.Job + "/") }

func (p *bucketPlace) record(name string) objects.Location { return p.folder().Join(name) }

func (p *bucketPlace) part(index int) objects.Location {
	return p.key(PartName(index, p.Format, p.Compression))
}

// Prepare implements Shared.
func (t *bucketTarget) Prepare(info Info, job string) ([]byte, error) {
	p, err := t.prepare(context.Background(), info, job)
	if err != nil {
		return nil, err
	}
	return json.Marshal(p.bucketTicket)
}

func (t *bucketTarget) prepare(ctx context.Context, info Info, job string) (*bucketPlace, error) {
	if err := checkID(t.path, "job id", job); err != nil {
		return nil, err
	}
	l, err := t.layout(info)
	if err != nil {
		return nil, err
	}
	client, at, err := t.locate()
	if err != nil {
		return nil, err
	}
	k := bucketTicket{
		Version: bucketTicketVersion, Job: job, URL: at.String(), Parts: info.Parts,
		Format: l.format, Compression: l.compression,
	}
	p := &bucketPlace{bucketTicket: k, target: t, client: client, ctx: ctx, prefix: at}
	if there, err := p.state(); err != nil || there == placeOpen {
		return p, p.fail(err) // all was checked; by now the output may be there
	}
	if err := p.check(info.Inputs); err != nil {
		return nil, p.fail(err)
	}
	ticket, err := json.Marshal(k)
	if err != nil {
		return nil, p.fail(err)
	}
	return p, p.fail(p.client.Put(ctx, p.record(ticketName), ticket, objects.WriteOptions{}))
}

// check says why the target must not be written.
func (p *bucketPlace) check(inputs []string) error {
	for _, in := range inputs {
		if at, err := objects.Parse(in); err == nil && at.Bucket == p.prefix.Bucket && (at.Key == p.prefix.Key || strings.HasPrefix(at.Key, p.prefix.Key+"/")) {
			return fmt.Errorf("%w: %s: name another folder", ErrOverlap, in)
		}
	}
	if _, err := p.client.Stat(p.ctx, p.prefix); err == nil {
		return fmt.Errorf("%w: it is an object: name a folder, or remove the object first", ErrTarget)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	full := errors.New("full")
	err := p.list(func(o objects.Info, _ string) error {
		if p.target.opts.Overwrite {
			return nil
		}
		return full
	})
	if errors.Is(err, full) {
		return existsHint()
	}
	return err
}

// list calls fn for every object of the output and its name there, but for those of the places of jobs.
func (p *bucketPlace) list(fn func(o objects.Info, name string) error) error {
	under := p.prefix.Join("")
	return p.client.List(p.ctx, under, func(o objects.Info) error {
		name := strings.TrimPrefix(o.Key, under.Key)
		if name == "" || strings.HasPrefix(name, placePrefix) {
			return nil
		}
		return fn(o, name)
	})
}

type placeState int

const (
	placeGone      placeState = iota // never made, or the job has ended
	placeOpen                        // attempts may write, and one may publish
	placeDiscarded                   // Discard is at it
)

// maxRecord bounds what is read of an object of the place.
const maxRecord = 4 << 20

func (p *bucketPlace) state() (placeState, error) {
	b, err := p.client.Get(p.ctx, p.record(ticketName), maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return placeGone, nil
	}
	if err != nil {
		return placeGone, err
	}
	var k bucketTicket
	if err := json.Unmarshal(b, &k); err != nil {
		return placeGone, fmt.Errorf("%s: %w", p.record(ticketName), err)
	}
	if k.Discarded {
		return placeDiscarded, nil
	}
	return placeOpen, nil
}

func (p *bucketPlace) endedError() error {
	return fmt.Errorf("job %s has ended: its place %s is not there: %w", p.Job, p.folder(), ErrState)
}

func (t *bucketTarget) open(ctx context.Context, ticket []byte) (*bucketPlace, error) {
	p := &bucketPlace{target: t, ctx: ctx}
	if err := json.Unmarshal(ticket, &p.bucketTicket); err != nil {
		return nil, fmt.Errorf("output %s: the ticket cannot be read: %w", t.path, err)
	}
	var err error
	if p.client, p.prefix, err = t.locate(); err != nil {
		return nil, err
	}
	if p.Version != bucketTicketVersion || !validID(p.Job) || p.URL != p.prefix.String() || p.Parts < 1 || p.Parts > 1<<24 {
		return nil, fmt.Errorf("output %s: the ticket is not one of this version or target: %w", t.path, ErrState)
	}
	return p, nil
}

// uploadRecord says which upload is an attempt's.
type uploadRecord struct {
	Upload string   `json:"upload"`
	Tags   []string `json:"tags,omitempty"`
	Done   bool     `json:"done,omitempty"`
}

// bucketAttempt is one attempt's part.
type bucketAttempt struct {
	place  *bucketPlace
	ledger *ledger
	part   *ledgerPart
	sink   *uploadSink
	index  int
	name   string
	done   bool
}

// attempt opens a part within a ledger.
func (p *bucketPlace) attempt(books *ledger, l *layout, index int, attempt string) (*bucketAttempt, error) {
	a := &bucketAttempt{place: p, ledger: books, index: index, name: PartName(index, l.format, l.compression) + "." + attempt}
	part, err := books.open(index, func() (Part, sink, error) {
		ctx, cancel := context.WithCancel(p.ctx)
		a.sink = &uploadSink{
			client: p.client, ctx: ctx, cancel: cancel, at: p.part(index),
			meta:  map[string]string{metaJob: p.Job, metaAttempt: attempt},
			begun: func(id string) error { return a.write(uploadRecord{Upload: id}) },
		}
		part, err := l.open(a.sink, l.encoder)
		return part, a.sink, err
	})
	if err != nil {
		return nil, err
	}
	a.part = part
	return a, nil
}

// write keeps a record of the attempt, unless the job has ended: Discard, which
// ends it, looks at the records after that.
func (a *bucketAttempt) write(r uploadRecord) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	p := a.place
	if err := p.client.Put(a.sink.ctx, p.record(a.name), b, objects.WriteOptions{}); err != nil {
		return closedError(a.sink.ctx, err)
	}
	switch state, err := p.state(); {
	case err != nil:
		return err
	case state != placeOpen:
		return errors.Join(p.endedError(), a.drop())
	}
	return nil
}

// drop removes the upload and its record.
func (a *bucketAttempt) drop() error {
	p := a.place
	if a.sink.id == "" {
		return nil
	}
	return errors.Join(p.client.Abort(p.ctx, a.sink.at, a.sink.id), p.client.Delete(p.ctx, p.record(a.name)))
}

func (a *bucketAttempt) commit() (string, error) {
	if a.done {
		return a.name, nil
	}
	if err := a.write(uploadRecord{Upload: a.sink.id, Tags: a.sink.tags, Done: true}); err != nil {
		return "", fmt.Errorf("output %s: part %d: %w", a.place.target.path, a.index, err)
	}
	a.done = true
	return a.name, nil
}

// sharedBucketAttempt has a ledger of its own.
type sharedBucketAttempt struct{ *bucketAttempt }

func (a sharedBucketAttempt) Part() Part { return a.part }

func (a sharedBucketAttempt) Commit() (string, error) {
	if !a.done {
		if err := a.ledger.complete(); err != nil {
			return "", err
		}
	}
	name, err := a.commit()
	if err == nil {
		a.ledger.end()
	}
	return name, err
}

func (a sharedBucketAttempt) Abort() error {
	if !a.ledger.end() {
		return nil
	}
	a.sink.cancel()
	return a.place.fail(a.drop())
}

// Attempt implements Shared.
func (t *bucketTarget) Attempt(info Info, ticket []byte, index int, attempt string) (SharedAttempt, error) {
	p, err := t.open(context.Background(), ticket)
	if err != nil {
		return nil, err
	}
	if err := checkID(t.path, "attempt id", attempt); err != nil {
		return nil, err
	}
	l, err := t.layout(info)
	if err != nil {
		return nil, err
	}
	books, err := newLedger(t.path, info.Parts)
	if err != nil {
		return nil, err
	}
	switch state, err := p.state(); {
	case err != nil:
		return nil, p.fail(err)
	case state != placeOpen:
		return nil, p.fail(p.endedError())
	}
	a, err := p.attempt(books, l, index, attempt)
	if err != nil {
		return nil, err
	}
	return sharedBucketAttempt{a}, nil
}

// Publish implements Shared. A part without a name is written empty.
func (t *bucketTarget) Publish(info Info, ticket []byte, names []string, success []byte) ([]string, error) {
	p, err := t.open(context.Background(), ticket)
	if err != nil {
		return nil, err
	}
	l, err := t.layout(info)
	if err != nil {
		return nil, err
	}
	if err := winners(t.path, info, l, names); err != nil {
		return nil, err
	}
	notes, err := p.publish(l, names, success)
	return notes, p.fail(err)
}

// Discard implements Shared.
func (t *bucketTarget) Discard(ticket []byte) error {
	p, err := t.open(context.Background(), ticket)
	if err != nil {
		return err
	}
	if err := p.discard(); err != nil {
		return fmt.Errorf("output %s: discard what job %s left: %w", t.path, p.Job, err)
	}
	return nil
}

// Begin implements Target.
func (t *bucketTarget) Begin(info Info) (Transaction, error) {
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, fmt.Errorf("output %s: %w", t.path, err)
	}
	l, err := t.layout(info)
	if err != nil {
		return nil, err
	}
	books, err := newLedger(t.path, info.Parts)
	if err != nil {
		return nil, err
	}
	p, err := t.prepare(context.Background(), info, hex.EncodeToString(id[:]))
	if err != nil {
		return nil, err
	}
	return &bucketTransaction{place: p, layout: l, ledger: books, attempts: make([]*bucketAttempt, info.Parts)}, nil
}

type bucketTransaction struct {
	place    *bucketPlace
	layout   *layout
	ledger   *ledger
	mu       sync.Mutex
	attempts []*bucketAttempt
	notes    []string
}

func (t *bucketTransaction) Part(index int) (Part, error) {
	p, err := t.part(index)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (t *bucketTransaction) part(index int) (*ledgerPart, error) {
	a, err := t.place.attempt(t.ledger, t.layout, index, "local")
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.attempts[index] = a
	t.mu.Unlock()
	return a.part, nil
}

func (t *bucketTransaction) Commit(success []byte) error {
	if err := t.ledger.complete(); err != nil {
		return err
	}
	for _, index := range t.ledger.missing() {
		p, err := t.part(index)
		if err != nil {
			return err
		}
		if err := p.fill(); err != nil {
			return err
		}
	}
	names := make([]string, len(t.attempts))
	if err := together(len(names), func(i int) (err error) {
		names[i], err = t.attempts[i].commit()
		return err
	}); err != nil {
		return err
	}
	var err error
	if t.notes, err = t.place.publish(t.layout, names, success); err != nil {
		return t.place.fail(err)
	}
	t.ledger.end()
	return nil
}

// Notes returns what the user should be told after Commit.
func (t *bucketTransaction) Notes() []string { return t.notes }

func (t *bucketTransaction) Abort() error {
	if !t.ledger.end() {
		return nil
	}
	t.mu.Lock()
	for _, a := range t.attempts {
		if a != nil {
			a.sink.cancel()
		}
	}
	t.mu.Unlock()
	return t.place.fail(t.place.discard())
}

// together calls do for 0 to n-1, several at the same time, and returns an error of one.
func together(n int, do func(i int) error) error {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error
		next  int
	)
	for range min(n, atOnce) {
		wg.Go(func() {
			for {
				mu.Lock()
				i, stop := next, first != nil || next >= n
				next++
				mu.Unlock()
				if stop {
					return
				}
				if err := do(i); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}
