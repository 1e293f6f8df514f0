// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// sniffSize is how many bytes at the begin of a file tell what it is.
const sniffSize = 16

// magic is how a compressed file begins.
type magic struct {
	name  string
	bytes string
	least int // so many of bytes suffice if the file ends there (cut off)
}

var magics = []magic{
	{"gzip", "\x1f\x8b\x08", 2},
	{"zstd", "\x28\xb5\x2f\xfd", 3},
	{"xz", "\xfd7zXZ\x00", 3},
	{"lz4", "\x04\x22\x4d\x18", 3},
	{"snappy", "\xff\x06\x00\x00sNaPpY", 5},
	{"s2", "\xff\x06\x00\x00S2sTwO", 5},
}

const (
	bzip2BlockMark = "\x31\x41\x59\x26\x53\x59"
	bzip2EndMark   = "\x17\x72\x45\x38\x50\x90"
)

// compression names the compression of a file that begins with head, which is
// the whole file if it is shorter than sniffSize. It is "" if there is none.
func compression(head []byte) string {
	for _, m := range magics {
		if n := len(m.bytes); len(head) >= n && string(head[:n]) == m.bytes {
			return m.name
		}
		if n := len(head); n < len(m.bytes) && n >= m.least && strings.HasPrefix(m.bytes, string(head)) {
			return m.name
		}
	}
	// Text may well begin with BZh9, so more is asked of bzip2.
	if len(head) >= 5 && string(head[:3]) == "BZh" && head[3] >= '1' && head[3] <= '9' {
		rest := string(head[4:min(len(head), 10)])
		if strings.HasPrefix(bzip2BlockMark, rest) || strings.HasPrefix(bzip2EndMark, rest) {
			return "bzip2"
		}
	}
	return ""
}

// skippable returns the length of the skippable frame that head begins with
// (zstd and lz4 share them), or 0.
func skippable(head []byte) int64 {
	if len(head) < 8 || head[0]&0xf0 != 0x50 || string(head[1:4]) != "\x2a\x4d\x18" {
		return 0
	}
	return 8 + int64(binary.LittleEndian.Uint32(head[4:]))
}

// sniffAt names the compression of a file of that size, looking past leading
// skippable frames. A file of nothing else is zstd.
func sniffAt(f io.ReaderAt, size int64) (name string, head []byte, err error) {
	buf := make([]byte, sniffSize)
	first := true
	for off := int64(0); ; {
		n, err := f.ReadAt(buf, off)
		if err != nil && err != io.EOF {
			return "", nil, err
		}
		h := buf[:n]
		if first {
			head = append([]byte(nil), h...)
			first = false
		}
		if n := skippable(h); n > 0 {
			if off += n; off < size {
				continue
			}
			return "zstd", head, nil
		}
		if name = compression(h); off > 0 && name != "lz4" {
			name = "zstd" // and if it is not, its reader says so
		}
		return name, head, nil
	}
}

func isUTF16(head []byte) bool {
	return bytes.HasPrefix(head, []byte("\xff\xfe")) || bytes.HasPrefix(head, []byte("\xfe\xff"))
}

func utf16Error(path string) error {
	return fmt.Errorf("input: %s is UTF-16 text; read it with --encoding utf-16", path)
}

const parquetMagic = "PAR1"

// isParquet looks at both ends, since text may well begin with these letters.
func isParquet(f io.ReaderAt, head []byte, size int64) bool {
	if size < 12 || !bytes.HasPrefix(head, []byte(parquetMagic)) {
		return false
	}
	tail := make([]byte, len(parquetMagic))
	_, err := f.ReadAt(tail, size-int64(len(tail)))
	return err == nil && string(tail) == parquetMagic
}

func parquetError(path string) error {
	return fmt.Errorf("input: %s is a Parquet file; this job reads lines; jobs on fields read it with --input-format parquet", path)
}

// compressedSuffix says whether path is named like a compressed file.
func compressedSuffix(path string) bool {
	for _, s := range []string{".gz", ".bz2", ".zst", ".xz", ".lz4", ".sz", ".snappy", ".s2"} {
		if strings.HasSuffix(path, s) {
			return true
		}
	}
	return false
}
