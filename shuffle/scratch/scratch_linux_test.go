// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain is also a process that makes a folder and waits.
func TestMain(m *testing.M) {
	if parent := os.Getenv("SCRATCH_PARENT"); parent != "" {
		f, err := New(parent, "try-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(f.Path())
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child starts a process that has a folder with something in it.
func child(t *testing.T, parent string) (path string, kill func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "SCRATCH_PARENT="+parent)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	path = strings.TrimSpace(line)
	if err := os.WriteFile(filepath.Join(path, "run"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, kill
}

func age(t *testing.T, path string) {
	t.Helper()
	old := time.Now().Add(-2 * moment)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestSweep(t *testing.T) {
	parent := t.TempDir()
	dead, kill := child(t, parent)
	live, _ := child(t, parent)
	kill()
	young, kill := child(t, parent)
	kill()
	mkdir := func(name string) string {
		path := filepath.Join(parent, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	empty, strange, other := mkdir("try-empty"), mkdir("try-strange"), mkdir("other")
	if err := os.WriteFile(filepath.Join(strange, "theirs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// A link is no folder of ours, wherever it leads.
	elsewhere := filepath.Join(t.TempDir(), "try-elsewhere")
	if err := os.Mkdir(elsewhere, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(parent, "try-link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dead, live, empty, strange, other, elsewhere} {
		age(t, path)
	}
	f, err := New(parent, "try-")
	if err != nil {
		t.Fatal(err)
	}
	age(t, f.Path())
	if _, err := New(parent, "try-"); err != nil { // this process's own folder is live, too
		t.Fatal(err)
	}
	for path, stays := range map[string]bool{
		dead: false, empty: false, live: true, young: true, strange: true, other: true, elsewhere: true, f.Path(): true,
	} {
		if there(path) != stays {
			t.Errorf("%s: stays is %v, want %v", filepath.Base(path), !stays, stays)
		}
	}
	if err := f.Close(); err != nil || there(f.Path()) {
		t.Errorf("closed, and there is %v: %v", there(f.Path()), err)
	}
}

func TestNoParent(t *testing.T) {
	if _, err := New(filepath.Join(t.TempDir(), "none"), "try-"); !os.IsNotExist(err) {
		t.Errorf("got %v", err)
	}
}
