// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bpf

import (
	"net/netip"

	"github.com/quernmr/quern/shuffle"
)

var _ shuffle.Transmitter = (*Transmitter)(nil)

// Transmitter sends packets past the sockets. This system can't, so there is none.
type Transmitter struct{}

// NewTransmitter returns an error that wraps ErrUnsupported.
func NewTransmitter(*Host) (*Transmitter, error) { return nil, errSystem }

// Transmit returns an error.
func (t *Transmitter) Transmit(uint16, netip.AddrPort, [][]byte) error { return errSystem }

// Close does nothing.
func (t *Transmitter) Close() error { return nil }
