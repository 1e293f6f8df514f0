// SPDX-License-Identifier: Apache-2.0

package house

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestModule applies the rules to the module that this test is part of.
func TestModule(t *testing.T) {
	root := moduleRoot(t)
	problems, err := Check(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil {
			if !strings.HasPrefix(string(text), "module "+Module+"\n") {
				t.Fatalf("%s is not the module %s", filepath.Join(dir, "go.mod"), Module)
			}
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod found above the test's folder")
		}
		dir = up
	}
}
