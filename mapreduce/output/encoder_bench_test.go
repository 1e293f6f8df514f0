// SPDX-License-Identifier: Apache-2.0

package output

import (
	"fmt"
	"testing"
)

// BenchmarkAppendRow encodes what a word count has most of: a short word and a
// small number.
func BenchmarkAppendRow(b *testing.B) {
	schema := Schema{Keys: []Column{{"key", Bytes}}, Values: []Column{{"value", Int}}}
	words := make([][]byte, 4096)
	for i := range words {
		words[i] = []byte(fmt.Sprintf("%.*s%d", i%20, "kmem_cache_alloc_node", i))
	}
	for _, f := range []Format{TSV, CSV, JSONL} {
		b.Run(string(f), func(b *testing.B) {
			enc, err := NewEncoder(f, schema)
			if err != nil {
				b.Fatal(err)
			}
			keys := make([]Value, 1)
			values := make([]Value, 1)
			row := Row{Keys: keys, Values: values}
			buf := make([]byte, 0, 1<<20)
			var bytes int64
			b.ReportAllocs()
			for i := range b.N {
				keys[0] = Value{Kind: Bytes, B: words[i&4095]}
				values[0] = Value{Kind: Int, I: int64(i & 1023)}
				before := len(buf)
				buf = enc.AppendRow(buf, &row)
				bytes += int64(len(buf) - before)
				if len(buf) > 1<<20-256 {
					buf = buf[:0]
				}
			}
			b.SetBytes(bytes / int64(b.N))
		})
	}
}
