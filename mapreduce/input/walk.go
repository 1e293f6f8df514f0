// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sort"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

// found is one file that a pattern led to.
type found struct {
	path string
	info fs.FileInfo
}

// finder looks for files. What it passes over it counts, to say so once.
type finder struct {
	ctx        context.Context
	allowEmpty bool
	whole      bool // files are to be read whole, all of them
	in         namespace

	hidden  int
	special int
	loops   []string
	dangle  []string
	sawOne  string // a hidden name, as an example
	visited int
}

// hiddenName says whether a directory's entry is passed over.
func hiddenName(name string) bool { return name != "" && (name[0] == '.' || name[0] == '_') }

// glob is a pattern taken apart: root is the part without wildcards.
type glob struct {
	root    string // as the user wrote it, with its last slash; "" is the working directory
	pattern string // relative to root
	parts   []string
	prune   bool // parts can be matched one by one
	dirs    bool // ended with a slash: only directories match
}

// metaBytes make a name a pattern.
const metaBytes = `*?[{\`

func hasMeta(s string) bool { return strings.ContainsAny(s, metaBytes) }

func newGlob(pattern string) glob {
	root := ""
	rest := pattern
	for {
		i := strings.IndexByte(rest, '/')
		if i < 0 || hasMeta(rest[:i]) {
			break
		}
		root += rest[:i+1]
		rest = rest[i+1:]
	}
	dirs := strings.HasSuffix(rest, "/")
	rest = strings.Trim(rest, "/")
	for strings.Contains(rest, "//") {
		rest = strings.ReplaceAll(rest, "//", "/")
	}
	rest = validRunes(rest)
	g := glob{root: root, pattern: rest, dirs: dirs, parts: strings.Split(rest, "/"), prune: true}
	// Braces and brackets may hold slashes; then only whole paths can be matched.
	depth := 0
	for i := 0; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			i++
		case '{', '[':
			depth++
		case '}', ']':
			depth = max(0, depth-1)
		case '/':
			if depth > 0 {
				g.prune = false
			}
		}
	}
	return g
}

// match says whether rel, a path below root, matches in whole.
func (g *glob) match(rel string) bool {
	return doublestar.MatchUnvalidated(g.pattern, validRunes(rel))
}

// below says whether a path below the directory rel may match.
func (g *glob) below(rel string) bool {
	if !g.prune {
		return true
	}
	names := strings.Split(validRunes(rel), "/")
	for i, name := range names {
		if i >= len(g.parts)-1 && g.parts[len(g.parts)-1] != "**" {
			return false // deeper than the pattern
		}
		if g.parts[i] == "**" {
			return true
		}
		if !doublestar.MatchUnvalidated(g.parts[i], name) {
			return false
		}
	}
	return true
}

// asksFor says whether the pattern itself names that hidden entry, as .c* does .cache.
func (g *glob) asksFor(name string) bool {
	for _, p := range g.parts {
		if p != "" && p[0] == name[0] && doublestar.MatchUnvalidated(p, validRunes(name)) {
			return true
		}
	}
	return false
}

// validRunes replaces bytes that are not UTF-8 by runes for private use, one for
// each byte, since the matcher would take all of them for the same.
func validRunes(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			r = 0xf700 + rune(s[i])
		}
		b.WriteRune(r)
		i += n
	}
	return b.String()
}

// expand returns the files that a pattern matches; those below a matching
// directory belong to it.
func (w *finder) expand(pattern string) ([]found, error) {
	if !doublestar.ValidatePattern(pattern) {
		return nil, fmt.Errorf("input: %q is not a valid pattern: %w", pattern, doublestar.ErrBadPattern)
	}
	g := newGlob(pattern)
	dir := g.root
	if dir == "" {
		dir = "."
	}
	info, err := w.in.stat(dir)
	if err != nil {
		if missing(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("input: looking for %s: %w", pattern, err)
	}
	if !info.IsDir() {
		return nil, nil
	}
	var out []found
	err = w.dir(dir, g.root, "", []fs.FileInfo{info}, &g, &out)
	return out, err
}

// below returns the files below a directory.
func (w *finder) below(path string, info fs.FileInfo) ([]found, error) {
	prefix := path
	if !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	var out []found
	err := w.dir(path, prefix, "", []fs.FileInfo{info}, nil, &out)
	return out, err
}

// dir adds the files below a directory that match g, or all if g is nil. prefix
// goes before the names of its entries; rel is the same relative to g's root;
// above are the directories from the root down to and including this one.
func (w *finder) dir(path, prefix, rel string, above []fs.FileInfo, g *glob, out *[]found) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	entries, err := w.in.readDir(path)
	if err != nil {
		return fmt.Errorf("input: listing a directory: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if w.visited++; w.visited&0xfff == 0 && w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		full, sub := prefix+name, rel+name
		matches := g == nil || g.match(sub)
		if !matches && !(e.IsDir() || e.Type()&fs.ModeSymlink != 0) {
			continue
		}
		if !matches && !g.below(sub) {
			continue
		}
		if hiddenName(name) && (g == nil || !g.asksFor(name)) {
			w.hidden++
			if w.sawOne == "" {
				w.sawOne = full
			}
			continue
		}
		var info fs.FileInfo
		if e.Type()&fs.ModeSymlink != 0 {
			info, err = w.in.stat(full)
		} else {
			info, err = e.Info()
		}
		if err != nil {
			if errors.Is(err, syscall.ELOOP) {
				w.loops = append(w.loops, full)
				continue
			}
			if !matches && missing(err) {
				continue
			}
			if missing(err) && w.allowEmpty {
				w.dangle = append(w.dangle, full)
				continue
			}
			if missing(err) && e.Type()&fs.ModeSymlink != 0 {
				return fmt.Errorf("input: %s is a symbolic link to nothing: %w; remove it, or pass over it with --allow-empty", full, err)
			}
			return fmt.Errorf("input: %w", err)
		}
		switch {
		case info.IsDir():
			if isAbove(info, above) {
				w.loops = append(w.loops, full)
				continue
			}
			below := g
			if matches {
				below = nil
			}
			if err := w.dir(full, full+"/", sub+"/", append(above[:len(above):len(above)], info), below, out); err != nil {
				return err
			}
		case !matches, g != nil && g.dirs:
		case info.Mode().IsRegular(), g != nil && info.Mode()&fs.ModeNamedPipe != 0:
			*out = append(*out, found{full, info})
		default:
			w.special++
		}
	}
	return nil
}

func isAbove(info fs.FileInfo, above []fs.FileInfo) bool {
	for _, a := range above {
		if os.SameFile(info, a) {
			return true
		}
	}
	return false
}

func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENAMETOOLONG)
}

func sortFound(f []found) {
	sort.SliceStable(f, func(i, j int) bool { return f[i].path < f[j].path })
}

// notes says what was passed over.
func (w *finder) notes() []string {
	var n []string
	if w.hidden > 0 {
		n = append(n, fmt.Sprintf("%s beginning with . or _ skipped, such as %s", plural(w.hidden, "name"), w.sawOne))
	}
	if w.special > 0 {
		n = append(n, fmt.Sprintf("%s in directories skipped that are neither files nor directories", plural(w.special, "name")))
	}
	n = noteEach(n, w.loops, "skipped: a symbolic link leads back to where it was found")
	return noteEach(n, w.dangle, "skipped: a symbolic link to nothing")
}

// noteEach says the same of every path, but of no more than a few.
func noteEach(notes, paths []string, what string) []string {
	const few = 5
	for i, p := range paths {
		if i == few {
			return append(notes, fmt.Sprintf("%d more paths %s", len(paths)-few, what))
		}
		notes = append(notes, p+" "+what)
	}
	return notes
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
