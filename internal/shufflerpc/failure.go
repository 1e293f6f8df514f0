// SPDX-License-Identifier: Apache-2.0

package shufflerpc

import (
	"context"
	"errors"

	"github.com/quernmr/quern/shuffle"
)

// kinds are the errors that keep their identity across the wire; the place is
// the bit in Failure.Kinds and must not change within a version.
var kinds = []error{shuffle.ErrReset, shuffle.ErrUnknown, context.Canceled, context.DeadlineExceeded}

// Failure is an error as it travels. It is exported for gob alone.
type Failure struct {
	Text  string
	Kinds uint32
}

// maxText keeps an error's text, which may quote what was sent, from growing
// beyond the limit of messages.
const maxText = 64 << 10

func newFailure(err error) *Failure {
	if err == nil {
		return nil
	}
	f := &Failure{Text: err.Error()}
	if len(f.Text) > maxText {
		f.Text = f.Text[:maxText]
	}
	for i, k := range kinds {
		if errors.Is(err, k) {
			f.Kinds |= 1 << i
		}
	}
	return f
}

// err returns the error that f stands for, nil for a nil f.
func (f *Failure) err() error {
	if f == nil {
		return nil
	}
	e := &remoteError{text: f.Text}
	for i, k := range kinds {
		if f.Kinds&(1<<i) != 0 {
			e.kinds = append(e.kinds, k)
		}
	}
	return e
}

// remoteError is an error of the other side: its text, and the kinds that
// errors.Is shall find.
type remoteError struct {
	text  string
	kinds []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.kinds }
