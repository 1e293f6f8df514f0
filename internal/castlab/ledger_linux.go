// SPDX-License-Identifier: Apache-2.0

package castlab

import (
	"errors"
	"fmt"
	"sync"

	"github.com/quernmr/quern/shuffle/broadcast"
)

// Part is what a member was given in a region.
type Part struct {
	Name     string
	Offset   int64
	Size     int64 // of the whole
	Kernel   bool
	Messages []Digest
	Ended    bool
	Err      string // why it ended, if not well
}

// ledger takes what comes to a member, and notes it.
type ledger struct {
	mu     sync.Mutex
	parts  []*Part
	have   map[string]bool      // names that the member has already
	retain bool                 // keep messages beyond their regions
	kept   []*broadcast.Mapping // what was retained, with the digests of what it is to hold
	sums   []Digest
}

func (l *ledger) incoming(o broadcast.Offer) (broadcast.Sink, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.have[o.Name] {
		return nil, broadcast.ErrHave
	}
	p := &Part{Name: o.Name, Offset: o.Offset, Size: o.Size, Kernel: o.Kernel}
	l.parts = append(l.parts, p)
	return &entry{l, p}, nil
}

// entry is a region's lines in a ledger.
type entry struct {
	l *ledger
	p *Part
}

// Message implements broadcast.Sink.
func (e *entry) Message(m *broadcast.Message) error {
	sum := digestOf(m.Bytes())
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	if e.p.Ended {
		return errors.New("a message after the end")
	}
	e.p.Messages = append(e.p.Messages, sum)
	if !e.l.retain {
		return nil
	}
	kept, err := m.Retain()
	if err != nil {
		return err
	}
	e.l.kept, e.l.sums = append(e.l.kept, kept), append(e.l.sums, sum)
	return nil
}

// End implements broadcast.Sink.
func (e *entry) End(err error) {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	if e.p.Ended {
		e.p.Err += "; it ended twice"
	}
	if e.p.Ended = true; err != nil {
		e.p.Err = fmt.Sprintf("%s%v", e.p.Err, err)
	}
}

// set says what the member has already, and whether it keeps what comes.
func (l *ledger) set(have []string, retain bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.have = map[string]bool{}
	for _, name := range have {
		l.have[name] = true
	}
	l.retain = retain
}

// of returns the lines of a name.
func (l *ledger) of(name string) (parts []Part) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.parts {
		if p.Name == name {
			c := *p
			c.Messages = append([]Digest(nil), p.Messages...)
			parts = append(parts, c)
		}
	}
	return parts
}

// letGo compares what was retained with what it held when it came, and gives it back.
func (l *ledger) letGo() error {
	l.mu.Lock()
	kept, sums := l.kept, l.sums
	l.kept, l.sums = nil, nil
	l.mu.Unlock()
	var errs []error
	for i, m := range kept {
		b, unmap, err := mapped(m.File, m.Offset, m.Size)
		if err == nil {
			if got := digestOf(b); got != sums[i] {
				err = fmt.Errorf("%d bytes that were retained are others than they were", m.Size)
			}
			err = errors.Join(err, unmap())
		}
		errs = append(errs, err, m.Close())
	}
	return errors.Join(errs...)
}
