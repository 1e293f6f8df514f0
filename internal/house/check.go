// SPDX-License-Identifier: Apache-2.0

package house

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Problem is one breach of a rule.
type Problem struct {
	File string // relative to the module's root, with slashes
	Line int    // 0: the file or folder as a whole
	Text string
}

// String is the problem as compilers print theirs.
func (p Problem) String() string {
	if p.Line == 0 {
		return p.File + ": " + p.Text
	}
	return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Text)
}

// pkg is what is known of the package in one folder.
type pkg struct {
	name     string // without files there is none
	hasDoc   bool   // doc.go has a package comment
	anyFile  bool   // a file that is no test
	reported bool   // its room is unknown, and that was said once
}

// Check applies all rules to the module in root. The error is of reading the
// files; a file that does not parse is a Problem.
func Check(root fs.FS) ([]Problem, error) {
	c := &checker{fset: token.NewFileSet(), pkgs: map[string]*pkg{}}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			// Other work (a test's output, say) may vanish while we look.
			if errors.Is(err, fs.ErrNotExist) && name != "." {
				return nil
			}
			return fmt.Errorf("walk %s: %w", name, err)
		}
		if d.IsDir() {
			if skipFolder(name, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !isSource(name) || !d.Type().IsRegular() {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		c.file(name, text)
		return nil
	})
	if err != nil {
		return nil, err
	}
	c.packages()
	slices.SortFunc(c.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Text, b.Text))
	})
	return c.problems, nil
}

// skipFolder says which folders hold no source of ours: those that the go
// command skips too, and what is built or measured.
func skipFolder(name, base string) bool {
	if name == "." {
		return false
	}
	return strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || base == "vendor" || name == "bin"
}

func isSource(name string) bool {
	return licenses[path.Ext(name)] != ""
}

type checker struct {
	fset     *token.FileSet
	pkgs     map[string]*pkg // by folder
	problems []Problem
}

func (c *checker) add(file string, line int, format string, args ...any) {
	c.problems = append(c.problems, Problem{File: file, Line: line, Text: fmt.Sprintf(format, args...)})
}

func (c *checker) file(name string, text []byte) {
	if path.Ext(name) != ".go" {
		c.license(name, string(text))
		c.unfinishedText(name, 1, string(text))
		return
	}
	f, err := parser.ParseFile(c.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		c.add(name, 0, "does not parse: %v", err)
		return
	}
	if !ast.IsGenerated(f) {
		c.license(name, string(text))
	}
	dir, test := path.Dir(name), strings.HasSuffix(name, "_test.go")
	p := c.pkgs[dir]
	if p == nil {
		p = &pkg{}
		c.pkgs[dir] = p
	}
	if !test {
		p.name, p.anyFile = f.Name.Name, true
		if path.Base(name) == "doc.go" && strings.HasPrefix(f.Doc.Text(), "Package ") {
			p.hasDoc = true
		}
		if !ast.IsGenerated(f) {
			c.unfinished(name, f)
		}
	}
	c.imports(name, dir, test, p, f)
}

func (c *checker) license(name, text string) {
	license := licenses[path.Ext(name)]
	lines := strings.SplitN(text, "\n", licenseLines+1)
	if len(lines) > licenseLines {
		lines = lines[:licenseLines]
	}
	for _, l := range lines {
		if strings.Contains(l, license) {
			return
		}
	}
	c.add(name, 0, "has no %q in its first %d lines", license, licenseLines)
}

// unfinished finds marks of unfinished work in comments and in messages. It
// looks at literals too, since panic("TODO") is the usual way to leave a gap.
func (c *checker) unfinished(name string, f *ast.File) {
	if path.Dir(name) == "internal/house" {
		return // where the words are defined
	}
	see := func(pos token.Pos, text string) { c.unfinishedText(name, c.fset.Position(pos).Line, text) }
	for _, g := range f.Comments {
		for _, l := range g.List {
			see(l.Pos(), l.Text)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			see(l.Pos(), l.Value)
		}
		return true
	})
}

// unfinishedText looks at text that begins in a line of a file.
func (c *checker) unfinishedText(name string, line int, text string) {
	for _, w := range unfinished {
		if i := indexWord(text, w); i >= 0 {
			c.add(name, line+strings.Count(text[:i], "\n"), "leaves a %s", w)
		}
	}
}

// indexWord is strings.Index for w standing alone.
func indexWord(s, w string) int {
	letter := func(i int) bool {
		return i >= 0 && i < len(s) && (s[i]|0x20 >= 'a' && s[i]|0x20 <= 'z' || s[i] == '_')
	}
	for from := 0; ; {
		i := strings.Index(s[from:], w)
		if i < 0 {
			return -1
		}
		i += from
		if !letter(i-1) && !letter(i+len(w)) {
			return i
		}
		from = i + len(w)
	}
}

func (c *checker) imports(name, dir string, test bool, p *pkg, f *ast.File) {
	home, _, _ := strings.Cut(dir, "/")
	r, known := room(home)
	if !known && !p.reported {
		p.reported = true
		c.add(dir, 0, "the floor plan has no room %q: add it to internal/house and to docs/ARCHITECTURE.md, or move the package", home)
	}
	for _, spec := range f.Imports {
		imp, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the compiler will say so
		}
		line := c.fset.Position(spec.Pos()).Line
		for dep, owner := range SoleImporters {
			if within(imp, dep) && home != owner {
				c.add(name, line, "%s imports %s, which only %s may", home, imp, owner)
			}
		}
		if !within(imp, Module) || !known {
			continue
		}
		other, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(imp, Module), "/"), "/")
		switch {
		case other == home:
		case other == nobodysRoom:
			c.add(name, line, "%s imports %s: nobody may import a command", home, imp)
		case test && other == testRoom:
		case !r.mayImport(other):
			c.add(name, line, "%s imports %s: it may import of ours only %s", home, imp, allowed(r))
		}
	}
}

// within says whether import path p is prefix or below it.
func within(p, prefix string) bool {
	rest, ok := strings.CutPrefix(p, prefix)
	return ok && (rest == "" || rest[0] == '/')
}

func allowed(r Room) string {
	return strings.Join(append([]string{r.Name}, r.May...), ", ")
}

// packages applies the rules about packages as a whole.
func (c *checker) packages() {
	for dir, p := range c.pkgs {
		if !p.anyFile {
			continue // tests alone
		}
		if badNames[p.name] || badNames[path.Base(dir)] {
			c.add(dir, 0, "package %s: name it after what it does", p.name)
		}
		if p.name != "main" && !p.hasDoc {
			c.add(dir, 0, "package %s has no package comment (\"Package %s ...\") in a file doc.go", p.name, p.name)
		}
	}
}
