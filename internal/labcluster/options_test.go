// SPDX-License-Identifier: Apache-2.0

package labcluster

import (
	"slices"
	"testing"
)

// TestClean keeps what configures quern, and its files, from a cluster's processes.
func TestClean(t *testing.T) {
	got := clean([]string{"PATH=/bin", "QUERN_MASTER=x", "HOME=/root", "XDG_CONFIG_HOME=/etc", "QUERNLIKE=1", "LANG=C"})
	if want := []string{"PATH=/bin", "QUERNLIKE=1", "LANG=C"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFolders(t *testing.T) {
	o := Options{Dir: "/d", WorkerDir: func(host int) string {
		if host == 2 {
			return "/small"
		}
		return ""
	}}
	if o.DirOf(1) != "/d/worker-1" || o.DirOf(2) != "/small" || o.logs() != "/d/logs" || o.masterDir() != "/d/master" {
		t.Errorf("%s %s %s %s", o.DirOf(1), o.DirOf(2), o.logs(), o.masterDir())
	}
	o.Logs, o.MasterDir = "/l", "/m"
	if o.logs() != "/l" || o.masterDir() != "/m" {
		t.Errorf("%s %s", o.logs(), o.masterDir())
	}
}
