// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
)

// smallRun returns a run with several parts and blocks as bytes, and its pairs.
func smallRun(t testing.TB, c Compression) ([]byte, []pair) {
	var pairs []pair
	for part := range 3 {
		for i := range 12 {
			pairs = append(pairs, pair{part, fmt.Sprintf("a common start %03d", i/2), strings.Repeat("payload", i%4)})
		}
	}
	slices.SortFunc(pairs, comparePairs)
	r := writeRun(t, runPath(t.TempDir(), "run"), Options{BlockSize: 150, Compression: c}, pairs)
	defer r.Remove()
	b, err := os.ReadFile(r.Path())
	if err != nil {
		t.Fatal(err)
	}
	return b, pairs
}

// inMemory is a file that is none, for tests that damage thousands of them.
type inMemory struct{ *bytes.Reader }

func (inMemory) Close() error { return nil }

func openBytes(path string, file []byte) (*Run, error) {
	return openFile(path, inMemory{bytes.NewReader(file)}, int64(len(file)))
}

// readAll reads all parts that a file says it has.
func readAll(path string, file []byte) ([]pair, error) {
	r, err := openBytes(path, file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var out []pair
	for _, part := range r.Parts() {
		got, err := drain(r.Cursor(part, nil, nil), part)
		out = append(out, got...)
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

func mustNameDamage(t *testing.T, path, what string, err error) {
	t.Helper()
	var c *CorruptError
	if !errors.As(err, &c) || !errors.Is(err, ErrCorrupt) || c.Path != path || !strings.Contains(err.Error(), path) {
		t.Fatalf("%s: error %v", what, err)
	}
}

func TestEveryDamagedByteIsFound(t *testing.T) {
	for _, c := range []Compression{S2, Zstd, None} {
		file, pairs := smallRun(t, c)
		const path = "/spill/damaged"
		if got, err := readAll(path, file); err != nil || len(got) != len(pairs) {
			t.Fatalf("undamaged: %d pairs, %v", len(got), err)
		}
		try := func(what string, b []byte) {
			got, err := readAll(path, b)
			if err == nil {
				t.Fatalf("%v: %s was not noticed", c, what)
			}
			mustNameDamage(t, path, what, err)
			// What came before the damage is right.
			mustEqual(t, what, got, pairs[:len(got)])
		}
		for i := range file {
			for _, flip := range []byte{0x01, 0x80, 0xFF} {
				b := bytes.Clone(file)
				b[i] ^= flip
				try(fmt.Sprintf("byte %d flipped by %x", i, flip), b)
			}
			try(fmt.Sprintf("cut at %d", i), file[:i])
		}
		try("a byte more", append(bytes.Clone(file), 0))
		try("twice", append(bytes.Clone(file), file...))
	}
}

func TestDamageWhileOpen(t *testing.T) {
	file, pairs := smallRun(t, S2)
	path := runPath(t.TempDir(), "run")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	second := r.index.blocks[1]
	// Two blocks change places: their checksums are fine.
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteAt(file[magicSize:magicSize+headerSize+int(r.index.blocks[0].stored)], second.off)
	f.Close()
	got, err := drain(r.Cursor(0, nil, nil), 0)
	mustNameDamage(t, path, "moved block", err)
	mustEqual(t, "first block", got, pairs[:r.index.blocks[0].pairs])
	var c *CorruptError
	if errors.As(err, &c); c.Offset != second.off {
		t.Errorf("offset %d, want %d", c.Offset, second.off)
	}
	// The file is cut off.
	if err := os.Truncate(path, second.off+20); err != nil {
		t.Fatal(err)
	}
	_, err = drain(NewMerger([]Cursor{r.Cursor(0, nil, nil), r.Cursor(1, nil, nil)}), 0)
	mustNameDamage(t, path, "cut file", err)
}

// oneBlock makes a file of one block that decodes to raw, all checksums right.
func oneBlock(raw []byte, pairs uint32, encoding uint32, stored []byte) []byte {
	file := append([]byte(magic), make([]byte, headerSize)...)
	file = append(file, stored...)
	b := blockInfo{off: int64(magicSize), stored: uint32(len(stored)), raw: uint32(len(raw)), pairs: pairs}
	putHeader(file[magicSize:], b, encoding)
	var x index
	x.add(b, nil)
	return x.appendFooter(file, int64(len(file)))
}

func TestImpossiblePairs(t *testing.T) {
	for name, c := range map[string]struct {
		raw   []byte
		pairs uint32
	}{
		"shares with nothing":        {[]byte{1, 1, 0, 'a'}, 1},
		"shares more than there is":  {[]byte{0, 1, 0, 'a', 2, 0, 0}, 2},
		"suffix beyond the block":    {[]byte{0, 2, 0, 'a'}, 1},
		"payload beyond the block":   {[]byte{0, 1, 0, 'a', 1, 0, 1}, 2},
		"fewer pairs":                {[]byte{0, 1, 0, 'a', 1, 0, 0}, 1},
		"more pairs":                 {[]byte{0, 1, 0, 'a', 0, 0}, 2},
		"endless length":             {bytes.Repeat([]byte{0xFF}, 40), 1},
		"endless length, second":     {append([]byte{0, 0, 0}, bytes.Repeat([]byte{0xFF}, 40)...), 2},
		"lengths that overflow":      {append([]byte{0, 0, 0, 0}, binary.AppendUvarint(nil, 1<<63)...), 2},
		"lengths that overflow as 2": {append(binary.AppendUvarint([]byte{0, 0, 0, 0}, 1<<30), binary.AppendUvarint(nil, 1<<30)...), 2},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readAll("run", oneBlock(c.raw, c.pairs, encodingRaw, c.raw))
			mustNameDamage(t, "run", name, err)
		})
	}
	for _, encoding := range []uint32{encodingS2, encodingZstd, 3} {
		raw := []byte("no compressed data")
		_, err := readAll("run", oneBlock(raw, 1, encoding, raw))
		mustNameDamage(t, "run", "encoding", err)
	}
}

// mendTrailer makes the file's end consistent, so that fuzzing gets beyond
// the checksum.
func mendTrailer(file []byte, footerSize int) []byte {
	if len(file) < magicSize+footerSize {
		return file
	}
	copy(file, magic)
	off := len(file) - footerSize
	file = binary.LittleEndian.AppendUint64(file, uint64(off))
	file = binary.LittleEndian.AppendUint64(file, uint64(footerSize))
	file = binary.LittleEndian.AppendUint64(file, xxh3.Hash(file[off:]))
	return append(file, magic...)
}

func fuzzRead(t *testing.T, file []byte) {
	r, err := openBytes("run", file)
	if err != nil {
		return
	}
	defer r.Close()
	if r.raw > 1<<24 {
		return // true in itself, and no use to allocate
	}
	for _, part := range r.Parts() {
		drain(r.Cursor(part, nil, nil), part)
		drain(r.Cursor(part, []byte("a"), []byte("b")), part)
		drain(NewMerger([]Cursor{r.Cursor(part, nil, nil), r.Cursor(part, []byte{0}, nil)}), part)
	}
}

// FuzzOpen reads arbitrary bytes as a file, also with the footer's checksum mended.
func FuzzOpen(f *testing.F) {
	for _, c := range []Compression{S2, Zstd, None} {
		file, _ := smallRun(f, c)
		size := int(binary.LittleEndian.Uint64(file[len(file)-trailerSize+8:]))
		f.Add(file, 0)
		f.Add(file[:len(file)-trailerSize], size)
	}
	f.Fuzz(func(t *testing.T, file []byte, footerSize int) {
		if footerSize > 0 && footerSize < len(file) {
			file = mendTrailer(bytes.Clone(file), footerSize)
		}
		fuzzRead(t, file)
	})
}

// FuzzBlock reads arbitrary bytes as the stored bytes of a block whose header and
// checksums are right.
func FuzzBlock(f *testing.F) {
	raw := []byte("\x00\x03\x01key=\x02\x01\x01s=")
	for encoding := range uint32(4) {
		stored, _, err := appendCompressed(nil, bytes.Repeat(raw, 1+int(encoding)*20), []Compression{None, S2, Zstd, None}[encoding])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(stored, uint32(len(raw)*(1+int(encoding)*20)), uint32(2), encoding)
	}
	f.Fuzz(func(t *testing.T, stored []byte, size, pairs, encoding uint32) {
		if size > 1<<20 {
			return
		}
		fuzzRead(t, oneBlock(make([]byte, size), pairs, encoding, stored))
	})
}
