// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/quernmr/quern/jobs"
	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle"
)

// at runs the program against a master.
func at(t *testing.T, f *fakeMaster, args ...string) outcome {
	t.Helper()
	return run(t, call{args: args, env: f.env()})
}

// forGo is the environment that the go command needs.
func forGo(t *testing.T) []string {
	t.Helper()
	env := []string{"PATH=" + os.Getenv("PATH")}
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOFLAGS", "GOPROXY", "GOTOOLCHAIN"} {
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		env = append(env, name+"="+strings.TrimSpace(string(value)))
	}
	return env
}

func TestSubmitRefuses(t *testing.T) {
	t.Parallel()
	in, f := file(t, "in.txt", words), newFakeMaster(t)
	for _, c := range []struct {
		name  string
		args  []string
		stdin string
		code  int
		says  []string
	}{
		{"nothing", nil, "", exitUsage, []string{"nothing to submit"}},
		{"unknown job", []string{"wordcuont", in, "-o", "/o"}, "", exitUsage, []string{`"wordcuont"`, `"wordcount"`, "./wordcuont"}},
		{"no output", []string{"wordcount", in}, "", exitUsage, []string{"no output is named", "-o"}},
		{"standard input", []string{"wordcount", "-", "-o", "/o"}, "", exitUsage, []string{"standard input can't be read by a cluster", "--upload"}},
		{"standard input by default", []string{"wordcount", "-o", "/o"}, "x", exitUsage, []string{"standard input can't be read by a cluster"}},
		{"no input", []string{"wordcount", "-o", "/o"}, "", exitUsage, []string{"no input"}},
		{"option of the job", []string{"wordcount", in, "-o", "/o", "--ngrams=0"}, "", exitUsage, []string{"ngrams"}},
		{"mode", []string{"wordcount", in, "-o", "/o", "--shuffle=xdp"}, "", exitUsage, []string{"--shuffle", `"xdp"`}},
		{"memory", []string{"wordcount", in, "-o", "/o", "--task-memory=much"}, "", exitUsage, []string{"--task-memory", "much"}},
		{"slots", []string{"wordcount", in, "-o", "/o", "--max-slots=-1"}, "", exitUsage, []string{"--max-slots -1"}},
		{"priority", []string{"wordcount", in, "-o", "/o", "--priority=3000000000"}, "", exitUsage, []string{"--priority"}},
		{"environment of a job", []string{"wordcount", in, "-o", "/o", "--env", "A=b"}, "", exitUsage, []string{"--env", "Go programs"}},
		{"little memory", []string{"wordcount", in, "-o", "/o", "--task-memory=31MiB"}, "", exitUsage, []string{"--task-memory 31MiB", "32 MiB"}},
		{"little time", []string{"wordcount", in, "-o", "/o", "--task-timeout=900ms"}, "", exitUsage, []string{"--task-timeout 900ms", "1s"}},
		{"detach and explain", []string{"wordcount", in, "-o", "/o", "--explain", "--detach"}, "", exitUsage, []string{"--explain"}},
		{"no such package", []string{"./nowhere"}, "", exitUsage, []string{"./nowhere"}},
		{"a Go file", []string{"cluster_test.go"}, "", exitUsage, []string{"name the folder"}},
		{"a library", []string{"../../jobs"}, "", exitUsage, []string{"package main is wanted"}},
		{"no program", []string{file(t, "p", "#!/bin/sh\n")}, "", exitUsage, []string{"no executable for Linux", "CGO_ENABLED=0"}},
		{"flags of jobs for a program", []string{binary, "-o", "/o"}, "", exitUsage, []string{"--output", "behind --"}},
		{"upload for a program", []string{binary, "--upload"}, "", exitUsage, []string{"--upload-file"}},
		{"our variables", []string{binary, "--env", "QUERN_TOKEN=x"}, "", exitUsage, []string{"--env", "QUERN_"}},
		{"a variable that is not set", []string{binary, "--env", "NOT_THERE"}, "", exitUsage, []string{"NOT_THERE"}},
		{"broken job file", []string{file(t, "j.yaml", "job: x\n")}, "", exitUsage, []string{"j.yaml:1"}},
		{"upload that is not there", []string{"wordcount", "nowhere", "-o", "/o", "--upload"}, "", exitInput, []string{"nowhere"}},
		{"upload of a join", []string{"join", "--on=id", in + "*", in, "-o", "/o", "--upload", "--explain"}, "", exitInput, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.name == "upload of a join" {
				dir := t.TempDir()
				for _, name := range []string{"a.csv", "b.csv", "c.csv"} {
					if err := os.WriteFile(filepath.Join(dir, name), []byte("id,x\n1,2\n"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				c.args = []string{"join", "--on=id", filepath.Join(dir, "[ab].csv"), filepath.Join(dir, "c.csv"), "-o", "/o", "--upload"}
				c.code, c.says = exitUsage, []string{"each side of a join must be one file"}
			}
			run(t, call{args: append([]string{"submit"}, c.args...), stdin: c.stdin, env: f.env(forGo(t)...)}).failure(t, c.code, c.says...)
		})
	}
	t.Cleanup(func() {
		if len(f.requests) > 0 {
			t.Errorf("%d jobs were submitted", len(f.requests))
		}
	})
}

// What a submission says, and what it ends with.
func TestSubmitJob(t *testing.T) {
	t.Parallel()
	f := newFakeMaster(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "in.txt"), []byte(words), 0o600); err != nil {
		t.Fatal(err)
	}
	o := run(t, call{
		dir: dir, env: f.env("QUERN_MIN_COUNT=2"),
		args: []string{"submit", "wordcount", "--lower", "in.txt", "-o", "out", "--priority=3", "--max-slots=2", "--task-memory=64MiB", "--task-timeout=2m", "--max-attempts=5", "--shuffle=user", "--json"},
	})
	if o.success(t) != "" {
		t.Errorf("stdout %q", o.stdout)
	}
	r := f.submitted(t)
	if r.GetPriority() != 3 || r.GetMaxSlots() != 2 || r.GetTaskMemory() != 64<<20 || r.GetTaskTimeoutMs() != 120_000 || r.GetMaxAttempts() != 5 || r.GetShuffle() != "user" || r.GetVersion() != "9.8.7" || r.GetProgram().GetName() != "wordcount" {
		t.Errorf("request %v", r)
	}
	got, err := jobs.ParseFile("j", []byte(r.GetProgram().GetJobFile()))
	if err != nil {
		t.Fatal(err)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains([]string{dir, real}, filepath.Dir(got.Inputs[0])) || got.Common.Output != filepath.Join(filepath.Dir(got.Inputs[0]), "out") {
		t.Errorf("inputs %q, output %s", got.Inputs, got.Common.Output)
	}
	if !strings.Contains(r.GetProgram().GetJobFile(), "lower: true") || !strings.Contains(r.GetProgram().GetJobFile(), "min-count: 2") {
		t.Errorf("options are missing:\n%s", r.GetProgram().GetJobFile())
	}
	sum := o.lastJSON(t)
	for key, want := range map[string]any{
		"job": "wordcount", "ok": true, "id": fakeJob, "rows": 7.0, "files": 2.0, "pairs_folded_by_kernel": 20.0, "pairs_folded_in_user_space": 9.0, "pairs_pulled": 1.0,
		"failed_attempts": 1.0, "lost_attempts": 2.0, "reruns": 1.0, "resets": 0.0, "seconds": 1.5,
	} {
		if sum[key] != want {
			t.Errorf("%s is %v, want %v", key, sum[key], want)
		}
	}
	if list, ok := sum["broadcasts"].([]any); !ok || len(list) != 2 || !reflect.DeepEqual(list[0], map[string]any{
		"name": "program", "bytes": 9.8e6, "reached": 4.0, "reached_by_kernel": 4.0, "had": 0.0, "failed": 0.0, "sent_bytes": 1.03e7, "seconds": 0.012345,
	}) {
		t.Errorf("broadcasts: %v", sum["broadcasts"])
	}
	if _, ok := sum["peak_rss_bytes"]; ok {
		t.Error("the client's memory is given as the job's")
	}

	plain := at(t, f, "submit", "wordcount", filepath.Join(dir, "in.txt"), "-o", "/o", "--verbose")
	plain.success(t)
	for _, s := range []string{
		"quern: job 0123456789ab is submitted: wordcount\n", "note: a note\n", "20 pairs folded by the kernel, 9 in user space, 1 pulled", "1 attempt failed", "2 attempts lost", "1 split read again",
		"quern wordcount: program (9.8 MB) to 4 workers by broadcast, 4 by the kernel; side input stations?[1m (12 MB) to 3 workers by broadcast, 2 by the kernel, 1 in user space, 1 had it, 1 left to fetch it\n",
	} {
		if !strings.Contains(plain.stderr, s) {
			t.Errorf("stderr does not say %q:\n%s", s, plain.stderr)
		}
	}
	if o := at(t, f, "submit", "wordcount", filepath.Join(dir, "in.txt"), "-o", "/o", "--quiet"); o.success(t) != "" || o.stderr != "" {
		t.Errorf("quiet: %q, %q", o.stdout, o.stderr)
	}
	if o := at(t, f, "submit", "wordcount", filepath.Join(dir, "in.txt"), "-o", "/o", "--detach"); o.success(t) != fakeJob+"\n" || o.stderr != "" {
		t.Errorf("detached: %q, %q", o.stdout, o.stderr)
	}
	// The workers may see what we do not.
	at(t, f, "submit", "join", "--on=id", "/elsewhere/a.csv", "/elsewhere/b.csv", "-o", "/o").success(t)
}

// TestSubmitMemory: what --memory says an attempt is given in full, and what the configuration file says of this host is
// kept from others.
func TestSubmitMemory(t *testing.T) {
	t.Parallel()
	in := file(t, "in.txt", words)
	config := file(t, "config.yaml", "memory: 4GiB\nworkers: 3\nspill-dir: /here\n")
	job := file(t, "j.yaml", "job: wordcount\ninputs: ["+in+"]\noutput: /o\nmemory: 256MiB\n")
	for _, c := range []struct {
		name       string
		args       []string
		env        string
		taskMemory int64
		memory     string
		workers    int
		fails      string
	}{
		{name: "nothing is said", args: []string{"wordcount", in}},
		{name: "a flag", args: []string{"wordcount", in, "--memory=640MiB", "--workers=2"}, taskMemory: 1 << 30, memory: "640MiB", workers: 2},
		{name: "a variable", args: []string{"wordcount", in}, env: "QUERN_MEMORY=160MiB", taskMemory: 256 << 20, memory: "160MiB"},
		{name: "a job file", args: []string{job}, taskMemory: task.MemoryFor(256 << 20), memory: "256MiB"},
		{name: "a job file and a flag", args: []string{job, "--memory=160MiB"}, taskMemory: 256 << 20, memory: "160MiB"},
		{name: "the configuration file", args: []string{"wordcount", in, "--config=" + config}},
		{name: "a job file and the configuration file", args: []string{job, "--config=" + config}, taskMemory: task.MemoryFor(256 << 20), memory: "256MiB"},
		{name: "both", args: []string{"wordcount", in, "--memory=64MiB", "--task-memory=1GiB"}, taskMemory: 1 << 30, memory: "64MiB"},
		{name: "both, which do not fit", args: []string{"wordcount", in, "--memory=641MiB", "--task-memory=1GiB"}, fails: "--memory 641MiB does not fit in --task-memory 1GiB: of that the engine of a task may use 640 MiB"},
		{name: "too little", args: []string{"wordcount", in, "--memory=1MiB"}, fails: "--memory 1MiB: must be at least 16MiB"},
		{name: "no number", args: []string{"wordcount", in, "--memory=much"}, fails: "much"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFakeMaster(t)
			env := f.env()
			if c.env != "" {
				env = append(env, c.env)
			}
			o := run(t, call{args: append([]string{"submit", "-o", "/o"}, c.args...), env: env})
			if c.fails != "" {
				o.failure(t, exitUsage, c.fails)
				return
			}
			o.success(t)
			r := f.submitted(t)
			got, err := jobs.ParseFile("j", []byte(r.GetProgram().GetJobFile()))
			if err != nil {
				t.Fatal(err)
			}
			if r.GetTaskMemory() != c.taskMemory || got.Common.Memory != c.memory || got.Common.Workers != c.workers || got.Common.SpillDir != "" {
				t.Errorf("an attempt is given %d bytes, want %d; the job says memory %q, workers %d, spill-dir %q", r.GetTaskMemory(), c.taskMemory, got.Common.Memory, got.Common.Workers, got.Common.SpillDir)
			}
		})
	}
}

func TestSubmitJobFileAndUpload(t *testing.T) {
	t.Parallel()
	f := newFakeMaster(t)
	in := file(t, "in.txt", words)
	job := file(t, "j.yaml", "job: count\ninputs: ["+filepath.Dir(in)+"]\noutput: /o\nformat: csv\n")
	at(t, f, "submit", job, "--format=jsonl", "--upload").success(t)
	r := f.submitted(t)
	got, err := jobs.ParseFile("j", []byte(r.GetProgram().GetJobFile()))
	if err != nil {
		t.Fatal(err)
	}
	if got.Common.Format != "jsonl" || !slices.Equal(got.Inputs, []string{in}) || len(r.GetUploads()) != 1 || r.GetUploads()[0].GetPath() != in || f.blobs[r.GetUploads()[0].GetBlob()] != int64(len(words)) {
		t.Errorf("format %s, inputs %q, uploads %v, blobs %v", got.Common.Format, got.Inputs, r.GetUploads(), f.blobs)
	}
}

func TestClusterExitCodes(t *testing.T) {
	t.Parallel()
	in := file(t, "in.txt", words)
	cancelled := fakeStatus(api.JobState_JOB_CANCELLED)
	cancelled.Error = "by ann"
	for _, c := range []struct {
		name   string
		change func(*fakeMaster)
		args   []string
		env    string
		code   int
		says   []string
	}{
		{"failed", func(f *fakeMaster) { f.statuses = []*api.JobStatus{failedStatus("map task 0: in.csv:2: bad")} }, nil, "", exitFailed, []string{"the job failed: map task 0: in.csv:2: bad (job 0123456789ab)"}},
		{"failed by its program", func(f *fakeMaster) {
			f.statuses = []*api.JobStatus{failedStatus("map task 0 failed 4 times, at last at worker w1: exit status 3")}
		}, nil, "", exitFailed, []string{"exit status 3", "\nhint: 'quern logs --failed 0123456789ab'"}},
		{"input", func(f *fakeMaster) {
			f.statuses = []*api.JobStatus{failedStatus("the plan task: input: " + in + " is away")}
			f.statuses[0].Failure = []byte(`{"kind":"input","is":["does not exist"]}`)
		}, nil, "", exitInput, []string{in}},
		{"output", func(f *fakeMaster) {
			f.statuses = []*api.JobStatus{failedStatus("the plan task: output /o is there")}
			f.statuses[0].Failure = []byte(`{"kind":"output","is":["output exists"]}`)
		}, nil, "", exitOutput, []string{"/o", "hint: --overwrite"}},
		{"cancelled", func(f *fakeMaster) { f.statuses = []*api.JobStatus{cancelled} }, nil, "", exitCancelled, []string{"the job was cancelled: by ann"}},
		{"nobody there", nil, []string{"--master=127.0.0.1:1"}, "", exitCluster, []string{"no master answers at 127.0.0.1:1: dial tcp", "quern master"}},
		{"other protocol", func(f *fakeMaster) { f.protocol, f.version = 77, "1.2.3" }, nil, "", exitCluster, []string{"77", "1.2.3"}},
		{"other version", func(f *fakeMaster) { f.version = "1.2.3" }, nil, "", exitCluster, []string{"1.2.3", "9.8.7"}},
		{"no token", func(f *fakeMaster) { f.token = "abc" }, nil, "", exitRefused, []string{"the master refuses access: the token is none of ours"}},
		{"wrong token", func(f *fakeMaster) { f.token = "abc" }, []string{"--token=x"}, "", exitRefused, []string{"none of ours"}},
		{"token", func(f *fakeMaster) { f.token = "abc" }, nil, "QUERN_TOKEN=abc", exitOK, nil},
		{"another machine", nil, []string{"--master=192.0.2.1"}, "", exitRefused, []string{"quern: 192.0.2.1:7119 is another machine", "--certs"}},
		{"no certificates in the folder", nil, []string{"--certs=" + t.TempDir()}, "", exitUsage, []string{"ca.pem", "quern certs"}},
		{"address", nil, []string{"--master=http://x"}, "", exitFailed, []string{"http://x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFakeMaster(t)
			if c.change != nil {
				c.change(f)
			}
			env := f.env()
			if c.env != "" {
				env = append(env, c.env)
			}
			o := run(t, call{args: append([]string{"submit", "wordcount", in, "-o", "/o"}, c.args...), env: env})
			if c.code == exitOK {
				o.success(t)
				return
			}
			o.failure(t, c.code, c.says...)
		})
	}
	f := newFakeMaster(t)
	for _, args := range [][]string{{"status", "zz"}, {"cancel", "zz"}, {"logs", "zz"}, {"worker", "--drain", "zz"}} {
		at(t, f, args...).failure(t, exitUsage, "zz")
	}
	at(t, f, "status", "zz").failure(t, exitUsage, "hint: 'quern history'")
	at(t, f, "status", "8").failure(t, exitUsage, `"8" begins 2 jobs`)
	at(t, f, "logs", "01", "map", "4").failure(t, exitUsage, "map 0 to map 3", "quern logs --help")
	at(t, f, "logs", "01", "plan", "1").failure(t, exitUsage, "plan 0 alone")
	for _, args := range [][]string{{"status"}, {"cancel", "a", "b"}, {"logs"}, {"logs", "01", "mop", "3"}, {"jobs", "x"}, {"workers", "x"}, {"history", "--limit=0"}, {"worker", "x"}, {"master", "x"}, {"certs"}} {
		at(t, f, args...).failure(t, exitUsage, "see 'quern "+args[0])
	}
}

// Interrupted, quern says how to come back, and the job goes on.
func TestFollowInterrupted(t *testing.T) {
	t.Parallel()
	for looks, args := range [][]string{ // status looks whether there is such a job before it follows it
		{"submit", "wordcount", file(t, "in.txt", words), "-o", "/o"},
		{"status", "--follow", "0123"},
		nil, // a program
	} {
		if args == nil {
			// quern itself is one: it runs a job file by the library.
			job := file(t, "j.yaml", "job: count\ninputs: [/in]\noutput: /o\n")
			looks, args = 0, []string{"submit", binary, "--", "run", job}
		}
		f := newFakeMaster(t)
		f.looks = looks
		f.statuses, f.hang = []*api.JobStatus{fakeStatus(api.JobState_JOB_MAPPING)}, make(chan struct{})
		cmd := command(t, call{args: args, env: f.env()})
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-f.watched
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // its state says more
		o := outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
		o.failure(t, exitInterrupted, "quern: interrupted; job 0123456789ab goes on\n", "hint: 'quern status --follow 0123456789ab'", "'quern cancel 0123456789ab'")
	}
}

func TestClusterLists(t *testing.T) {
	t.Parallel()
	f := newFakeMaster(t)
	f.statuses = []*api.JobStatus{fakeStatus(api.JobState_JOB_MAPPING)}
	f.jobs = []*api.JobStatus{fakeStatus(api.JobState_JOB_MAPPING), fakeStatus(api.JobState_JOB_DONE)}
	f.workers = []*api.WorkerStatus{
		{Worker: "id1", Name: "w1", Address: "10.0.0.1:7120", Slots: 2, Running: 1, Memory: 1 << 30, Shuffle: "the kernel folds on eth0: it can", State: "live", Version: "9.8.7"},
		{Worker: "id2", Name: "w2\x1b[1m", State: "gone"},
		{Worker: "id3", Name: "w1", State: "live"},
	}
	for _, c := range []struct {
		args []string
		want []string
		not  string
	}{
		{[]string{"jobs"}, []string{"0123456789ab  wordcount  mapping  3/4 splits, 0/2 parts  1.5s"}, "done"},
		{[]string{"history"}, []string{"mapping", "done", "7 rows"}, ""},
		{[]string{"status", "01"}, []string{fakeJob, "mapping", "3 of 4 done, 1 running, 1 attempts failed", "0 of 2 done, 2 attempts lost", "750 B of 1.0 kB", "40 emitted, 30 after combining", "20 pairs folded by the kernel, 9 in user space, 1 pulled", "- a reason", "- a note", "1 split read again", "broadcast  program (9.8 MB) to 4 workers, 4 by the kernel, in 12.3 ms\n", "broadcast  side input stations?[1m (12 MB) to 3 workers, 2 by the kernel, 1 in user space, 1 had it, 1 left to fetch it, in 40.0 ms: no room\n"}, "at all"},
		{[]string{"status", "01", "--tasks"}, []string{"map 0  0        w1", "running (50 %)", "  exit status 3\n", "map 1"}, "second"},
		{[]string{"logs", "01"}, []string{"== map 0, attempt 0, on w1 ==\none\ntwo\n== map 1, attempt 0, on w1 ==\nthree\n"}, ""},
		{[]string{"logs", "01", "map", "1"}, []string{"three"}, "one"},
		{[]string{"logs", "01", "map-1"}, []string{"three"}, "one"},
		{[]string{"cancel", "01", "--reason", "r"}, []string{"job 0123456789ab: cancelled"}, ""},
		{[]string{"workers"}, []string{"w1", "10.0.0.1:7120", "live", "1 of 2", "1.0 GiB", "the kernel folds on eth0: it can"}, "gone"},
		{[]string{"workers", "--all"}, []string{"w1", "gone", "w2?[1m"}, "\x1b"},
	} {
		o := at(t, f, c.args...)
		got := o.success(t)
		for _, s := range c.want {
			if !strings.Contains(got, s) {
				t.Errorf("%q does not print %q:\n%s", c.args, s, got)
			}
		}
		if c.not != "" && strings.Contains(got, c.not) {
			t.Errorf("%q prints %q:\n%s", c.args, c.not, got)
		}
		if o.stderr != "" {
			t.Errorf("%q: stderr %q", c.args, o.stderr)
		}
		for line := range strings.Lines(at(t, f, append(c.args, "--json")...).success(t)) {
			var v map[string]any
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Errorf("%q --json: %v in %q", c.args, err, line)
			}
		}
	}
	var list struct {
		Jobs []jobJSON `json:"jobs"`
	}
	if err := json.Unmarshal([]byte(at(t, f, "jobs", "--json").success(t)), &list); err != nil || len(list.Jobs) != 1 || list.Jobs[0].Kernel != 20 || list.Jobs[0].State != "mapping" || list.Jobs[0].Map.Failed != 1 {
		t.Errorf("%v, %+v", err, list)
	}
	// History has all of it, and what it comes to.
	if err := json.Unmarshal([]byte(at(t, f, "history", "--json").success(t)), &list); err != nil || len(list.Jobs) != 2 {
		t.Fatalf("%v, %+v", err, list)
	}
	if got, want := list.Jobs[1].BroadcastTotals, (broadcastTotals{Count: 2, Bytes: 21_800_000, Reached: 7, Kernel: 6, Had: 1, Failed: 1, Sent: 11_000_000}); got != want || list.Jobs[1].Broadcasts[1].Error != "no room\nat all" {
		t.Errorf("broadcasts %+v, want %+v", got, want)
	}
	at(t, f, "worker", "--drain", "w1").failure(t, exitUsage, "2 workers are named w1")
	if got := at(t, f, "worker", "--drain", "id3").success(t); got != "worker id3 has left\n" || !slices.Equal(f.drained, []string{"id3"}) {
		t.Errorf("drain: %q, %q", got, f.drained)
	}
	f = newFakeMaster(t)
	f.workers = []*api.WorkerStatus{{Worker: "id1", Name: "w1", State: "live"}}
	f.come = []*api.WorkerStatus{{Worker: "id0", Name: "w1", State: "gone"}, {Worker: "id5", Name: "w1", State: "live"}, {Worker: "id6", Name: "w6", State: "live"}}
	if o := at(t, f, "worker", "--drain", "w1"); o.success(t) != "worker w1 has left\n" || strings.Count(o.stderr, "--drain") != 1 || !strings.Contains(o.stderr, "'quern worker --drain id5' has it leave, too") {
		t.Errorf("another one has come: %q, %q", o.stdout, o.stderr)
	}
}

func TestNoJobs(t *testing.T) {
	t.Parallel()
	f := newFakeMaster(t)
	f.workers = []*api.WorkerStatus{{Worker: "id2", Name: "w2", State: "gone"}}
	for text, args := range map[string][]string{
		"nothing was written":    {"logs", "01", "map", "2"}, // its log is empty
		"no worker is there":     {"workers"},
		"no job is running; 'qu": {"jobs"},
	} {
		if o := at(t, f, args...); o.success(t) != "" || !strings.HasPrefix(o.stderr, "quern: "+text) || strings.Count(o.stderr, "\n") != 1 {
			t.Errorf("%q: stdout %q, stderr %q", args, o.stdout, o.stderr)
		}
	}
	o := at(t, f, "jobs")
	if got := o.success(t); got != "" || o.stderr != "quern: no job is running; 'quern history' lists those that ended\n" {
		t.Errorf("stdout %q, stderr %q", got, o.stderr)
	}
	o = at(t, f, "jobs", "--json")
	if got := o.success(t); !strings.Contains(got, `"jobs"`) || o.stderr != "" {
		t.Errorf("--json: stdout %q, stderr %q", got, o.stderr)
	}
}

// A master that is started anew between two calls of a submission is waited for.
func TestSubmitWhileMasterAway(t *testing.T) {
	t.Parallel()
	f := newFakeMaster(t)
	f.away = 4
	o := at(t, f, "submit", "wordcount", file(t, "in.txt", words), "-o", "/o", "--upload", "--detach")
	o.success(t)
	f.submitted(t)
	if strings.Count(o.stderr, "the master is away") != 1 {
		t.Errorf("stderr %q", o.stderr)
	}
}

func TestExplainOnCluster(t *testing.T) {
	t.Parallel()
	f := newFakeMaster(t)
	in := file(t, "in.txt", words)
	kernel, user := &api.WorkerStatus{State: "live", Slots: 2, Shuffle: "the kernel folds on eth0: it can"}, &api.WorkerStatus{State: "live", Slots: 1, Shuffle: "user space folds: no interface"}
	f.workers = []*api.WorkerStatus{kernel, user, {State: "gone", Slots: 7}}
	got := at(t, f, "submit", "wordcount", in, "-o", "/o", "--explain").success(t)
	for _, s := range []string{"fold (sum)", "2 workers with 3 slots take its tasks", "1 of 2 workers fold them in the kernel"} {
		if !strings.Contains(got, s) {
			t.Errorf("%q is not said:\n%s", s, got)
		}
	}
	if len(f.requests) > 0 {
		t.Error("it was submitted")
	}
	// A program says of itself what a job does: quern is one.
	job := file(t, "j.yaml", "job: wordcount\ninputs: ["+in+"]\noutput: /o\n")
	if _, err := cluster.Platform(binary); err == nil {
		o := at(t, f, "submit", "--explain", binary, "--", "run", job)
		got := o.success(t)
		for _, s := range []string{"job", "wordcount", "fold (sum)", "1 file", "the program (", "1 of 2 workers fold them in the kernel"} {
			if !strings.Contains(got, s) {
				t.Errorf("%q is not said of a program:\n%s", s, got)
			}
		}
		var said struct {
			Plan *mapreduce.Explanation
			Ways []string
		}
		if err := json.Unmarshal([]byte(at(t, f, "submit", "--explain", "--json", binary, "--", "run", job).success(t)), &said); err != nil || said.Plan == nil || said.Plan.Splits != 1 || len(said.Ways) != 3 {
			t.Errorf("%v, %+v", err, said)
		}
		nowhere := file(t, "n.yaml", "job: wordcount\ninputs: [/nowhere]\noutput: /o\n")
		at(t, f, "submit", "--explain", binary, "--", "run", nowhere).failure(t, exitInput, "/nowhere")
		at(t, f, "submit", "--explain", binary, "--", "version").failure(t, exitFailed, "without running a job")
	}
	if len(f.requests) > 0 || len(f.blobs) > 0 {
		t.Error("it was submitted")
	}

	fold, grouped, ordered := mapreduce.Explanation{Reduce: "fold"}, mapreduce.Explanation{Reduce: "grouped"}, mapreduce.Explanation{Reduce: "fold", TotalOrder: true}
	sides := mapreduce.Explanation{Reduce: "fold", SideInputs: []mapreduce.SideInputInfo{{Name: "small", Size: 100}, {Name: "large", Size: 5_000_000}, {Name: "unknown", Size: -1}}}
	gang := mapreduce.Explanation{Reduce: "iteration", Splits: 40}
	one := mapreduce.Explanation{Reduce: "iteration", Splits: 1}
	crowd := slices.Repeat([]*api.WorkerStatus{kernel}, 50)
	for _, c := range []struct {
		workers []*api.WorkerStatus
		job     mapreduce.Explanation
		program int64
		mode    shuffle.Mode
		want    []string
	}{
		{nil, fold, 0, shuffle.Auto, []string{"there is no worker"}},
		{[]*api.WorkerStatus{kernel}, fold, 0, shuffle.Auto, []string{"folded by the kernel"}},
		{[]*api.WorkerStatus{kernel}, fold, 0, shuffle.UserOnly, []string{"in user space, as asked"}},
		{[]*api.WorkerStatus{user}, fold, 0, shuffle.Auto, []string{"no worker's kernel can"}},
		{[]*api.WorkerStatus{user}, fold, 0, shuffle.KernelOnly, []string{"the job would fail"}},
		{[]*api.WorkerStatus{kernel}, ordered, 0, shuffle.Auto, []string{"with a total order"}},
		{[]*api.WorkerStatus{kernel}, grouped, 0, shuffle.Auto, []string{"no fold"}},
		{[]*api.WorkerStatus{kernel}, fold, 9_000_000, shuffle.Auto, []string{"the program (9.0 MB) goes to the one worker that there is"}},
		{[]*api.WorkerStatus{kernel, user}, fold, 9_000_000, shuffle.Auto, []string{"the program (9.0 MB) is given to the other workers by broadcast, by the one that plans the job, by programs in the kernels of 1 of 2"}},
		{[]*api.WorkerStatus{kernel, kernel}, sides, 0, shuffle.Auto, []string{`side input "small" (100 B) is fetched from the master`, `side input "large" (5.0 MB) is given to the other workers by broadcast, by the one that plans the job, by programs in their kernels`, `side input "unknown", if it has 64 KiB or more, is given`}},
		{[]*api.WorkerStatus{kernel, kernel}, sides, 0, shuffle.UserOnly, []string{`side input "large" (5.0 MB) is given to the other workers by broadcast, by the one that plans the job, in user space`}},
		{crowd, gang, 0, shuffle.Auto, []string{"32 members in a gang", "by all-reduces between their workers, by programs in the kernel"}},
		{[]*api.WorkerStatus{kernel, user}, gang, 0, shuffle.Auto, []string{"2 members in a gang", "the kernels of 1 of 2 help"}},
		{[]*api.WorkerStatus{kernel, kernel}, gang, 0, shuffle.UserOnly, []string{"in user space"}},
		{[]*api.WorkerStatus{kernel, user}, one, 0, shuffle.Auto, []string{"1 member in a gang", "by itself"}},
	} {
		got := strings.Join(ways(c.workers, &c.job, c.program, c.mode, 0), "; ")
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%+v of %d workers, %v: %q is not said: %s", c.job, len(c.workers), c.mode, want, got)
			}
		}
	}
	if got := strings.Join(ways(crowd, &gang, 0, shuffle.Auto, 3), "; "); !strings.Contains(got, "3 members in a gang") {
		t.Errorf("of at most 3 attempts at once it says: %s", got)
	}
}

func TestJobText(t *testing.T) {
	t.Parallel()
	mapping := fakeStatus(api.JobState_JOB_MAPPING)
	waiting := &api.JobStatus{State: api.JobState_JOB_QUEUED, Waiting: "there is no worker"}
	reducing := &api.JobStatus{State: api.JobState_JOB_REDUCING, Reduce: &api.StageStatus{Tasks: 5, Done: 2}, Rows: 1234}
	for _, c := range []struct {
		s    *api.JobStatus
		want string
	}{
		{mapping, "reading 75 %, 3 of 4 splits, 750 B of 1.0 kB, 1 at a time, 1 attempt failed, 2 attempts lost, 1 split read again"},
		{waiting, "waiting: there is no worker"},
		{&api.JobStatus{State: api.JobState_JOB_QUEUED}, "waiting for workers"},
		{&api.JobStatus{State: api.JobState_JOB_COMMITTING, Waiting: "the disk is full"}, "publishing the result, waiting: the disk is full"},
		{reducing, "writing, 2 of 5 parts, 1,234 rows written"},
		{&api.JobStatus{State: api.JobState_JOB_PLANNING}, "looking at the input"},
		{&api.JobStatus{State: api.JobState_JOB_COMMITTING}, "publishing the result"},
	} {
		if got := jobText(c.s); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	var out strings.Builder
	b := &bar{w: &out, job: "j"}
	for _, s := range []*api.JobStatus{waiting, mapping, reducing, {State: api.JobState_JOB_DONE}} {
		b.showJob(s)
	}
	b.hide()
	for _, s := range []string{"j: waiting: there is no worker", "j: reading, 3 of 4 splits", "j: writing, 2 of 5 parts"} {
		if !strings.Contains(out.String(), s) {
			t.Errorf("%q was not shown: %q", s, out.String())
		}
	}
	if left := onScreen(out.String()); left != "" {
		t.Errorf("left on the screen: %q", left)
	}
}

func TestBroadcastsText(t *testing.T) {
	t.Parallel()
	one := func(name string, reached, kernel, had, failed uint32) *api.Spreaded {
		return &api.Spreaded{Name: name, Size: 1000, Reached: reached, Kernel: kernel, Had: had, Failed: failed}
	}
	for want, list := range map[string][]*api.Spreaded{
		"": nil,
		"a (1.0 kB) to 1 worker by broadcast, 1 in user space": {one("a", 1, 0, 0, 0)},
		"a (1.0 kB): 2 left to fetch it":                       {one("a", 0, 0, 0, 2)},
		"a (1.0 kB): 1,234 had it":                             {one("a", 0, 0, 1234, 0)},
		"a (1.0 kB) to no worker by broadcast":                 {one("a", 0, 0, 0, 0)},
		"a (1.0 kB) to 2 workers by broadcast, 2 by the kernel; b (1.0 kB) to 2 workers by broadcast, 2 by the kernel; c (1.0 kB) to 2 workers by broadcast, 2 by the kernel": {
			one("a", 2, 2, 0, 0), one("b", 2, 2, 0, 0), one("c", 2, 2, 0, 0),
		},
		"a (1.0 kB) to 2 workers by broadcast, 2 by the kernel; b (1.0 kB) to 2 workers by broadcast, 2 by the kernel; 3 more (3.0 kB)": {
			one("a", 2, 2, 0, 0), one("b", 2, 2, 0, 0), one("c", 2, 2, 0, 0), one("d", 2, 2, 0, 0), one("e", 2, 2, 0, 0),
		},
	} {
		if got := broadcastsText(list); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := broadcastLine(&api.Spreaded{Name: "p", Size: 5, Failed: 3, Error: "its worker is gone"}); got != "p (5 B): 3 left to fetch it: its worker is gone" {
		t.Errorf("%q", got)
	}
	var many []*api.Spreaded
	for range 20 {
		many = append(many, one("a", 1, 0, 0, 0))
	}
	if got := broadcastLines(many); len(got) != 20 || got[19] != "a (1.0 kB) to 1 worker, 1 in user space" {
		t.Errorf("%q", got)
	}
	if got := broadcastLines(append(many, one("b", 0, 0, 0, 3))); len(got) != 20 || got[19] != "2 more (2.0 kB), 3 times left to fetch it" {
		t.Errorf("%q", got)
	}
}

// TestExitCodeOfJob: what a task's error is decides the exit code, and not its words.
func TestExitCodeOfJob(t *testing.T) {
	t.Parallel()
	p := places{inputs: []string{"/in/a"}, output: "/out/x"}
	at := func(op, path string, errno syscall.Errno) error {
		return fmt.Errorf("reduce task 0: %w", &fs.PathError{Op: op, Path: path, Err: errno})
	}
	for _, c := range []struct {
		err   error
		cause *task.Cause // nil: as CauseOf makes it
		want  int
	}{
		{err: at("open", "/in/a", syscall.ENOENT), want: exitInput},
		{err: at("read", "/in/a", syscall.EIO), want: exitInput},
		{err: fmt.Errorf("input: /in/b/*.txt matches no file: %w", fs.ErrNotExist), want: exitInput},
		{err: at("read", "/in/of/another/host", syscall.EIO), cause: &task.Cause{Kind: task.KindInput, Path: &task.PathFault{Path: "/in/of/another/host"}}, want: exitInput},
		{err: errors.New("/in/a is no gzip file: permission denied, no such file or directory"), cause: &task.Cause{Kind: task.KindInput}, want: exitFailed},
		{err: fmt.Errorf("output /out/x: %w", output.ErrExists), want: exitOutput},
		{err: fmt.Errorf("output /out/x: %w", output.ErrOverlap), want: exitOutput},
		{err: at("mkdir", "/out/.x-1", syscall.EACCES), want: exitOutput},
		{err: at("open", "/out/x/part-00000", syscall.EACCES), want: exitOutput},
		{err: errors.New("the store is away"), cause: &task.Cause{Kind: task.KindOutput}, want: exitOutput},
		{err: fmt.Errorf("output /out/x: format parquet: %w", output.ErrUnsupported), want: exitUsage},
		{err: errors.New("/in/a:7: no such file or directory is not a number"), want: exitFailed},
		{err: &mapreduce.SideInputError{Name: "model", Err: errors.New("/in/a: permission denied")}, want: exitFailed},
		{err: &mapreduce.SideInputError{Name: "model", Err: at("open", "/elsewhere", syscall.ENOENT)}, want: exitInput},
		{err: errors.New("the program was killed"), cause: &task.Cause{Kind: task.KindProgram}, want: exitFailed},
	} {
		if c.cause == nil {
			c.cause = mapreduce.CauseOf(c.err)
		}
		s := failedStatus(c.err.Error())
		if c.cause != nil {
			var err error
			if s.Failure, err = json.Marshal(c.cause); err != nil {
				t.Fatal(err)
			}
		}
		if got := (&jobError{&cluster.JobError{Status: s}, p}).code(); got != c.want {
			t.Errorf("%v (%+v): %d, want %d", c.err, c.cause, got, c.want)
		}
	}
}

func TestParseTask(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"map 3": "map 3", "map-3": "map 3", "reduce 0": "reduce 0", "plan": "plan 0", "commit": "commit 0"} {
		if got, err := parseTask(strings.Split(text, " ")); got != want || err != nil {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	if got, err := parseTask(nil); got != "" || err != nil {
		t.Errorf("none: %q, %v", got, err)
	}
	for _, text := range []string{"map", "mop 3", "map x", "3", "map -3"} {
		if got, err := parseTask(strings.Split(text, " ")); err == nil {
			t.Errorf("%s: %q", text, got)
		}
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	got, err := readTokens(file(t, "t", "# users\n\nann 12345678\nbob\tabcdefgh\n"))
	if err != nil || len(got) != 2 || got["ann"] != "12345678" || got["bob"] != "abcdefgh" {
		t.Errorf("%v, %v", got, err)
	}
	for text, want := range map[string]string{"": "no token", "ann": ":1:", "ann 1": "8 characters", "a 12345678\na 12345679": ":2: a has", "a b c": ":1:"} {
		if _, err := readTokens(file(t, "t", text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestCerts(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "c")
	if got := quern(t, "certs", dir).success(t); !strings.Contains(got, "certificates of master, worker and client,") {
		t.Errorf("it says %q", got)
	}
	for _, name := range []string{"ca.pem", "ca-key.pem", "master.pem", "worker-key.pem", "client.pem", keyringFile, tokensFile, tokenFile} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if secret := !strings.HasSuffix(name, ".pem") || strings.Contains(name, "key"); secret && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
	quern(t, "certs", dir).failure(t, exitUsage, "there is a certificate authority already", "--renew")
	before, err := os.ReadFile(filepath.Join(dir, "worker.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if got := quern(t, "certs", dir, "--renew").success(t); !strings.Contains(got, "of master, worker and client are new") {
		t.Errorf("it says %q", got)
	}
	quern(t, "certs", t.TempDir(), "--renew").failure(t, exitUsage, "ca.pem", "hint: 'quern certs DIR'")
	quern(t, "certs", file(t, "f", "")).failure(t, exitFailed, "not a directory")
	if after, err := os.ReadFile(filepath.Join(dir, "worker.pem")); err != nil || string(after) == string(before) {
		t.Errorf("not renewed: %v", err)
	}
	quern(t, "certs", dir, "--issue", "client", "--name", "ann").success(t)
	quern(t, "certs", dir, "--issue", "client", "--name", "ann").failure(t, exitUsage, "ann has a token")
	quern(t, "certs", dir, "--issue", "worker", "--name", "w1").success(t)
	if _, err := os.Stat(filepath.Join(dir, "w1", tokensFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a worker got the tokens: %v", err)
	}
	tokens, err := readTokens(filepath.Join(dir, tokensFile))
	own, ownErr := ownToken(filepath.Join(dir, "ann"))
	if err != nil || ownErr != nil || len(tokens) != 2 || tokens["ann"] != own || len(own) < 32 {
		t.Errorf("%v %v: ann's token is %q of %v", err, ownErr, own, tokens)
	}
	for _, args := range [][]string{{"--issue", "king", "--name", "x"}, {"--issue", "worker", "--name", "../evil"}, {"--issue", "worker"}, {"--name", "x"}, {"--issue", "worker", "--name", "x", "--renew"}, {"--validity=-1h"}} {
		quern(t, append([]string{"certs", dir}, args...)...).failure(t, exitUsage)
	}
}

// What is wrong with a daemon's flags is said before anything is touched.
func TestDaemonFlags(t *testing.T) {
	t.Parallel()
	certs := t.TempDir()
	for _, c := range []struct {
		args []string
		says []string
	}{
		{[]string{"master", "--port=70000"}, []string{"--port 70000"}},
		{[]string{"master", "--bind=0.0.0.0"}, []string{"--bind 0.0.0.0", "certificates"}},
		{[]string{"master", "--bind=here"}, []string{`"here" is no IP address`}},
		{[]string{"master", "--lease=-1s"}, []string{"--lease"}},
		{[]string{"master", "--lease=199ms"}, []string{"--lease 199ms", "200ms"}},
		{[]string{"master", "--side-inputs=much"}, []string{`--side-inputs "much"`}},
		{[]string{"master", "--side-inputs=0"}, []string{`--side-inputs "0"`}},
		{[]string{"master", "--certs", certs}, []string{keyringFile, "quern certs"}},
		{[]string{"master", "--tokens", filepath.Join(certs, "none")}, []string{"none"}},
		{[]string{"worker", "--advertise=10.0.0.1"}, []string{"--advertise 10.0.0.1", "certificates"}},
		{[]string{"worker", "--slots=-1"}, []string{"--slots -1"}},
		{[]string{"worker", "--memory=much"}, []string{"--memory", "much"}},
		{[]string{"worker", "--memory=63MiB"}, []string{"--memory 63MiB", "64 MiB"}},
		{[]string{"worker", "--shuffle=kernel"}, []string{"--shuffle kernel", "--interface"}},
		{[]string{"worker", "--shuffle=none"}, []string{"--shuffle", "none"}},
		{[]string{"worker", "--certs", certs, "--keyring", file(t, "k", "x")}, []string{"--join is missing"}},
	} {
		quern(t, append(c.args, "--dir", t.TempDir())...).failure(t, exitUsage, c.says...)
	}
}

// What a daemon finds wrong about its own files and ports is no input of a job.
func TestDaemonFails(t *testing.T) {
	t.Parallel()
	fails := func(says string, args ...string) {
		t.Helper()
		if o := quern(t, args...); o.code != exitFailed || !strings.Contains(o.stderr, says) {
			t.Errorf("%q: exit code %d, want %q:\n%s", args, o.code, says, o.stderr)
		}
	}
	taken := file(t, "f", "")
	for _, role := range []string{"master", "worker"} {
		fails("quern: the "+role+"'s folder: mkdir "+taken, role, "--dir", filepath.Join(taken, "x"))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := strconv.Itoa(portOf(l.Addr().String()))
	fails("address already in use\nhint: another master runs here? --port", "master", "--dir", t.TempDir(), "--port", port)
	if code := new(app).exitCode(t.Context(), daemonFailed(fmt.Errorf("make it: %w", &fs.PathError{Op: "mkdir", Path: "/proc/x", Err: fs.ErrNotExist}))); code != exitFailed {
		t.Errorf("no such folder: %d", code)
	}
}

// A worker that has no certificates says so when the others have.
func TestLogTellsOfCertificates(t *testing.T) {
	t.Parallel()
	path := file(t, "log", "")
	out, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	log := new(daemonFlags).log(&app{stderr: out}, "worker")
	log.Info("m", "error", errors.New("remote state is encrypted and encryption is not configured"))
	log.Info("m", "error", errors.New("refused"))
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "give this worker --certs") != 1 || !strings.Contains(string(text), `refused`) {
		t.Errorf("%v: %s", err, text)
	}
}

// A task of a job takes nothing from the host that it happens to run on.
func TestHostedRunIsAlone(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	job := file(t, "j.yaml", "job: count\ninputs: ["+file(t, "in.txt", words)+"]\noutput: "+out+"\n")
	config := t.TempDir()
	if err := os.Mkdir(filepath.Join(config, "quern"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "quern", "config.yaml"), []byte("format: nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"XDG_CONFIG_HOME=" + config, "QUERN_COMPRESS=nonsense", "QUERN_BOGUS=1"}
	run(t, call{args: []string{"run", job}, env: env}).failure(t, exitUsage, "QUERN_BOGUS")

	cmd := command(t, call{args: []string{"run", job}, env: env})
	var stderr strings.Builder
	cmd.Stderr = &stderr
	conn, err := task.Pipe(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = cmd.Start()
	conn.Started()
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Send(&task.Request{Protocol: task.Protocol, Kind: task.Drive, Job: fakeJob}); err != nil {
		t.Fatal(err)
	}
	for {
		reply, err := conn.Recv()
		if err != nil {
			t.Fatalf("%v\n%s", err, stderr.String())
		}
		if reply.Call == nil {
			continue
		}
		if reply.Call.Job != "count" || reply.Call.Err != "" {
			t.Errorf("call %+v", reply.Call)
		}
		break
	}
	if err := conn.Send(&task.CallResult{Result: []byte(`{"Job":"count"}`)}); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || stderr.Len() > 0 {
		t.Errorf("%v, stderr %q", err, stderr.String())
	}
	if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}
}

func TestKindOf(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]submitted{
		"-": aJobFile, t.TempDir(): aPackage, binary: aProgram, file(t, "x.yaml", "job: x"): aJobFile, file(t, "empty", ""): aJobFile, file(t, "s", "#!/bin/sh"): aProgram,
	} {
		if got, err := kindOf(path); got != want || err != nil {
			t.Errorf("%s: %v, %v; want %v", path, got, err, want)
		}
	}
	if _, err := kindOf("nowhere"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("nowhere: %v", err)
	}
}
