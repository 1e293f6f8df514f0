// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"errors"
	"strconv"
)

// What goes wrong with numbers; a [*NumberError] wraps one of them.
var (
	ErrNotNumber  = errors.New("is not a number")
	ErrNotInteger = errors.New("is not an integer")
	ErrRange      = errors.New("is out of range")
)

// NumberError says what is wrong with a text that should be a number.
type NumberError struct {
	Text   string // at most its first 100 bytes
	Err    error  // ErrNotNumber, ErrNotInteger or ErrRange
	Advice string // what to do about it; may be empty
}

// Error gives the text in quotes, what is wrong and what to do.
func (e *NumberError) Error() string {
	s := strconv.Quote(e.Text) + " " + e.Err.Error()
	if e.Advice != "" {
		s += ": " + e.Advice
	}
	return s
}

// Unwrap gives ErrNotNumber, ErrNotInteger or ErrRange.
func (e *NumberError) Unwrap() error { return e.Err }

// ParseInt reads a decimal integer, such as "-12" or "+3", with or without white
// space around it. It fails with a [*NumberError]: ErrNotNumber, ErrNotInteger
// for numbers with a point or exponent, or ErrRange beyond 64 bits.
func ParseInt(b []byte) (int64, error) {
	if n := len(b); n > 0 && n <= 18 {
		i := 0
		if b[0] == '-' {
			i = 1
		}
		var v uint64
		for j := i; j < n; j++ {
			c := b[j] - '0'
			if c > 9 {
				return parseIntSlow(b)
			}
			v = v*10 + uint64(c)
		}
		if n > i {
			if i == 1 {
				return -int64(v), nil
			}
			return int64(v), nil
		}
	}
	return parseIntSlow(b)
}

func parseIntSlow(b []byte) (int64, error) {
	d, ok := parseDigits(b)
	if !ok {
		return 0, notNumber(b)
	}
	for _, c := range b {
		if c == '.' || c|0x20 == 'e' {
			return 0, &NumberError{Text: clip(b), Err: ErrNotInteger}
		}
	}
	var v uint64
	for _, c := range d.text {
		var fits bool
		if v, fits = timesPow10(v, 1); !fits || v+uint64(c-'0') < v {
			return 0, outOfRange(b, intAdvice)
		}
		v += uint64(c - '0')
	}
	r, fits := signed(v, d.neg)
	if !fits {
		return 0, outOfRange(b, intAdvice)
	}
	return r, nil
}

const intAdvice = "integers lie between -9223372036854775808 and 9223372036854775807"

// ParseFloat reads a decimal as the nearest float64. It fails with a
// [*NumberError]: ErrNotNumber (also for NaN, infinities, hexadecimal numbers),
// or ErrRange for numbers beyond the largest float64.
func ParseFloat(b []byte) (float64, error) {
	t := trimSpace(b)
	for _, c := range t {
		if c-'0' > 9 && c != '.' && c != '-' && c != '+' && c|0x20 != 'e' {
			return 0, notNumber(b)
		}
	}
	f, err := strconv.ParseFloat(string(t), 64)
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, strconv.ErrRange):
		return 0, outOfRange(b, "floats reach to 1.8e308")
	}
	return 0, notNumber(b)
}

// digits is a number taken apart.
type digits struct {
	neg   bool
	text  []byte // digits and perhaps a point, without leading zeros before the point
	count int    // significant digits: from the first that is not 0, to the last
	after int    // digits after the point
	exp   int    // exponent, limited to +-1e9
}

// parseDigits takes a number apart; false: it is none.
func parseDigits(b []byte) (d digits, ok bool) {
	b = trimSpace(b)
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		d.neg = b[0] == '-'
		b = b[1:]
	}
	from, i := 0, 0
	any, point := false, false
	for ; i < len(b); i++ {
		c := b[i]
		if c == '.' && !point {
			point = true
			continue
		}
		if c-'0' > 9 {
			break
		}
		any = true
		if point {
			d.after++
		}
		if d.count > 0 || c != '0' {
			if d.count == 0 {
				from = i
			}
			d.count++
		}
	}
	if !any {
		return d, false
	}
	if d.count > 0 {
		d.text = b[from:i]
	}
	if i < len(b) {
		if b[i]|0x20 != 'e' {
			return d, false
		}
		i++
		down := false
		if i < len(b) && (b[i] == '-' || b[i] == '+') {
			down = b[i] == '-'
			i++
		}
		if i == len(b) {
			return d, false
		}
		for ; i < len(b); i++ {
			c := b[i] - '0'
			if c > 9 {
				return d, false
			}
			d.exp = min(d.exp*10+int(c), 1e9)
		}
		if down {
			d.exp = -d.exp
		}
	}
	return d, true
}

// trimSpace cuts ASCII white space off both ends.
func trimSpace(b []byte) []byte {
	for len(b) > 0 && isSpace(b[0]) {
		b = b[1:]
	}
	for len(b) > 0 && isSpace(b[len(b)-1]) {
		b = b[:len(b)-1]
	}
	return b
}

func isSpace(c byte) bool { return c == ' ' || c-'\t' < 5 }

func notNumber(b []byte) error { return &NumberError{Text: clip(b), Err: ErrNotNumber} }

func outOfRange(b []byte, advice string) error {
	return &NumberError{Text: clip(b), Err: ErrRange, Advice: advice}
}

func clip(b []byte) string {
	if len(b) > 100 {
		return string(b[:100]) + "..."
	}
	return string(b)
}
