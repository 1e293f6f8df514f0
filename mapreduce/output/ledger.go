// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
)

// ledger keeps account of a transaction's parts: each is opened once at most
// and closed without error before a commit.
type ledger struct {
	name string // of the output, for errors

	mu    sync.Mutex
	parts []*ledgerPart // nil: never opened
	ended bool          // committed or aborted
}

func newLedger(name string, parts int) (*ledger, error) {
	if parts < 1 {
		return nil, fmt.Errorf("output %s: %d parts, but it needs one at least: %w", name, parts, ErrState)
	}
	return &ledger{name: name, parts: make([]*ledgerPart, parts)}, nil
}

// open opens a part by make, which is called once for each part at most, and
// never after the end.
func (l *ledger) open(index int, make func() (Part, sink, error)) (*ledgerPart, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended:
		return nil, fmt.Errorf("output %s: part %d opened after the end: %w", l.name, index, ErrState)
	case index < 0 || index >= len(l.parts):
		return nil, fmt.Errorf("output %s: part %d opened, but there are parts 0 to %d: %w", l.name, index, len(l.parts)-1, ErrState)
	case l.parts[index] != nil:
		return nil, fmt.Errorf("output %s: part %d opened twice: %w", l.name, index, ErrState)
	}
	inner, s, err := make()
	if err != nil {
		if s != nil {
			s.abandon()
		}
		return nil, fmt.Errorf("output %s: part %d: %w%s", l.name, index, err, advice(err))
	}
	p := &ledgerPart{inner: inner, sink: s, index: index, ledger: l}
	l.parts[index] = p
	return p, nil
}

// complete says what keeps a commit from being made.
func (l *ledger) complete() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return fmt.Errorf("output %s: commit after the end: %w", l.name, ErrState)
	}
	for i, p := range l.parts {
		if p == nil {
			continue
		}
		if p.result != nil {
			return p.result
		}
		if !p.closed {
			return fmt.Errorf("output %s: commit while part %d is open: %w", l.name, i, ErrState)
		}
	}
	return nil
}

// missing returns the parts never opened.
func (l *ledger) missing() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	var m []int
	for i, p := range l.parts {
		if p == nil {
			m = append(m, i)
		}
	}
	return m
}

// end closes the books and gives up parts still open. It reports false if that
// was done before.
func (l *ledger) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.ended = true
	for _, p := range l.parts {
		if p != nil && !p.closed {
			p.sink.abandon()
		}
	}
	return true
}

// ledgerPart adds to a part's errors where they happened, and remembers the
// first: nothing is written behind a hole.
type ledgerPart struct {
	inner  Part
	sink   sink
	index  int
	ledger *ledger
	err    error // of the writing goroutine

	// guarded by ledger.mu
	closed bool
	result error
}

func (p *ledgerPart) Encoder() Encoder { return p.inner.Encoder() }

func (p *ledgerPart) Write(b []byte) (int, error) {
	if p.err != nil {
		return 0, p.err
	}
	n, err := p.inner.Write(b)
	if err != nil {
		return n, p.failed(err)
	}
	return n, nil
}

func (p *ledgerPart) WriteRow(r *Row) error {
	if p.err != nil {
		return p.err
	}
	if err := p.inner.WriteRow(r); err != nil {
		return p.failed(err)
	}
	return nil
}

func (p *ledgerPart) failed(err error) error {
	p.err = fmt.Errorf("output %s: part %d: %w%s", p.ledger.name, p.index, err, advice(err))
	return p.err
}

// advice says what to do about an error, if the error does not.
func advice(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return ": make room on that disk, or write to another one"
	case errors.Is(err, syscall.EMFILE):
		return ": raise the limit of open files (ulimit -n), or ask for fewer partitions"
	}
	return ""
}

// Close closes the part. If it could not be written, Close returns that error,
// as often as it is called.
func (p *ledgerPart) Close() error {
	p.ledger.mu.Lock()
	closed, result := p.closed, p.result
	p.ledger.mu.Unlock()
	if closed {
		return result
	}
	if p.err == nil {
		if err := p.inner.Close(); err != nil {
			p.failed(err)
		}
	}
	if p.err != nil {
		p.sink.abandon()
	}
	p.ledger.mu.Lock()
	p.closed, p.result = true, p.err
	result = p.err
	p.ledger.mu.Unlock()
	if p.err == nil {
		p.err = fmt.Errorf("output %s: part %d: written to after it was closed: %w", p.ledger.name, p.index, ErrState)
	}
	return result
}

// fill writes an empty part, header and all.
func (p *ledgerPart) fill() error {
	if enc := p.Encoder(); enc != nil {
		if header := enc.AppendHeader(nil); len(header) > 0 {
			_, _ = p.Write(header) // Close returns the error, too
		}
	}
	return p.Close()
}
