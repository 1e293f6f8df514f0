// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// builtProgram builds a program of tests as submit wants it.
func builtProgram(t *testing.T, name string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("go", "build", "-o", out, "../../internal/chaos/testdata/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, said)
	}
	return out
}

// points has a number a line, in lines splits of 4 KiB.
func points(t *testing.T, lines int) string {
	var b strings.Builder
	for i := range lines {
		fmt.Fprintf(&b, "%d.%03d\n", i*7919%1000, i*104729%1000)
	}
	return file(t, "points.txt", b.String())
}

// An iteration on a cluster gives the bytes of a local one.
func TestClusterIterates(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds a program")
	}
	c := newTestCluster(t)
	program, in, dir := builtProgram(t, "descent"), points(t, 5000), t.TempDir()
	local := filepath.Join(dir, "local")
	want, err := exec.Command(program, "-o", local, in).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, want)
	}
	got := filepath.Join(dir, "cluster")
	o := run(t, call{args: []string{"submit", program, "--", "-o", got, in}, env: c.env})
	if said := o.success(t); said != string(want) {
		t.Errorf("said %q, want %q", said, want)
	}
	sameTree(t, got, local)
	var history struct{ Jobs []jobJSON }
	if err := json.Unmarshal([]byte(run(t, call{args: []string{"history", "--json"}, env: c.env}).success(t)), &history); err != nil || len(history.Jobs) != 1 {
		t.Fatal(history, err)
	}
	if i := history.Jobs[0].Iteration; i == nil || i.Round != 100 || i.Rounds != 100 || i.Members != 2 || i.Groups != 1 || !i.Ended {
		t.Errorf("%+v", i)
	}
	status := run(t, call{args: []string{"status", history.Jobs[0].Job}, env: c.env}).success(t)
	if want := "round 100, 2 members, at its end"; !strings.Contains(status, want) {
		t.Errorf("%q is not in %s", want, status)
	}
	// What goes wrong in a member is the job's error.
	for how, says := range map[string]string{"error": "that is enough", "panic": "panic in the job's code: round 3"} {
		o := run(t, call{args: []string{"submit", program, "--", "-o", got + how, "-fail", "3", "-how", how, in}, env: c.env})
		if o.code != exitFailed || !strings.Contains(o.stderr, says) {
			t.Errorf("exit code %d, %s", o.code, o.stderr)
		}
	}
	if names := entries(t, dir); len(names) != 2 {
		t.Errorf("left behind: %q", names)
	}
}
