// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package benchlab

import (
	"net/netip"

	"github.com/quernmr/quern/internal/netlab"
)

const PlainName = ""

func PlainAddress(int) netip.Addr { return netip.Addr{} }

func LayPlain(*netlab.Host, []*netlab.Host) error { return netlab.ErrUnavailable }

func SentBytes(*netlab.Host, string) (uint64, error) { return 0, netlab.ErrUnavailable }
