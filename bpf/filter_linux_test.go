// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/quernmr/quern/shuffle/wire"
)

// A Host that does not take up what it finds has no filter of it either, and attaches
// its own when answers are to leave that way.
func TestFilterIsNotTakenUp(t *testing.T) {
	newLab(t)
	dir := filepath.Join(instances(t), "one")
	o := Options{Interfaces: []string{"a0"}, Limits: small(), Dir: dir}
	for name, damage := range map[string]func(h *Host) error{
		"pins":     func(h *Host) error { return os.Mkdir(h.inst.path(h.state.Live, "sets", "rubbish"), 0o700) },
		"detached": func(h *Host) error { return h.detachTC() }, // it failed to attach, say
	} {
		h := open(t, o)
		h.mu.Lock()
		err := h.attachTC(true)
		if err == nil {
			err = damage(h)
		}
		h.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Release(); err != nil {
			t.Fatal(err)
		}
		h = open(t, o)
		if h.filter {
			t.Errorf("%s: it has a filter (resumed: %v, %s)", name, h.Resumed(), h.Note())
		}
		if err := h.SetAnswer(wire.AnswerTC); err != nil {
			t.Fatal(err)
		}
		if len(h.tcLinks) == 0 && !h.filter {
			t.Errorf("%s: nothing sends answers", name)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
