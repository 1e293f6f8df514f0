// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"path/filepath"
	"testing"

	"github.com/quernmr/quern/shuffle/wire"
)

// The interface goes while its programs are attached: calls return errors or nothing, closing
// leaves nothing behind, and what was left for another process is not taken up.
func TestInterfaceVanishes(t *testing.T) {
	newLab(t)
	for _, dir := range []string{"", filepath.Join(instances(t), "one")} {
		for _, release := range []bool{false, true} {
			if release && dir == "" {
				continue
			}
			h := open(t, Options{Interfaces: []string{"a0"}, Limits: small(), Dir: dir})
			if err := h.SetAnswer(wire.AnswerTC); err != nil {
				t.Fatal(err)
			}
			if _, err := h.NewTables(narrow, 1); err != nil {
				t.Fatal(err)
			}
			if !h.Clones() {
				t.Fatal("it does not clone")
			}
			sh(t, "ip link del a0")
			if _, err := h.NewContent(1); err != nil {
				t.Error(err)
			}
			if err := h.Quiesce(); err != nil {
				t.Error(err)
			}
			if _, err := h.NewTables(narrow, 1); err != nil {
				t.Error(err)
			}
			if release {
				if err := h.Release(); err != nil {
					t.Error(err)
				}
				sh(t, "ip link add a0 type veth peer name a1")
				if h, err := Open(Options{Interfaces: []string{"a0"}, Limits: small(), Dir: dir}); err != nil {
					t.Error(err)
				} else {
					if h.Resumed() {
						t.Error("it is resumed")
					}
					t.Log(h.Note())
					if err := h.Close(); err != nil {
						t.Error(err)
					}
				}
				sh(t, "ip link del a0")
			} else if err := h.Close(); err != nil {
				t.Error(err)
			}
			sh(t, "ip link add a0 type veth peer name a1")
		}
	}
}
