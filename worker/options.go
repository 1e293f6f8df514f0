// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/broadcast"
	"github.com/quernmr/quern/shuffle/push"
	"github.com/quernmr/quern/shuffle/receive"
	"google.golang.org/grpc/credentials"
)

// Options say how a worker works. Dir, Listener and Masters must be set.
type Options struct {
	// Name is for people; workers may have the same. "": the host's name.
	Name string
	// Dir is where all files of the worker go. It belongs to one worker at a time. What
	// an earlier one has left there is removed, processes of its attempts included.
	Dir string
	// Listener takes calls of peers and of the master. The worker closes it. Address is where
	// they reach it, host:port; "": the listener's own address.
	Listener net.Listener
	Address  string
	// Server and Client are TLS for the listener, and for calls of the master and of
	// peers. nil: none.
	Server credentials.TransportCredentials
	Master credentials.TransportCredentials
	Peers  credentials.TransportCredentials
	// Masters returns addresses, host:port, where the master may be, the likeliest first.
	Masters func(context.Context) ([]string, error)

	// Slots is how many map attempts run at once, and how many reduce attempts. 0: as many as
	// processors.
	Slots int
	// Memory is what all attempts together may take, in bytes. 0: three quarters of the
	// machine's, or of what its cgroup grants.
	Memory int64
	// Local are folders whose files are near.
	Local []string
	// Quern is the executable that runs ready-made jobs. "": this process's.
	Quern string
	// Version is that of this build.
	Version string
	// Inherit names environment variables of this process that attempts may see, beside PATH, TZ, and, to read and
	// write objects, what objects.Environment names for ready-made jobs, and objects.Places for programs. So a program has
	// this worker's keys only if they are named here.
	Inherit []string
	// Files is how many files an attempt may have open. 0: as many as this process.
	Files uint64
	// Room is how many bytes must be free in Dir for an attempt to be begun. 0: 256 MiB. Negative: none.
	Room int64
	// Blobs is how many bytes of programs and uploads that are not in use are kept. 0: 4 GiB.
	Blobs int64
	// Logs is how many bytes of attempts' logs are kept, of jobs that have ended. 0: 256 MiB.
	Logs int64

	// Receive are the settings of the receiving end of the shuffle; TempDir and Log
	// are the worker's to set. Push are those of the sending end; Kernel, Jobs and Log
	// are set from here.
	Receive receive.Options
	Push    push.Options
	// Broadcast are those of broadcasts: Kernel, if the host's kernel helps with them, and how much
	// memory they may take. The rest is set from here.
	Broadcast broadcast.Options
	// Reduce are those of all-reduces, likewise: Kernel, Memory and Patience.
	Reduce allreduce.Options
	// Shuffle says in words what this host's kernel can do.
	Shuffle string

	Log *slog.Logger // nil: silent

	// For tests.
	exchange func(dir string) (exchanger, error)
	pause    time.Duration // between attempts to reach a master, at first
}

func (o Options) ensureDefaults() (Options, error) {
	switch {
	case o.Dir == "":
		return o, errors.New("worker: no folder is named (--dir)")
	case o.Listener == nil:
		return o, errors.New("worker: nothing to listen on")
	case o.Masters == nil:
		return o, errors.New("worker: nobody says where the master is (--join)")
	case o.Slots < 0:
		return o, fmt.Errorf("worker: %d slots: give at least 1 (--slots)", o.Slots)
	}
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return o, fmt.Errorf("worker: folder %s: %w", o.Dir, err)
	}
	if o.Name == "" {
		if o.Name, err = os.Hostname(); err != nil {
			return o, fmt.Errorf("worker: this host has no name, give one (--name): %w", err)
		}
	}
	if o.Quern == "" {
		if o.Quern, err = os.Executable(); err != nil {
			return o, fmt.Errorf("worker: the path of this executable: %w", err)
		}
	}
	if o.Address == "" {
		o.Address = o.Listener.Addr().String()
	}
	if o.Slots == 0 {
		o.Slots = runtime.GOMAXPROCS(0)
	}
	if o.Memory <= 0 {
		o.Memory = granted() / 4 * 3
	}
	for p, d := range map[*int64]int64{&o.Room: 256 << 20, &o.Blobs: 4 << 30, &o.Logs: 256 << 20} {
		if *p == 0 {
			*p = d
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.pause <= 0 {
		o.pause = 200 * time.Millisecond
	}
	if o.Shuffle == "" {
		o.Shuffle = "user space"
		if o.folds() {
			o.Shuffle = o.Receive.Kernel.String()
		}
	}
	return o, nil
}

// folds says whether programs fold here.
func (o *Options) folds() bool {
	return o.Receive.Kernel != nil && o.Receive.Mode != shuffle.UserOnly
}

// granted is what the machine has of memory, or what this process's cgroup grants, if that is less.
func granted() int64 {
	total, err := memlimit.FromSystem()
	if err != nil || total == 0 {
		total = 2 << 30
	}
	if limit, err := memlimit.FromCgroup(); err == nil && limit > 0 && limit < total {
		total = limit
	}
	return int64(total)
}

// platform is what programs must be built for.
const platform = runtime.GOOS + "/" + runtime.GOARCH

// short is a job's id as people see it.
func short(job string) string { return strings.Clone(job[:min(len(job), 8)]) }
