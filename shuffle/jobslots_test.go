// SPDX-License-Identifier: Apache-2.0

package shuffle

import (
	"errors"
	"testing"

	"github.com/quernmr/quern/shuffle/wire"
)

// slots is a kernel's table of jobs.
type slots struct {
	Kernel
	keys [2]wire.Job
	sets int
}

func (k *slots) SetJob(slot int, keys *wire.Job) error {
	k.keys[slot] = *keys
	k.sets++
	return nil
}

func TestJobSlots(t *testing.T) {
	k := &slots{}
	s := NewJobSlots(k, 2)
	a, b, c := JobID{1}, JobID{2}, JobID{3}
	keys := func(secret byte) *wire.Job { return wire.NewTags([16]byte{secret}).Job() }
	acquire := func(job JobID, secret byte) int {
		t.Helper()
		slot, err := s.Acquire(job, keys(secret))
		if err != nil {
			t.Fatal(err)
		}
		return slot
	}
	one := acquire(a, 1)
	if acquire(a, 1) != one || k.sets != 1 {
		t.Errorf("the same job has another slot, or its keys were written %d times", k.sets)
	}
	// Frames of open streams would fail by the other one's keys.
	if _, err := s.Acquire(a, keys(9)); err == nil || k.keys[one] != *keys(1) {
		t.Errorf("the keys of a job that is open were replaced (%v)", err)
	}
	if !s.Reserve(b, 1-one) || s.Reserve(c, one) || s.Reserve(a, 1-one) {
		t.Error("a free slot is not to be had, or another's is")
	}
	if acquire(b, 2) != 1-one || k.keys[1-one] != *keys(2) {
		t.Error("a reserved slot is not its job's, or has no keys")
	}
	if _, err := s.Acquire(c, keys(3)); !errors.Is(err, ErrNoSlot) {
		t.Errorf("a third job: %v", err)
	}
	s.Release(a)
	if _, err := s.Acquire(c, keys(3)); !errors.Is(err, ErrNoSlot) {
		t.Errorf("a third job while one of two holders of the first is left: %v", err)
	}
	s.Release(a)
	s.Release(a) // once too often
	if acquire(c, 3) != one || k.keys[one] != *keys(3) {
		t.Error("a slot that is free again is not used, or has old keys")
	}
}
