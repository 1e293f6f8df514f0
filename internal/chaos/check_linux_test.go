// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/internal/netlab"
	"golang.org/x/sys/unix"
)

// write makes files of a tree.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSameTree finds every difference.
func TestSameTree(t *testing.T) {
	want := map[string]string{"part-0": "a\t1\nb\t2\n", "part-1": "", "_SUCCESS": "{}"}
	for _, c := range []struct {
		change map[string]string
		drop   string
		says   string
	}{
		{nil, "", ""},
		{map[string]string{"part-0": "a\t1\nb\t3\n"}, "", `part-0: line 2 is "b\t3", want "b\t2"`},
		{map[string]string{"part-0": "a\t1\n"}, "", `part-0: line 2 is "", want "b\t2"`},
		{map[string]string{"part-0": "a\t1\nb\t2\nc"}, "", `part-0: line 3 is "c", want ""`},
		{map[string]string{"part-2": ""}, "", "part-2 should not be there"},
		{nil, "part-1", "part-1 is missing"},
	} {
		a, b := t.TempDir(), t.TempDir()
		write(t, b, want)
		write(t, a, want)
		write(t, a, c.change)
		if c.drop != "" {
			if err := os.Remove(filepath.Join(a, c.drop)); err != nil {
				t.Fatal(err)
			}
		}
		err := sameTree(a, b)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
	if err := sameTree(filepath.Join(t.TempDir(), "none"), t.TempDir()); err == nil {
		t.Error("an output that is not there is right")
	}
}

// TestHeldBy finds files in memory, and files that were removed, while they are open or mapped.
func TestHeldBy(t *testing.T) {
	has := func(part string) bool {
		t.Helper()
		h, err := heldBy(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(h.memory, func(s string) bool { return strings.Contains(s, part) })
	}
	fd, err := unix.MemfdCreate("chaos-held", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, 4096); err != nil {
		t.Fatal(err)
	}
	if !has("memfd:chaos-held") {
		t.Error("a file in memory is not seen")
	}
	mapped, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	if !has("mapped: /memfd:chaos-held") {
		t.Error("a mapped file in memory is not seen")
	}
	if err := unix.Munmap(mapped); err != nil {
		t.Fatal(err)
	}
	if has("memfd:chaos-held") {
		t.Error("what was unmapped is still seen")
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "removed"))
	if err != nil {
		t.Fatal(err)
	}
	if has(f.Name()) {
		t.Error("a file that is there is taken for one that was removed")
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if !has(f.Name()) {
		t.Error("a removed file is not seen")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if has(f.Name()) {
		t.Error("a closed file is still seen")
	}
}

// TestReport reads what a program of an iteration and its summary say.
func TestReport(t *testing.T) {
	var r Report
	r.fill("quern descent: round 3\n{\"lost_attempts\":2,\"broadcasts\":[{\"reached\":3,\"reached_by_kernel\":1},{\"reached\":2}]}\ndescent: together 3 times, resumed at 40\n")
	if r.Regroups != 2 || r.Resumed != 40 || r.Lost != 2 || r.Spread != 5 || r.SpreadKernel != 1 {
		t.Errorf("%+v", r)
	}
}

// TestLastLine finds the summary, whatever a user's program says behind it.
func TestLastLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "",
		"quern: no\n":                         "quern: no",
		"a\n{\"a\":1}\n":                      `{"a":1}`,
		"{\"a\":1}\n{\"b\":{}}\ndescent: x\n": `{"b":{}}`,
		"{\"a\":1}":                           `{"a":1}`,
	} {
		if got := lastLine(text); got != want {
			t.Errorf("of %q it is %q, want %q", text, got, want)
		}
	}
}

func TestCheckSummary(t *testing.T) {
	for line, says := range map[string]string{
		`{"ok":true,"audit":{"pairs_emitted":5,"pairs_combined":4,"pairs_folded":4,"sum_check_map":7,"sum_check_drain":7}}`: "",
		`{"ok":true,"audit":{"pairs_emitted":5,"pairs_combined":4,"pairs_folded":3,"sum_check_map":7,"sum_check_drain":7}}`: "balance",
		`{"ok":true,"audit":{"pairs_emitted":5,"pairs_combined":4,"pairs_folded":4,"sum_check_map":7,"sum_check_drain":8}}`: "balance",
		`{"ok":false,"error":"x"}`: "all is well",
		`{"ok":true}`:              "empty",
		`no JSON`:                  "read the summary",
	} {
		err := checkSummary(line)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", line, err, says)
		}
	}
}

// TestLookAround finds what is left on a host: processes and their children, programs,
// files and mounts.
func TestLookAround(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	lab, err := netlab.New(netlab.Options{Hosts: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	for _, h := range lab.Hosts() {
		if all, err := processesIn(h); err != nil || len(all) != 0 {
			t.Errorf("%v: %v, %v", h, all, err)
		}
		if found, err := programsOn(h); err != nil || len(found) != 0 {
			t.Errorf("%v: %v, %v", h, found, err)
		}
	}
	c := lab.Host(2).Command(context.Background(), "sh", "-c", "sleep 1000 & wait")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	pid := c.Process.Pid
	var all, children []process
	err = within(settle, func() error {
		if all, err = processesIn(lab.Host(2)); err != nil {
			return err
		}
		if children, err = childrenOf(lab.Host(2), pid); err != nil {
			return err
		}
		if len(all) != 2 || len(children) != 1 || children[0].parent != pid || !strings.Contains(children[0].command, "sleep 1000") {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		t.Errorf("%v, %v: %v", all, children, err)
	}
	if all, err := processesIn(lab.Host(1)); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	err = within(settle, func() error {
		if all, err = processesIn(lab.Host(2)); err != nil || len(all) != 1 || all[0].parent == pid {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		t.Errorf("the orphan is not found alone: %v", all)
	}

	if _, err := bpf.SelfTest(); err != nil {
		t.Logf("programs can't be tried: %v", err)
		return
	}
	dir := filepath.Join(t.TempDir(), "instance")
	var k *bpf.Host
	err = lab.Host(1).Do(func() (err error) {
		k, err = bpf.Open(bpf.Options{Interfaces: []string{netlab.InterfaceName}, Dir: dir})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found, err := programsOn(lab.Host(1)); err != nil || len(found) == 0 {
		t.Errorf("programs: %v, %v", found, err)
	}
	if found, err := mountsBelow(filepath.Dir(dir)); err != nil || len(found) != 1 {
		t.Errorf("mounts: %v, %v", found, err)
	}
	if found, err := entries(filepath.Dir(dir), func(string) bool { return false }); err != nil || len(found) == 0 {
		t.Errorf("files: %v, %v", found, err)
	}
	if err := lab.Host(1).Do(k.Close); err != nil {
		t.Error(err)
	}
	if found, err := programsOn(lab.Host(1)); err != nil || len(found) != 0 {
		t.Errorf("programs: %v, %v", found, err)
	}
	if found, err := mountsBelow(filepath.Dir(dir)); err != nil || len(found) != 0 {
		t.Errorf("mounts: %v, %v", found, err)
	}
	if found, err := entries(filepath.Dir(dir), func(string) bool { return false }); err != nil || len(found) != 0 {
		t.Errorf("files: %v, %v", found, err)
	}
}

func TestWithin(t *testing.T) {
	n := 0
	if err := within(time.Minute, func() error {
		if n++; n < 3 {
			return errors.New("no")
		}
		return nil
	}); err != nil || n != 3 {
		t.Error(err, n)
	}
	if err := within(0, func() error { return errors.New("no") }); err == nil {
		t.Error("no error")
	}
}
