// SPDX-License-Identifier: Apache-2.0

package output

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quernmr/quern/internal/objectlab"
	"github.com/quernmr/quern/mapreduce/objects"
)

// bucket returns what is in a bucket: content of objects by key.
func bucket(t *testing.T, s *objectlab.Server, name string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for path, content := range tree(t, filepath.Join(s.Folder, name)) {
		if content != "/" && !strings.HasPrefix(path, ".sgwtmp/") {
			found[path] = content
		}
	}
	client, err := objects.Open()
	must(t, err)
	uploads, err := client.Uploads(context.Background(), objects.Location{Bucket: name})
	must(t, err)
	for _, u := range uploads {
		found["upload to "+u.Key] = u.ID
	}
	return found
}

func sameBucket(t *testing.T, s *objectlab.Server, want map[string]string) {
	t.Helper()
	got := bucket(t, s, "box")
	for name, content := range want {
		if have, ok := got[name]; !ok || have != content {
			t.Errorf("%s: %q, want %q", name, have, content)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s should not be there", name)
		}
	}
}

// in returns files with names in a folder of a bucket.
func in(folder string, files map[string]string) map[string]string {
	all := map[string]string{}
	for name, content := range files {
		all[folder+"/"+name] = content
	}
	return all
}

func put(t *testing.T, url, content string) {
	t.Helper()
	client, err := objects.Open()
	must(t, err)
	at, err := objects.Parse(url)
	must(t, err)
	must(t, client.Put(context.Background(), at, []byte(content), objects.WriteOptions{}))
}

func sharedBucket(path string, opts DirOptions) Shared { return Dir(path, opts).(Shared) }

const bucketOut = "s3://box/some/out"

func TestBucketEqualsDir(t *testing.T) {
	inMemory(t)
	s := objectlab.Start(t, "box")
	for i, opts := range []DirOptions{
		{},
		{Format: CSV, Compression: Gzip},
		{Format: JSONL, Compression: Zstd},
		{Format: Parquet},
	} {
		opts.Overwrite = i > 0
		want := in("some/out", localTree(t, opts))
		before := bucket(t, s, "box")

		// As the local engine does.
		tx := begin(t, Dir(bucketOut+"/", opts), wordInfo(len(testRows)))
		must(t, writePart(tx, 0, testRows[0]...))
		must(t, writePart(tx, 2, testRows[2]...))
		if got := bucket(t, s, "box"); got["some/out/_SUCCESS"] != before["some/out/_SUCCESS"] || got["some/out/part-00000"] != before["some/out/part-00000"] {
			t.Errorf("something is there before Commit: %q", got)
		}
		must(t, tx.Commit([]byte(`{"rows":3}`)))
		must(t, tx.Abort()) // does nothing
		sameBucket(t, s, want)

		// As processes of a cluster do.
		opts.Overwrite = true
		info := wordInfo(len(testRows))
		ticket, err := sharedBucket(bucketOut, opts).Prepare(info, testJob)
		must(t, err)
		again, err := sharedBucket(bucketOut, opts).Prepare(info, testJob)
		must(t, err)
		if string(again) != string(ticket) {
			t.Errorf("a second ticket: %s, not %s", again, ticket)
		}
		names := make([]string, len(testRows))
		for i, rows := range testRows {
			if rows == nil {
				continue
			}
			names[i], err = writeAttempt(sharedBucket(bucketOut, opts), info, ticket, i, "1-7", rows...)
			must(t, err)
			_, err = writeAttempt(sharedBucket(bucketOut, opts), info, ticket, i, "1-8", wordRow("loser", 1))
			must(t, err)
		}
		aborted, err := sharedBucket(bucketOut, opts).Attempt(info, ticket, 0, "1-9")
		must(t, err)
		must(t, aborted.Abort())
		for range 2 {
			notes, err := sharedBucket(bucketOut, opts).Publish(info, ticket, names, []byte(`{"rows":3}`))
			if err != nil || len(notes) > 0 {
				t.Fatalf("publish: %v, %v", notes, err)
			}
			sameBucket(t, s, want)
		}
		must(t, sharedBucket(bucketOut, opts).Discard(ticket))
		sameBucket(t, s, want)
	}
}

func TestBucketAbort(t *testing.T) {
	s := objectlab.Start(t, "box")
	put(t, bucketOut+"/old", "old")
	before := map[string]string{"some/out/old": "old"}
	tx := begin(t, Dir(bucketOut, DirOptions{Overwrite: true}), wordInfo(3))
	must(t, writePart(tx, 0, wordRow("a", 1)))
	open, err := tx.Part(1)
	must(t, err)
	if _, err := open.Write(make([]byte, smallUpload+1)); err != nil {
		t.Fatal(err)
	}
	must(t, tx.Abort())
	must(t, tx.Abort())
	if _, err := open.Write(make([]byte, 2*smallUpload)); !errors.Is(err, context.Canceled) {
		t.Errorf("written to after Abort: %v", err)
	}
	if err := tx.Commit(nil); !errors.Is(err, ErrState) {
		t.Errorf("Commit after Abort: %v", err)
	}
	sameBucket(t, s, before)
}

func TestBucketLargePart(t *testing.T) {
	inMemory(t)
	s := objectlab.Start(t, "box")
	tx := begin(t, Dir(bucketOut, DirOptions{Format: Plain}), wordInfo(1))
	p, err := tx.Part(0)
	must(t, err)
	var want strings.Builder
	for i := 0; want.Len() < 2*smallUpload+100; i++ {
		line := strings.Repeat(fmt.Sprint(i, " "), 1000) + "\n"
		want.WriteString(line)
		if _, err := p.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	must(t, p.Close())
	must(t, tx.Commit(nil))
	sameBucket(t, s, map[string]string{"some/out/part-00000": want.String(), "some/out/_SUCCESS": ""})
}

func TestBucketRefuses(t *testing.T) {
	s := objectlab.Start(t, "box")
	put(t, bucketOut+"/old", "old")
	put(t, "s3://box/object", "x")
	before := bucket(t, s, "box")
	for name, c := range map[string]struct {
		path string
		opts DirOptions
		info Info
		want error
	}{
		"not empty":          {bucketOut, DirOptions{}, wordInfo(1), ErrExists},
		"an input":           {bucketOut, DirOptions{Overwrite: true}, wordInfo(1, "s3://box/x", bucketOut+"/old"), ErrOverlap},
		"the input":          {"s3://box/object", DirOptions{Overwrite: true}, wordInfo(1, "s3://box/object"), ErrOverlap},
		"an object":          {"s3://box/object", DirOptions{Overwrite: true}, wordInfo(1), ErrTarget},
		"a bucket":           {"s3://box/", DirOptions{Overwrite: true}, wordInfo(1), ErrTarget},
		"no bucket at all":   {"s3://", DirOptions{}, wordInfo(1), ErrTarget},
		"too short a name":   {"s3://b/x", DirOptions{}, wordInfo(1), ErrTarget},
		"a bad name":         {"s3://box_/x", DirOptions{}, wordInfo(1), ErrTarget},
		"dots in a name":     {"s3://a..b/x", DirOptions{}, wordInfo(1), ErrTarget},
		"an address":         {"s3://10.0.0.1/x", DirOptions{}, wordInfo(1), ErrTarget},
		"a bucket not there": {"s3://nowhere/out", DirOptions{}, wordInfo(1), fs.ErrNotExist},
		"format":             {"s3://box/new", DirOptions{Format: "xml"}, wordInfo(1), ErrUnsupported},
		"no parts":           {"s3://box/new", DirOptions{}, wordInfo(0), ErrState},
	} {
		if _, err := Dir(c.path, c.opts).Begin(c.info); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.path) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	sameBucket(t, s, before)
	for _, inputs := range [][]string{{"s3://box/some/outer"}, {"s3://other/some/out/x"}, {"/some/out/x"}} {
		tx := begin(t, Dir(bucketOut, DirOptions{Overwrite: true}), wordInfo(1, inputs...))
		must(t, tx.Abort())
	}
	sameBucket(t, s, before)

	target := sharedBucket(bucketOut, DirOptions{Overwrite: true})
	info := wordInfo(1)
	for _, ticket := range []string{"", "{}", `{"version":1,"job":"x","url":"s3://box/other","parts":1}`} {
		if err := target.Discard([]byte(ticket)); err == nil || !strings.Contains(err.Error(), bucketOut) {
			t.Errorf("ticket %q: %v", ticket, err)
		}
	}
	ticket, err := target.Prepare(info, testJob)
	must(t, err)
	for _, names := range [][]string{nil, {"part-00000"}, {"part-00000.a/b"}, {"part-00001.1"}} {
		if _, err := target.Publish(info, ticket, names, nil); !errors.Is(err, ErrState) {
			t.Errorf("names %q: %v", names, err)
		}
	}
	if _, err := target.Publish(info, ticket, []string{"part-00000.9"}, nil); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "part 0") {
		t.Errorf("a missing winner: %v", err)
	}
	zombie, err := target.Attempt(info, ticket, 0, "1")
	must(t, err)
	must(t, target.Discard(ticket))
	must(t, target.Discard(ticket))
	// Whoever missed that is told, and leaves nothing.
	if err := zombie.Part().Close(); !errors.Is(err, ErrState) {
		t.Errorf("an attempt written after the end: %v", err)
	}
	must(t, zombie.Abort())
	if _, err := target.Attempt(info, ticket, 0, "2"); !errors.Is(err, ErrState) {
		t.Errorf("an attempt begun after the end: %v", err)
	}
	if _, err := target.Publish(info, ticket, []string{""}, nil); !errors.Is(err, ErrState) {
		t.Errorf("published after the end: %v", err)
	}
	sameBucket(t, s, before)
}

// TestBucketFilledMeanwhile: the folder got content from elsewhere while the job ran.
func TestBucketFilledMeanwhile(t *testing.T) {
	s := objectlab.Start(t, "box")
	for _, name := range []string{"foreign", "part-00001", "_SUCCESS"} {
		tx := begin(t, Dir(bucketOut, DirOptions{}), wordInfo(2))
		put(t, bucketOut+"/"+name, "x")
		if err := tx.Commit(nil); !errors.Is(err, ErrExists) {
			t.Errorf("%s: commit: %v", name, err)
		}
		must(t, tx.Abort())
		sameBucket(t, s, map[string]string{"some/out/" + name: "x"})
		client, err := objects.Open()
		must(t, err)
		must(t, client.Delete(context.Background(), objects.Location{Bucket: "box", Key: "some/out/" + name}))

		if name == "foreign" {
			continue // later than that, nobody can see it in time
		}
		// It comes while the output is published, after we have looked.
		tx = begin(t, Dir(bucketOut, DirOptions{}), wordInfo(2))
		var once sync.Once
		s.Proxy.Set(func(_ int, r *http.Request) objectlab.Fault {
			if r.Method == http.MethodPost && r.URL.Query().Has("uploadId") {
				once.Do(func() { direct(t, s, "some/out/"+name, "x") })
			}
			return objectlab.Fault{}
		})
		err = tx.Commit([]byte("ours"))
		s.Proxy.Set(nil)
		if !errors.Is(err, ErrExists) {
			t.Errorf("%s: commit: %v", name, err)
		}
		must(t, tx.Abort())
		sameBucket(t, s, map[string]string{"some/out/" + name: "x"})
		must(t, client.Delete(context.Background(), objects.Location{Bucket: "box", Key: "some/out/" + name}))
	}
}

// direct writes an object past the proxy, from within it.
func direct(t *testing.T, s *objectlab.Server, key, content string) {
	t.Helper()
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://"+s.Address)
	put(t, "s3://box/"+key, content)
	t.Setenv("AWS_ENDPOINT_URL_S3", "")
}

// TestBucketOldStores: a server that knows no conditions.
func TestBucketOldStores(t *testing.T) {
	s := objectlab.Start(t, "box")
	s.Proxy.Set(func(_ int, r *http.Request) objectlab.Fault {
		if r.Header.Get("If-None-Match") != "" {
			return objectlab.Fault{Status: http.StatusNotImplemented}
		}
		return objectlab.Fault{}
	})
	tx := begin(t, Dir(bucketOut, DirOptions{}), wordInfo(1))
	must(t, tx.Commit([]byte("{}")))
	sameBucket(t, s, map[string]string{"some/out/part-00000": "", "some/out/_SUCCESS": "{}"})
}

// TestBucketFaults lets requests fail now and then: it does not show.
func TestBucketFaults(t *testing.T) {
	inMemory(t)
	s := objectlab.Start(t, "box")
	for seed := range uint64(1) {
		r := rand.New(rand.NewPCG(seed, 3))
		var mu sync.Mutex
		s.Proxy.Set(func(int, *http.Request) objectlab.Fault {
			mu.Lock()
			defer mu.Unlock()
			switch r.IntN(12) {
			case 0:
				return objectlab.Fault{Status: http.StatusServiceUnavailable}
			case 1:
				return objectlab.Fault{Status: http.StatusInternalServerError}
			case 2:
				return objectlab.Fault{Lose: true}
			}
			return objectlab.Fault{}
		})
		tx := begin(t, Dir(bucketOut, DirOptions{Overwrite: true}), wordInfo(3))
		for i, rows := range testRows {
			must(t, writePart(tx, i, rows...))
		}
		must(t, tx.Commit([]byte(`{"rows":3}`)))
		s.Proxy.Set(nil)
		sameBucket(t, s, in("some/out", localTree(t, DirOptions{})))
	}
}

// TestBucketKilled kills calls at every request, before the server gets it or after
// it has done it. Whoever calls again ends as if nothing had happened.
func TestBucketKilled(t *testing.T) {
	inMemory(t)
	s := objectlab.Start(t, "box")
	info := wordInfo(2)
	success := []byte(`{"rows":2}`)
	want := map[string]string{"some/out/part-00000": "a\t1\n", "some/out/part-00001": "", "some/out/_SUCCESS": string(success)}
	kill := func(at int, lose bool) {
		s.Proxy.Set(func(n int, r *http.Request) objectlab.Fault {
			switch {
			case n < at:
				return objectlab.Fault{}
			case n == at:
				return objectlab.Fault{Status: http.StatusForbidden, Lose: lose}
			}
			return objectlab.Fault{Status: http.StatusForbidden}
		})
	}
	client, err := objects.Open()
	must(t, err)
	clear := func() {
		s.Proxy.Set(nil)
		must(t, client.List(context.Background(), objects.Location{Bucket: "box"}, func(o objects.Info) error {
			return client.Delete(context.Background(), objects.Location{Bucket: "box", Key: o.Key})
		}))
	}
	n := 0
	for _, overwrite := range []bool{false, true} {
		for _, lose := range []bool{false, true} {
			// Every request is the last one in two of four rounds, or in all.
			first, step := 1, 2
			if lose {
				first = 2
			}
			if os.Getenv("QUERN_LONG") != "" {
				first, step = 1, 1
			}
			for at := first; ; at += step {
				clear()
				before := map[string]string{}
				if overwrite {
					put(t, bucketOut+"/_SUCCESS", "old")
					put(t, bucketOut+"/part-00001", "old")
					put(t, bucketOut+"/part-00002", "old")
					before = bucket(t, s, "box")
				}
				n++
				job := fmt.Sprintf("job%d", n)
				target := sharedBucket(bucketOut, DirOptions{Overwrite: overwrite})
				ticket, err := target.Prepare(info, job)
				must(t, err)
				// An attempt, too, may be killed.
				kill(at, lose)
				name, failed := writeAttempt(target, info, ticket, 0, "1", wordRow("b", 2))
				s.Proxy.Set(nil)
				if failed == nil && name == "" {
					t.Error("no name")
				}
				name, err = writeAttempt(target, info, ticket, 0, "2", wordRow("a", 1))
				must(t, err)

				kill(at, lose)
				_, published := target.Publish(info, ticket, []string{name, ""}, success)
				s.Proxy.Set(nil)
				if published != nil && !errors.Is(published, fs.ErrPermission) {
					t.Fatalf("request %d: %v", at, published)
				}
				if at%3 == 0 { // and then it is given up
					kill(at, lose)
					_ = target.Discard(ticket)
					s.Proxy.Set(nil)
					must(t, target.Discard(ticket))
					if got := bucket(t, s, "box"); got["some/out/_SUCCESS"] == string(success) {
						sameBucket(t, s, want)
					} else if !overwrite {
						sameBucket(t, s, before)
					} else {
						for name, content := range got { // what was to be replaced may be gone, but nothing else is there
							if before[name] != content {
								t.Errorf("%s: %q", name, content)
							}
						}
					}
				} else {
					_, err := target.Publish(info, ticket, []string{name, ""}, success)
					must(t, err)
					sameBucket(t, s, want)
				}
				if t.Failed() {
					t.Fatalf("overwrite %v, request %d, done %v: %v", overwrite, at, lose, published)
				}
				if published == nil && failed == nil {
					break
				}
			}
		}
	}
	t.Log(n, "jobs")
}

// TestBucketTogether lets processes publish at the same time, and one discard.
func TestBucketTogether(t *testing.T) {
	inMemory(t)
	s := objectlab.Start(t, "box")
	info := wordInfo(2)
	success := []byte(`{"rows":2}`)
	for seed := range uint64(12) {
		var mu sync.Mutex
		r := rand.New(rand.NewPCG(seed, 5))
		s.Proxy.Set(func(int, *http.Request) objectlab.Fault {
			mu.Lock()
			d := r.IntN(4)
			mu.Unlock()
			time.Sleep(time.Duration(d) * time.Millisecond)
			return objectlab.Fault{}
		})
		target := sharedBucket(bucketOut, DirOptions{})
		ticket, err := target.Prepare(info, fmt.Sprintf("job%d", seed))
		must(t, err)
		name, err := writeAttempt(target, info, ticket, 0, "1", wordRow("a", 1))
		must(t, err)
		discards := seed%3 != 0
		errs := make([]error, 3)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() {
				if discards && i == 2 {
					time.Sleep(time.Duration(seed) * 4 * time.Millisecond)
					errs[i] = sharedBucket(bucketOut, DirOptions{}).Discard(ticket)
					return
				}
				_, errs[i] = sharedBucket(bucketOut, DirOptions{}).Publish(info, ticket, []string{name, ""}, success)
			})
		}
		wg.Wait()
		if !discards {
			for _, err := range errs {
				must(t, err)
			}
		}
		s.Proxy.Set(nil)
		must(t, target.Discard(ticket))
		got := bucket(t, s, "box")
		if len(got) > 0 {
			sameBucket(t, s, map[string]string{"some/out/part-00000": "a\t1\n", "some/out/part-00001": "", "some/out/_SUCCESS": string(success)})
		} else if errs[0] == nil || errs[1] == nil {
			t.Errorf("published, and gone")
		}
		if t.Failed() {
			t.Fatalf("seed %d: %v: %q", seed, errs, got)
		}
		client, err := objects.Open()
		must(t, err)
		must(t, client.List(context.Background(), objects.Location{Bucket: "box"}, func(o objects.Info) error {
			return client.Delete(context.Background(), objects.Location{Bucket: "box", Key: o.Key})
		}))
	}
}
