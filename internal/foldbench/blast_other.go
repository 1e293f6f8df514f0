// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package foldbench

import (
	"context"
	"net/netip"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/commit"
)

func blast(context.Context, []*commit.Output, int, netip.AddrPort, shuffle.Transmitter) (uint64, error) {
	return 0, netlab.ErrUnavailable
}
