// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/internal/membership"
	"github.com/quernmr/quern/mapreduce/cluster/identity"
	"github.com/quernmr/quern/master"
	"github.com/quernmr/quern/master/schedule"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// leastLease is how short a lease may be: a worker says something every quarter of it.
const leastLease = 200 * time.Millisecond

func (a *app) masterCommand() *cobra.Command {
	f := &daemonFlags{port: master.Port}
	access := newClusterSettings()
	var tokens, sideInputs string
	var lease, noWorkers, historyAge, taskTimeout time.Duration
	var history, attempts int
	cmd := &cobra.Command{
		Use:   "master",
		Short: "run the master of a cluster",
		Long: `Runs the master of a cluster: it takes jobs, gives tasks to workers, and keeps a journal
in --dir from which it goes on after a crash or a restart.

With --certs (see 'quern certs') every connection is encrypted, and both ends show a
certificate. Submitters also show a token of --tokens. Without certificates it
listens on 127.0.0.1 only, for a cluster that is on this machine alone.

Interrupted or told to terminate, it stops, and its workers go on with what they do
until it is back.`,
		Example: `  quern master                                             a cluster on this machine
  quern master --certs /etc/quern --dir /var/lib/quern/master`,
		GroupID: clusterCommands,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := a.configure(cmd, ""); err != nil {
				return err
			}
			if err := f.check(cmd, identity.Master, "port", access.Certs); err != nil {
				return err
			}
			if lease != 0 && lease < leastLease {
				return usageErrorf(cmd, "--lease %v: at least %v, or workers that are well are taken for gone", lease, leastLease)
			}
			for name, d := range map[string]time.Duration{"no-workers": noWorkers, "history-age": historyAge, "task-timeout": taskTimeout} {
				if d < 0 {
					return usageErrorf(cmd, "--%s %v: must not be negative", name, d)
				}
			}
			if history < 0 || attempts < 0 {
				return usageErrorf(cmd, "--history and --max-attempts must not be negative")
			}
			sides := uint64(0)
			if sideInputs != "" {
				var err error
				if sides, err = humanize.ParseBytes(sideInputs); err != nil || sides == 0 || sides > math.MaxInt64 {
					return usageErrorf(cmd, "--side-inputs %q: give bytes such as 67108864, 512MiB or 2GB", sideInputs)
				}
			}
			log := f.log(a, identity.Master)
			o := master.Options{
				Dir: f.dir, Lease: lease, Log: log, Version: thisBuild().Version,
				Limits:   master.Limits{History: history, HistoryAge: historyAge, TaskTimeout: taskTimeout, SideInputs: int64(sides)},
				Schedule: schedule.Config{NoWorkers: noWorkers, MaxAttempts: attempts},
			}
			if tokens == "" && access.Certs != "" {
				if path := filepath.Join(access.Certs, tokensFile); exists(path) {
					tokens = path
				}
			}
			if tokens != "" {
				var err error
				if o.Tokens, err = readTokens(tokens); err != nil {
					return &usageError{err: err}
				}
			}
			return daemonFailed(runMaster(cmd.Context(), f, access.Certs, o, log, cmd.Flags().Changed("gossip-port")))
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f.add(cmd, identity.Master, "port")
	flags := cmd.Flags()
	flags.StringArrayVar(&f.join, "join", nil, "`host` of another member of the cluster; a master needs none, unless it comes back at another address")
	flags.StringVar(&tokens, "tokens", "", "`file` with a user's name and a token a line; default: "+tokensFile+" in the folder of the certificates")
	flags.DurationVar(&lease, "lease", 0, "`time` after which a worker that is not heard of is gone, at least 200ms; default 10s")
	flags.DurationVar(&noWorkers, "no-workers", 0, "`time` that jobs wait while there is no worker, before they fail; default 5m")
	flags.DurationVar(&taskTimeout, "task-timeout", 0, "`time` without progress after which an attempt is ended, if a job says nothing; default 5m")
	flags.IntVar(&attempts, "max-attempts", 0, "failed attempts of a task after which its job fails, if that says nothing; default 4")
	flags.StringVar(&sideInputs, "side-inputs", "", "most `bytes` of all side inputs of a job, such as 4GiB; default 1GiB")
	flags.IntVar(&history, "history", 0, "most jobs that are remembered after their end; default 1000")
	flags.DurationVar(&historyAge, "history-age", 0, "`time` that they are remembered; default 720h")
	for _, name := range []string{"join", "tokens", "lease", "no-workers", "task-timeout", "max-attempts", "side-inputs", "history", "history-age"} {
		onlyFlag(cmd, daemonGroup, name)
	}
	certsFlag(cmd, access)
	return cmd
}

// certsFlag makes the one flag of the cluster's settings that a master has.
func certsFlag(cmd *cobra.Command, s *clusterSettings) {
	all := &cobra.Command{}
	s.add(all)
	cmd.Flags().AddFlag(all.Flags().Lookup("certs"))
	_ = cmd.MarkFlagDirname("certs")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// runMaster serves until the context ends.
func runMaster(ctx context.Context, f *daemonFlags, certs string, o master.Options, log *slog.Logger, fixedGossip bool) (err error) {
	server, _, toWorker, err := credentialsOf(certs, identity.Master)
	if err != nil {
		return err
	}
	if server != nil {
		o.Server = append(o.Server, grpc.Creds(server))
		o.Peer = append(o.Peer, grpc.WithTransportCredentials(toWorker))
		o.Authorize = func(ctx context.Context, role master.Role) error { return authorize(ctx, string(role)) }
	} else {
		o.Peer = append(o.Peer, grpc.WithTransportCredentials(insecure.NewCredentials()))
		log.Info("there are no certificates: the master listens on this machine alone")
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("the master's folder: %w", err)
	}
	if o.Listener, err = f.listen(true); errors.Is(err, syscall.EADDRINUSE) {
		return &daemonError{err, "another master runs here? --port names another port"}
	} else if err != nil {
		return err
	}
	suspects := make(chan master.Suspicion, 256)
	o.Suspects = suspects
	m, err := master.New(o)
	if err != nil {
		return errors.Join(err, o.Listener.Close())
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	_, port, err := net.SplitHostPort(m.Addr().String())
	if err != nil {
		return err
	}
	host := f.advertise
	if host == "" {
		host = f.bind
	}
	gossip, err := f.gossip(membership.Config{
		Meta: membership.Meta{Role: membership.Master, Name: f.name, Control: net.JoinHostPort(host, port)},
		Log:  log,
		Suspect: func(id string, suspect bool) {
			select {
			case suspects <- master.Suspicion{Worker: id, Suspect: suspect}:
			default: // it is a hint
			}
		},
	}, fixedGossip || certs != "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gossip.Leave()) }()
	log.Info("gossip", "address", gossip.Address())
	return m.Serve(ctx)
}

// portOf returns the port of host:port.
func portOf(address string) int {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(port) // 0 if it is none
	return n
}
