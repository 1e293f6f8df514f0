// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"bytes"
	"fmt"
	"testing"
)

func spread(t *testing.T, source *host, members []Member, data []byte, chains int, window int64) *Report {
	t.Helper()
	rep, err := source.Spread(testContext(t), SpreadSpec{
		Job: job(1), Secret: [16]byte{1, 2}, Name: "whole", Members: members, Source: bytes.NewReader(data), Size: int64(len(data)), Chains: chains, Window: window,
	})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func TestSpread(t *testing.T) {
	for _, tc := range []struct{ size, members, chains int }{
		{0, 1, 0}, {1, 2, 0}, {1312, 3, 1}, {1313, 3, 3}, {64 << 10, 5, 2}, {1 << 20, 8, 1}, {3<<20 + 17, 4, 0},
	} {
		t.Run(fmt.Sprint(tc), func(t *testing.T) {
			source := newHost(t, setting{})
			list, members := hosts(t, tc.members, setting{})
			data := noise(1, tc.size)
			rep := spread(t, source, members, data, tc.chains, 0)
			for i, h := range list {
				if rep.Members[i].Err != nil {
					t.Errorf("member %d: %v", i, rep.Members[i].Err)
				}
				if got := h.whole("whole"); !bytes.Equal(got, data) {
					t.Errorf("member %d has %d of %d bytes", i, len(got), len(data))
				}
			}
			t.Logf("%+v", rep)
		})
	}
}
