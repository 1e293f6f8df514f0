// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/quernmr/quern/shuffle/wire"
)

// teller is who reads what programs write to a ring buffer, and calls somebody for it.
type teller struct {
	reader *ringbuf.Reader
	done   chan struct{}
}

// newTeller has f called, by one goroutine, for every event. lost is called with the reason if that can't go on.
func newTeller(ring *ebpf.Map, f func(wire.Event), lost func(error)) (*teller, error) {
	reader, err := ringbuf.NewReader(ring)
	if err != nil {
		return nil, err
	}
	t := &teller{reader, make(chan struct{})}
	go func() {
		defer close(t.done)
		if err := t.run(f); err != nil {
			lost(err)
		}
	}()
	return t, nil
}

// run returns nil once the reader is closed.
func (t *teller) run(f func(wire.Event)) error {
	const size = int(unsafe.Sizeof(wire.Event{}))
	var r ringbuf.Record
	for {
		err := t.reader.ReadInto(&r)
		if errors.Is(err, ringbuf.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(r.RawSample) < size {
			return fmt.Errorf("object and Go disagree on events: %d bytes, and %d", len(r.RawSample), size)
		}
		f(wire.Event{
			Token: binary.LittleEndian.Uint64(r.RawSample),
			Slot:  binary.LittleEndian.Uint32(r.RawSample[8:]),
			First: binary.LittleEndian.Uint32(r.RawSample[12:]),
		})
		// Whom f has woken goes on here and now. Else it would have to be found by another thread, which has to be woken first, or
		// wait until somebody notices that this one sleeps in the kernel: where goroutines computed meanwhile, 5 ms against 70 us.
		runtime.Gosched()
	}
}

// close returns when f is not called any more.
func (t *teller) close() error {
	err := t.reader.Close()
	<-t.done
	return err
}

// stands says whether an event is of what is open in its slot: it may be of what was closed since, by
// an earlier process even.
func stands(e wire.Event, slots int, token func(slot int) *uint64) bool {
	return int64(e.Slot) < int64(slots) && atomic.LoadUint64(token(int(e.Slot))) == e.Token
}
