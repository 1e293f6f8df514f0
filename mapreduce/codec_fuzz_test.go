// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"bytes"
	"math"
	"reflect"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

type fuzzKey struct {
	Name string
	N    int16
	Tag  [3]byte
	On   bool
	Rest []byte
}

// Keys come back from runs on disk: whatever bytes stand there must decode to a
// key that encodes to the same bytes, or be refused.
func FuzzKeyDecode(f *testing.F) {
	c, err := newKeyCodec(reflect.TypeFor[fuzzKey]())
	if err != nil {
		f.Fatal(err)
	}
	k := fuzzKey{"a\x00b", -5, [3]byte{1, 2, 3}, true, []byte{0, 1}}
	f.Add(c.append(nil, unsafe.Pointer(&k)))
	f.Add([]byte{0, 1})
	f.Add([]byte{0, 2})
	list := &keyCodec{kind: keyMany, list: true, count: 3}
	f.Fuzz(func(t *testing.T, b []byte) {
		var k fuzzKey
		if err := c.decode(b, unsafe.Pointer(&k)); err == nil {
			// Any byte but 0 counts as true, so that one may differ.
			if again := c.append(nil, unsafe.Pointer(&k)); len(again) != len(b) {
				t.Fatalf("%q became %q", b, again)
			}
		}
		var scratch []byte
		_, _ = c.values(nil, b, &scratch)
		var l Fields
		if err := list.decode(b, unsafe.Pointer(&l)); err == nil {
			if again := list.append(nil, unsafe.Pointer(&l)); !bytes.Equal(again, b) {
				t.Fatalf("%q became %q", b, again)
			}
		}
	})
}

func FuzzValueDecode(f *testing.F) {
	type value struct {
		A float64
		B string
		C int8
		D float32
	}
	c, err := valueCodec[value]()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(c.Append(nil, value{1.5, "x\x00", -3, -0.25}))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := c.Decode(b)
		if err == nil && !bytes.Equal(c.Append(nil, v), b) {
			t.Fatalf("%q became %q", b, c.Append(nil, v))
		}
		_, _ = skipOrder(b)
	})
}

// Encoded numbers sort as the numbers do.
func TestValuesSortAsTheyAre(t *testing.T) {
	c, err := valueCodec[float64]()
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		a, b := rapid.Float64().Draw(rt, "a"), rapid.Float64().Draw(rt, "b")
		if a != b && (a < b) != (bytes.Compare(c.Append(nil, a), c.Append(nil, b)) < 0) {
			rt.Fatalf("%v and %v", a, b)
		}
		if got, err := c.Decode(c.Append(nil, a)); err != nil || math.Float64bits(got) != math.Float64bits(a) {
			rt.Fatalf("%v became %v, %v", a, got, err)
		}
	})
}

func TestValueCodecFallsBack(t *testing.T) {
	type nested struct{ M map[string]int }
	c, err := valueCodec[nested]()
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.Decode(c.Append(nil, nested{map[string]int{"a": 1}}))
	if err != nil || v.M["a"] != 1 {
		t.Errorf("%v, %v", v, err)
	}
	if _, err := valueCodec[func()](); err == nil {
		t.Error("functions can be encoded?")
	}
}

// Fields come back as they were, whatever bytes they hold.
func TestFieldsRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0xff, 'a'}), 0, 6))
		k := Fields(rapid.SliceOfN(text, 1, 4).Draw(rt, "fields"))
		c := &keyCodec{kind: keyMany, list: true, count: len(k)}
		var got Fields
		if err := c.decode(c.append(nil, unsafe.Pointer(&k)), unsafe.Pointer(&got)); err != nil {
			rt.Fatal(err)
		}
		for i := range k {
			if !bytes.Equal(k[i], got[i]) {
				rt.Fatalf("%q became %q", k, got)
			}
		}
	})
}
