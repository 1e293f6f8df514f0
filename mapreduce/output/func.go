// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// Func returns a target that hands every row to fn. Rows of one part come in
// order, but parts may come at the same time, each in a goroutine of its own.
// The row and its bytes are valid only during the call. An error that fn
// returns, or a panic, fails the part. Nothing is taken back if the job fails
// after rows were handed over.
func Func(fn func(part int, r *Row) error) Target { return funcTarget{fn} }

type funcTarget struct {
	fn func(part int, r *Row) error
}

func (t funcTarget) Begin(info Info) (Transaction, error) {
	if t.fn == nil {
		return nil, errors.New("output: Func without a function")
	}
	l, err := newLedger("function", info.Parts)
	if err != nil {
		return nil, err
	}
	return &funcTransaction{fn: t.fn, ledger: l}, nil
}

type funcTransaction struct {
	fn     func(part int, r *Row) error
	ledger *ledger
}

func (t *funcTransaction) Part(index int) (Part, error) {
	p, err := t.ledger.open(index, func() (Part, sink, error) {
		return &funcPart{fn: t.fn, index: index}, noSink{}, nil
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (t *funcTransaction) Commit([]byte) error {
	if err := t.ledger.complete(); err != nil {
		return err
	}
	t.ledger.end()
	return nil
}

func (t *funcTransaction) Abort() error {
	t.ledger.end()
	return nil
}

type funcPart struct {
	fn    func(part int, r *Row) error
	index int
}

func (p *funcPart) Encoder() Encoder { return nil }

func (p *funcPart) Write([]byte) (int, error) {
	return 0, fmt.Errorf("bytes written to a function, which takes rows: %w", ErrState)
}

func (p *funcPart) WriteRow(r *Row) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the function panicked: %v\n%s", v, debug.Stack())
		}
	}()
	return p.fn(p.index, r)
}

func (p *funcPart) Close() error { return nil }

// noSink is for parts that keep no bytes.
type noSink struct{}

func (noSink) Write(p []byte) (int, error) { return len(p), nil }
func (noSink) finish() error               { return nil }
func (noSink) abandon()                    {}
