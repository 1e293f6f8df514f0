// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Rights lists the capabilities that a Host needs: the first two to load and attach
// programs, the last to mount the bpffs of an instance with a directory, to
// displace programs of others and to remove leftovers.
var Rights = []string{"CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON", "CAP_SYS_ADMIN"}

// loadRights are those without which no program can be loaded.
var loadRights = []string{"CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"}

var capabilities = map[string]uint{
	"CAP_NET_ADMIN": unix.CAP_NET_ADMIN,
	"CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN,
	"CAP_PERFMON":   unix.CAP_PERFMON,
	"CAP_BPF":       unix.CAP_BPF,
}

// hasRight says whether the calling thread may use a capability. CAP_SYS_ADMIN includes the
// two that were cut out of it in 5.8.
func hasRight(name string) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) != nil {
		return false
	}
	has := func(n uint) bool { return data[n/32].Effective&(1<<(n%32)) != 0 }
	if has(capabilities[name]) {
		return true
	}
	return (name == "CAP_BPF" || name == "CAP_PERFMON") && has(unix.CAP_SYS_ADMIN)
}

// missingRights lists the capabilities without which no program can be loaded.
func missingRights() (missing []string) {
	for _, name := range loadRights {
		if !hasRight(name) {
			missing = append(missing, name)
		}
	}
	return missing
}

// rightsError names the capabilities that lack and how to give them.
type rightsError struct{ missing []string }

func (e *rightsError) Error() string {
	return fmt.Sprintf("this process lacks %s: run it as root, or %s", strings.Join(e.missing, " and "), grantCommand())
}

func (e *rightsError) Unwrap() error { return ErrRights }

// grantCommand is the command that gives this program all rights it may need.
func grantCommand() string {
	return "sudo setcap " + strings.ToLower(strings.Join(Rights, ",")) + "+ep " + executable()
}

// executable is the path of this program.
func executable() string {
	path, err := os.Executable()
	if err != nil {
		return "/path/to/quern"
	}
	return path
}

// ownNamespace says whether the process is in a user namespace of its own, in
// which capabilities don't count for programs.
func ownNamespace() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	f := strings.Fields(string(text))
	return len(f) != 3 || f[0] != "0" || f[1] != "0" || f[2] != "4294967295"
}
