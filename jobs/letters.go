// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"unicode"
	"unicode/utf8"
)

// Kinds of ASCII bytes for words made of letters.
const (
	notInWord = iota
	letter
	apostrophe
	beyondASCII
)

var letterKind = func() (kind [256]byte) {
	for b := range kind {
		switch {
		case 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z':
			kind[b] = letter
		case b == '\'':
			kind[b] = apostrophe
		case b >= utf8.RuneSelf:
			kind[b] = beyondASCII
		}
	}
	return kind
}()

// A letterScanner cuts text into words made of Unicode letters and marks, and
// of apostrophes (' and U+2019) that stand between two of these.
type letterScanner struct {
	data []byte
	pos  int
}

// next returns the next word as data[start:end]; ok is false at the end.
func (s *letterScanner) next() (start, end int, ok bool) {
	data, i := s.data, s.pos
	for i < len(data) {
		kind, n := kindAt(data, i)
		if kind == letter {
			break
		}
		i += n
	}
	if i >= len(data) {
		s.pos = i
		return 0, 0, false
	}
	start, end = i, i
	for i < len(data) {
		kind, n := kindAt(data, i)
		if kind == notInWord || kind == apostrophe && end < i {
			break // the latter: a second apostrophe in a row
		}
		i += n
		if kind == letter {
			end = i
		}
	}
	s.pos = i
	return start, end, true
}

func kindAt(data []byte, i int) (kind byte, n int) {
	if kind = letterKind[data[i]]; kind != beyondASCII {
		return kind, 1
	}
	r, n := utf8.DecodeRune(data[i:])
	switch {
	case r == utf8.RuneError && n == 1:
		return notInWord, 1
	case unicode.IsLetter(r) || unicode.IsMark(r):
		return letter, n
	case r == '\u2019':
		return apostrophe, n
	}
	return notInWord, n
}
