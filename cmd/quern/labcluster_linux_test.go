// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// emptyFolder is a folder for temporary files that must be empty again at the end. What
// labs make is named by their processes, so the names say what was forgotten.
func emptyFolder(t *testing.T) (dir string, check func()) {
	t.Helper()
	dir = t.TempDir()
	return dir, func() {
		t.Helper()
		left, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %q, %v", left, err)
		}
	}
}

// TestLabCluster submits a job to the cluster of a lab, knowing nothing but what its
// environment says.
func TestLabCluster(t *testing.T) {
	needLab(t)
	in := file(t, "in", strings.Repeat("to be or not to be\n", 20_000))
	local, out := filepath.Join(t.TempDir(), "local"), filepath.Join(t.TempDir(), "out")
	quern(t, "wordcount", in, "--split-size", "64KiB", "--partitions", "3", "-o", local).success(t)
	for _, mode := range []string{"auto", "user"} {
		tmp, empty := emptyFolder(t)
		name := "qn-cmd-cluster" + pidText()
		c := labWithCluster("--hosts", "3", "--shuffle", mode, "--name", name, "--json", "--", binary, "submit", "wordcount", in, "--split-size", "64KiB", "--partitions", "3", "-o", out+mode, "--quiet")
		c.env = append(c.env, "TMPDIR="+tmp)
		got := run(t, c)
		got.success(t)
		if !strings.Contains(got.stderr, "lab: a master and 3 workers of ") {
			t.Errorf("stderr: %s", got.stderr)
		}
		parts, err := filepath.Glob(filepath.Join(local, "*"))
		if err != nil || len(parts) != 4 {
			t.Fatalf("the local output has %q, %v", parts, err)
		}
		for _, part := range parts {
			want, err := os.ReadFile(part)
			if err != nil {
				t.Fatal(err)
			}
			if text, err := os.ReadFile(filepath.Join(out+mode, filepath.Base(part))); err != nil || !bytes.Equal(text, want) {
				t.Errorf("%s with %s: %q, want %q; %v", filepath.Base(part), mode, text, want, err)
			}
		}
		empty()
		if found := leftOfLab(t, name); len(found) > 0 {
			t.Errorf("left: %q", found)
		}
	}
}

// TestLabClusterFails keeps the logs when the command fails, where it says.
func TestLabClusterFails(t *testing.T) {
	needLab(t)
	tmp, _ := emptyFolder(t)
	c := labWithCluster("--hosts", "1", "--", "sh", "-c", `echo "$QUERN_MASTER" && test -f "$QUERN_CERTS/ca.pem" && test -n "$QUERN_TOKEN" && exit 9`)
	c.env = append(c.env, "TMPDIR="+tmp)
	got := run(t, c)
	if got.code != 9 || got.stdout != "10.71.17.1:7119\n" {
		t.Fatalf("exit code %d, %q, %q", got.code, got.stdout, got.stderr)
	}
	left, err := filepath.Glob(filepath.Join(tmp, "*"))
	if err != nil || len(left) != 1 || !strings.Contains(got.stderr, "logs of master and workers are in "+left[0]) {
		t.Fatalf("%q, %v; %s", left, err, got.stderr)
	}
	for _, name := range []string{"master.log", "worker-1.log"} {
		if info, err := os.Stat(filepath.Join(left[0], name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	// With --logs they are there in any case.
	logs := filepath.Join(t.TempDir(), "logs")
	tmp, empty := emptyFolder(t)
	c = labWithCluster("--hosts", "1", "--quiet", "--logs", logs, "--", "true")
	c.env = append(c.env, "TMPDIR="+tmp)
	if got := run(t, c); got.code != 0 || got.stderr != "" {
		t.Errorf("exit code %d, %q", got.code, got.stderr)
	}
	empty()
	if _, err := os.Stat(filepath.Join(logs, "master.log")); err != nil {
		t.Error(err)
	}
}

// TestLabClusterKilled kills the lab: master and workers go with it, and lab clean removes
// the rest, mounts included.
func TestLabClusterKilled(t *testing.T) {
	needLab(t)
	tmp, empty := emptyFolder(t)
	name := "qn-cmd-ckilled" + pidText()
	c := labWithCluster("--hosts", "2", "--name", name, "--", "sh", "-c", "echo ready; sleep 1000 & wait")
	c.env = append(c.env, "TMPDIR="+tmp)
	cmd := command(t, c)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var ready [6]byte
	if _, err := io.ReadFull(out, ready[:]); err != nil || string(ready[:]) != "ready\n" {
		t.Fatalf("%q, %v", ready, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = cmd.Process.Wait()
	// A folder that is not quite new is swept; this one would be spared for a moment.
	folders, err := filepath.Glob(filepath.Join(tmp, labFolderPrefix+"*"))
	if err != nil || len(folders) != 1 {
		t.Fatalf("%q, %v", folders, err)
	}
	old := time.Now().Add(-time.Hour)
	text := ""
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(20 * time.Millisecond) {
		_ = os.Chtimes(folders[0], old, old) // gone soon
		clean := call{args: []string{"lab", "clean"}, env: []string{"TMPDIR=" + tmp}}
		text += run(t, clean).success(t)
		if _, err := os.Stat(folders[0]); err != nil && len(leftOfLab(t, name)) == 0 {
			break
		}
	}
	empty()
	if found := leftOfLab(t, name); len(found) > 0 {
		t.Errorf("left: %q; %s", found, text)
	}
}

func TestLabClusterFlags(t *testing.T) {
	quern(t, "lab", "run", "--slots", "-1", "--", "true").failure(t, exitUsage, "--slots -1")
	quern(t, "lab", "run", "--shuffle", "magic", "--", "true").failure(t, exitUsage, "--shuffle", "magic")
	quern(t, "lab", "run", "--no-cluster", "--slots", "2", "--", "true").failure(t, exitUsage, "--slots", "--no-cluster")
}
