// SPDX-License-Identifier: Apache-2.0

package labcluster

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// Options describe a cluster, beside the lab that it is on.
type Options struct {
	Quern string // the executable
	// Dir is an empty folder for what the cluster needs, on a file system where sockets and
	// locks work. Logs is where logs go; "": the folder logs in Dir.
	Dir, Logs string
	// Workers are the hosts that have a worker. nil: all.
	Workers []int
	Slots   int           // of each worker; 0: cores/hosts, at least 1
	Memory  int64         // bytes of each worker for attempts; 0: half of the machine's, divided between them
	Shuffle string        // auto, kernel or user; "": auto
	Lease   time.Duration // 0: the master's default
	// MasterArgs and WorkerArgs are further arguments.
	MasterArgs []string
	WorkerArgs func(host int) []string
	// WorkerDir and MasterDir are where files go. nil and "": folders in Dir.
	WorkerDir func(host int) string
	MasterDir string
	// Environ is the environment of all processes, less the variables of quern's own.
	Environ []string
}

// Ports are the same in every lab, and those that are used elsewhere.
const (
	gossipPort = 7118
	// The master's host has a worker, too.
	workerGossipPort = 7121

	masterPort = 7119
	workerPort = 7120
)

func (o Options) logs() string {
	if o.Logs != "" {
		return o.Logs
	}
	return filepath.Join(o.Dir, "logs")
}

func (o Options) certs() string { return filepath.Join(o.Dir, "certs") }

func (o Options) masterDir() string {
	if o.MasterDir != "" {
		return o.MasterDir
	}
	return filepath.Join(o.Dir, "master")
}

// DirOf returns where the files of a host's worker are.
func (o Options) DirOf(host int) string {
	if o.WorkerDir != nil {
		if dir := o.WorkerDir(host); dir != "" {
			return dir
		}
	}
	return filepath.Join(o.Dir, fmt.Sprintf("worker-%d", host))
}

// clean takes the variables out that would configure quern.
func clean(environ []string) []string {
	var rest []string
	for _, e := range environ {
		if !strings.HasPrefix(e, "QUERN_") && !strings.HasPrefix(e, "XDG_CONFIG_HOME=") && !strings.HasPrefix(e, "HOME=") {
			rest = append(rest, e)
		}
	}
	return rest
}
