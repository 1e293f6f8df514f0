// SPDX-License-Identifier: Apache-2.0

package input

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// packedPlan is a plan as it travels to the processes that map its splits: the
// whole plan, or what one split needs of it. Package task, which makes the one of the
// other, knows total, files, splits and the splits' files.
type packedPlan struct {
	Total  int           `json:"total"` // files of the whole plan
	Files  []packedFile  `json:"files"`
	Splits []packedSplit `json:"splits"`
}

type packedFile struct {
	Index       int    `json:"i"`
	Path        string `json:"p,omitempty"`
	Raw         []byte `json:"r,omitempty"` // the path, if it is no UTF-8
	Size        int64  `json:"s"`
	Changed     int64  `json:"t,omitempty"` // nanoseconds since 1970; only if Regular
	Regular     bool   `json:"f,omitempty"`
	Compression string `json:"z,omitempty"`
	ETag        string `json:"e,omitempty"` // of an object
}

type packedSplit struct {
	Files  []int `json:"files"`
	Start  int64 `json:"start,omitempty"`
	End    int64 `json:"end"`
	Quoted bool  `json:"quoted,omitempty"`
	Stream bool  `json:"stream,omitempty"`
	Bytes  int64 `json:"bytes,omitempty"`
}

// Pack encodes what Unpack needs to make the plan again in another process, without
// the options. Notes and totals stay here.
func (p *Plan) Pack() ([]byte, error) {
	out := packedPlan{Total: len(p.Files), Files: make([]packedFile, len(p.Files)), Splits: make([]packedSplit, len(p.Splits))}
	for i := range p.Files {
		f := &p.Files[i]
		x := packedFile{Index: i, Size: f.Size, Compression: f.Compression, ETag: f.etag}
		if utf8.ValidString(f.Path) {
			x.Path = f.Path
		} else {
			x.Raw = []byte(f.Path)
		}
		if f.planned != nil {
			x.Regular, x.Changed = true, f.planned.ModTime().UnixNano()
		}
		out.Files[i] = x
	}
	for i, s := range p.Splits {
		out.Splits[i] = packedSplit{s.Files, s.Start, s.End, s.Quoted, s.Stream, s.Bytes}
	}
	return json.Marshal(out)
}

// Unpack makes a plan of what Pack encoded, or of a part of it with only some of
// the splits and the files that they name. Files keep their indices, and those that
// are not there are zero. opt must be what the plan was discovered with.
//
// Whether a file was changed since is then seen by its size and time alone, as the
// process may be on another machine.
func Unpack(data []byte, opt Options) (*Plan, error) {
	s, err := newSettings(opt)
	if err != nil {
		return nil, err
	}
	var in packedPlan
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("input: a plan from another process: %w", err)
	}
	if in.Total < len(in.Files) || in.Total > maxPackedFiles {
		return nil, fmt.Errorf("input: a plan from another process has %d files of %d", len(in.Files), in.Total)
	}
	p := &Plan{set: s, Exact: true, Files: make([]File, in.Total)}
	here := make(map[int]bool, len(in.Files))
	for _, x := range in.Files {
		if x.Index < 0 || x.Index >= in.Total || here[x.Index] {
			return nil, fmt.Errorf("input: a plan from another process has a file %d of %d, or has it twice", x.Index, in.Total)
		}
		here[x.Index] = true
		f := File{Path: x.Path, Index: x.Index, Size: x.Size, Compression: x.Compression, etag: x.ETag}
		if x.Raw != nil {
			f.Path = string(x.Raw)
		}
		// What was uploaded is another file on every machine; its content is known.
		if _, uploaded := s.uploads[path.Clean(f.Path)]; x.Regular && !uploaded {
			f.planned = &packedInfo{name: f.Path, size: x.Size, changed: time.Unix(0, x.Changed)}
		}
		p.Files[x.Index] = f
	}
	for i, x := range in.Splits {
		for _, f := range x.Files {
			if !here[f] {
				return nil, fmt.Errorf("input: a plan from another process has no file %d, which a split needs", f)
			}
		}
		p.Splits = append(p.Splits, Split{
			Index: i, Files: x.Files, Start: x.Start, End: x.End, Quoted: x.Quoted, Stream: x.Stream, Bytes: x.Bytes,
		})
		p.TotalBytes += x.Bytes
		for _, f := range x.Files {
			p.Exact = p.Exact && p.Files[f].Size >= 0
		}
	}
	return p, nil
}

// maxPackedFiles bounds the memory that a plan from another process may ask for.
const maxPackedFiles = 1 << 24

// packedInfo is what another process knew of a regular file.
type packedInfo struct {
	name    string
	size    int64
	changed time.Time
}

func (i *packedInfo) Name() string       { return i.name }
func (i *packedInfo) Size() int64        { return i.size }
func (i *packedInfo) Mode() fs.FileMode  { return 0o444 }
func (i *packedInfo) ModTime() time.Time { return i.changed }
func (i *packedInfo) IsDir() bool        { return false }
func (i *packedInfo) Sys() any           { return nil }

// sameFile says whether a file is the one that was planned with, as far as can be
// told: machines give the same file different numbers.
func sameFile(now, planned os.FileInfo) bool {
	if _, ok := planned.(*packedInfo); ok {
		return now.Mode().IsRegular()
	}
	return os.SameFile(now, planned)
}

// stands holds what SetUploads was called with.
var stands atomic.Pointer[map[string]string]

// SetUploads sets what Options.Uploads is where it is nil, in all of this process: for
// a program that was started with files in the place of others.
func SetUploads(uploads map[string]string) { stands.Store(&uploads) }

// processUploads returns given, or what SetUploads has set.
func processUploads(given map[string]string) map[string]string {
	if given != nil {
		return given
	}
	if set := stands.Load(); set != nil {
		return *set
	}
	return nil
}
