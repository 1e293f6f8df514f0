// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package foldbench

import (
	"net/netip"

	"github.com/quernmr/quern/internal/netlab"
)

func linkName(int) string { return "" }

func linkAddress(_, _ int) netip.Addr { return netip.Addr{} }

func connect(_, _ *netlab.Host, _ int) error { return netlab.ErrUnavailable }
