// SPDX-License-Identifier: Apache-2.0

package house

// Module is the import path that our own packages begin with.
const Module = "github.com/quernmr/quern"

// Room is a top-level folder and what the code in it may import of ours beside
// itself.
type Room struct {
	Name string
	// May lists the other rooms whose packages may be imported.
	May []string
	// All lifts the restriction: the room joins the parts.
	All bool
}

// Rooms is the floor plan. A package whose top-level folder is not listed is a
// problem, so that a new room is a decision and not an accident.
var Rooms = []Room{
	{Name: "shuffle"},
	{Name: "mapreduce", May: []string{"shuffle"}},
	{Name: "bpf", May: []string{"shuffle"}},
	{Name: "jobs", May: []string{"mapreduce"}},
	{Name: "worker", May: []string{"mapreduce", "shuffle", "jobs"}},
	{Name: "master", May: []string{"mapreduce", "jobs"}},
	{Name: "examples", May: []string{"mapreduce"}},
	{Name: "internal", May: []string{"shuffle", "bpf"}},
	{Name: "cmd", All: true},
}

// testRoom may be imported by the tests of every room.
const testRoom = "internal"

// nobodysRoom holds commands, which no other room may import.
const nobodysRoom = "cmd"

// SoleImporters names dependencies that one room alone may import, tests
// included.
var SoleImporters = map[string]string{
	"github.com/cilium/ebpf":          "bpf",
	"github.com/hashicorp/memberlist": "internal",
	"go.etcd.io/bbolt":                "master",
	"github.com/minio/minio-go/v7":    "mapreduce",
}

// badNames are package names that say nothing about what is inside.
var badNames = map[string]bool{"util": true, "utils": true, "common": true, "helper": true, "helpers": true, "misc": true}

// unfinished are the words that mark unfinished work.
var unfinished = []string{"TODO", "FIXME"}

// licenses are what one of a source file's first lines must hold, by the file's
// extension: programs for the kernel have a license that the kernel takes.
var licenses = map[string]string{
	".go":    "SPDX-License-Identifier: Apache-2.0",
	".sh":    "SPDX-License-Identifier: Apache-2.0",
	".proto": "SPDX-License-Identifier: Apache-2.0",
	".c":     "SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause",
	".h":     "SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause",
}

// licenseLines is the number of lines in which it is looked for.
const licenseLines = 5

func room(name string) (Room, bool) {
	for _, r := range Rooms {
		if r.Name == name {
			return r, true
		}
	}
	return Room{}, false
}

func (r Room) mayImport(other string) bool {
	if r.All || other == r.Name {
		return true
	}
	for _, m := range r.May {
		if m == other {
			return true
		}
	}
	return false
}
