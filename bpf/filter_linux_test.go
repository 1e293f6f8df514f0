// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

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
		"detached": func(h *Host) error { return h.detachHook(&h.answers) }, // it failed to attach, say
	} {
		h := open(t, o)
		h.mu.Lock()
		err := h.attachHook(&h.answers, true)
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
		if h.answers.filter {
			t.Errorf("%s: it has a filter (resumed: %v, %s)", name, h.Resumed(), h.Note())
		}
		if err := h.SetAnswer(wire.AnswerTC); err != nil {
			t.Fatal(err)
		}
		if len(h.answers.links) == 0 && !h.answers.filter {
			t.Errorf("%s: nothing sends answers", name)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A filter is recorded before it is attached. A process that ends in between, or somebody who takes
// the filter off, leaves a record of what is not there: who takes the rest up attaches it.
func TestFilterThatIsNotThere(t *testing.T) {
	newLab(t)
	dir := filepath.Join(instances(t), "one")
	o := Options{Interfaces: []string{"a0"}, Limits: small(), Dir: dir}
	for _, k := range []hook{answerHook, cloneHook} {
		h := open(t, o)
		h.mu.Lock()
		hooked := &h.answers
		if k == cloneHook {
			hooked = &h.clones
		}
		err := h.attachHook(hooked, true)
		if err == nil {
			err = h.devices[0].detachFilter(k)
		}
		h.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Release(); err != nil {
			t.Fatal(err)
		}
		h = open(t, o)
		if !h.Resumed() {
			t.Fatalf("%s: the state was not taken up: %s", k.program, h.Note())
		}
		list, err := netlink.FilterList(h.devices[0].link, k.parent)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) != 1 || list[0].Attrs().Handle != tcHandle {
			t.Errorf("%s: %d filters, though it is said that there is one", k.program, len(list))
		}
		if k == cloneHook && !h.Clones() {
			t.Error("chunks are not cloned")
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		if list, err := netlink.FilterList(h.devices[0].link, k.parent); err != nil || len(list) != 0 {
			t.Errorf("%s: %d filters are left: %v", k.program, len(list), err)
		}
	}
}
