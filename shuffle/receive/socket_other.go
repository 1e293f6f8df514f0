// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package receive

import (
	"errors"
	"net/netip"
)

// sharesPorts says whether several sockets can have one port.
const sharesPorts = false

const controlRoom = 0

func sharePort(uintptr) error { return errors.ErrUnsupported }

func tune(uintptr, bool, int) (bool, int) { return false, 0 }

func joinedSize([]byte) int { return 0 }

func tooLarge(error) bool { return false }

func appendSource(dst, _ []byte) []byte { return dst }

// outlet is a socket that frames leave by and none come to.
type outlet struct{}

func newOutlet([]*socket) *outlet { return nil }

func (*outlet) send(_, _ []byte, _ netip.AddrPort) error { return errors.ErrUnsupported }

func (*outlet) close() {}
