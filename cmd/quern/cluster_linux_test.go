// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// daemon is a master or a worker of a test.
type daemon struct {
	cmd *exec.Cmd
	log *logBuffer
}

// logBuffer keeps a log that is still written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// start starts a daemon and ends it with the test, which is to end it well.
func start(t *testing.T, args ...string) *daemon {
	t.Helper()
	d := &daemon{exec.Command(binary, args...), &logBuffer{}}
	d.cmd.Env = []string{"HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.cmd.ProcessState == nil {
			_ = d.cmd.Process.Signal(syscall.SIGTERM)
			if err := d.cmd.Wait(); err != nil {
				t.Errorf("%s: %v\n%s", args[0], err, d.log)
			}
		}
		if t.Failed() {
			t.Logf("log of %q:\n%s", args, d.log)
		}
	})
	return d
}

// says waits until the log has something, and returns the first group of the pattern.
func (d *daemon) says(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if m := re.FindStringSubmatch(d.log.String()); m != nil {
			return m[1]
		}
	}
	t.Fatalf("the log never says %q:\n%s", pattern, d.log)
	return ""
}

// testCluster is a master and two workers on this machine, on ports that were free.
type testCluster struct {
	master, gossip string
	workers        []*daemon
	dir            string
	env            []string
}

func newTestCluster(t *testing.T) *testCluster {
	t.Helper()
	c := &testCluster{dir: t.TempDir()}
	m := start(t, "master", "--dir", filepath.Join(c.dir, "m"), "--port=0", "--gossip-port=0")
	c.master, c.gossip = m.says(t, `"master serves" address=(\S+)`), m.says(t, `msg=gossip address=(\S+)`)
	c.env = []string{"QUERN_MASTER=" + c.master, "PATH=" + os.Getenv("PATH")}
	for i := range 2 {
		c.worker(t, fmt.Sprintf("w%d", i+1))
	}
	c.wait(t, 2)
	return c
}

func (c *testCluster) worker(t *testing.T, name string) *daemon {
	t.Helper()
	w := start(t, "worker", "--dir", filepath.Join(c.dir, name), "--name", name, "--join", c.gossip, "--master", c.master, "--control-port=0", "--gossip-port=0", "--slots=2", "--memory=1GiB")
	c.workers = append(c.workers, w)
	return w
}

// wait waits until n workers are there.
func (c *testCluster) wait(t *testing.T, n int) {
	t.Helper()
	got := ""
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if got = run(t, call{args: []string{"workers"}, env: c.env}).success(t); strings.Count(got, "  live  ") == n {
			return
		}
	}
	t.Fatalf("there are never %d workers:\n%s", n, got)
}

// submit has the cluster run a job.
func (c *testCluster) submit(t *testing.T, args ...string) outcome {
	t.Helper()
	return run(t, call{args: append([]string{"submit"}, args...), env: c.env})
}

// sameTree fails unless two folders hold the same.
func sameTree(t *testing.T, got, want string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(want, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		rel, err := filepath.Rel(want, path)
		if err != nil {
			return err
		}
		a, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(got, rel))
		if err == nil && !bytes.Equal(a, b) {
			err = fmt.Errorf("%s differs: %d bytes, want %d", rel, len(b), len(a))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if n := len(entries(t, got)); n != files {
		t.Errorf("%d files, want %d", n, files)
	}
}

// tables writes two tables that can be joined.
func tables(t *testing.T) (left, right string) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	var a, b strings.Builder
	a.WriteString("id,name\n")
	for i := 0; i < 3000; i += 2 {
		fmt.Fprintf(&a, "%d,name %d\n", i, i)
	}
	b.WriteString("id,group,amount\n")
	for i := range 20000 {
		fmt.Fprintf(&b, "%d,g%d,%d.%02d\n", i%2500, r.IntN(300), r.IntN(2000)-1000, r.IntN(100))
	}
	return file(t, "left.csv", a.String()), file(t, "right.csv", b.String())
}

// A cluster gives the bytes that a local run gives.
func TestClusterGivesTheSame(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	books, err := filepath.Abs("../../testdata/books")
	if err != nil {
		t.Fatal(err)
	}
	left, right := tables(t)
	for _, one := range []struct {
		name string
		args []string
	}{
		{"wordcount", []string{"wordcount", "--lower", books, "--partitions=3", "--split-size=300kB"}},
		{"wordcount in order", []string{"wordcount", books, "--total-order", "--partitions=3", "--split-size=300kB"}},
		{"aggregate", []string{"aggregate", right, "--group-by=group", "--sum=amount", "--min=amount", "--mean=amount", "--count", "--partitions=3", "--split-size=100kB"}},
		{"aggregate floats", []string{"aggregate", right, "--floats", "--group-by=group", "--sum=amount", "--max=amount", "--stddev=amount", "--distinct=id", "--partitions=3", "--split-size=100kB"}},
		{"join", []string{"join", left, right, "--on=id", "--type=full", "--partitions=4", "--split-size=100kB"}},
		{"join by broadcast", []string{"join", left, right, "--on=id", "--type=right", "--strategy=broadcast", "--partitions=4", "--split-size=100kB"}},
		{"upload of a join by broadcast", []string{"join", left, right, "--on=id", "--partitions=3", "--split-size=100kB"}},
		{"sort", []string{"sort", books, "--total-order", "--partitions=4", "--split-size=300kB", "--compress=gzip"}},
		{"dedup", []string{"dedup", books, "--partitions=3"}},
		{"grep", []string{"grep", "the", books, "--format=jsonl"}},
		{"upload", []string{"count", books, "--partitions=2"}},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			want, got := filepath.Join(dir, "local"), filepath.Join(dir, "cluster")
			quern(t, append(one.args, "-o", want)...).success(t)
			args := append(one.args, "-o", got, "--json")
			if strings.HasPrefix(one.name, "upload") {
				args = append(args, "--upload")
			}
			o := c.submit(t, args...)
			o.success(t)
			sameTree(t, got, want)
			sum := o.lastJSON(t)
			audit, _ := sum["audit"].(map[string]any)
			travelled := 0.0
			for _, key := range []string{"pairs_folded_by_kernel", "pairs_folded_in_user_space", "pairs_pulled"} {
				n, _ := sum[key].(float64)
				travelled += n
			}
			if sum["ok"] != true || travelled == 0 || audit["pairs_combined"] != audit["pairs_folded"] || audit["sum_check_map"] != audit["sum_check_drain"] {
				t.Errorf("summary: %v", sum)
			}
			if names := entries(t, dir); len(names) != 2 {
				t.Errorf("left behind: %q", names)
			}
		})
	}
	t.Run("errors", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		full := filepath.Join(dir, "full")
		if err := os.MkdirAll(filepath.Join(full, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
		bad := file(t, "bad.csv", "k,v\na,x7\n")
		c.submit(t, "wordcount", filepath.Join(dir, "none"), "-o", filepath.Join(dir, "o")).failure(t, exitInput, "none")
		c.submit(t, "wordcount", bad, "-o", full).failure(t, exitOutput, "full")
		c.submit(t, "aggregate", "--group-by=k", "--sum=v", bad, "-o", filepath.Join(dir, "o")).failure(t, exitFailed, "bad.csv:2", "x7")
		if names := entries(t, dir); len(names) != 1 {
			t.Errorf("left behind: %q", names)
		}
	})
}

// A worker that is killed costs time, and no job.
func TestClusterLosesAWorker(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t)
	books, err := filepath.Abs("../../testdata/books")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	args := []string{"wordcount", books, "--partitions=4", "--split-size=20kB"}
	quern(t, append(args, "-o", filepath.Join(dir, "local"))...).success(t)

	id := strings.TrimSpace(run(t, call{args: append([]string{"submit", "--detach"}, append(args, "-o", filepath.Join(dir, "cluster"))...), env: c.env}).success(t))
	victim := c.workers[0]
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		tasks := run(t, call{args: []string{"status", "--tasks", id}, env: c.env}).success(t)
		if regexp.MustCompile(`(?m)^map .* w1 .*done`).MatchString(tasks) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("w1 never does anything:\n%s", tasks)
		}
	}
	if err := victim.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.cmd.Wait() // it was killed
	o := run(t, call{args: []string{"status", "--follow", id, "--json"}, env: c.env})
	o.success(t)
	sameTree(t, filepath.Join(dir, "cluster"), filepath.Join(dir, "local"))

	// Another one leaves politely when it is asked to.
	c.worker(t, "w3")
	c.wait(t, 2)
	run(t, call{args: []string{"worker", "--drain", "w2"}, env: c.env}).success(t)
	if err := c.workers[1].cmd.Wait(); err != nil {
		t.Errorf("the drained worker: %v", err)
	}
	c.submit(t, append(args, "-o", filepath.Join(dir, "again"))...).success(t)
	sameTree(t, filepath.Join(dir, "again"), filepath.Join(dir, "local"))
}

// Go programs: one that knows nothing of clusters, by submit; and one that submits itself.
func TestClusterRunsPrograms(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds programs")
	}
	c := newTestCluster(t)
	dir := t.TempDir()
	in, err := filepath.Abs("../../examples/temperatures/testdata/stations.txt")
	if err != nil {
		t.Fatal(err)
	}
	static := filepath.Join(dir, "temperatures")
	build := func(out, folder string) {
		cmd := exec.Command("go", "build", "-trimpath", "-o", out, folder)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, said)
		}
	}
	build(static, "../../examples/temperatures")
	if said, err := exec.Command(static, "-o", filepath.Join(dir, "local"), in).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	for name, what := range map[string]string{"built": static, "package": "../../examples/temperatures"} {
		out := filepath.Join(dir, name)
		o := run(t, call{args: []string{"submit", what, "--verbose", "--", "-o", out, in}, env: append(c.env, forGo(t)...)})
		if o.success(t) != "" || !strings.Contains(o.stderr, "quern temperatures: 1 file") {
			t.Errorf("%s: stdout %q, stderr %q", name, o.stdout, o.stderr)
		}
		sameTree(t, out, filepath.Join(dir, "local"))
	}

	// The program's own arguments are wrong, its job fails, it writes to the terminal.
	for _, one := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-bogus"}, 2, "flag provided but not defined"},
		{[]string{"-o", filepath.Join(dir, "x"), filepath.Join(dir, "none")}, exitInput, "none"},
		{[]string{"-o", filepath.Join(dir, "local"), in}, exitOutput, "exists and is not empty"},
		{[]string{in}, exitFailed, "can't write to standard output"},
	} {
		o := run(t, call{args: append([]string{"submit", static, "--"}, one.args...), env: c.env})
		if o.code != one.code || !strings.Contains(o.stderr, one.says) {
			t.Errorf("%q: code %d, stderr %q; want %d, %q", one.args, o.code, o.stderr, one.code, one.says)
		}
	}

	// What its job's error is, it learns as in a run here.
	sides := filepath.Join(dir, "sides")
	build(sides, "./testdata/sides")
	words := file(t, "words.txt", "a\nb\n")
	want, err := exec.Command(sides, words, filepath.Join(dir, "bad")).Output()
	if err != nil || !strings.HasPrefix(string(want), "true ") {
		t.Fatalf("%v, prints %q", err, want)
	}
	if o := run(t, call{args: []string{"submit", sides, "--", words, filepath.Join(dir, "bad")}, env: c.env}); o.stdout != string(want) {
		t.Errorf("by the cluster it prints %q, and here %q; stderr %q", o.stdout, want, o.stderr)
	}

	// It is gone before its job is done.
	id := strings.TrimSpace(run(t, call{args: []string{"submit", static, "--detach", "--", "-o", filepath.Join(dir, "detached"), in}, env: c.env}).success(t))
	run(t, call{args: []string{"status", "--follow", id}, env: c.env}).success(t)
	sameTree(t, filepath.Join(dir, "detached"), filepath.Join(dir, "local"))

	twice := filepath.Join(dir, "twice")
	build(twice, "./testdata/twice")
	said, err := exec.Command(twice, c.master, file(t, "in.txt", "b\na\nb\n"), filepath.Join(dir, "second")).CombinedOutput()
	if err != nil || string(said) != "2 2\n" {
		t.Fatalf("%v, prints %q", err, said)
	}
	rows, err := os.ReadFile(filepath.Join(dir, "second", "part-00000"))
	if err != nil || string(rows) != "2 keys: a\t1\n2 keys: b\t2\n" {
		t.Errorf("%v, rows %q", err, rows)
	}
}

// A submit that was killed leaves a folder, which the next one removes.
func TestSubmitSweeps(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	left := filepath.Join(temp, "quern-submit-1")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"alive", "program"} {
		if err := os.WriteFile(filepath.Join(left, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(left, old, old); err != nil {
		t.Fatal(err)
	}
	o := run(t, call{args: []string{"submit", "../../jobs"}, env: append(forGo(t), "TMPDIR="+temp)})
	o.failure(t, exitUsage, "package main is wanted")
	if names := entries(t, temp); len(names) != 0 {
		t.Errorf("left: %q", names)
	}
}
