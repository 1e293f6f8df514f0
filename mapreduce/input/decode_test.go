// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pack compresses data as one member, frame or stream.
func pack(t testing.TB, name string, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	var w io.WriteCloser
	var err error
	switch name {
	case "gzip":
		w = gzip.NewWriter(&buf)
	case "zstd":
		w, err = zstd.NewWriter(&buf, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(true))
	case "xz":
		w, err = xz.NewWriter(&buf)
	case "lz4":
		w = lz4.NewWriter(&buf)
	case "snappy":
		w = s2.NewWriter(&buf, s2.WriterSnappyCompat(), s2.WriterConcurrency(1))
	case "s2":
		w = s2.NewWriter(&buf, s2.WriterConcurrency(1))
	case "bzip2":
		return packBzip2(data)
	default:
		t.Fatalf("no packer for %s", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// skipFrame is a frame of zstd and LZ4 that holds nothing.
func skipFrame(n int) []byte {
	return append([]byte{0x5e, 0x2a, 0x4d, 0x18, byte(n), byte(n >> 8), 0, 0}, make([]byte, n)...)
}

var packings = []string{"gzip", "zstd", "bzip2", "xz", "snappy", "s2", "lz4"}

func write(t testing.TB, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// content reads all that a plan holds.
func content(p *Plan) (string, error) {
	var all bytes.Buffer
	var read int64
	for _, s := range p.Splits {
		r, err := p.Open(context.Background(), s)
		if err != nil {
			return all.String(), err
		}
		var buf []byte
		for {
			b, err := r.ReadBlock(buf)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				r.Close()
				return all.String(), err
			}
			all.Write(b.Data)
			read += b.Read
			buf = b.Data
		}
		if err := r.Close(); err != nil {
			return all.String(), err
		}
	}
	return all.String(), nil
}

// wide makes a plan read every file with several goroutines.
func wide(p *Plan) *Plan {
	for i := range p.Splits {
		p.Splits[i].Stream = true
	}
	return p
}

func lines(n int, seed uint64) []byte {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "%d line %x\n", i, rnd.Uint64())
	}
	return b.Bytes()
}

func TestCompressed(t *testing.T) {
	one, two := lines(3000, 1), lines(2000, 2)
	for _, name := range packings {
		t.Run(name, func(t *testing.T) {
			a, b := pack(t, name, one), pack(t, name, two)
			empty := pack(t, name, nil)
			files := map[string]struct {
				packed []byte
				want   string
			}{
				"one":                {a, string(one)},
				"two":                {append(bytes.Clone(a), b...), string(one) + string(two)},
				"empty between":      {bytes.Join([][]byte{a, empty, empty, b}, nil), string(one) + string(two)},
				"empty first":        {append(bytes.Clone(empty), b...), string(two)},
				"nothing":            {empty, ""},
				"no newline at end":  {pack(t, name, []byte("x")), "x"},
				"newline in between": {append(pack(t, name, []byte("ab")), pack(t, name, []byte("cd\ne"))...), "abcd\ne"},
			}
			if name == "zstd" || name == "lz4" {
				files["skip first"] = struct {
					packed []byte
					want   string
				}{append(skipFrame(9), a...), string(one)}
				files["skip long first"] = struct {
					packed []byte
					want   string
				}{append(append(skipFrame(3), skipFrame(5000)...), a...), string(one)}
				files["skip between and last"] = struct {
					packed []byte
					want   string
				}{bytes.Join([][]byte{a, skipFrame(0), b, skipFrame(100)}, nil), string(one) + string(two)}
			}
			for what, f := range files {
				if len(f.packed) == 0 {
					continue // nothing at all is what an empty file packs to
				}
				path := write(t, t.TempDir(), "data.txt", f.packed)
				p, err := Discover(context.Background(), []string{path}, Options{})
				if err != nil {
					t.Fatal(err)
				}
				if p.Files[0].Compression != name {
					t.Errorf("%s: taken for %q", what, p.Files[0].Compression)
				}
				got, err := content(p)
				if err != nil || got != f.want {
					t.Errorf("%s: %d bytes, want %d: %v", what, len(got), len(f.want), err)
				}
				got, err = content(wide(p))
				if err != nil || got != f.want {
					t.Errorf("%s, in parallel: %d bytes, want %d: %v", what, len(got), len(f.want), err)
				}
				in, err := Discover(context.Background(), []string{"-"}, Options{Stdin: bytes.NewReader(f.packed)})
				if err != nil {
					t.Fatal(err)
				}
				got, err = content(in)
				if err != nil || got != f.want {
					t.Errorf("%s, standard input: %d bytes, want %d: %v", what, len(got), len(f.want), err)
				}
			}
		})
	}
}

// Cut off anywhere but between members, or with a bit turned over, data is an
// error that names the file and where in it, or nothing was lost.
func TestDamaged(t *testing.T) {
	data := lines(400/(1+2*fewer), 3)
	for _, name := range packings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			packed := pack(t, name, data)
			dir := t.TempDir()
			check := func(what string, bad []byte, parallel bool) {
				t.Helper()
				path := write(t, dir, "bad.dat", bad)
				p, err := Discover(context.Background(), []string{path}, Options{})
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if p.Files[0].Compression != name {
					return // no longer looks like it
				}
				if parallel {
					wide(p)
				}
				got, err := content(p)
				if err == nil {
					// The framing of snappy and S2 has no end, so a cut between chunks cannot be seen.
					if (name == "snappy" || name == "s2") && strings.HasPrefix(what, "cut") {
						return
					}
					if got != string(data) {
						t.Fatalf("%s: %d of %d bytes and no error", what, len(got), len(data))
					}
					return
				}
				if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "byte") {
					t.Fatalf("%s: the error names no place: %v", what, err)
				}
			}
			for n := 5; n < len(packed); n += 1 + n/40 {
				check(fmt.Sprintf("cut at %d of %d", n, len(packed)), packed[:n], n%2 == 0)
			}
			for n := len(packed) - 12; n < len(packed); n++ {
				check(fmt.Sprintf("cut at %d of %d", n, len(packed)), packed[:n], n%2 == 0)
			}
			for i := 4; i < len(packed); i += 1 + i/40 {
				bad := bytes.Clone(packed)
				bad[i] ^= 1 << (i % 8)
				check(fmt.Sprintf("bit %d of byte %d turned", i%8, i), bad, i%2 == 0)
			}
			for _, tail := range []string{"x", "garbage", "\x00\x00\x00\x00", "BZ", "more than enough bytes of something else"} {
				if name == "xz" && tail == "\x00\x00\x00\x00" {
					continue // allowed there
				}
				for _, parallel := range []bool{false, true} {
					path := write(t, dir, "tail.dat", append(bytes.Clone(packed), tail...))
					p, err := Discover(context.Background(), []string{path}, Options{})
					if err != nil {
						t.Fatal(err)
					}
					if parallel {
						wide(p)
					}
					if _, err := content(p); err == nil || !strings.Contains(err.Error(), path) {
						t.Errorf("followed by %q, parallel %v: error %v", tail, parallel, err)
					}
				}
			}
		})
	}
}

func TestManyBlocks(t *testing.T) {
	data := lines(60000, 4)
	for name, packed := range map[string][]byte{
		"bzip2": packBzip2(data),
		"zstd": func() []byte {
			var b bytes.Buffer
			w, _ := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
			defer w.Close()
			for at := 0; at < len(data); at += 70_000 {
				b.Write(w.EncodeAll(data[at:min(at+70_000, len(data))], nil))
			}
			return b.Bytes()
		}(),
	} {
		path := write(t, t.TempDir(), "data", packed)
		p, err := Discover(context.Background(), []string{path}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := content(wide(p))
		if err != nil || got != string(data) {
			t.Errorf("%s: %d bytes, want %d: %v", name, len(got), len(data), err)
		}
		// Leaving early leaves no goroutine behind (see TestMain).
		r, err := p.Open(context.Background(), p.Splits[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.ReadBlock(nil); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.ReadBlock(nil); err == nil {
			t.Errorf("%s: a closed reader reads", name)
		}
		ctx, cancel := context.WithCancel(context.Background())
		if r, err = p.Open(ctx, p.Splits[0]); err != nil {
			t.Fatal(err)
		}
		if _, err := r.ReadBlock(nil); err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := r.ReadBlock(nil); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: after cancelling: %v", name, err)
		}
		r.Close()
	}
}

// A block's mark within a block: the two parts are put together again. No packer
// makes one on purpose, so the cut is made by hand.
func TestBzip2MarkWithinBlock(t *testing.T) {
	data := lines(500, 5)
	packed := packBzip2(data)
	var whole []*bzip2Block
	c := &bzip2Cutter{in: newBufio(packed)}
	if err := c.run(func(b *bzip2Block) error { whole = append(whole, b); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(whole) != 1 {
		t.Fatalf("%d blocks", len(whole))
	}
	// Two bits lists that a mark would join.
	blk := whole[0]
	at, _ := findMark(append([]byte(nil), blk.raw.b...), 0)
	if at >= 0 {
		t.Fatal("a mark within the block")
	}
	for _, shift := range []int{0, 1, 5, 7} {
		var w bitWriter
		w.put(0, shift)
		w.put(blockMark, 48)
		w.put(3, 2)
		if at, end := findMark(w.b, 0); at != shift || end {
			t.Errorf("mark at %d found at %d (%v)", shift, at, end)
		}
		if at, _ := findMark(w.b, shift+1); at != -1 {
			t.Errorf("mark at %d found again at %d", shift, at)
		}
	}
	// Bits survive being moved to any place.
	for skip := range 8 {
		for to := range 8 {
			for n := range 40 {
				var a, b, c bitWriter
				a.put(0x5a, skip)
				a.put(0x0123456789abcd>>3, n)
				b.put(0x33, to)
				b.putBits(bitRun{b: a.b, skip: skip, n: n})
				c.put(0x33, to)
				c.put(0x0123456789abcd>>3&(1<<n-1), n)
				if !bytes.Equal(b.b, c.b) || b.n != c.n {
					t.Fatalf("skip %d to %d bits %d: %x, want %x", skip, to, n, b.b, c.b)
				}
			}
		}
	}
}

func TestZstdWindow(t *testing.T) {
	// Magic, then a descriptor without size, and a window of 2 GiB.
	bomb := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 1, 0, 0}
	for _, parallel := range []bool{false, true} {
		path := write(t, t.TempDir(), "w.zst", bomb)
		p, err := Discover(context.Background(), []string{path}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if parallel {
			wide(p)
		}
		if _, err = content(p); err == nil || !strings.Contains(err.Error(), "window of more than 1024 MiB") {
			t.Errorf("parallel %v: %v", parallel, err)
		}
	}
}

func TestEmptyNamedCompressed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.gz", nil)
	write(t, dir, "b.zst", nil)
	write(t, dir, "c.txt", []byte("x\n"))
	p, err := Discover(context.Background(), []string{dir}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Notes) != 1 || !strings.Contains(p.Notes[0], "a.gz") || !strings.Contains(p.Notes[0], "2 files") {
		t.Errorf("notes: %q", p.Notes)
	}
	if got, err := content(p); err != nil || got != "x\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// Arbitrary bytes after each magic never panic or hang, and give an error or
// what another reader of the format gives.
func fuzzDecoder(f *testing.F, name string) {
	for _, data := range [][]byte{nil, []byte("a\nb\n"), lines(50, 9)} {
		packed := pack(f, name, data)
		f.Add(packed)
		f.Add(append(bytes.Clone(packed), packed...))
		if len(packed) > 9 {
			f.Add(packed[:len(packed)-3])
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		read := func(parallel bool) (string, error) {
			src := &diskSource{f: memory{bytes.NewReader(data)}, path: "f", size: int64(len(data)), limit: int64(len(data))}
			d, err := newDecoder(ctx, src, src, "f", name, int64(len(data)), parallel)
			if err != nil {
				return "", err
			}
			defer d.Close()
			out, err := io.ReadAll(io.LimitReader(d, 64<<20))
			return string(out), err
		}
		one, err1 := read(false)
		many, err2 := read(true)
		if (err1 == nil) != (err2 == nil) {
			t.Fatalf("alone %v, in parallel %v", err1, err2)
		}
		if err1 == nil && one != many {
			t.Fatalf("alone %d bytes, in parallel %d", len(one), len(many))
		}
	})
}

func FuzzGzip(f *testing.F)   { fuzzDecoder(f, "gzip") }
func FuzzZstd(f *testing.F)   { fuzzDecoder(f, "zstd") }
func FuzzBzip2(f *testing.F)  { fuzzDecoder(f, "bzip2") }
func FuzzXZ(f *testing.F)     { fuzzDecoder(f, "xz") }
func FuzzSnappy(f *testing.F) { fuzzDecoder(f, "snappy") }
func FuzzS2(f *testing.F)     { fuzzDecoder(f, "s2") }
func FuzzLZ4(f *testing.F)    { fuzzDecoder(f, "lz4") }

// Real tools' output, small.
func TestOtherToolsOutput(t *testing.T) {
	for what, b64 := range map[string]string{
		// Filled in by the tools of that name from "a b\nc\n".
		"gzip":  toolGzip,
		"bzip2": toolBzip2,
		"xz":    toolXZ,
		"zstd":  toolZstd,
		"lz4":   toolLZ4,
	} {
		packed, err := base64.StdEncoding.DecodeString(b64)
		if err != nil {
			t.Fatal(err)
		}
		path := write(t, t.TempDir(), "x", packed)
		p, err := Discover(context.Background(), []string{path}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if p.Files[0].Compression != what {
			t.Errorf("%s: taken for %q", what, p.Files[0].Compression)
		}
		if got, err := content(p); err != nil || got != "a b\nc\n" {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
}
