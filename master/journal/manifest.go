// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/klauspost/compress/s2"

	"github.com/quernmr/quern/mapreduce/task"
)

// mapFormat is the first byte of a map record.
const mapFormat = 1

// Bounds of what a map record may claim.
const (
	maxParts = 1 << 16
	maxLanes = 256
	maxHead  = 256 << 20
)

// packFrom is the size in bytes from which on the JSON is compressed: names of counters
// are much alike.
const packFrom = 1 << 10

var errMap = errors.New("a map record makes no sense")

// encodeMap stores a map result: as JSON, but for the manifests, of which there may
// be as many as partitions, and which JSON would make several times as large.
func encodeMap(m *Map) ([]byte, error) {
	head := *m
	head.Result.Parts = nil
	j, err := json.Marshal(&head)
	if err != nil {
		return nil, err
	}
	raw := len(j)
	if raw >= packFrom {
		j = s2.Encode(nil, j)
	}
	b := make([]byte, 0, len(j)+16+24*len(m.Result.Parts))
	b = append(b, mapFormat)
	b = binary.AppendUvarint(b, uint64(raw))
	b = binary.AppendUvarint(b, uint64(len(j)))
	b = append(b, j...)
	b = binary.AppendUvarint(b, uint64(len(m.Result.Parts)))
	for i := range m.Result.Parts {
		p := &m.Result.Parts[i]
		if p.Pairs < 0 || p.Bytes < 0 || len(p.Check) > maxLanes || len(p.SumAbs) > maxLanes {
			return nil, errMap
		}
		b = binary.AppendUvarint(b, uint64(p.Pairs))
		b = binary.AppendUvarint(b, uint64(p.Bytes))
		b = binary.LittleEndian.AppendUint64(b, p.Digest)
		for _, k := range p.Keys {
			b = binary.AppendUvarint(b, k)
		}
		b = binary.AppendUvarint(b, uint64(len(p.Check)))
		for _, c := range p.Check {
			b = binary.LittleEndian.AppendUint64(b, c)
		}
		b = binary.AppendUvarint(b, uint64(len(p.SumAbs)))
		for _, s := range p.SumAbs {
			b = binary.AppendUvarint(b, s[0])
			b = binary.AppendUvarint(b, s[1])
		}
	}
	return b, nil
}

// decodeMap reads what encodeMap made.
func decodeMap(b []byte) (*Map, error) {
	r := reader{b: b}
	if v := r.byte(); v != mapFormat {
		return nil, fmt.Errorf("%w: its version is %d", errMap, v)
	}
	m := &Map{}
	raw := r.uvarint()
	head := r.bytes(r.uvarint())
	if r.bad {
		return nil, errShort
	}
	if raw >= packFrom {
		if n, err := s2.DecodedLen(head); err != nil || uint64(n) != raw || raw > maxHead {
			return nil, errMap
		}
		var err error
		if head, err = s2.Decode(nil, head); err != nil {
			return nil, fmt.Errorf("%w: %w", errMap, err)
		}
	} else if raw != uint64(len(head)) {
		return nil, errMap
	}
	if err := json.Unmarshal(head, m); err != nil {
		return nil, err
	}
	m.Result.Parts = nil
	n := r.uvarint()
	// A manifest takes at least 17 bytes.
	if r.bad || n > maxParts || n > uint64(len(r.b))/17 {
		return nil, errMap
	}
	if n > 0 {
		m.Result.Parts = make([]task.Manifest, n)
	}
	for i := range m.Result.Parts {
		p := &m.Result.Parts[i]
		p.Pairs, p.Bytes = int64(r.uvarint()), int64(r.uvarint())
		p.Digest = r.uint64()
		for k := range p.Keys {
			p.Keys[k] = r.uvarint()
		}
		lanes := r.uvarint()
		if r.bad || p.Pairs < 0 || p.Bytes < 0 || lanes > maxLanes {
			return nil, errMap
		}
		if lanes > 0 {
			p.Check = make([]uint64, lanes)
		}
		for l := range p.Check {
			p.Check[l] = r.uint64()
		}
		lanes = r.uvarint()
		if r.bad || lanes > maxLanes {
			return nil, errMap
		}
		if lanes > 0 {
			p.SumAbs = make([][2]uint64, lanes)
		}
		for l := range p.SumAbs {
			p.SumAbs[l] = [2]uint64{r.uvarint(), r.uvarint()}
		}
	}
	if r.bad || len(r.b) != 0 {
		return nil, errMap
	}
	return m, nil
}

// reader takes a record apart. Once it is bad, it gives zeros.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) bytes(n uint64) []byte {
	if r.bad || n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if r.bad || n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}
