// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namesFolder is where `ip netns` looks for names.
const namesFolder = "/run/netns"

// namespace is a network namespace that lives as long as this process holds it
// or a process is in it.
//
// Its name is a symbolic link to the descriptor of this process. So `ip netns`
// finds the namespace, and when this process ends in whatever way, the
// namespace goes; what is left is a link that leads nowhere. (A mount, which is
// how ip itself names namespaces, would keep it.)
type namespace struct {
	name   string
	inode  uint64
	cookie uint64 // never used again for another namespace; 0: the kernel is too old

	mu     sync.RWMutex // against closing fd while it is used
	fd     netns.NsHandle
	linked bool
}

// newNamespace makes a namespace with its loopback up.
func newNamespace(name string, settings []setting) (*namespace, error) {
	ns := &namespace{name: name, fd: netns.None()}
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("open the present network namespace: %w", err)
	}
	defer home.Close()
	err = ns.fill(settings)
	if back := netns.Set(home); back != nil {
		// The thread is left locked, so that nobody else runs on it.
		err = errors.Join(err, fmt.Errorf("go back to the former network namespace: %w", back))
	} else {
		runtime.UnlockOSThread()
	}
	if err == nil {
		err = ns.link()
	}
	if err != nil {
		return nil, errors.Join(err, ns.close())
	}
	return ns, nil
}

// fill makes the namespace with the calling thread in it.
func (ns *namespace) fill(settings []setting) (err error) {
	if ns.fd, err = netns.New(); err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(ns.fd), &stat); err != nil {
		return fmt.Errorf("look at the network namespace: %w", err)
	}
	ns.inode, ns.cookie = stat.Ino, cookie()
	for _, s := range settings {
		if err := s.apply(); err != nil {
			return err
		}
	}
	loopback, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(loopback)
	}
	if err != nil {
		return fmt.Errorf("set the loopback up: %w", err)
	}
	return nil
}

// cookie returns the number of the calling thread's namespace, which no other
// ever has until the machine is booted again, or 0 before Linux 5.14.
func cookie() uint64 {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	n, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return n
}

func (ns *namespace) path() string { return filepath.Join(namesFolder, ns.name) }

// link gives the namespace its name.
func (ns *namespace) link() error {
	if err := os.MkdirAll(namesFolder, 0o755); err != nil {
		return fmt.Errorf("make the folder of the namespaces' names: %w", err)
	}
	if err := os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(ns.fd)), ns.path()); err != nil {
		return fmt.Errorf("name the namespace: %w", err)
	}
	ns.linked = true
	return nil
}

// do runs fn on a thread in the namespace: the caller's.
func (ns *namespace) do(fn func() error) (err error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the present network namespace: %w", err)
	}
	defer func() {
		if back := netns.Set(home); back != nil {
			err = errors.Join(err, fmt.Errorf("go back to the former network namespace: %w", back))
		} else {
			runtime.UnlockOSThread()
		}
		home.Close()
	}()
	if err := ns.enter(); err != nil {
		return err
	}
	return fn()
}

// enter moves the calling thread into the namespace.
func (ns *namespace) enter() error {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	if !ns.fd.IsOpen() {
		return errClosed
	}
	if err := netns.Set(ns.fd); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", ns.name, err)
	}
	return nil
}

// handle returns a connection to the namespace's links, to be closed.
func (ns *namespace) handle() (*netlink.Handle, error) {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	if !ns.fd.IsOpen() {
		return nil, errClosed
	}
	h, err := netlink.NewHandleAt(ns.fd, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("connect to the links of %s: %w", ns.name, err)
	}
	return h, nil
}

// close lets the namespace go.
func (ns *namespace) close() error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if !ns.fd.IsOpen() {
		return nil
	}
	var err error
	if ns.linked {
		if err = os.Remove(ns.path()); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	return errors.Join(err, ns.fd.Close())
}
