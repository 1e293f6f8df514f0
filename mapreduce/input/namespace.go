// SPDX-License-Identifier: Apache-2.0

package input

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/quernmr/quern/mapreduce/objects"
)

// namespace is where patterns are looked up.
type namespace interface {
	stat(path string) (fs.FileInfo, error)
	readDir(path string) ([]fs.DirEntry, error)
}

// disk is what the system shows.
type disk struct{}

func (disk) stat(path string) (fs.FileInfo, error)      { return os.Stat(path) }
func (disk) readDir(path string) ([]fs.DirEntry, error) { return os.ReadDir(path) }

// tree is a namespace made of a list of names with slashes: those of objects, or
// of uploads. Folders are what is before a slash.
type tree struct {
	nodes   map[string]*leaf
	entries map[string][]fs.DirEntry // by folder; sorted once all are there
	clean   func(string) string
}

// leaf is a file or folder of a tree.
type leaf struct {
	name    string
	path    string // what it is to be called, if that is not how it was found
	size    int64
	changed time.Time
	etag    string
	folder  bool
}

func (l *leaf) Name() string               { return l.name }
func (l *leaf) Size() int64                { return l.size }
func (l *leaf) ModTime() time.Time         { return l.changed }
func (l *leaf) IsDir() bool                { return l.folder }
func (l *leaf) Sys() any                   { return nil }
func (l *leaf) Type() fs.FileMode          { return l.Mode().Type() }
func (l *leaf) Info() (fs.FileInfo, error) { return l, nil }

func (l *leaf) Mode() fs.FileMode {
	if l.folder {
		return fs.ModeDir | 0o555
	}
	return 0o444
}

func newTree(clean func(string) string) *tree {
	return &tree{nodes: map[string]*leaf{}, entries: map[string][]fs.DirEntry{}, clean: clean}
}

// add adds a leaf and the folders above it, the topmost of which is root.
func (t *tree) add(name, root string, l *leaf) {
	for {
		old := t.nodes[name]
		if old != nil && (old.folder || !l.folder) {
			return
		}
		if old != nil {
			// A file and a folder of that name: what is asked for by that name is the
			// file, and what is below the folder is found all the same.
			l.name = old.name
			up, _ := splitName(name, root)
			t.entries[up] = append(t.entries[up], l)
			return
		}
		t.nodes[name] = l
		if name == root {
			return
		}
		up, base := splitName(name, root)
		l.name = base
		t.entries[up] = append(t.entries[up], l)
		name, l = up, &leaf{folder: true}
	}
}

// splitName returns the folder that a name is in, and its last element.
func splitName(name, root string) (up, base string) {
	switch i := strings.LastIndexByte(name, '/'); {
	case i < 0:
		return root, name
	case i < len(root): // root is a slash
		return root, name[i+1:]
	default:
		return name[:i], name[i+1:]
	}
}

func (t *tree) sort() {
	for _, e := range t.entries {
		slices.SortFunc(e, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	}
}

func (t *tree) stat(name string) (fs.FileInfo, error) {
	l := t.nodes[t.clean(name)]
	if l != nil && !l.folder && strings.HasSuffix(name, "/") {
		l = nil
	}
	if l == nil {
		if short, ok := strings.CutSuffix(name, "/"); ok {
			if l = t.nodes[t.clean(short)]; l != nil && !l.folder {
				l = nil
			}
		}
	}
	if l == nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return l, nil
}

func (t *tree) readDir(name string) ([]fs.DirEntry, error) {
	if e, ok := t.entries[t.clean(name)]; ok {
		return e, nil
	}
	if short, ok := strings.CutSuffix(name, "/"); ok {
		return t.entries[t.clean(short)], nil
	}
	return nil, nil
}

// uploadTree is the namespace of the uploads; nil if there are none.
func (s *settings) uploadTree() (*tree, error) {
	if len(s.uploads) == 0 {
		return nil, nil
	}
	t := newTree(path.Clean)
	for name, local := range s.uploads {
		info, err := os.Stat(local)
		if err != nil {
			return nil, fmt.Errorf("input: %w", renamed(err, name))
		}
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("input: %s was to be uploaded, but is no regular file", name)
		}
		root := "."
		if strings.HasPrefix(name, "/") {
			root = "/"
		}
		t.add(name, root, &leaf{size: info.Size(), changed: info.ModTime()})
	}
	t.sort()
	return t, nil
}

// renamed returns an error that speaks of a file by another name.
func renamed(err error, name string) error {
	var onPath *fs.PathError
	if errors.As(err, &onPath) {
		return &fs.PathError{Op: onPath.Op, Path: name, Err: onPath.Err}
	}
	return fmt.Errorf("%s: %w", name, err)
}

// listObjects is the namespace in which a pattern of objects is looked up: it
// holds those that the pattern may mean.
func listObjects(ctx context.Context, pattern string) (*tree, error) {
	at, err := objects.Parse(pattern)
	if err != nil {
		return nil, err
	}
	client, err := objects.Open()
	if err != nil {
		return nil, err
	}
	t := newTree(func(name string) string { return name })
	root := objects.Location{Bucket: at.Bucket}.String()
	add := func(o objects.Info) error {
		url := objects.Location{Bucket: at.Bucket, Key: o.Key}.String()
		if strings.HasSuffix(o.Key, "/") && o.Size == 0 { // made to show an empty folder
			if folder := strings.TrimRight(url, "/"); len(folder) > len(root) {
				t.add(folder, root, &leaf{folder: true})
			}
			return nil
		}
		t.add(url, root, &leaf{path: url, size: o.Size, changed: o.Modified, etag: o.ETag})
		return nil
	}
	prefix := at
	if i := strings.IndexAny(at.Key, metaBytes); i >= 0 {
		prefix.Key = at.Key[:i]
	} else if at.Key != "" {
		if !strings.HasSuffix(at.Key, "/") {
			o, err := client.Stat(ctx, at)
			if err == nil {
				return t, add(o)
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			prefix.Key += "/"
		}
	}
	if err := client.List(ctx, prefix, add); err != nil {
		return nil, err
	}
	if t.nodes[root] == nil {
		t.nodes[root] = &leaf{folder: true} // an empty bucket, or one without such keys
	}
	t.sort()
	return t, nil
}

// First returns the first file that a pattern of objects or uploads names, and
// whether the pattern is one of those. It is "" if there is none or it cannot
// be told, which Discover will say.
func First(ctx context.Context, pattern string, opt Options) (path string, ok bool) {
	if !objects.IsURL(pattern) && len(processUploads(opt.Uploads)) == 0 {
		return "", false
	}
	s, err := newSettings(opt)
	if err != nil {
		return "", true
	}
	uploads, err := s.uploadTree()
	if err != nil {
		return "", true
	}
	w := &finder{ctx: ctx, allowEmpty: true}
	files, _, err := w.find(pattern, uploads)
	if _, onDisk := w.in.(disk); onDisk {
		return "", false
	}
	if err != nil || len(files) == 0 {
		return "", true
	}
	return files[0].path, true
}
