// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
)

// DefaultLog is how many bytes of a program's output are kept where nothing else is said.
const DefaultLog = 512 << 10

// Log keeps the first and the last part of what a program writes. It never fails: what
// can't be written to its file is left out.
type Log struct {
	mu    sync.Mutex
	path  string
	file  *os.File // nil: not made yet, or closed
	first int      // most bytes of the first part
	limit int      // most bytes of the last part
	head  int      // bytes in the file
	tail  []byte   // a ring, once it is full
	next  int      // where the ring begins
	total int64
	done  bool
}

// NewLog returns a log of at most limit bytes (0: DefaultLog) in the file of that
// path, which is made with the first byte. With path "" only the last part is kept.
func NewLog(path string, limit int) *Log {
	if limit <= 0 {
		limit = DefaultLog
	}
	half := max(limit/2, 1)
	return &Log{path: path, first: half, limit: half}
}

// Write takes all of p.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(p)
	if l.done || n == 0 {
		return n, nil
	}
	l.total += int64(n)
	if l.path != "" && l.head < l.first {
		if l.file == nil {
			f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
			if err != nil {
				l.path = "" // the last part is still worth having
			} else {
				l.file = f
			}
		}
		if l.file != nil {
			part := p[:min(len(p), l.first-l.head)]
			m, err := l.file.Write(part)
			l.head += m
			p = p[m:]
			if err != nil {
				l.first = l.head
			}
		}
	}
	l.ring(p)
	return n, nil
}

func (l *Log) ring(p []byte) {
	if over := len(p) - l.limit; over > 0 {
		p = p[over:]
	}
	if free := l.limit - len(l.tail); free > 0 {
		m := min(free, len(p))
		l.tail = append(l.tail, p[:m]...)
		p = p[m:]
	}
	for len(p) > 0 {
		m := copy(l.tail[l.next:], p)
		l.next = (l.next + m) % len(l.tail)
		p = p[m:]
	}
}

// last returns the last part, in order. The caller holds the lock.
func (l *Log) last() []byte {
	return append(append([]byte{}, l.tail[l.next:]...), l.tail[:l.next]...)
}

// Bytes returns what is kept.
func (l *Log) Bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b []byte
	if l.path != "" {
		b, _ = os.ReadFile(l.path) // it may not be there yet
	}
	if l.done {
		return b
	}
	return append(b, l.rest()...)
}

// rest is what follows the file's content.
func (l *Log) rest() []byte {
	last := l.last()
	if left := l.total - int64(l.head) - int64(len(last)); left > 0 {
		return append(fmt.Appendf(nil, "\n[... %d bytes left out ...]\n", left), last...)
	}
	return last
}

// Tail returns the last lines, at most lines of them and about bytes long.
func (l *Log) Tail(lines, size int) string {
	text := strings.ToValidUTF8(string(bytes.TrimRight(l.Bytes(), "\n\r\t ")), "?")
	if cut := len(text) - size; cut > 0 {
		text = text[cut:]
		if i := strings.IndexByte(text, '\n'); i >= 0 && i < len(text)/2 {
			text = text[i+1:]
		}
	}
	all := strings.Split(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// crashes is how the report of a Go program's crash begins.
var crashes = regexp.MustCompile(`(?m)^(panic: |fatal error: |SIG[A-Z]+: |runtime: )`)

// lastWords is Tail, or the beginning of the report of a crash, which says more than its end.
func (l *Log) lastWords(lines, size int) string {
	tail := l.Tail(200, 64<<10)
	at := crashes.FindStringIndex(tail)
	if at == nil {
		return l.Tail(lines, size)
	}
	all := strings.SplitN(tail[at[0]:], "\n", lines+1)
	text := strings.Join(all[:min(len(all), lines)], "\n")
	return text[:min(len(text), size)]
}

// Close writes what is still in memory to the file. The log can be read afterwards, and
// takes nothing more.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done || l.path == "" {
		return nil
	}
	l.done = true
	if l.file == nil {
		l.path = "" // nothing was written
		return nil
	}
	_, err := l.file.Write(l.rest())
	l.tail, l.next = nil, 0
	if err2 := l.file.Close(); err == nil {
		err = err2
	}
	l.file = nil
	return err
}
