// SPDX-License-Identifier: Apache-2.0

package task

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// MaxMessage is how long a message may be, in bytes: the reader keeps it whole in memory.
const MaxMessage = 256 << 20

// ErrMessage is what an error is whose cause is the other end: it sent something
// that is no message of this protocol, or one longer than MaxMessage.
var ErrMessage = errors.New("no message of the task protocol")

// reader reads messages, one a line. It is used by one goroutine at a time.
type reader struct {
	r   *bufio.Reader
	max int
}

func newReader(r io.Reader, most int) *reader {
	return &reader{r: bufio.NewReaderSize(r, 64<<10), max: most}
}

// line returns the next line without its end, in memory of its own. It returns
// io.EOF at the end of the stream and io.ErrUnexpectedEOF within a line.
func (r *reader) line() ([]byte, error) {
	var line []byte
	for {
		part, err := r.r.ReadSlice('\n')
		if len(line)+len(part) > r.max {
			return nil, fmt.Errorf("%w: it is longer than %d bytes", ErrMessage, r.max)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

// read decodes the next message.
func (r *reader) read(v any) error {
	line, err := r.line()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, v); err != nil {
		return fmt.Errorf("%w: %w: %q", ErrMessage, err, line[:min(len(line), 80)])
	}
	return nil
}

// reply reads a Reply.
func (r *reader) reply() (*Reply, error) {
	m := &Reply{}
	if err := r.read(m); err != nil {
		return nil, err
	}
	if n := m.fields(); n != 1 {
		return nil, fmt.Errorf("%w: a reply with %d contents", ErrMessage, n)
	}
	return m, nil
}

// fields counts the fields that are set.
func (m *Reply) fields() int {
	n := 0
	for _, set := range []bool{
		m.Hello != nil, m.Call != nil, m.Progress != nil, m.Ready != nil, m.Sum != nil, m.Keep != nil, m.Plan != nil,
		m.Map != nil, m.Reduce != nil, m.Commit != nil, m.Error != nil,
	} {
		if set {
			n++
		}
	}
	return n
}

// writer writes messages; several goroutines may use it.
type writer struct {
	mu  sync.Mutex
	w   io.Writer
	err error // of a line that was begun and not ended
}

func (w *writer) write(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) >= MaxMessage || bytes.IndexByte(b, '\n') >= 0 {
		return fmt.Errorf("%w: %d bytes are too long", ErrMessage, len(b))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	_, w.err = w.w.Write(append(b, '\n'))
	return w.err
}
