// SPDX-License-Identifier: Apache-2.0

package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/quernmr/quern/master/schedule"
)

// Port is the TCP port that a master listens on where nothing else is said.
const Port = 7119

// Role is what somebody who calls the master claims to be.
type Role string

// The roles.
const (
	RoleClient Role = "client" // calls of the service Cluster
	RoleWorker Role = "worker" // calls of the service Attendance
)

// Suspicion is a hint of the gossip about a worker.
type Suspicion struct {
	Worker  string // its id, or its name
	Suspect bool   // it may be gone; false: it is back
}

// Limits bound what others may ask of a master. 0 is replaced by the default.
type Limits struct {
	JobFile     int           // bytes of a job file; 1 MiB
	Arguments   int           // bytes of arguments and environment; 256 KiB
	Uploads     int           // files of a job; 10,000
	Message     int           // bytes of a message received; 128 MiB
	Blob        int64         // bytes of a blob; 16 GiB
	SideInputs  int64         // bytes of a job's side inputs together; 1 GiB
	Jobs        int           // jobs that have not ended; 1,000
	Attempts    int           // attempts of a job that are remembered after they ended; 10,000
	History     int           // jobs that have ended; 1,000
	HistoryAge  time.Duration // and how long they are remembered; 30 days
	BlobAge     time.Duration // how long a blob that no job needs is kept; 1 hour
	TaskTimeout time.Duration // without progress, where a job says nothing; 5 min
}

// Options are what a master is made of.
type Options struct {
	// Dir is where the journal and blobs are.
	Dir string
	// Listener is what it serves on. Nil: Address is listened on.
	Listener net.Listener
	// Address is host:port; "": the loopback address and Port.
	Address string
	// Server are further options of the gRPC server, such as credentials.
	Server []grpc.ServerOption
	// Peer are options for calls of workers, such as credentials. They are made for Logs.
	Peer []grpc.DialOption
	// Tokens are the bearer tokens of submitters by the names of their users. With none, calls
	// are taken from the machine itself only.
	Tokens map[string]string
	// Authorize says whether a caller may have a role, by its certificate in the context. Nil: any.
	Authorize func(ctx context.Context, role Role) error
	// Lease is how long a worker that is not heard of is believed to be there; 10 s.
	Lease    time.Duration
	Limits   Limits
	Schedule schedule.Config
	// Suspects are hints from the gossip. It may be nil.
	Suspects <-chan Suspicion
	Log      *slog.Logger // nil: nothing is logged
	// Version is that of this build. Workers, and who submits ready-made jobs, must have the same.
	Version string

	// Of tests.
	clock  clock
	noSync bool
}

// clock is time since some moment, and timers.
type clock interface {
	now() time.Duration
	// timer sends after d. stop may be called after that, too.
	timer(d time.Duration) (c <-chan time.Time, stop func())
}

// monotonic is the machine's clock. It does not jump.
type monotonic struct{ start time.Time }

func (m monotonic) now() time.Duration { return time.Since(m.start) }

func (m monotonic) timer(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

func orDefault[T int | int64 | time.Duration](p *T, d T) {
	if *p == 0 {
		*p = d
	}
}

// ensureDefaults fills in what is 0, and says what is wrong.
func (o *Options) ensureDefaults() error {
	if o.Dir == "" {
		return errors.New("a master needs a folder for its journal and blobs")
	}
	l := &o.Limits
	orDefault(&l.JobFile, 1<<20)
	orDefault(&l.Arguments, 256<<10)
	orDefault(&l.Uploads, 10_000)
	orDefault(&l.Message, 128<<20)
	orDefault(&l.Blob, 16<<30)
	orDefault(&l.SideInputs, 1<<30)
	orDefault(&l.Jobs, 1000)
	orDefault(&l.Attempts, 10_000)
	orDefault(&l.History, 1000)
	orDefault(&l.HistoryAge, 30*24*time.Hour)
	orDefault(&l.BlobAge, time.Hour)
	orDefault(&l.TaskTimeout, 5*time.Minute)
	orDefault(&o.Lease, 10*time.Second)
	if o.Lease < 0 || l.JobFile < 0 || l.Arguments < 0 || l.Uploads < 0 || l.Message < 0 || l.Blob < 0 || l.SideInputs < 0 ||
		l.Jobs < 0 || l.Attempts < 0 || l.History < 0 || l.HistoryAge < 0 || l.BlobAge < 0 || l.TaskTimeout < 0 {
		return errors.New("limits of a master can't be negative")
	}
	for name, token := range o.Tokens {
		if name == "" || len(token) < 8 {
			return fmt.Errorf("the token of user %q: a token has a user's name and at least 8 characters", name)
		}
	}
	if o.Address == "" {
		o.Address = fmt.Sprintf("127.0.0.1:%d", Port)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.clock == nil {
		o.clock = monotonic{time.Now()}
	}
	if o.Version == "" {
		o.Version = "unversioned"
	}
	return nil
}
