// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

func nsHandle(fd int) netns.NsHandle { return netns.NsHandle(fd) }

// needed are the rights that a lab needs, and what for.
var needed = []struct {
	bit  int
	name string
	why  string
}{
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "network namespaces and BPF programs"},
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "links and addresses"},
	{unix.CAP_NET_RAW, "CAP_NET_RAW", "packets that are delayed"},
}

// rights returns an error that names the rights that this process lacks.
func rights() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("ask for this process's rights: %w", err)
	}
	return missing(uint64(data[1].Effective)<<32 | uint64(data[0].Effective))
}

// missing returns an error that names the rights that are not in effective.
func missing(effective uint64) error {
	var lacks []string
	for _, n := range needed {
		if effective&(1<<n.bit) == 0 {
			lacks = append(lacks, n.name+" (for "+n.why+")")
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("%w: it needs %s; run it as root", ErrUnavailable, strings.Join(lacks, ", "))
}

// Available returns nil if labs can be built here, else an error that says what
// is missing and wraps ErrUnavailable. With all rights, it builds a small one to
// see; that is done once.
func Available() error {
	if err := rights(); err != nil {
		return err
	}
	return tryOnce()
}

var tryOnce = sync.OnceValue(func() error {
	l, err := New(Options{Hosts: 1, Faults: Faults{Delay: 1}})
	if err == nil {
		err = l.Close()
	}
	if err != nil && !errors.Is(err, ErrUnavailable) {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
})
