// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/internal/membership"
	"github.com/quernmr/quern/mapreduce/cluster"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/cluster/identity"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/worker"
	"github.com/spf13/cobra"
)

// workerPort is where a worker takes calls if nothing else is said.
const workerPort = 7120

// workerFlags are those of a worker alone.
type workerFlags struct {
	daemonFlags
	slots        int
	memory, room string
	local        []string
	inherit      []string
	drain        bool
}

func (a *app) workerCommand() *cobra.Command {
	f := &workerFlags{daemonFlags: daemonFlags{port: workerPort}}
	settings := newShuffleSettings()
	access := newClusterSettings()
	cmd := &cobra.Command{
		Use:   "worker --join HOST | worker --drain [NAME]",
		Short: "run a worker of a cluster, or have one leave",
		Long: `Runs a worker: it finds the master by the member at --join, which may be the master
or any worker, and runs tasks for it. Workers may join and leave at any time. A
worker that is killed costs the time that its tasks have taken; no job fails.

--drain has the worker of that name leave without losing work: it gets no more tasks,
finishes those that it has, waits until others have made again what it holds and
somebody still needs, and ends. Without a name it is the worker of this host.
Interrupted or told to terminate, a worker ends at once, and what it did is done
again elsewhere.

The kernel folds pairs that come from other hosts where it can; the log says in
one line who folds, and 'quern doctor' says what is missing.`,
		Example: `  quern worker                                        beside a master on this machine
  sudo quern worker --join master1 --certs /etc/quern --interface eth0
  quern worker --drain host7`,
		GroupID: clusterCommands,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && !f.drain {
				return usageErrorf(cmd, "%s takes no argument, but for the name behind --drain", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			origins, err := a.configure(cmd, "")
			if err != nil {
				return err
			}
			if f.drain {
				return a.drainWorker(cmd, access, args)
			}
			return daemonFailed(a.runWorker(cmd, f, settings, access, origins))
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f.add(cmd, identity.Worker, "control-port")
	flags := cmd.Flags()
	flags.StringArrayVar(&f.join, "join", nil, "`host` or host:port of a member of the cluster, the master or another; may be given several times; default: localhost")
	flags.IntVar(&f.slots, "slots", 0, "map attempts, and reduce attempts, that run at once; 0: one per processor")
	flags.StringVar(&f.memory, "memory", "", "memory for all attempts together, such as 8GiB, at least 64MiB; default: three quarters of what the machine grants")
	flags.StringArrayVar(&f.local, "local", nil, "`folder` whose files are on this host; may be given several times")
	flags.StringArrayVar(&f.inherit, "inherit", nil, "`name` of an environment variable that tasks see; may be given several times")
	flags.StringVar(&f.room, "room", "", "free space of --dir below which no task is begun; default 256MiB")
	flags.BoolVar(&f.drain, "drain", false, "have a worker finish and leave")
	for _, name := range []string{"join", "slots", "memory", "local", "inherit", "room", "drain"} {
		onlyFlag(cmd, daemonGroup, name)
	}
	_ = cmd.MarkFlagDirname("local")
	access.add(cmd)
	addFlags(flags, shuffleGroup, settings)
	completeShuffle(cmd)
	return cmd
}

// leastMemory is what a worker needs for one attempt that gets anywhere.
const leastMemory = 64 << 20

// parseBytes reads a number of bytes; "" is 0.
func parseBytes(cmd *cobra.Command, name, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := humanize.ParseBytes(text)
	if err != nil || n == 0 || n > math.MaxInt64 {
		return 0, usageErrorf(cmd, "--%s %q: give bytes such as 67108864, 512MiB or 2GB", name, text)
	}
	return int64(n), nil
}

// runWorker runs a worker until the context ends or it was drained.
func (a *app) runWorker(cmd *cobra.Command, f *workerFlags, settings *shuffleSettings, access *clusterSettings, origins map[string]origin) (err error) {
	ctx := cmd.Context()
	mode, kernelOptions, err := settings.parse(cmd)
	if err != nil {
		return err
	}
	shares, err := settings.shares(cmd)
	if err != nil {
		return err
	}
	if mode == shuffle.KernelOnly && settings.Interface == "" {
		return usageErrorf(cmd, "--shuffle kernel: the kernel folds what comes in by a network interface, and --interface names none")
	}
	certs := access.Certs
	if err := f.check(cmd, identity.Worker, "control-port", certs); err != nil {
		return err
	}
	if len(f.join) == 0 {
		if certs != "" && origins["master"] == fromDefault {
			return usageErrorf(cmd, "--join is missing: the host of the master, or of another member of the cluster")
		}
		f.join = []string{"127.0.0.1"}
	}
	if f.slots < 0 {
		return usageErrorf(cmd, "--slots %d: at least 1, or 0 for one per processor", f.slots)
	}
	if f.slots == 0 {
		f.slots = runtime.GOMAXPROCS(0)
	}
	if f.name == "" {
		if f.name, err = os.Hostname(); err != nil {
			return usageErrorf(cmd, "this host has no name, give one by --name: %w", err)
		}
	}
	o := worker.Options{
		Name: f.name, Dir: f.dir, Slots: f.slots, Version: thisBuild().Version, Inherit: f.inherit, Log: f.log(a, identity.Worker),
	}
	o.Broadcast.Memory, o.Reduce.Memory = shares.broadcast, shares.reduce
	if o.Memory, err = parseBytes(cmd, "memory", f.memory); err != nil {
		return err
	}
	if f.memory != "" && o.Memory < leastMemory {
		return usageErrorf(cmd, "--memory %s: at least %s", f.memory, humanize.IBytes(leastMemory))
	}
	if o.Room, err = parseBytes(cmd, "room", f.room); err != nil {
		return err
	}
	for _, folder := range f.local {
		o.Local = append(o.Local, absolute(folder))
	}
	if o.Server, o.Master, o.Peers, err = credentialsOf(certs, identity.Worker); err != nil {
		return err
	}
	if certs == "" {
		o.Log.Info("there are no certificates: the worker listens on this machine alone")
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("the worker's folder: %w", err)
	}
	kernel, err := openKernel(&o, mode, kernelOptions)
	defer func() { err = errors.Join(err, kernel.Close()) }()
	if err != nil {
		return err
	}
	if certs == "" {
		o.Receive.Listen = f.bind
	}
	if o.Listener, err = f.listen(cmd.Flags().Changed("control-port")); err != nil {
		return err
	}
	host, err := f.hostOf()
	if err != nil {
		return errors.Join(err, o.Listener.Close())
	}
	f.advertise = host
	o.Address = net.JoinHostPort(host, strconv.Itoa(portOf(o.Listener.Addr().String())))

	var gossip atomic.Pointer[membership.Membership]
	o.Masters = func(context.Context) ([]string, error) {
		var list []string
		if m := gossip.Load(); m != nil {
			list = m.Masters()
		}
		// Where gossip does not get through, the master may be where we were sent to.
		for _, known := range f.knownMasters(access.Master, origins["master"]) {
			if !slices.Contains(list, known) {
				list = append(list, known)
			}
		}
		return list, nil
	}
	w, err := worker.New(o)
	if o.Receive.Kernel == nil && origins["port"] == fromDefault && errors.Is(err, syscall.EADDRINUSE) {
		// Another worker of this host has the usual port. Senders are told which one it is, so any will do.
		o.Receive.Port = 0
		w, err = worker.New(o)
	}
	if err != nil {
		return errors.Join(err, o.Listener.Close())
	}
	m, err := f.gossip(membership.Config{
		Meta: membership.Meta{
			Role: membership.Worker, Worker: w.ID(), Name: f.name, Control: o.Address, Slots: o.Slots, Memory: o.Memory, Kernel: o.Shuffle,
		},
		Log: o.Log,
	}, cmd.Flags().Changed("gossip-port"))
	if err != nil {
		stopped, cancel := context.WithCancel(ctx)
		cancel()
		return errors.Join(err, w.Run(stopped)) // it gives back what New took
	}
	gossip.Store(m)
	o.Log.Info("worker runs", "name", f.name, "id", w.ID(), "address", o.Address, "gossip", m.Address(), "dir", o.Dir,
		"memory for broadcasts", humanize.IBytes(uint64(shares.broadcast)), "for all-reduces", humanize.IBytes(uint64(shares.reduce)))
	return errors.Join(w.Run(ctx), m.Leave())
}

// knownMasters are the addresses where the master is likely to be without asking anybody.
func (f *workerFlags) knownMasters(master string, from origin) []string {
	var list []string
	if from != fromDefault {
		list = append(list, withPort(master))
	}
	for _, seed := range f.join {
		if h, _, err := net.SplitHostPort(seed); err == nil {
			seed = h
		}
		list = append(list, withPort(seed))
	}
	return list
}

// withPort adds the master's port to an address that has none.
func withPort(address string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), strconv.Itoa(cluster.Port))
}

// kernelHelp is what programs in the kernel do for a worker.
type kernelHelp struct {
	host        *bpf.Host
	transmitter *bpf.Transmitter
}

// Close ends it; the worker must have ended before.
func (k *kernelHelp) Close() (err error) {
	if k == nil {
		return nil
	}
	if k.transmitter != nil {
		err = k.transmitter.Close()
	}
	if k.host != nil {
		err = errors.Join(err, k.host.Close())
	}
	return err
}

// openKernel sees who folds, and fills in what a worker is to know of it.
func openKernel(o *worker.Options, mode shuffle.Mode, ko bpf.Options) (*kernelHelp, error) {
	help := &kernelHelp{}
	ko.Limits = ko.Limits.EnsureDefaults()
	chosen, why, err := bpf.Choose(mode, ko)
	if err != nil {
		return help, err
	}
	o.Log.Info("shuffle: " + why)
	o.Shuffle = why
	o.Receive.Mode, o.Receive.Limits, o.Receive.TableMemory = mode, ko.Limits, ko.TableMemory
	host, ok := chosen.(*bpf.Host)
	if !ok || host == nil {
		o.Receive.Port = ko.Port
		return help, nil
	}
	help.host = host
	o.Receive.Kernel, o.Receive.Port, o.Receive.Generic = host, host.Port(), host.XDP() == bpf.Generic
	if b, err := host.Broadcasts(); err == nil { // else the line above says why
		o.Broadcast.Kernel = b
	}
	if r, err := host.Reduces(); err == nil {
		o.Reduce.Kernel = r
	}
	switch help.transmitter, err = bpf.NewTransmitter(host); {
	case err == nil:
		o.Push.Transmitter = help.transmitter
	case errors.Is(err, bpf.ErrUnsupported):
		o.Log.Debug("frames go by sockets", "reason", err)
		help.transmitter = nil
	default:
		help.transmitter = nil
		return help, err
	}
	return help, nil
}

// drainWorker has a worker leave, and waits until it has left.
func (a *app) drainWorker(cmd *cobra.Command, access *clusterSettings, args []string) error {
	name := ""
	if len(args) == 1 {
		name = args[0]
	} else {
		var err error
		if name, err = os.Hostname(); err != nil {
			return usageErrorf(cmd, "this host has no name, say which worker is meant: %w", err)
		}
	}
	ctx := cmd.Context()
	client, err := access.dial(ctx, a.tell)
	if err != nil {
		return err
	}
	defer client.Close()
	// The name may be given to another worker meanwhile, so its id counts; but the master itself finds out who is meant by
	// the name of one that is not heard of at present: it may have been started anew this moment.
	id, err := workerID(ctx, client, name)
	if err != nil {
		return err
	}
	if err := client.Drain(ctx, id); err != nil {
		return err
	}
	for {
		list, err := client.Workers(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(list, func(w *api.WorkerStatus) bool {
			return w.GetState() != "gone" && (w.GetWorker() == id || w.GetName() == id)
		}) {
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "worker %s has left\n", name); err != nil {
				return err
			}
			// It may have been killed the moment before, unknown to the master, and started anew.
			for _, w := range list {
				if w.GetName() == name && w.GetWorker() != id && w.GetState() != "gone" && w.GetState() != "draining" {
					a.tell(fmt.Sprintf("another process named %s has come meanwhile and stays: 'quern worker --drain %s' has it leave, too", printable(name), printable(w.GetWorker())))
				}
			}
			return nil
		}
		t := time.NewTimer(200 * time.Millisecond)
		select {
		case <-ctx.Done():
			t.Stop()
			return &leftError{cause: context.Cause(ctx), text: fmt.Sprintf("worker %s still finishes what it does", name)}
		case <-t.C:
		}
	}
}

// workerID finds a worker by its name or id. Of several of a name, the one that is heard of counts; that
// of one that is not heard of is its name.
func workerID(ctx context.Context, client *cluster.Client, name string) (string, error) {
	list, err := client.Workers(ctx)
	if err != nil {
		return "", err
	}
	var found, silent []string
	for _, w := range list {
		switch {
		case w.GetState() == "gone" || w.GetName() != name && w.GetWorker() != name:
		case w.GetState() == "suspect" && w.GetWorker() != name:
			silent = append(silent, name)
		default:
			found = append(found, w.GetWorker())
		}
	}
	if len(found) == 0 {
		found = silent
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%w: %s; 'quern workers' lists them", cluster.ErrUnknownWorker, name)
	case 1:
		return found[0], nil
	}
	return "", &usageError{fmt.Errorf("%d workers are named %s: give the id of the one that is meant", len(found), name), "'quern workers --json' lists the ids"}
}
