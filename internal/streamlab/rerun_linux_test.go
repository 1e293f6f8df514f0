// SPDX-License-Identifier: Apache-2.0

package streamlab

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
)

// TestRerunOverSmallerMTU ends a map task's push in mid-stream and runs it again from
// another host, whose way to the receiver takes no frame of full size. Frames that
// arrived the first time must not count twice, so the second host has to carry
// the very same frames: they go over the control connection.
func TestRerunOverSmallerMTU(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	for _, mtu := range []int{1500, 1280} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) { rerun(t, mtu) })
	}
}

func rerun(t *testing.T, mtu int) {
	lab, err := netlab.New(netlab.Options{Hosts: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := lab.Host(2).Do(func() error {
		link, err := netlink.LinkByName(netlab.InterfaceName)
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(link, mtu)
	}); err != nil {
		t.Fatal(err)
	}
	// Slow enough to be cut short half-way.
	if err := lab.SetFaults(netlab.Faults{Delay: 2 * time.Millisecond, UDPOnly: true}); err != nil {
		t.Fatal(err)
	}
	j := &Job{Seed: 1, Maps: 1, Partitions: 1, Keys: 200_000, shape: "numbered"}
	j.Spec = shuffle.JobSpec{ID: shuffle.JobID{2}, Ops: []fold.Op{fold.Sum, fold.Max}}
	part := map[string][]int64{}
	for i := range j.Keys {
		part[fmt.Sprintf("key%d", i)] = []int64{int64(i), int64(-i)}
	}
	j.Output = [][]map[string][]int64{{part}}
	s := Setting{Hosts: 3, Ports: 1, Stall: 20 * time.Second}
	ends := make([]*end, 3)
	for i := range ends {
		if ends[i], err = s.open(lab.Host(i+1), true); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := ends[i].close(); err != nil {
				t.Error(err)
			}
		}()
	}
	ctl, to := ends[2].receiver, lab.Host(3).IPv4()
	first, cut := context.WithCancel(t.Context())
	go func() {
		// Cut once a good part has arrived.
		for first.Err() == nil {
			if n, err := ctl.Totals(j.Target(0)); err == nil && n.Kernel+n.User > 20_000 {
				cut()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	r, err := j.push(first, ends[0], ctl, to, 0, 0)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("the first push was to be cut short: %v", err)
	}
	before, err := ctl.Totals(j.Target(0))
	if err != nil {
		t.Fatal(err)
	}
	r2, err := j.push(t.Context(), ends[1], ctl, to, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("MTU %d: first sent %d of %d frames; then %d known, %d sent, %d delivered", mtu, r.Sent, r.Frames, r2.Known, r2.Sent, r2.Delivered)
	if before.Kernel+before.User < 20_000 || r2.Known == 0 {
		t.Errorf("%d pairs had been folded, and %d frames were known; both were to be more", before.Kernel+before.User, r2.Known)
	}
	if small := mtu < 1500; small != (r2.Delivered > 0) {
		t.Errorf("%d frames went over the control connection at MTU %d", r2.Delivered, mtu)
	}
	var report Report
	if err := j.check(t.Context(), ctl, 0, &report); err != nil {
		t.Error(err)
	}
}
