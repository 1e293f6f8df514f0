// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package netlab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
)

func unsupported() error {
	return fmt.Errorf("%w: it needs Linux, this is %s", ErrUnavailable, runtime.GOOS)
}

// Lab is a network of hosts; there is none on this system.
type Lab struct{}

// Host is one of a lab.
type Host struct{}

// Command is a process in a host.
type Command struct{ *exec.Cmd }

// New returns an error: labs need Linux.
func New(Options) (*Lab, error) { return nil, unsupported() }

// Available returns an error that wraps ErrUnavailable: labs need Linux.
func Available() error { return unsupported() }

// Sweep does nothing here.
func Sweep() ([]Swept, error) { return nil, nil }

// Name returns "".
func (*Lab) Name() string { return "" }

// Options returns no options.
func (*Lab) Options() Options { return Options{} }

// Hosts returns none.
func (*Lab) Hosts() []*Host { return nil }

// Host returns nil.
func (*Lab) Host(int) *Host { return nil }

// SetFaults returns an error.
func (*Lab) SetFaults(Faults) error { return unsupported() }

// Cut returns an error.
func (*Lab) Cut(int) error { return unsupported() }

// Heal returns an error.
func (*Lab) Heal(int) error { return unsupported() }

// Reseed returns an error.
func (*Lab) Reseed(uint64) error { return unsupported() }

// Counters returns an error.
func (*Lab) Counters() (Counters, error) { return Counters{}, unsupported() }

// Close does nothing.
func (*Lab) Close() error { return nil }

// Number returns 0.
func (*Host) Number() int { return 0 }

// Name returns "".
func (*Host) Name() string { return "" }

// IPv4 returns no address.
func (*Host) IPv4() netip.Addr { return netip.Addr{} }

// IPv6 returns no address.
func (*Host) IPv6() netip.Addr { return netip.Addr{} }

// HardwareAddr returns no address.
func (*Host) HardwareAddr() net.HardwareAddr { return nil }

// Do returns an error.
func (*Host) Do(func() error) error { return unsupported() }

// SetFaults returns an error.
func (*Host) SetFaults(Direction, Faults) error { return unsupported() }

// Command prepares a process that cannot be started.
func (*Host) Command(ctx context.Context, name string, args ...string) *Command {
	return &Command{&exec.Cmd{Err: unsupported()}}
}
