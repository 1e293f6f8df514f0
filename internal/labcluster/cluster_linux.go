// SPDX-License-Identifier: Apache-2.0

package labcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quernmr/quern/internal/netlab"
	"golang.org/x/sys/unix"
)

// least is what a worker is given if the machine has little memory, in bytes.
const least = 64 << 20

// Cluster is a master and workers. Its methods may be called at the same time.
type Cluster struct {
	lab     *netlab.Lab
	options Options
	token   string
	environ []string

	mu      sync.Mutex
	master  *Process
	workers map[int]*Process
}

// New makes what a cluster needs, and starts nothing.
func New(lab *netlab.Lab, o Options) (*Cluster, error) {
	if o.Workers == nil {
		for _, h := range lab.Hosts() {
			o.Workers = append(o.Workers, h.Number())
		}
	}
	if o.Slots == 0 {
		o.Slots = max(1, runtime.NumCPU()/max(1, len(o.Workers)))
	}
	if o.Memory == 0 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return nil, fmt.Errorf("ask how much memory there is: %w", err)
		}
		o.Memory = max(least, int64(info.Totalram)*int64(info.Unit)/2/int64(max(1, len(o.Workers))))
	}
	if o.Shuffle == "" {
		o.Shuffle = "auto"
	}
	c := &Cluster{lab: lab, options: o, workers: map[int]*Process{}}
	c.environ = append(clean(o.Environ), "HOME="+o.Dir)
	for _, dir := range []string{o.logs(), o.masterDir()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("prepare a cluster: %w", err)
		}
	}
	if out, err := c.Command(context.Background(), "certs", o.certs()).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make certificates: %w: %s", err, out)
	}
	// It is there for whoever is sent the folder; here it goes by the environment.
	token, err := os.ReadFile(filepath.Join(o.certs(), "token"))
	if err != nil {
		return nil, fmt.Errorf("prepare a cluster: %w", err)
	}
	c.token = strings.TrimSpace(string(token))
	return c, nil
}

// masterAddress is where the master of a lab is.
func masterAddress() string {
	return net.JoinHostPort(netlab.IPv4(1).String(), strconv.Itoa(masterPort))
}

// Environment tells commands on a lab's hosts where the cluster is.
func (c *Cluster) Environment() []string {
	return []string{"QUERN_MASTER=" + masterAddress(), "QUERN_CERTS=" + c.options.certs(), "QUERN_TOKEN=" + c.token}
}

// Options returns what the cluster was made of, defaults filled in.
func (c *Cluster) Options() Options { return c.options }

// Command prepares a run of the executable on host 1, with the cluster's address in its
// environment.
func (c *Cluster) Command(ctx context.Context, args ...string) *netlab.Command {
	cmd := c.lab.Host(1).Command(ctx, c.options.Quern, args...)
	cmd.Env = append(slices.Clone(c.environ), c.Environment()...)
	return cmd
}

// StartMaster starts the master. One that runs is an error.
func (c *Cluster) StartMaster() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.master != nil {
		if _, ended := c.master.Ended(); !ended {
			return errors.New("the master runs")
		}
	}
	o := &c.options
	args := []string{
		"master", "--dir", o.masterDir(), "--bind", netlab.IPv4(1).String(), "--port", strconv.Itoa(masterPort),
		"--gossip-port", strconv.Itoa(gossipPort), "--certs", o.certs(),
	}
	if o.Lease > 0 {
		args = append(args, "--lease", o.Lease.String())
	}
	p, err := run(c.lab.Host(1), "master", o.logs(), c.environ, o.Quern, append(args, o.MasterArgs...)...)
	if err == nil {
		c.master = p
	}
	return err
}

// StartWorker starts the worker of a host. One that runs is an error.
func (c *Cluster) StartWorker(host int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.workers[host]; p != nil {
		if _, ended := p.Ended(); !ended {
			return fmt.Errorf("the worker of host %d runs", host)
		}
	}
	o := &c.options
	dir := o.DirOf(host)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of a worker: %w", err)
	}
	args := []string{
		"worker", "--dir", dir, "--name", c.NameOf(host), "--bind", netlab.IPv4(host).String(), "--control-port", strconv.Itoa(workerPort),
		"--gossip-port", strconv.Itoa(workerGossipPort), "--join", netlab.IPv4(1).String(), "--certs", o.certs(),
		"--slots", strconv.Itoa(o.Slots), "--memory", strconv.FormatInt(o.Memory, 10), "--shuffle", o.Shuffle, "--interface", netlab.InterfaceName,
	}
	if o.WorkerArgs != nil {
		args = append(args, o.WorkerArgs(host)...)
	}
	p, err := run(c.lab.Host(host), fmt.Sprintf("worker-%d", host), o.logs(), c.environ, o.Quern, args...)
	if err == nil {
		c.workers[host] = p
	}
	return err
}

// NameOf returns the name of a host's worker.
func (c *Cluster) NameOf(host int) string { return fmt.Sprintf("host%d", host) }

// Start starts the master and all workers, and waits until the master knows all of
// them. A process that ends meanwhile is an error.
func (c *Cluster) Start(ctx context.Context) error {
	if err := c.StartMaster(); err != nil {
		return err
	}
	for _, h := range c.options.Workers {
		if err := c.StartWorker(h); err != nil {
			return err
		}
	}
	return c.WaitWorkers(ctx, len(c.options.Workers))
}

// WaitWorkers waits until n workers attend the master and can be given work.
func (c *Cluster) WaitWorkers(ctx context.Context, n int) error {
	last := ""
	for {
		for _, p := range c.Processes() {
			if state, ended := p.Ended(); ended {
				return fmt.Errorf("%s has ended: %s: %s", p.Name, state, p.Tail())
			}
		}
		live, err := c.live(ctx)
		if err == nil && live >= n {
			return nil
		}
		if last = fmt.Sprintf("%d of %d workers attend", live, n); err != nil {
			last = err.Error()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cluster does not come up: %s: %w", last, context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// live asks the master how many workers it can give work to.
func (c *Cluster) live(ctx context.Context) (int, error) {
	out, err := c.Command(ctx, "workers", "--json").Output()
	if err != nil {
		return 0, fmt.Errorf("ask for the workers: %w", err)
	}
	var reply struct {
		Workers []struct {
			State string `json:"state"`
		} `json:"workers"`
	}
	if err := json.Unmarshal(out, &reply); err != nil {
		return 0, fmt.Errorf("ask for the workers: %w: %s", err, out)
	}
	n := 0
	for _, w := range reply.Workers {
		if w.State == "live" {
			n++
		}
	}
	return n, nil
}

// Master returns the master's process, the last one there was.
func (c *Cluster) Master() *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.master
}

// Worker returns the process of a host's worker, the last one there was; nil: none.
func (c *Cluster) Worker(host int) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.workers[host]
}

// Processes returns all of them, the master first.
func (c *Cluster) Processes() []*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*Process
	if c.master != nil {
		all = append(all, c.master)
	}
	for _, h := range c.options.Workers {
		if p := c.workers[h]; p != nil {
			all = append(all, p)
		}
	}
	return all
}

// Stop ends the workers, then the master, as an operator does it: by SIGTERM. Those that
// do not end within grace are killed, which is an error.
func (c *Cluster) Stop(grace time.Duration) error {
	all := c.Processes()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, p := range all {
		if p != c.Master() {
			wg.Go(func() { errs[i] = stopUnlessEnded(p, grace) })
		}
	}
	wg.Wait()
	if m := c.Master(); m != nil {
		errs = append(errs, stopUnlessEnded(m, grace))
	}
	return errors.Join(errs...)
}

func stopUnlessEnded(p *Process, grace time.Duration) error {
	if _, ended := p.Ended(); ended {
		return nil
	}
	return p.stop(grace)
}

// Troubles names the processes that have ended although nobody stopped them, and how.
func (c *Cluster) Troubles() []string {
	var all []string
	for _, p := range c.Processes() {
		if state, ended := p.Ended(); ended {
			all = append(all, fmt.Sprintf("%s: %s", p.Name, state))
		}
	}
	return all
}

// crashMarks begin lines in the log of a process that has ended in a way that it never should,
// whatever else is done to it.
var crashMarks = [][]byte{[]byte("\nWARNING: DATA RACE"), []byte("\npanic: "), []byte("\nfatal error: ")}

// Crashes looks through the logs for processes that have crashed, or in which the race detector
// has found something.
func (c *Cluster) Crashes() error {
	var found error
	for _, p := range c.Processes() {
		text, err := os.ReadFile(p.Log)
		if err != nil {
			return fmt.Errorf("look for crashes: %w", err)
		}
		for _, mark := range crashMarks {
			if i := bytes.Index(text, mark); i >= 0 {
				found = errors.Join(found, fmt.Errorf("%s: %s", p.Name, text[i+1:min(len(text), i+4000)]))
			}
		}
	}
	return found
}

// Logs returns the ends of all logs.
func (c *Cluster) Logs() string {
	var b strings.Builder
	for _, p := range c.Processes() {
		fmt.Fprintf(&b, "-- %s\n%s\n", filepath.Base(p.Log), p.Tail())
	}
	return b.String()
}
