// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

var _ shuffle.Reduces = (*Host)(nil)

// reducing is what a Host has for all-reduces, beside what it has for broadcasts.
type reducing struct {
	err    error // why it has nothing
	groups []wire.Group
	rounds *teller // Host.mu is held
}

// reduceCPUs is from how many processors quern_complete puts sums together at most, ELEMENTS without user space's: what is
// beyond would be left out of sums.
const reduceCPUs = 256

// startReduces makes what all-reduces need. Where that can't be, the rest does without.
func (h *Host) startReduces() {
	r := &h.reducing
	err := h.casting.err
	if err == nil && h.loader.cpus > reduceCPUs {
		err = fmt.Errorf("this host may have %d processors, where programs put together the sums of %d", h.loader.cpus, reduceCPUs)
	}
	if err == nil {
		err = h.loader.extra(forReduces, reducePrograms, h.programs)
	}
	if err == nil {
		r.groups, err = mapAs[wire.Group](h, "groups", h.loader.limits.Groups)
	}
	if err == nil {
		err = h.loader.link(chainPart, h.programs[reduceProgram], h.programs[completeProgram], h.programs[reducedProgram])
	}
	if err != nil {
		r.err, r.groups = err, nil
		if h.casting.err == nil {
			h.opts.Log.Info("all-reduces: user space alone", "reason", err)
		}
	}
}

// resumeReduces maps what an earlier process has left; resumeBroadcasts empties it.
func (h *Host) resumeReduces() (err error) {
	if h.state.NoReduces != "" {
		h.reducing.err = fmt.Errorf("an earlier process found: %s", h.state.NoReduces)
		return nil
	}
	h.reducing.groups, err = mapAs[wire.Group](h, "groups", h.loader.limits.Groups)
	return err
}

// shut closes all groups.
func (r *reducing) shut() {
	for i := range r.groups {
		atomic.StoreUint64(&r.groups[i].Token, 0)
	}
}

// names returns the open group that names a content, -1 if none does.
func (r *reducing) names(content uint32) int {
	for i := range r.groups {
		g := &r.groups[i]
		if atomic.LoadUint64(&g.Token) != 0 && (atomic.LoadUint32(&g.Sums) == content || atomic.LoadUint32(&g.Results) == content) {
			return i
		}
	}
	return -1
}

// reduces is use for what concerns all-reduces.
func (h *Host) reduces() (done func(), err error) {
	done, err = h.use()
	if err == nil && h.reducing.err != nil {
		done()
		return nil, fmt.Errorf("all-reduces: %w: %w", ErrUnsupported, h.reducing.err)
	}
	return done, err
}

// Reduces returns the Host as a help with all-reduces, or an error that wraps ErrUnsupported and says why
// programs are none: their maps or programs could not be made, and user space has to do.
func (h *Host) Reduces() (shuffle.Reduces, error) {
	done, err := h.reduces()
	if err != nil {
		return nil, err
	}
	done()
	return h, nil
}

// Groups returns the shared memory of all-reduces, which is empty where Reduces returns an error. Once
// Close or Release has unmapped it, using it is a fault that ends the process.
func (h *Host) Groups() []wire.Group { return h.reducing.groups }

// OnRound has f called, by one goroutine, for every result that brought an open group's Stored to its Wake. It can be
// called once. f must not call Close or Release, which wait for it.
func (h *Host) OnRound(f func(wire.Event)) error {
	done, err := h.reduces()
	if err != nil {
		return err
	}
	defer done()
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &h.reducing
	if r.rounds != nil {
		return errors.New("somebody is told of results already")
	}
	groups := r.groups
	r.rounds, err = newTeller(h.loader.shared["rounds"], func(e wire.Event) {
		if stands(e, len(groups), func(i int) *uint64 { return &groups[i].Token }) {
			f(e)
		}
	}, func(err error) {
		h.opts.Log.Error("all-reduces: nobody hears what programs tell any more", "reason", err)
	})
	if err != nil {
		return fmt.Errorf("read what programs tell of results: %w", err)
	}
	return nil
}
