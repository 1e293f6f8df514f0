// SPDX-License-Identifier: Apache-2.0

package output

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// TestCompressionIsDeterministic: the bytes depend on the text alone, not on
// how it was cut nor on what an encoder did before.
func TestCompressionIsDeterministic(t *testing.T) {
	words := bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog, again and again\t1\n"), 1<<16)
	for i := range words { // not all the same
		words[i] += byte(i>>12) & 3
	}
	for _, compression := range []string{Gzip, Zstd} {
		rapid.Check(t, func(t *rapid.T) {
			size := rapid.SampledFrom([]int{0, 1, 100, 70_000, compressUnit - 1, compressUnit, compressUnit + 1, 2*compressUnit + 5}).Draw(t, "size")
			from := rapid.IntRange(0, 1<<20).Draw(t, "from")
			text := words[from : from+size]
			cut := rapid.SampledFrom([]int{1 << 30, compressUnit, 999_983, 4096, 50_021}).Draw(t, "cut")

			var whole, pieces bytes.Buffer
			for w, n := range map[*bytes.Buffer]int{&whole: 1 << 30, &pieces: cut} {
				// Leave something behind in the shared encoders.
				noise := words[rapid.IntRange(0, 1<<20).Draw(t, "noise"):][:30_000]
				for _, f := range []func(dst, text []byte) ([]byte, error){appendGzip, appendZstd} {
					if _, err := f(nil, noise); err != nil {
						t.Fatal(err)
					}
				}
				c, err := newCompressor(w, compression)
				if err != nil {
					t.Fatal(err)
				}
				for rest := text; len(rest) > 0; rest = rest[min(n, len(rest)):] {
					p := rest[:min(n, len(rest))]
					if wrote, err := c.Write(p); wrote != len(p) || err != nil {
						t.Fatalf("wrote %d of %d: %v", wrote, len(p), err)
					}
				}
				if err := c.finish(); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(whole.Bytes(), pieces.Bytes()) {
				t.Fatalf("%s: %d bytes cut at %d, %d not cut", compression, pieces.Len(), cut, whole.Len())
			}
		})
		var b bytes.Buffer
		c, err := newCompressor(&b, compression)
		must(t, err)
		long := words[:3*compressUnit+17]
		_, err = c.Write(long)
		must(t, err)
		must(t, c.finish())
		if !bytes.Equal(decompress(t, b.Bytes(), compression), long) {
			t.Errorf("%s: read back otherwise", compression)
		}
	}
}
