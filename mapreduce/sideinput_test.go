// SPDX-License-Identifier: Apache-2.0

package mapreduce_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"weak"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/rows"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/mapreduce/task/tasktest"
)

func init() {
	// Every function of a job can read them, and all kinds of sources give the same everywhere.
	shapes["side inputs"] = func(opts *mapreduce.Options) mapreduce.Runnable {
		j := &mapreduce.Job[string, int64, string]{Name: "side inputs"}
		words := j.SideInput("words", mapreduce.FileSource(opts.Inputs[1], opts.Inputs[1]))
		empty := j.SideInput("empty", mapreduce.BytesSource(nil))
		most := j.SideInput("at most", mapreduce.ReaderSource(func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(iotest.OneByteReader(strings.NewReader("5"))), nil
		}))
		known := mapreduce.Parse(words, func(b []byte) (map[string]int, error) {
			n := map[string]int{}
			for w := range strings.FieldsSeq(string(b)) {
				n[w]++
			}
			return n, nil
		})
		j.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
			n, err := known()
			if err != nil {
				return err
			}
			for w := range strings.FieldsSeq(string(rec.Value)) {
				emit.Emit(w[:min(3, len(w))], int64(n[w]+len(empty.Bytes())))
			}
			return nil
		}
		j.Combine = func(_ string, values iter.Seq[int64], yield func(int64)) error {
			if most.Text() != "5" {
				return errors.New("not what it was")
			}
			return added("", values, yield)
		}
		j.Reduce = func(key string, values iter.Seq[int64], yield func(string)) error {
			n := int64(0)
			for v := range values {
				n += v
			}
			yield(fmt.Sprint(n, len(words.Bytes()), strings.Count(words.Text(), key)))
			return nil
		}
		j.Keep = func(key, _ string) bool { return len(key) <= int(most.Bytes()[0]-'0') }
		return j
	}
	failures["side input write"] = func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		table := j.SideInput("table", mapreduce.BytesSource([]byte("table")))
		j.Map = func(mapreduce.Record, *mapreduce.Emitter[[]byte, int64]) error { table.Bytes()[1]++; return nil }
		return j
	}
	failures["side input missing"] = func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		j.SideInput("table", mapreduce.FileSource("/no/such/table"))
		return j
	}
	failures["side input unread"] = func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		j.SideInput("table", mapreduce.ReaderSource(func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(iotest.ErrReader(errors.New("boom"))), nil
		}))
		return j
	}
	failures["side input refused"] = func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		j.SideInput("table", mapreduce.ReaderSource(func(context.Context) (io.ReadCloser, error) {
			return nil, mapreduce.Permanent(errors.New("boom"))
		}))
		return j
	}
	failures["side input row"] = func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		j.SideInput("table", mapreduce.ReaderSource(func(context.Context) (io.ReadCloser, error) {
			return nil, &rows.Error{File: "t.csv", Line: 7, Err: errors.New("boom")}
		}))
		return j
	}
	failures["side input endless"] = func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		j.SideInput("table", mapreduce.ReaderSource(func(context.Context) (io.ReadCloser, error) {
			// It ends after all, so as not to fill a disk.
			return io.NopCloser(io.LimitReader(endless{}, 64<<20)), nil
		}))
		return j
	}
	failures["side input pipe"] = func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		j.SideInput("table", mapreduce.FileSource(os.DevNull))
		return j
	}
	failures["side input upload"] = func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		j.SideInput("table", mapreduce.FileSource("lists/words"))
		return j
	}
	failures["side input malformed"] = parsing(func([]byte) (int, error) { return 0, errors.New("boom") })
	failures["side input panic"] = parsing(func([]byte) (int, error) { panic("boom") })
	failures["side input fickle"] = func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		j.SideInput("one", mapreduce.BytesSource([]byte("1")))
		j.SideInput("two", mapreduce.BytesSource([]byte("2")))
		return j
	}
}

// parsing is a job whose Map needs what parse makes of a side input.
func parsing(parse func([]byte) (int, error)) func(*mapreduce.Options) mapreduce.Runnable {
	return func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		get := mapreduce.Parse(j.SideInput("table", mapreduce.BytesSource([]byte("table"))), parse)
		j.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
			if _, err := get(); err != nil {
				return err
			}
			return countWords(rec, emit)
		}
		return j
	}
}

// limited has a plan's side inputs be no larger.
func limited(n int64) func(*task.Request) {
	return func(r *task.Request) {
		if r.Kind == task.Plan {
			r.SideInputsLimit = n
		}
	}
}

// In tasks, too, every failure says what it is and whether another attempt would meet it again.
func TestSideInputTaskFailures(t *testing.T) {
	for _, c := range []struct {
		shape     string
		want      string
		permanent bool
		panics    bool
		spoil     func(r *task.Request)
	}{
		{shape: "side input write", want: `a fault at byte 1 of side input "table": it was written`, panics: true},
		{shape: "side input missing", want: `side input "table": input: /no/such/table does not exist; check the name: file does not exist`, permanent: true},
		{shape: "side input unread", want: `side input "table": boom`},
		{shape: "side input refused", want: `side input "table": boom`, permanent: true},
		{shape: "side input row", want: "t.csv:7: boom", permanent: true},
		{shape: "side input endless", want: `side input "table": it has more than 1000000 bytes, which is what the master takes of a job; give quern master a larger --side-inputs`, permanent: true, spoil: limited(1_000_000)},
		{shape: "side input fickle", want: `side input "two": it has more than 0 bytes, and with those before it they are more than 1, which is what the master takes`, permanent: true, spoil: limited(1)},
		{shape: "side input pipe", want: `side input "table": ` + os.DevNull + ` is no regular file`, permanent: true},
		{shape: "side input malformed", want: `side input "table": boom`, permanent: true},
		{shape: "side input panic", want: `side input "table": panic in the job's code: boom`, panics: true},
		{shape: "side input fickle", want: `side input "one": the job was planned without it`, permanent: true, spoil: func(r *task.Request) {
			if r.Kind == task.Map {
				r.SideInputs = r.SideInputs[1:]
			}
		}},
		{shape: "side input fickle", want: `side input "two": the job was planned without it`, permanent: true, spoil: func(r *task.Request) {
			if r.Kind == task.Reduce {
				r.SideInputs[1].Name = "three"
			}
		}},
		{shape: "side input fickle", want: `side input "three": the job was planned with it`, permanent: true, spoil: func(r *task.Request) {
			if r.Kind == task.Map {
				r.SideInputs = append(r.SideInputs, task.SideInput{Name: "three"})
			}
		}},
		{shape: "side input fickle", want: `a request with a side input that can't be read: "one": its file ends at byte`, spoil: func(r *task.Request) {
			if r.Kind == task.Map {
				r.SideInputs[0].Size = 1 << 20
			}
		}},
		{shape: "side input fickle", want: `a request with a side input that can't be read: "one": it is there twice`, spoil: func(r *task.Request) {
			if r.Kind == task.Map {
				r.SideInputs[1] = r.SideInputs[0]
			}
		}},
		{shape: "side input fickle", want: `a request with a side input that can't be read: "one": 1 bytes from byte -1 on`, spoil: func(r *task.Request) {
			if r.Kind == task.Map {
				r.SideInputs[0].Offset = -1
			}
		}},
		{shape: "side input fickle", want: "without a folder", permanent: true, spoil: func(r *task.Request) { r.Dir = "" }},
	} {
		t.Run(c.shape+": "+c.want, func(t *testing.T) {
			p := &program{Shape: c.shape, Inputs: []string{text(t, "a\nb\n")}, Output: filepath.Join(t.TempDir(), "out")}
			r := &tasktest.Runner{Command: p.command(t), Dir: t.TempDir(), Before: c.spoil}
			_, err := r.Run(context.Background())
			var failed *task.Error
			if !errors.As(err, &failed) {
				t.Fatalf("got %v", err)
			}
			if c.shape == "side input row" && failed.Message != c.want { // the row says where it is
				t.Errorf("got %q", failed.Message)
			}
			if !strings.Contains(failed.Message, c.want) || failed.Permanent != c.permanent || failed.Panic != c.panics {
				t.Errorf("got %+v", failed)
			}
			if c.panics != strings.Contains(failed.Stack, "sideinput_test.go") || strings.Contains(failed.Message, "goroutine") {
				t.Errorf("message %s, stack %s", failed.Message, failed.Stack)
			}
			if _, err := os.Stat(filepath.Join(p.Output, "_SUCCESS")); err == nil {
				t.Error("the output was published")
			}
		})
	}
}

// In a task they are read where they lie, wherever that is, and what the plan says of them is so.
func TestSideInputsOfTasks(t *testing.T) {
	in, other := text(t, many[:50_000]), text(t, many[20_000:60_000])
	c := program{Shape: "side inputs", Inputs: []string{in, other}, Split: 30_000, Parts: 2, Format: output.TSV}
	o := sameAsLocal(t, &c, &tasktest.Runner{})
	var got []string
	for _, s := range o.Plan.SideInputs {
		got = append(got, fmt.Sprintf("%s %s %d %.8s", s.Name, s.File, s.Size, s.Digest))
	}
	// sha256sum of nothing and of "5".
	want := []string{"words side-00 80000", "empty side-01 0 e3b0c442", "at most side-02 1 ef2d127d"}
	if len(got) != 3 || !strings.HasPrefix(got[0], want[0]) || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("got %q", got)
	}
	why := strings.Join(o.Plan.Why, "\n")
	if !strings.Contains(why, fmt.Sprintf("side input \"words\" is %s, %[1]s, read once and whole: 80000 bytes", other)) {
		t.Errorf("why:\n%s", why)
	}
}

// A file that was shipped with the job is read in the place of one that is not there.
func TestUploadedSideInput(t *testing.T) {
	list := text(t, "some words\n")
	p := &program{Shape: "side input upload", Inputs: []string{text(t, "a\n")}, Output: filepath.Join(t.TempDir(), "out")}
	r := &tasktest.Runner{Command: p.command(t), Dir: t.TempDir(), Before: func(r *task.Request) {
		r.Uploads = map[string]string{"lists/words": list}
		limited(11)(r) // as much as there is
	}}
	o, err := r.Run(context.Background())
	if err != nil || len(o.Plan.SideInputs) != 1 || o.Plan.SideInputs[0].Size != 11 {
		t.Errorf("got %+v, %v", o, err)
	}
}

func zipped(content string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(content))
	_ = z.Close()
	return b.String()
}

// whole runs a job of one record whose only side input has a source, and returns what a Map sees.
func whole(t *testing.T, source mapreduce.Source, opts mapreduce.Options) (content string, res *mapreduce.Result, err error) {
	t.Helper()
	job := wordcount()
	side := job.SideInput("side", source)
	job.Map = func(mapreduce.Record, *mapreduce.Emitter[[]byte, int64]) error {
		content = strings.Clone(side.Text())
		if b := side.Bytes(); string(b) != content || cap(b) != len(b) || b == nil {
			return fmt.Errorf("%q of capacity %d", b, cap(b))
		}
		return nil
	}
	opts.Inputs, opts.Workers = []string{text(t, "x\n")}, 1
	_, res, err = try(job, opts)
	return content, res, err
}

func TestSideInputSources(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"a.txt": "one\n", "b.txt.gz": zipped("two\n"), "c.txt": "", "_d.txt": "hidden", "sub/e.txt": "three",
		"utf16": "\xff\xfea\x00\n\x00", "parquet": "PAR1 not really PAR1",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := func(names ...string) mapreduce.Source {
		for i := range names {
			names[i] = filepath.Join(dir, names[i])
		}
		return mapreduce.FileSource(names...)
	}
	large := strings.Repeat("0123456789abcdef", 100_000)
	closed := 0
	for name, c := range map[string]struct {
		source  mapreduce.Source
		uploads map[string]string
		want    string
	}{
		"file":     {source: in("a.txt"), want: "one\n"},
		"gzip":     {source: in("b.txt.gz"), want: "two\n"},
		"in order": {source: in("sub/e.txt", "b.txt.gz", "a.txt"), want: "threetwo\none\n"},
		"pattern":  {source: in("*.txt*"), want: "one\ntwo\n"},
		"folder":   {source: in("sub"), want: "three"},
		"twice":    {source: in("a.txt", "a.txt"), want: "one\none\n"},
		"empty":    {source: in("c.txt"), want: ""},
		"utf-16":   {source: in("utf16"), want: "\xff\xfea\x00\n\x00"}, // bytes are bytes
		"parquet":  {source: in("parquet"), want: "PAR1 not really PAR1"},
		"upload":   {source: mapreduce.FileSource("lists/x"), uploads: map[string]string{"lists/x": filepath.Join(dir, "b.txt.gz")}, want: "two\n"},
		"bytes":    {source: mapreduce.BytesSource([]byte("bytes")), want: "bytes"},
		"no bytes": {source: mapreduce.BytesSource(nil), want: ""},
		"large":    {source: mapreduce.BytesSource([]byte(large)), want: large},
		"reader": {source: mapreduce.ReaderSource(func(ctx context.Context) (io.ReadCloser, error) {
			return &closing{Reader: iotest.DataErrReader(strings.NewReader("read")), closed: &closed}, ctx.Err()
		}), want: "read"},
		"slow reader": {source: mapreduce.ReaderSource(func(context.Context) (io.ReadCloser, error) {
			return &closing{Reader: iotest.OneByteReader(strings.NewReader("read")), closed: &closed}, nil
		}), want: "read"},
	} {
		got, res, err := whole(t, c.source, mapreduce.Options{Input: input.Options{Uploads: c.uploads}})
		if err != nil || got != c.want {
			t.Errorf("%s: %.80q, %v", name, got, err)
			continue
		}
		want := mapreduce.SideInputInfo{Name: "side", Source: c.source.String(), Size: int64(len(c.want))}
		if !slices.Equal(res.SideInputs, []mapreduce.SideInputInfo{want}) {
			t.Errorf("%s: the result says %+v", name, res.SideInputs)
		}
	}
	if closed != 2 {
		t.Errorf("%d readers were closed, not 2", closed)
	}
}

type closing struct {
	io.Reader
	closed *int
	err    error
}

func (c *closing) Close() error {
	*c.closed++
	return c.err
}

// What is wrong with a side input is said by its name, and nothing is written.
func TestSideInputErrors(t *testing.T) {
	closed := 0
	reader := func(r io.Reader, atClose error) mapreduce.Source {
		return mapreduce.ReaderSource(func(context.Context) (io.ReadCloser, error) {
			return &closing{Reader: r, closed: &closed, err: atClose}, nil
		})
	}
	boom := errors.New("boom")
	one := mapreduce.BytesSource([]byte("x"))
	cut := zipped(many)
	cut = cut[:len(cut)/2]
	type declared struct {
		name   string
		source mapreduce.Source
	}
	for name, c := range map[string]struct {
		sides []declared
		want  string
		is    error
	}{
		"no name":       {sides: []declared{{"", one}}, want: `side input "": it has no name`},
		"long name":     {sides: []declared{{strings.Repeat("n", 65), one}}, want: "has 65 bytes, 64 are the most"},
		"name":          {sides: []declared{{"a\tb", one}}, want: `side input "a\tb": its name has the byte 0x9 at 1`},
		"twice":         {sides: []declared{{"a", one}, {"b", one}, {"a", one}}, want: `side input "a": the job has another one of that name`},
		"many":          {sides: slices.Repeat([]declared{{"a", one}}, 65), want: "65 side inputs: 64 are the most"},
		"no source":     {sides: []declared{{"a", mapreduce.Source{}}}, want: `side input "a": it has no source`},
		"nil reader":    {sides: []declared{{"a", mapreduce.ReaderSource(nil)}}, want: `side input "a": it has no source`},
		"no files":      {sides: []declared{{"a", mapreduce.FileSource()}}, want: `side input "a": its source names no file`},
		"missing":       {sides: []declared{{"a", one}, {"b", mapreduce.FileSource("/no/such")}}, want: `side input "b": input: /no/such does not exist; check the name`, is: os.ErrNotExist},
		"no match":      {sides: []declared{{"b", mapreduce.FileSource("/no/such/*")}}, want: `side input "b": input: /no/such/* matches no file`, is: os.ErrNotExist},
		"stdin":         {sides: []declared{{"b", mapreduce.FileSource("-")}}, want: `side input "b": input: standard input`},
		"cut off":       {sides: []declared{{"b", mapreduce.FileSource(text(t, cut))}}, want: "the gzip data is cut off", is: io.ErrUnexpectedEOF},
		"open":          {sides: []declared{{"b", mapreduce.ReaderSource(func(context.Context) (io.ReadCloser, error) { return nil, boom })}}, want: `side input "b": boom`, is: boom},
		"opens nothing": {sides: []declared{{"b", mapreduce.ReaderSource(func(context.Context) (io.ReadCloser, error) { return nil, nil })}}, want: `side input "b": its source has opened nothing`},
		"read":          {sides: []declared{{"b", reader(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("ab"))), nil)}}, want: `side input "b": timeout`, is: iotest.ErrTimeout},
		"close":         {sides: []declared{{"b", reader(strings.NewReader("ab"), boom)}}, want: `side input "b": boom`, is: boom},
		"reads nothing": {sides: []declared{{"b", reader(stuck{}, nil)}}, want: `side input "b": `, is: io.ErrNoProgress},
		"panics":        {sides: []declared{{"b", mapreduce.ReaderSource(func(context.Context) (io.ReadCloser, error) { panic("boom") })}}, want: `side input "b": panic in the job's code: boom`},
		"too large":     {sides: []declared{{"a", one}, {"b", mapreduce.BytesSource(make([]byte, 16<<20))}}, want: `side input "b": there is no room for it in the memory budget of 32 MiB, of which the job needs 16 MiB`},
		"unknown size":  {sides: []declared{{"b", reader(endless{}, nil)}}, want: `side input "b": there is no room for it in the memory budget of 32 MiB`},
	} {
		job := wordcount()
		for _, s := range c.sides {
			job.SideInput(s.name, s.source)
		}
		dir := t.TempDir()
		opts := mapreduce.Options{Inputs: []string{text(t, "x\n")}, Memory: 32 << 20, Output: output.Dir(filepath.Join(dir, "out"), output.DirOptions{})}
		_, err := mapreduce.Run(context.Background(), job, opts)
		var side *mapreduce.SideInputError
		switch {
		case err == nil || !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: got %v", name, err)
		case c.is != nil && !errors.Is(err, c.is):
			t.Errorf("%s: it is not %v", name, c.is)
		case name != "many" && (!errors.As(err, &side) || side.Name != c.sides[len(c.sides)-1].name):
			t.Errorf("%s: it names %v", name, side)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%s: left: %v", name, left)
		}
	}
	if closed != 4 {
		t.Errorf("%d readers were closed, not 4", closed)
	}
	noMappings(t)
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// noMappings fails if the memory of a side input is left.
func noMappings(t *testing.T) {
	t.Helper()
	if maps, err := os.ReadFile("/proc/self/maps"); err == nil && bytes.Contains(maps, []byte("quern side input")) {
		t.Error("memory of a side input is left")
	}
	open, _ := os.ReadDir("/proc/self/fd")
	for _, f := range open {
		if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.Contains(to, "quern side input") {
			t.Errorf("descriptor %s of a side input is left", f.Name())
		}
	}
}

// Outside of a run there is no content, and that is said.
func TestSideInputOutsideOfRun(t *testing.T) {
	job := wordcount()
	side := job.SideInput("list", mapreduce.BytesSource([]byte("content")))
	get := mapreduce.Parse(side, func(b []byte) (string, error) { return string(b), nil })
	outside := func() {
		t.Helper()
		var named *mapreduce.SideInputError
		if v, err := get(); v != "" || !errors.As(err, &named) || named.Name != "list" {
			t.Errorf("Parse: %q, %v", v, err)
		}
		for _, read := range []func(){func() { side.Bytes() }, func() { side.Text() }} {
			func() {
				defer func() {
					err, ok := recover().(error)
					if !ok || !errors.As(err, &named) || !strings.Contains(err.Error(), `side input "list": it can be read while its job runs`) {
						t.Errorf("Bytes: %v", err)
					}
				}()
				read()
			}()
		}
	}
	outside()
	job.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
		v, err := get()
		emit.Emit([]byte(v), 1)
		return err
	}
	if got, _ := run(t, job, mapreduce.Options{Inputs: []string{text(t, "x\n")}}); got != `{"key":"content","value":1}`+"\n" {
		t.Errorf("got %s", got)
	}
	outside()
	noMappings(t)

	// In another job's function it is that job's error, and none of the record's.
	other := wordcount()
	other.Keep = func([]byte, int64) bool { return len(side.Bytes()) > 0 }
	_, _, err := try(other, mapreduce.Options{Inputs: []string{text(t, "x\n")}})
	var panicked *mapreduce.PanicError
	if err == nil || errors.As(err, &panicked) || !strings.Contains(err.Error(), "while its job runs") {
		t.Errorf("Keep: %v", err)
	}
	other = wordcount()
	other.Map = func(mapreduce.Record, *mapreduce.Emitter[[]byte, int64]) error { side.Bytes(); return nil }
	_, _, err = try(other, mapreduce.Options{Inputs: []string{text(t, "x\n")}})
	var at *mapreduce.InputError
	if err == nil || errors.As(err, &panicked) || errors.As(err, &at) || !strings.Contains(err.Error(), "while its job runs") {
		t.Errorf("Map: %v", err)
	}
}

// A job's functions can't change a side input, and who tries fails the job and nothing else.
func TestSideInputCannotBeWritten(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("side inputs are in ordinary memory on this system")
	}
	for name, spoil := range map[string]func(j *mapreduce.Job[string, int64, int64], side *mapreduce.SideInput){
		"Map": func(j *mapreduce.Job[string, int64, int64], side *mapreduce.SideInput) {
			j.Map = func(mapreduce.Record, *mapreduce.Emitter[string, int64]) error { side.Bytes()[0] = 1; return nil }
		},
		"NewMap": func(j *mapreduce.Job[string, int64, int64], side *mapreduce.SideInput) {
			newMap := func() func(mapreduce.Record, *mapreduce.Emitter[string, int64]) error {
				side.Bytes()[2] = 1
				return lengths
			}
			j.Map, j.NewMap = nil, newMap
		},
		"Combine": func(j *mapreduce.Job[string, int64, int64], side *mapreduce.SideInput) {
			j.Combine = func(string, iter.Seq[int64], func(int64)) error { side.Bytes()[2] = 1; return nil }
		},
		"Reduce": func(j *mapreduce.Job[string, int64, int64], side *mapreduce.SideInput) {
			j.Reduce = func(string, iter.Seq[int64], func(int64)) error { clear(side.Bytes()); return nil }
		},
		"Keep": func(j *mapreduce.Job[string, int64, int64], side *mapreduce.SideInput) {
			j.Keep = func(string, int64) bool { slices.Reverse(side.Bytes()); return true }
		},
		"Parse": func(j *mapreduce.Job[string, int64, int64], side *mapreduce.SideInput) {
			get := mapreduce.Parse(side, func(b []byte) (int, error) { b[0]++; return 0, nil })
			j.Map = func(mapreduce.Record, *mapreduce.Emitter[string, int64]) error { _, err := get(); return err }
		},
	} {
		job := &mapreduce.Job[string, int64, int64]{Name: "spoil", Map: lengths, Reduce: added, Combine: added}
		spoil(job, job.SideInput("list", mapreduce.BytesSource([]byte("content"))))
		opts := mapreduce.Options{Inputs: []string{text(t, strings.Repeat(many, 8))}, Memory: 17 << 20, SpillDir: t.TempDir()} // so that it combines
		_, _, err := try(job, opts)
		var panicked *mapreduce.PanicError
		if !errors.As(err, &panicked) || !strings.Contains(fmt.Sprint(panicked.Value), `of side input "list": it was written`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	noMappings(t)
}

// However many goroutines need it, parse is called once a run, and sees what that run has read.
func TestParse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	var calls, uses atomic.Int64
	job := wordcount()
	get := mapreduce.Parse(job.SideInput("list", mapreduce.FileSource(path)), func(b []byte) (string, error) {
		calls.Add(1)
		return string(b), nil
	})
	job.Map = nil
	job.NewMap = func() func(mapreduce.Record, *mapreduce.Emitter[[]byte, int64]) error {
		return func(_ mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
			v, err := get()
			uses.Add(1)
			emit.Emit([]byte(v), 1)
			return err
		}
	}
	in := text(t, strings.Repeat("x\n", 10_000))
	for n, want := range []string{"first", "second", ""} {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		got, _ := run(t, job, mapreduce.Options{Inputs: []string{in}, Workers: 8, Memory: 256 << 20, Input: input.Options{SplitSize: 1000}})
		if got != fmt.Sprintf("{\"key\":%q,\"value\":10000}\n", want) {
			t.Errorf("got %s", got)
		}
		if calls.Load() != int64(n)+1 || uses.Load() != int64(n+1)*10_000 {
			t.Errorf("run %d: parsed %d times, used %d times", n, calls.Load(), uses.Load())
		}
	}
}

// What was parsed is not kept beyond the run, whose memory it may point into.
func TestParsedIsLetGo(t *testing.T) {
	job := wordcount()
	get := mapreduce.Parse(job.SideInput("list", mapreduce.BytesSource([]byte("x"))), func([]byte) (*[64]int, error) { return new([64]int), nil })
	var parsed weak.Pointer[[64]int]
	job.Map = func(mapreduce.Record, *mapreduce.Emitter[[]byte, int64]) error {
		p, err := get()
		parsed = weak.Make(p)
		return err
	}
	run(t, job, mapreduce.Options{Inputs: []string{text(t, "x\n")}, Workers: 1})
	runtime.GC()
	if parsed == (weak.Pointer[[64]int]{}) || parsed.Value() != nil {
		t.Error("it is kept")
	}
	runtime.KeepAlive(get)
}

// Whatever goes wrong in parse, everybody who needs it is told the same, by the side input's name.
func TestParseFails(t *testing.T) {
	for name, c := range map[string]struct {
		parse  func([]byte) (int, error)
		want   string
		panics bool
	}{
		"error": {parse: func([]byte) (int, error) { return 7, errors.New("boom") }, want: `side input "table": boom`},
		"panic": {parse: func([]byte) (int, error) { panic("boom") }, want: `side input "table": panic in the job's code: boom`, panics: true},
		"exit":  {parse: func([]byte) (int, error) { runtime.Goexit(); return 7, nil }, want: "ended its goroutine"},
	} {
		in := text(t, strings.Repeat("x\n", 1000))
		for range 5 {
			job := parsing(c.parse)(nil)
			_, _, err := try(job, mapreduce.Options{Inputs: []string{in}, Workers: 4, Input: input.Options{SplitSize: 100}})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%s: %v", name, err)
			}
			var side *mapreduce.SideInputError
			var panicked *mapreduce.PanicError
			var at *mapreduce.InputError
			if name != "exit" && (!errors.As(err, &side) || errors.As(err, &at)) || errors.As(err, &panicked) != c.panics {
				t.Fatalf("%s: %#v", name, err)
			}
		}
	}
}

// An answer that was not parsed to the end is nobody's.
func TestParseThatDoesNotComeBack(t *testing.T) {
	job := wordcount()
	get := mapreduce.Parse(job.SideInput("table", mapreduce.BytesSource([]byte("x"))), func([]byte) (int, error) { runtime.Goexit(); return 1, nil })
	job.Map = func(mapreduce.Record, *mapreduce.Emitter[[]byte, int64]) error {
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = get() })
		wg.Wait()
		_, err := get()
		return err
	}
	_, _, err := try(job, mapreduce.Options{Inputs: []string{text(t, "x\n")}, Workers: 1})
	if err == nil || !strings.Contains(err.Error(), `side input "table": the job's code ended its goroutine`) {
		t.Errorf("got %v", err)
	}
}

// One Job can't have two contents at the same time.
func TestSideInputsAreOfOneRun(t *testing.T) {
	in := text(t, "x\n")
	job := wordcount()
	job.SideInput("list", mapreduce.BytesSource([]byte("x")))
	var second error
	job.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
		if second == nil {
			_, _, second = try(job, mapreduce.Options{Inputs: []string{in}})
		}
		return countWords(rec, emit)
	}
	for range 2 {
		second = nil
		if got, _ := run(t, job, mapreduce.Options{Inputs: []string{in}}); got != `{"key":"x","value":1}`+"\n" {
			t.Errorf("got %s", got)
		}
		if second == nil || !strings.Contains(second.Error(), `side input "list": another run of the same job has not ended`) {
			t.Errorf("the run within: %v", second)
		}
	}
	noMappings(t)
}

// 64 MiB are read without being in the collector's memory, and to use them costs nothing.
func TestLargeSideInput(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("side inputs are in ordinary memory on this system")
	}
	const size = 64 << 20
	path := filepath.Join(t.TempDir(), "model")
	block := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for range size / len(block) {
		if _, err := f.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	job := wordcount()
	model := job.SideInput("model", mapreduce.FileSource(path))
	type table struct{ content []byte }
	get := mapreduce.Parse(model, func(b []byte) (*table, error) { return &table{b}, nil })
	var live runtime.MemStats
	job.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
		var sum byte
		use := func() {
			b := model.Bytes()
			sum += b[len(b)-1]
			m, err := get()
			if err != nil || len(m.content) != size {
				panic("not the whole")
			}
			sum += m.content[size/2]
		}
		if n := testing.AllocsPerRun(1000, use); n != 0 {
			return fmt.Errorf("%v allocations a use", n)
		}
		if bytes.Count(model.Bytes(), block[:16]) != size/16 {
			return errors.New("not what was written")
		}
		runtime.ReadMemStats(&live)
		emit.Emit([]byte{sum}, 1)
		return nil
	}
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	_, res := run(t, job, mapreduce.Options{Inputs: []string{text(t, "x\n")}, Memory: 128 << 20, Workers: 1})
	if got := live.TotalAlloc - before.TotalAlloc; got > size/4 {
		t.Errorf("%d bytes of memory were allocated for a side input of %d", got, size)
	}
	if len(res.SideInputs) != 1 || res.SideInputs[0].Size != size || !slices.Contains(res.Notes, "side inputs take 64 MiB of the memory budget of 128 MiB") {
		t.Errorf("the result says %v, %q", res.SideInputs, res.Notes)
	}
	noMappings(t)
}

// The records have what side inputs leave of the memory, and the answer is the same.
func TestSideInputsComeOutOfTheBudget(t *testing.T) {
	var b strings.Builder
	for i := range 200_000 {
		fmt.Fprintln(&b, i*7919%200_000)
	}
	in := text(t, b.String())
	job := func(size int) mapreduce.Runnable {
		j := wordcount()
		j.SideInput("ballast", mapreduce.BytesSource(make([]byte, size)))
		return j
	}
	opts := mapreduce.Options{Inputs: []string{in}, Memory: 56 << 20, Workers: 1, SpillDir: t.TempDir()}
	want, roomy := run(t, job(1), opts)
	got, tight := run(t, job(40<<20), opts)
	opts.Memory = 16 << 20
	least, small := run(t, job(0), opts)
	if got != want || least != want {
		t.Error("the answers differ")
	}
	if roomy.Spills != 0 || tight.Spills == 0 || tight.Spills != small.Spills {
		t.Errorf("runs: %d with all memory, %d with what is left, %d with as much", roomy.Spills, tight.Spills, small.Spills)
	}
}

func TestExplainSideInputs(t *testing.T) {
	list, packed := text(t, "some words\n"), text(t, zipped("some words\n"))
	job := wordcount()
	job.SideInput("list", mapreduce.FileSource(list, list))
	job.SideInput("packed", mapreduce.FileSource(packed))
	job.SideInput("bytes", mapreduce.BytesSource([]byte("abc")))
	job.SideInput("reader", mapreduce.ReaderSource(func(context.Context) (io.ReadCloser, error) { panic("it is not to be read") }))
	job.SideInput("called", mapreduce.ReaderSource(func(context.Context) (io.ReadCloser, error) { panic("it is not to be read") }).Called("a table of a.csv"))
	x, err := job.Explain(context.Background(), mapreduce.Options{Inputs: []string{list}})
	if err != nil {
		t.Fatal(err)
	}
	want := []mapreduce.SideInputInfo{
		{Name: "list", Source: list + ", " + list, Size: 22},
		{Name: "packed", Source: packed, Size: -1},
		{Name: "bytes", Source: "bytes of the program", Size: 3},
		{Name: "reader", Source: "a reader of the program", Size: -1},
		{Name: "called", Source: "a table of a.csv", Size: -1},
	}
	if !slices.Equal(x.SideInputs, want) {
		t.Errorf("got %+v", x.SideInputs)
	}
	why := strings.Join(x.Why, "\n")
	for _, w := range []string{`side input "bytes" is bytes of the program, read once and whole: 3 bytes`, `side input "reader" is a reader of the program, read once and whole; its size is known then`, `side input "called" is a table of a.csv, read`} {
		if !strings.Contains(why, w) {
			t.Errorf("%q is not in\n%s", w, why)
		}
	}
	missing := wordcount()
	missing.SideInput("list", mapreduce.FileSource("/no/such"))
	if _, err := missing.Explain(context.Background(), mapreduce.Options{Inputs: []string{list}}); err == nil || !strings.Contains(err.Error(), `side input "list": input: /no/such does not exist`) {
		t.Errorf("got %v", err)
	}
}

// A reader that waits is not waited for once the job is not wanted any more, and progress is told
// meanwhile.
func TestSideInputProgressAndCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	job := wordcount()
	job.SideInput("slow", mapreduce.ReaderSource(func(ctx context.Context) (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { _, _ = w.Write([]byte("12345")) }()
		context.AfterFunc(ctx, func() { _ = w.CloseWithError(ctx.Err()) })
		return r, nil
	}))
	opts := mapreduce.Options{Inputs: []string{text(t, "x\n")}, Progress: func(p mapreduce.Progress) {
		if p.Phase == "side inputs" && p.Bytes == 5 {
			cancel()
		}
	}}
	if _, err := mapreduce.Run(ctx, job, opts); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), `side input "slow"`) {
		t.Errorf("got %v", err)
	}
	noMappings(t)
}

// An output that would be written over a side input is refused.
func TestOutputOverSideInput(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "list")
	if err := os.WriteFile(list, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	job := wordcount()
	job.SideInput("list", mapreduce.FileSource(list))
	_, err := mapreduce.Run(context.Background(), job, mapreduce.Options{Inputs: []string{text(t, "x\n")}, Output: output.Dir(dir, output.DirOptions{Overwrite: true})})
	if !errors.Is(err, output.ErrOverlap) {
		t.Errorf("got %v", err)
	}
	if b, err := os.ReadFile(list); err != nil || string(b) != "x" {
		t.Errorf("the side input is %q, %v", b, err)
	}
}
