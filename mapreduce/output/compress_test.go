// SPDX-License-Identifier: Apache-2.0

package output

import (
	"bytes"
	"testing"
)

// TestCompressionIsDeterministic: the bytes depend on the text alone, not on
// how it was cut nor on what an encoder did before.
func TestCompressionIsDeterministic(t *testing.T) {
	words := bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog, again and again\t1\n"), 1<<16)
	for i := range words { // not all the same
		words[i] += byte(i>>12) & 3
	}
	for _, compression := range []string{Gzip, Zstd} {
		for _, c := range []struct{ size, cut int }{
			{0, 1},
			{1, 1},
			{100, 7},
			{70_000, 4096},
			{compressUnit - 1, 50_021},
			{compressUnit, 50_021},
			{compressUnit, compressUnit},
			{compressUnit + 1, compressUnit},
			{2*compressUnit + 5, 999_983},
		} {
			text := words[c.size&1023:][:c.size]
			whole := compressed(t, compression, text, 1<<30)
			// Leave something behind in the shared encoders.
			for _, f := range []func(dst, text []byte) ([]byte, error){appendGzip, appendZstd} {
				_, err := f(nil, words[c.cut:][:30_000])
				must(t, err)
			}
			pieces := compressed(t, compression, text, c.cut)
			if !bytes.Equal(whole, pieces) {
				t.Errorf("%s of %d bytes: %d cut at %d, %d not cut", compression, c.size, len(pieces), c.cut, len(whole))
			}
			if !bytes.Equal(decompress(t, whole, compression), text) {
				t.Errorf("%s of %d bytes: read back otherwise", compression, c.size)
			}
		}
	}
}

// compressed compresses text, written in pieces of cut bytes.
func compressed(t *testing.T, compression string, text []byte, cut int) []byte {
	t.Helper()
	var b bytes.Buffer
	c, err := newCompressor(&b, compression)
	must(t, err)
	for rest := text; len(rest) > 0; rest = rest[min(cut, len(rest)):] {
		p := rest[:min(cut, len(rest))]
		if wrote, err := c.Write(p); wrote != len(p) || err != nil {
			t.Fatalf("wrote %d of %d: %v", wrote, len(p), err)
		}
	}
	must(t, c.finish())
	return b.Bytes()
}
