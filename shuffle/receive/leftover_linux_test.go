// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestLeftovers has a new receiver remove the folder of one that is gone, and leave
// that of one that lives.
func TestLeftovers(t *testing.T) {
	temp := t.TempDir()
	begin := func() *Receiver {
		r, err := New(Options{Listen: "127.0.0.1", TempDir: temp})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		return r
	}
	live := begin().dir.Path()
	gone := filepath.Join(temp, "quern-receive-1")
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"alive", "0-0-0-0.run"} { // nobody holds the lock
		if err := os.WriteFile(filepath.Join(gone, file), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-time.Hour)
	for _, path := range []string{live, gone} {
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	begin()
	if _, err := os.Stat(gone); !os.IsNotExist(err) {
		t.Errorf("the folder of a receiver that is gone: %v", err)
	}
	if _, err := os.Stat(live); err != nil {
		t.Errorf("the folder of one that lives: %v", err)
	}
}
