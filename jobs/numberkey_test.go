// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func TestNumberKeyOrder(t *testing.T) {
	ascending := []string{
		"-1e400", "-123456789012345678901234567890", "-100", "-99.5", "-99.49", "-10", "-9", "-1.5", "-1", "-0.5", "-0.05", "-1e-300",
		"0", "1e-300", "0.05", ".5", "0.50001", "1", "1.5", "9", "10", "99.49", "99.5", "1e2", "100.1", "123456789012345678901234567890", "1e400",
	}
	var before []byte
	for i, text := range ascending {
		key, ok := appendNumberKey(nil, []byte(text))
		if !ok {
			t.Fatalf("%s: no number", text)
		}
		if i > 0 && bytes.Compare(before, key) >= 0 {
			t.Errorf("%s does not sort before %s", ascending[i-1], text)
		}
		before = key
	}
	for _, same := range [][2]string{{"1", "1.0"}, {"100", "1e2"}, {"0", "-0.00"}, {"0.5", ".5"}, {" 7 ", "+7."}, {"10.0", "10"}, {"1000", "1e3"}, {"0e9", "0"}} {
		a, _ := appendNumberKey(nil, []byte(same[0]))
		b, _ := appendNumberKey(nil, []byte(same[1]))
		if !bytes.Equal(a, b) {
			t.Errorf("%q and %q have different keys", same[0], same[1])
		}
	}
	for _, text := range []string{"", "x", "1x", "-", ".", "1e", "1e+", "NaN", "inf", "0x10", "1,5", "1e99999999999999999999"} {
		if key, ok := appendNumberKey(nil, []byte(text)); ok || !bytes.Equal(key, []byte{numberNone}) {
			t.Errorf("%q: key %x, number %v; want no number", text, key, ok)
		}
	}
}

func TestNumberKeyAgreesWithBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.StringMatching(`[+-]?(\d{1,6}(\.\d{0,4})?|\.\d{1,4})(e[+-]?\d{1,2})?`)
		a, b := number.Draw(t, "a"), number.Draw(t, "b")
		ra, oka := new(big.Rat).SetString(a)
		rb, okb := new(big.Rat).SetString(b)
		if !oka || !okb {
			t.Skip("not a number to math/big")
		}
		ka, _ := appendNumberKey(nil, []byte(a))
		kb, _ := appendNumberKey(nil, []byte(b))
		if bytes.Compare(ka, kb) != ra.Cmp(rb) {
			t.Fatalf("%s and %s: keys compare as %d, numbers as %d", a, b, bytes.Compare(ka, kb), ra.Cmp(rb))
		}
	})
}

func TestDescending(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SliceOf(rapid.SampledFrom([]byte{0, 1, 2, 'a', 0xFE, 0xFF}))
		a, b := text.Draw(t, "a"), text.Draw(t, "b")
		ka, kb := appendDescending(nil, a), appendDescending(nil, b)
		if bytes.Compare(ka, kb) != -bytes.Compare(a, b) {
			t.Fatalf("order of %q and %q is not turned around", a, b)
		}
		if got := parseDescending(nil, ka); !bytes.Equal(got, a) {
			t.Fatalf("%q reads back as %q", a, got)
		}
	})
}
