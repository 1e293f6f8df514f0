// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/quernmr/quern/shuffle/wire"
)

// TestRandom gives random wholes to random members over a network that spoils frames, while members die. Who lives has
// the same bytes.
func TestRandom(t *testing.T) {
	runs := 12
	if os.Getenv("QUERN_LONG") != "" {
		runs = 150
	}
	atOnce(runs, func(seed int) { randomRun(t, uint64(seed)) })
}

func randomRun(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 3))
	n := 1 + rng.IntN(16)
	size := rng.IntN(1 << (4 + rng.IntN(17)))
	if rng.IntN(8) == 0 {
		size = 0
	}
	var f faults
	if rng.IntN(4) > 0 {
		f = faults{Lose: rng.Float64() * 0.2, Double: rng.Float64() * 0.1, Damage: rng.Float64() * 0.05, Delay: rng.Float64() * 0.2, Latency: 5 * time.Millisecond}
	}
	l := newLab(t, seed, f)
	s := virtualSetting{strangers: rng.IntN(4) == 0, answer: []wire.AnswerMode{wire.AnswerTX, wire.AnswerTX, wire.AnswerUser}[rng.IntN(3)]}
	s.opts.Patience = time.Second
	s.opts.Idle = 20 * time.Second
	kernels := rng.IntN(3) // none, all, some
	kernel := func(int) bool { return kernels == 1 || kernels == 2 && rng.IntN(2) == 0 }
	s.kernel = kernel(0)
	source := l.host(s)
	list, members := l.hosts(n, s, kernel)
	data := noise(seed, size)
	spec := SpreadSpec{
		Job: job(1), Secret: [16]byte{byte(seed)}, Name: "whole", Members: members, Source: bytes.NewReader(data), Size: int64(size),
		Chains: rng.IntN(n + 1),
	}
	if size > 100 {
		spec.Window = int64(size/(1+rng.IntN(4)) + 1)
	}
	dying := map[int]bool{}
	if n > 1 && rng.IntN(2) == 0 {
		for range 1 + rng.IntN(n/2) {
			dying[rng.IntN(n)] = true
		}
	}
	var wg sync.WaitGroup
	for i := range list {
		list[i].mute = rng.IntN(2) == 0
		if dying[i] {
			wait := time.Duration(rng.IntN(50)) * time.Millisecond
			wg.Add(1)
			time.AfterFunc(wait, func() {
				defer wg.Done()
				list[i].die()
			})
		}
	}
	defer wg.Wait()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rep, err := source.Spread(ctx, spec)
	if err != nil && len(dying) < n {
		t.Errorf("seed %d: %d bytes to %d members, %d of them dying: %v", seed, size, n, len(dying), err)
	}
	t.Logf("seed %d: %d bytes to %d members in %d chains, kernels %d, faults %+v, dying %d: %v, sent %d, again %d, woken %d, timers %d", seed, size, n, rep.Chains, kernels, f, len(dying), time.Since(begin), rep.Sent, rep.Again, rep.Woken, rep.Timers)
	for i, h := range list {
		switch got := h.whole("whole"); {
		case rep.Members[i].Err != nil && !dying[i]:
			t.Errorf("seed %d: member %d: %v", seed, i, rep.Members[i].Err)
		case rep.Members[i].Err == nil && !bytes.Equal(got, data) && !dying[i]:
			t.Errorf("seed %d: member %d has %d of %d bytes", seed, i, len(got), size)
		}
	}
}
