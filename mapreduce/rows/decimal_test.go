// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// withRoom gives the text in front of other digits, and alone: one is read as a
// word, the other byte by byte.
func withRoom(s string) [][]byte {
	alone := []byte(s)
	return [][]byte{[]byte(s + "98765.43210-98765")[:len(s)], alone[:len(alone):len(alone)]}
}

func TestParseDecimal(t *testing.T) {
	for _, c := range []struct {
		text     string
		mantissa int64
		scale    uint8
		err      error
	}{
		{"0", 0, 0, nil},
		{"-0", 0, 0, nil},
		{"7", 7, 0, nil},
		{"-12.3", -123, 1, nil},
		{"123456", 123456, 0, nil},
		{"12345678", 12345678, 0, nil},
		{"-1234567", -1234567, 0, nil},
		{"123456789", 123456789, 0, nil},
		{"-12345678", -12345678, 0, nil},
		{"-12.50", -1250, 2, nil},
		{"+3", 3, 0, nil},
		{"+12.50", 1250, 2, nil},
		{"1e3", 1000, 0, nil},
		{"2.5E-4", 25, 5, nil},
		{"1.50e1", 150, 1, nil},
		{".5", 5, 1, nil},
		{"-.5", -5, 1, nil},
		{"5.", 5, 0, nil},
		{"-5.", -5, 0, nil},
		{"00012", 12, 0, nil},
		{"0.0001", 1, 4, nil},
		{"0000000000000000000000001.5", 15, 1, nil},
		{" 12 ", 12, 0, nil},
		{"\t-1.5\r", -15, 1, nil},
		{"12 ", 12, 0, nil},
		{"9223372036854775807", math.MaxInt64, 0, nil},
		{"-9223372036854775808", math.MinInt64, 0, nil},
		{"9223372036854775807.000", math.MaxInt64, 0, nil},
		{"922337203685477580.7", math.MaxInt64, 1, nil},
		{"9.223372036854775807e18", math.MaxInt64, 0, nil},
		{"922337203685477580.70", math.MaxInt64, 1, nil},
		{"0.000000000000000001", 1, 18, nil},
		{"1e-18", 1, 18, nil},
		{"10e-19", 1, 18, nil},
		{"0e999999999999", 0, 0, nil},
		{"0e-999999999999", 0, 18, nil},
		{"0.5000000000000000000000", 500000000000000000, 18, nil},
		{"100e-2", 100, 2, nil},
		{"1e18", 1e18, 0, nil},
		{"9223372036854775808", 0, 0, ErrRange},
		{"-9223372036854775809", 0, 0, ErrRange},
		{"1e19", 0, 0, ErrRange},
		{"1e-19", 0, 0, ErrRange},
		{"18446744073709551616", 0, 0, ErrRange},
		{"18446744073709551617", 0, 0, ErrRange},
		{"1e999999999999", 0, 0, ErrRange},
		{"0.1234567890123456789", 0, 0, ErrRange},
		{"92233720368547758.0000000001", 0, 0, ErrRange},
		{"", 0, 0, ErrNotNumber},
		{" ", 0, 0, ErrNotNumber},
		{"-", 0, 0, ErrNotNumber},
		{".", 0, 0, ErrNotNumber},
		{"-.", 0, 0, ErrNotNumber},
		{"x7", 0, 0, ErrNotNumber},
		{"7x", 0, 0, ErrNotNumber},
		{"1.2.3", 0, 0, ErrNotNumber},
		{"--1", 0, 0, ErrNotNumber},
		{"1-", 0, 0, ErrNotNumber},
		{"+-1", 0, 0, ErrNotNumber},
		{"1 2", 0, 0, ErrNotNumber},
		{"1,5", 0, 0, ErrNotNumber},
		{"1_000", 0, 0, ErrNotNumber},
		{"NaN", 0, 0, ErrNotNumber},
		{"Inf", 0, 0, ErrNotNumber},
		{"-inf", 0, 0, ErrNotNumber},
		{"0x10", 0, 0, ErrNotNumber},
		{"1e", 0, 0, ErrNotNumber},
		{"1e+", 0, 0, ErrNotNumber},
		{"e5", 0, 0, ErrNotNumber},
		{"1e5.0", 0, 0, ErrNotNumber},
		{"\xb0", 0, 0, ErrNotNumber},
		{"1/2", 0, 0, ErrNotNumber},
		{"1:2", 0, 0, ErrNotNumber},
	} {
		for i, b := range withRoom(c.text) {
			m, s, err := ParseDecimal(b)
			if m != c.mantissa || s != c.scale || !errors.Is(err, c.err) {
				t.Errorf("%q (%d): got %d, %d, %v", c.text, i, m, s, err)
			}
		}
	}
}

func TestNumberErrors(t *testing.T) {
	_, _, err := ParseDecimal([]byte("x7"))
	checkError(t, err, []string{`"x7" is not a number`})
	_, _, err = ParseDecimal([]byte("1e40"))
	checkError(t, err, []string{`"1e40" is out of range`, "round"})
	_, err = ParseInt([]byte("1.5"))
	checkError(t, err, []string{`"1.5" is not an integer`})
	_, _, err = ParseDecimal([]byte(strings.Repeat("x", 1000)))
	if len(err.Error()) > 150 {
		t.Errorf("a long text is quoted whole: %v", err)
	}
}

func TestParseInt(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64
		err  error
	}{
		{"0", 0, nil},
		{"-12", -12, nil},
		{"+3", 3, nil},
		{" 4\t", 4, nil},
		{"000000000000000000000000000005", 5, nil},
		{"9223372036854775807", math.MaxInt64, nil},
		{"-9223372036854775808", math.MinInt64, nil},
		{"9223372036854775808", 0, ErrRange},
		{"-9223372036854775809", 0, ErrRange},
		{"18446744073709551617", 0, ErrRange},
		{"99999999999999999999999", 0, ErrRange},
		{"1.0", 0, ErrNotInteger},
		{"1e3", 0, ErrNotInteger},
		{"", 0, ErrNotNumber},
		{"-", 0, ErrNotNumber},
		{"a", 0, ErrNotNumber},
		{"1a", 0, ErrNotNumber},
	} {
		got, err := ParseInt([]byte(c.text))
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%q: got %d, %v", c.text, got, err)
		}
	}
}

func TestRoundDecimal(t *testing.T) {
	for _, c := range []struct {
		text   string
		places int
		want   int64
		err    error
	}{
		{"12.345", 2, 1234, nil},
		{"12.355", 2, 1236, nil},
		{"12.3451", 2, 1235, nil},
		{"-12.345", 2, -1234, nil},
		{"12.3", 2, 1230, nil},
		{"0.5", 0, 0, nil},
		{"1.5", 0, 2, nil},
		{"2.5", 0, 2, nil},
		{"-2.5000001", 0, -3, nil},
		{"0.05", 0, 0, nil},
		{"0.99", 0, 1, nil},
		{"9.995", 2, 1000, nil},
		{"5e-1", 0, 0, nil},
		{"15e-1", 0, 2, nil},
		{"1e3", 2, 100000, nil},
		{"1e-999999", 5, 0, nil},
		{"9223372036854775807.4", 0, math.MaxInt64, nil},
		{"9223372036854775807.5", 0, 0, ErrRange},
		{"-9223372036854775808.5", 0, math.MinInt64, nil},
		{"18446744073709551615.9", 0, 0, ErrRange},
		{"0.1234567890123456789012345678901234567890", 18, 123456789012345679, nil},
		{"1e19", 0, 0, ErrRange},
		{"10", 18, 0, ErrRange},
		{"0.6", 0, 1, nil},
		{"0.51", 0, 1, nil},
		{"0", 18, 0, nil},
		{"x", 0, 0, ErrNotNumber},
	} {
		got, err := RoundDecimal([]byte(c.text), c.places)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%q to %d places: got %d, %v", c.text, c.places, got, err)
		}
	}
	if _, err := RoundDecimal([]byte("1"), 19); err == nil {
		t.Error("19 places are taken")
	}
}

func TestParseFloat(t *testing.T) {
	for _, s := range []string{"0", "1.5", " -2e10 ", "+.5", "1e-400", "0.1", "123456789012345678901234567890.123456789012345678901234567890"} {
		got, err := ParseFloat([]byte(s))
		want, _ := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil || got != want {
			t.Errorf("%q: got %v, %v", s, got, err)
		}
	}
	for s, want := range map[string]error{"NaN": ErrNotNumber, "inf": ErrNotNumber, "0x1p4": ErrNotNumber, "": ErrNotNumber, "1_0": ErrNotNumber, "e": ErrNotNumber, "1e400": ErrRange} {
		if _, err := ParseFloat([]byte(s)); !errors.Is(err, want) {
			t.Errorf("%q: got %v", s, err)
		}
	}
}

func TestAppendDecimal(t *testing.T) {
	for _, c := range []struct {
		mantissa int64
		scale    uint8
		want     string
	}{
		{0, 0, "0"}, {0, 2, "0.00"}, {-123, 1, "-12.3"}, {5, 1, "0.5"}, {-5, 3, "-0.005"}, {math.MinInt64, 0, "-9223372036854775808"}, {math.MinInt64, 18, "-9.223372036854775808"}, {1, 18, "0.000000000000000001"},
	} {
		if got := string(AppendDecimal(nil, c.mantissa, c.scale)); got != c.want {
			t.Errorf("%d, %d: got %s, want %s", c.mantissa, c.scale, got, c.want)
		}
	}
}

// exact reads a number with math/big; nil: it is none.
func exact(s string) *big.Rat {
	s = strings.Trim(s, " \t\n\v\f\r")
	digits := false
	for _, c := range s {
		if c >= '0' && c <= '9' {
			digits = true
		} else if !strings.ContainsRune("+-.eE", c) {
			return nil
		}
	}
	if !digits {
		return nil
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return nil
	}
	return r
}

func power(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

// sameAsBig compares all readers of numbers with math/big.
func sameAsBig(t failer, s string) {
	t.Helper()
	if i := strings.IndexAny(s, "eE"); i >= 0 && len(s)-i > 5 {
		return // math/big would write the exponent out
	}
	want := exact(s)
	for _, b := range withRoom(s) {
		m, scale, err := ParseDecimal(b)
		switch {
		case want == nil:
			if !errors.Is(err, ErrNotNumber) {
				t.Fatalf("%q is not a number: got %d, %d, %v", s, m, scale, err)
			}
		case err == nil:
			if scale > MaxScale {
				t.Fatalf("%q: scale %d", s, scale)
			}
			if got := new(big.Rat).SetFrac(big.NewInt(m), power(int(scale))); got.Cmp(want) != 0 {
				t.Fatalf("%q: got %d, %d", s, m, scale)
			}
		case errors.Is(err, ErrRange):
			for scale := range MaxScale + 1 {
				v := new(big.Rat).Mul(want, new(big.Rat).SetInt(power(scale)))
				if v.IsInt() && v.Num().IsInt64() {
					t.Fatalf("%q has room as %v, scale %d, but: %v", s, v, scale, err)
				}
			}
		default:
			t.Fatalf("%q: %v", s, err)
		}
		for _, places := range []int{0, 1, 2, 9, 18} {
			got, err := RoundDecimal(b, places)
			if want == nil {
				if !errors.Is(err, ErrNotNumber) {
					t.Fatalf("%q is not a number: got %d, %v", s, got, err)
				}
				continue
			}
			v := halfEven(new(big.Rat).Mul(want, new(big.Rat).SetInt(power(places))))
			if v.IsInt64() != (err == nil) || err == nil && v.Int64() != got || err != nil && !errors.Is(err, ErrRange) {
				t.Fatalf("%q to %d places: got %d, %v, want %v", s, places, got, err, v)
			}
		}
		i, err := ParseInt(b)
		if plain := want != nil && !strings.ContainsAny(s, ".eE"); plain != (err == nil || errors.Is(err, ErrRange)) {
			t.Fatalf("%q as an integer: %d, %v", s, i, err)
		} else if plain && (want.Num().IsInt64() != (err == nil) || err == nil && want.Num().Int64() != i) {
			t.Fatalf("%q as an integer: got %d, %v", s, i, err)
		}
		f, err := ParseFloat(b)
		if (want == nil) != errors.Is(err, ErrNotNumber) {
			t.Fatalf("%q as a float: %v, %v", s, f, err)
		}
	}
}

func halfEven(r *big.Rat) *big.Int {
	q, rest := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	switch c := rest.Lsh(rest, 1).Cmp(r.Denom()); {
	case c > 0 || c == 0 && q.Bit(0) == 1:
		q.Add(q, big.NewInt(1))
	}
	return q
}

func FuzzDecimal(f *testing.F) {
	for _, s := range []string{"-12.3", "123456", "1e3", "2.5E-4", "9223372036854775807", "-9223372036854775808", " +0.5 ", "1.2.3", ".", "0.1234567890123456789", "18446744073709551615.5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) { sameAsBig(t, s) })
}

func TestDecimalsEqualBig(t *testing.T) {
	number := rapid.StringMatching(`[ ]?[+-]?[0-9]{0,22}(\.[0-9]{0,22})?([eE][+-]?[0-9]{1,2})?[ ]?`)
	near := rapid.StringMatching(`[-+.e0-9x/:]{1,9}`)
	rapid.Check(t, func(r *rapid.T) {
		sameAsBig(r, number.Draw(r, "number"))
		sameAsBig(r, near.Draw(r, "near"))
	})
}

func TestDecimalsRoundTrip(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := rapid.Int64().Draw(r, "mantissa")
		scale := uint8(rapid.IntRange(0, MaxScale).Draw(r, "scale"))
		text := AppendDecimal(nil, m, scale)
		gotM, gotS, err := ParseDecimal(text)
		if err != nil || gotM != m || gotS != scale {
			r.Fatalf("%s: got %d, %d, %v, want %d, %d", text, gotM, gotS, err, m, scale)
		}
	})
}

func TestShortDecimalsExhaustively(t *testing.T) {
	// Every text of up to five of these bytes.
	alphabet := "-.059e/:"
	var try func(s string)
	try = func(s string) {
		want := exact(s)
		for _, b := range withRoom(s) {
			m, scale, err := ParseDecimal(b)
			if (want == nil) != (err != nil) && !errors.Is(err, ErrRange) {
				t.Fatalf("%q: got %d, %d, %v", s, m, scale, err)
			}
			if err == nil {
				if got := new(big.Rat).SetFrac(big.NewInt(m), power(int(scale))); got.Cmp(want) != 0 {
					t.Fatalf("%q: got %d, %d", s, m, scale)
				}
			}
		}
		if len(s) < 5 {
			for _, c := range alphabet {
				try(s + string(c))
			}
		}
	}
	try("")
}

func TestNumbersDoNotAllocate(t *testing.T) {
	texts := [][]byte{[]byte("-12.3"), []byte("123456789.25"), []byte("9223372036854775807"), []byte("1e3"), []byte("+2.50")}
	n := testing.AllocsPerRun(100, func() {
		for _, b := range texts {
			if _, _, err := ParseDecimal(b); err != nil {
				t.Fatal(err)
			}
			if _, err := RoundDecimal(b, 2); err != nil && !errors.Is(err, ErrRange) {
				t.Fatal(err)
			}
			if _, err := ParseFloat(b); err != nil {
				t.Fatal(err)
			}
		}
	})
	if n > 3 { // the one error that RoundDecimal makes of 9223372036854775807
		t.Fatal(fmt.Sprint(n, " allocations"))
	}
}
