// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Programs are detached, then waited for, then unpinned: one that runs finds its chain to the end.
func TestOrderOfStop(t *testing.T) {
	newLab(t)
	dir := filepath.Join(instances(t), "one")
	o := Options{Interfaces: []string{"a0"}, Limits: small(), Dir: dir}
	waits := 0
	between := func(wait func() error) func() error {
		return func() error {
			waits++
			if id, name := onDevice(t, "a0"); id != 0 {
				t.Errorf("programs are waited for while %s is on a0", name)
			}
			pins, err := filepath.Glob(filepath.Join(dir, mountDir, "live-*", "programs", ackProgram))
			if err != nil || len(pins) != 1 {
				t.Errorf("programs are waited for when the chain is unpinned: %q, %v", pins, err)
			}
			return wait()
		}
	}
	h := open(t, o)
	h.rounds.wait = between(h.quiesce)
	if err := h.Close(); err != nil || waits != 1 {
		t.Errorf("closed after %d waits: %v", waits, err)
	}

	// The same for what another process has left.
	if err := open(t, o).Release(); err != nil {
		t.Fatal(err)
	}
	lock, err := lockDir(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	i := &instance{dir, lock}
	if err := i.wipe(nil, between(waitForPrograms)); err != nil || waits != 2 {
		t.Errorf("wiped after %d waits: %v", waits, err)
	}
	if err := i.dispose(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
}
