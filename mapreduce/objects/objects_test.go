// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quernmr/quern/internal/objectlab"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T) *Client {
	t.Helper()
	c, err := newClient()
	must(t, err)
	return c
}

func at(key string) Location { return Location{"box", key} }

func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		url  string
		want Location
	}{
		{"s3://b", Location{"b", ""}},
		{"s3://b/", Location{"b", ""}},
		{"s3://b/k", Location{"b", "k"}},
		{"s3://b/k/", Location{"b", "k/"}},
		{"s3://b//k", Location{"b", "/k"}},
	} {
		got, err := Parse(c.url)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v", c.url, got, err)
		}
		if again, err := Parse(got.String()); err != nil || again != got {
			t.Errorf("%s: %s becomes %+v, %v", c.url, got, again, err)
		}
	}
	for _, url := range []string{"", "s3:/b/k", "s3://", "s3:///k", "/s3://b"} {
		if _, err := Parse(url); err == nil || IsURL(url) && !strings.Contains(err.Error(), url) {
			t.Errorf("%q: %v", url, err)
		}
	}
	for _, c := range []struct{ from, want string }{{"s3://b", "s3://b/x"}, {"s3://b/k", "s3://b/k/x"}, {"s3://b/k/", "s3://b/k/x"}} {
		l, err := Parse(c.from)
		must(t, err)
		if got := l.Join("x").String(); got != c.want {
			t.Errorf("%s and x: %s", c.from, got)
		}
	}
}

func TestStore(t *testing.T) {
	objectlab.Start(t, "box", "other")
	ctx := context.Background()
	c := open(t)
	must(t, c.Put(ctx, at("a/1"), []byte("one"), WriteOptions{Meta: map[string]string{"quern-job": "x1"}}))
	must(t, c.Put(ctx, at("a/2"), nil, WriteOptions{New: true}))
	if err := c.Put(ctx, at("a/1"), []byte("more"), WriteOptions{New: true}); !errors.Is(err, ErrTaken) {
		t.Errorf("a new object where one is: %v", err)
	}
	data, err := c.Get(ctx, at("a/1"), 10)
	must(t, err)
	info, err := c.Stat(ctx, at("a/1"))
	if err != nil || string(data) != "one" || info.Meta["quern-job"] != "x1" || info.Size != 3 {
		t.Errorf("%q, %+v, %v", data, info, err)
	}
	if _, err := c.Get(ctx, at("a/1"), 2); err == nil {
		t.Error("more than the limit was read")
	}
	must(t, c.Put(ctx, at("b"), []byte("b"), WriteOptions{}))
	var keys []string
	must(t, c.List(ctx, at("a"), func(i Info) error { keys = append(keys, i.Key); return nil }))
	if !slices.Equal(keys, []string{"a/1", "a/2"}) {
		t.Errorf("listed %q", keys)
	}
	stop := errors.New("enough")
	if err := c.List(ctx, at(""), func(Info) error { return stop }); err != stop {
		t.Errorf("stopped: %v", err)
	}
	must(t, c.Delete(ctx, at("a/1")))
	must(t, c.Delete(ctx, at("a/1")))

	for name, c := range map[string]struct {
		err  error
		want error
		says string
	}{
		"an object": {func() error { _, err := c.Stat(ctx, at("a/1")); return err }(), fs.ErrNotExist, "s3://box/a/1"},
		"a bucket":  {c.List(ctx, Location{"nowhere", "x"}, func(Info) error { return nil }), fs.ErrNotExist, "no bucket nowhere"},
		"to write":  {c.Put(ctx, Location{"nowhere", "x"}, nil, WriteOptions{}), fs.ErrNotExist, "s3://nowhere/x"},
		"a name":    {c.Put(ctx, Location{"N", "x"}, nil, WriteOptions{}), nil, "s3://N/x"},
	} {
		if c.err == nil || c.want != nil && !errors.Is(c.err, c.want) || !strings.Contains(c.err.Error(), c.says) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}

func TestKeys(t *testing.T) {
	s := objectlab.Start(t, "box")
	ctx := context.Background()
	must(t, open(t).Put(ctx, at("a"), []byte("x"), WriteOptions{}))
	for name, env := range map[string]map[string]string{
		"AWS_SECRET_ACCESS_KEY":                      {"AWS_SECRET_ACCESS_KEY": "wrong"},
		"AWS_ACCESS_KEY_ID":                          {"AWS_ACCESS_KEY_ID": "wrong"},
		"set AWS_ACCESS_KEY_ID":                      {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"},
		"AWS_ENDPOINT_URL=\"ftp://x\"":               {"AWS_ENDPOINT_URL": "ftp://x"},
		"AWS_ENDPOINT_URL_S3=\"http://h/some/path\"": {"AWS_ENDPOINT_URL_S3": "http://h/some/path"},
		"AWS_CA_BUNDLE":                              {"AWS_ENDPOINT_URL": "https://" + s.Address, "AWS_CA_BUNDLE": "/dev/null"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range env {
				t.Setenv(k, v)
			}
			c, err := Open()
			if err == nil {
				if err = c.List(ctx, at("a"), func(Info) error { return nil }); !errors.Is(err, fs.ErrPermission) {
					t.Errorf("%v is not about rights", err)
				}
			}
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("file", func(t *testing.T) {
		t.Setenv("AWS_ACCESS_KEY_ID", "")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "")
		file := t.TempDir() + "/keys"
		must(t, writeFile(file, "[mill]\naws_access_key_id = "+objectlab.AccessKey+"\naws_secret_access_key = "+objectlab.SecretKey+"\n"))
		t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
		t.Setenv("AWS_PROFILE", "mill")
		c, err := Open()
		must(t, err)
		_, err = c.Get(ctx, at("a"), 10)
		must(t, err)
	})
	one, err := Open()
	must(t, err)
	two, err := Open()
	must(t, err)
	if one != two {
		t.Error("the same environment, two clients")
	}
}

func TestUpload(t *testing.T) {
	s := objectlab.Start(t, "box")
	ctx := context.Background()
	c := open(t)
	data := noise(MinPart + 1000)
	id, err := c.NewUpload(ctx, at("out/part"), map[string]string{"quern-job": "j"})
	must(t, err)
	one, err := c.PutPart(ctx, at("out/part"), id, 1, data[:MinPart])
	must(t, err)
	two, err := c.PutPart(ctx, at("out/part"), id, 2, data[MinPart:])
	must(t, err)
	if _, err := c.Stat(ctx, at("out/part")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("half an object is there: %v", err)
	}
	list, err := c.Uploads(ctx, at("out/"))
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].Key != "out/part" || time.Since(list[0].Begun) > time.Hour {
		t.Errorf("uploads: %+v, %v", list, err)
	}
	// The server did it, but the answer was lost: it is asked again.
	s.Proxy.Set(func(n int, r *http.Request) objectlab.Fault { return objectlab.Fault{Lose: n == 1} })
	err = c.Complete(ctx, at("out/part"), id, []string{one, two}, WriteOptions{New: true})
	if err != nil && !errors.Is(err, ErrNoUpload) && !errors.Is(err, ErrTaken) {
		t.Errorf("complete: %v", err)
	}
	s.Proxy.Set(nil)
	got, err := c.Get(ctx, at("out/part"), 1<<30)
	must(t, err)
	info, err := c.Stat(ctx, at("out/part"))
	if err != nil || !bytes.Equal(got, data) || info.Meta["quern-job"] != "j" {
		t.Errorf("%d bytes, %+v, %v", len(got), info, err)
	}
	must(t, c.Abort(ctx, at("out/part"), id))

	id, err = c.NewUpload(ctx, at("out/part"), nil)
	must(t, err)
	one, err = c.PutPart(ctx, at("out/part"), id, 1, nil) // an empty object
	must(t, err)
	if err := c.Complete(ctx, at("out/part"), id, []string{one}, WriteOptions{New: true}); !errors.Is(err, ErrTaken) {
		t.Errorf("complete over an object: %v", err)
	}
	must(t, c.Complete(ctx, at("out/part"), id, []string{one}, WriteOptions{}))
	if data, err := c.Get(ctx, at("out/part"), 1); err != nil || len(data) != 0 {
		t.Errorf("an empty object: %q, %v", data, err)
	}
	id, err = c.NewUpload(ctx, at("out/other"), nil)
	must(t, err)
	must(t, c.Abort(ctx, at("out/other"), id))
	must(t, c.Abort(ctx, at("out/other"), id))
	if _, err := c.PutPart(ctx, at("out/other"), id, 1, nil); !errors.Is(err, ErrNoUpload) {
		t.Errorf("a part of an upload that has ended: %v", err)
	}
	if list, err := c.Uploads(ctx, at("")); err != nil || len(list) != 0 {
		t.Errorf("uploads: %+v, %v", list, err)
	}
}

// quick makes a client that does not wait long.
func quick(t *testing.T) *Client {
	c := open(t)
	c.stall, c.backoff, c.retries = 300*time.Millisecond, time.Millisecond, 4
	return c
}

func TestReadOn(t *testing.T) {
	s := objectlab.Start(t, "box")
	ctx := context.Background()
	c := quick(t)
	data := noise(1 << 20)
	must(t, c.Put(ctx, at("big"), data, WriteOptions{}))
	must(t, c.Put(ctx, at("small"), []byte("small"), WriteOptions{}))
	info, err := c.Stat(ctx, at("big"))
	must(t, err)
	read := func() ([]byte, error) {
		cursor := c.Object(ctx, at("big"), info.Size, info.ETag).Cursor(info.Size)
		defer cursor.Close()
		return io.ReadAll(io.NewSectionReader(cursor, 0, info.Size))
	}
	for name, fault := range map[string]func(n int, r *http.Request) objectlab.Fault{
		"none": nil,
		"cut in the middle, again and again": func(n int, _ *http.Request) objectlab.Fault {
			return objectlab.Fault{Cut: int64(n%2) * 100_000}
		},
		"nothing comes any more": func(n int, _ *http.Request) objectlab.Fault {
			return objectlab.Fault{Cut: 300_000, Stall: n == 2}
		},
		"errors now and then": func(n int, _ *http.Request) objectlab.Fault {
			return objectlab.Fault{Status: []int{0, 500, 503}[n%3], Cut: 200_000}
		},
		"no answer": func(n int, _ *http.Request) objectlab.Fault { return objectlab.Fault{Lose: n < 3} },
	} {
		s.Proxy.Set(fault)
		got, err := read()
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if got, err := c.Get(ctx, at("small"), 100); err != nil || string(got) != "small" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if n := len(s.Proxy.Seen()); name == "none" && n != 2 {
			t.Errorf("%d requests for two objects: %q", n, s.Proxy.Seen())
		}
	}
	// The store is gone for good.
	s.Proxy.Set(func(n int, _ *http.Request) objectlab.Fault {
		return objectlab.Fault{Cut: 1 + int64(min(n, 2)-1)*1000, Lose: n > 2}
	})
	c.retries = 2
	c.core.Client = quickRetries(t, c)
	if got, err := read(); err == nil || !strings.Contains(err.Error(), "s3://box/big") || !strings.Contains(err.Error(), "at byte 1002") {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	s.Proxy.Set(nil)

	// Another object takes its place.
	must(t, c.Put(ctx, at("big"), data[1:], WriteOptions{}))
	if _, err := read(); !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), "s3://box/big") {
		t.Errorf("after a change: %v", err)
	}
	must(t, c.Delete(ctx, at("big")))
	if _, err := read(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after removal: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.Object(ended, at("big"), 5, "").ReadAt(make([]byte, 5), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// TestReadAt reads at random places and from several columns side by side.
func TestReadAt(t *testing.T) {
	s := objectlab.Start(t, "box")
	ctx := context.Background()
	c := quick(t)
	data := noise(3<<20 + 17)
	must(t, c.Put(ctx, at("big"), data, WriteOptions{}))
	info, err := c.Stat(ctx, at("big"))
	must(t, err)
	o := c.Object(ctx, at("big"), info.Size, info.ETag)
	cursor := o.Cursor(100_000)
	r := rand.New(rand.NewPCG(1, 2))
	for name, f := range map[string]io.ReaderAt{"places": o, "cursor": cursor} {
		pos := make([]int64, 5)
		for i := range pos {
			pos[i] = r.Int64N(info.Size)
		}
		for range 300 {
			i := r.IntN(len(pos))
			if r.IntN(20) == 0 {
				pos[i] = r.Int64N(info.Size + 10)
			}
			if name == "cursor" && r.IntN(10) > 0 {
				i = 0
			}
			p := make([]byte, r.IntN(20_000))
			n, err := f.ReadAt(p, pos[i])
			want := data[min(pos[i], info.Size):min(pos[i]+int64(len(p)), info.Size)]
			if !bytes.Equal(p[:n], want) || (err == nil) != (n == len(p)) || err != nil && err != io.EOF {
				t.Fatalf("%s: %d of %d bytes at %d: %v", name, n, len(p), pos[i], err)
			}
			pos[i] += int64(n)
		}
	}
	must(t, cursor.Close())
	must(t, o.Close())

	// Columns that are read side by side in small steps take few requests.
	s.Proxy.Set(nil)
	o = c.Object(ctx, at("big"), info.Size, info.ETag)
	p := make([]byte, 4<<10)
	for off := int64(0); off < info.Size/8-int64(len(p)); off += int64(len(p)) {
		for column := range int64(8) {
			_, err := o.ReadAt(p, column*(info.Size/8)+off)
			must(t, err)
		}
	}
	if n := len(s.Proxy.Seen()); n > 40 {
		t.Errorf("%d requests for 8 columns of 384 KiB", n)
	}
}
