// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/spf13/cobra"
)

// labPrefix is what the names of the variables begin with that a lab's command
// finds in its environment. They configure nothing.
const labPrefix = envPrefix + "LAB_"

// Exit codes of lab run that are not its command's, as those of env, timeout
// and the like.
const (
	exitLab           = 125 // the lab cannot be built, or not be removed
	exitNotExecutable = 126
	exitNotFound      = 127
)

// chance is a flag from 0 to 1, which may be written in percent.
type chance float64

func (c *chance) String() string {
	// Fifteen digits hide what the multiplication adds: 0.9%, not 0.9000000000000001%.
	return strconv.FormatFloat(float64(*c)*100, 'g', 15, 64) + "%"
}

func (*chance) Type() string { return "percent" }

func (c *chance) Set(text string) error {
	number, percent := strings.CutSuffix(text, "%")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return errors.New("not a chance")
	}
	if percent {
		v /= 100
	}
	if !(v >= 0 && v <= 1) {
		return errors.New("not a chance")
	}
	*c = chance(v)
	return nil
}

// labFlags describe a lab.
type labFlags struct {
	options                           netlab.Options
	loss, duplicate, reorder, corrupt chance
	json, quiet                       bool
	cluster                           labClusterFlags
}

func (a *app) labCommand() *cobra.Command {
	lab := &cobra.Command{
		Use:   "lab",
		Short: "try things on a network of several hosts, made on this machine, that may be bad",
		Long: `A lab is a network of several hosts on this machine: network namespaces joined by
a bridge, with links that lose, double, reorder, damage and delay packets if
wanted. The machine's own network is not touched. It needs Linux and root's rights.`,
		GroupID: otherGroup,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	lab.AddCommand(a.labRunCommand(), a.labCleanCommand())
	return lab
}

func (a *app) labRunCommand() *cobra.Command {
	f := &labFlags{options: netlab.Options{Hosts: 2, MTU: 1500, Seed: 1, Queues: 1, Faults: netlab.Faults{Hold: netlab.DefaultHold}}}
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [argument...]",
		Short: "build a lab with a cluster on it, run a command on its first host, and remove it all",
		Long: `Builds a lab, starts a master on host 1 and a worker on every host, runs COMMAND on
host 1 and removes all of it when COMMAND has ended. --no-cluster leaves master and
workers out.

COMMAND finds the cluster by QUERN_MASTER, QUERN_CERTS and QUERN_TOKEN: a plain
"quern submit" runs jobs on it. Certificates, keyring and token are made for the lab
and end with it. What master and workers write is kept if COMMAND fails, or where
--logs says.

COMMAND finds the hosts' addresses in QUERN_LAB_HOSTS (IPv4) and
QUERN_LAB_HOSTS_IPV6, and their namespaces in QUERN_LAB_NAMES, all separated by
commas, host 1 first: "ip netns exec NAME ..." runs something on another host.
Signals are handed on to COMMAND. What it leaves running is ended with the lab.

Each fault hits packets once, on their way to a host, at random: the same seed
draws the same for the first packet, the second and so on of each host. ARP and
neighbour discovery are spared. A chance is written as 5% or 0.05.

It ends with COMMAND's exit code (128 + the signal that killed it), or with 125
if the lab cannot be built, 126 if COMMAND cannot be executed, 127 if there is
no COMMAND.

The flags alone describe a lab: neither the configuration file nor the environment
counts. A QUERN_ variable named after one of them is an error.`,
		Example: `  quern lab run --hosts 3 -- sh -c 'ip addr; ip neigh'
  quern lab run --hosts 2 --no-cluster --loss 5% --reorder 5% --seed 7 -- ./test
  quern lab run --hosts 5 -- quern submit wordcount /data/books -o /data/words`,
		DisableFlagsInUseLine: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageErrorf(cmd, "no COMMAND to run: it comes behind the flags and --")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.flagsAlone(cmd); err != nil {
				return err
			}
			o := &f.options
			if cmd.Flags().Changed("hold") && o.Faults.Hold == 0 {
				return usageErrorf(cmd, "--hold 0s: a packet that is not held is not reordered; leave --reorder out, or hold it for 1µs at least")
			}
			o.Faults.Loss, o.Faults.Duplicate = float64(f.loss), float64(f.duplicate)
			o.Faults.Reorder, o.Faults.Corrupt = float64(f.reorder), float64(f.corrupt)
			if err := o.Check(); err != nil {
				return usageErrorf(cmd, "%w", err)
			}
			if err := f.cluster.check(cmd); err != nil {
				return err
			}
			code := a.labRun(cmd, f, args)
			if err := a.profile.stop(); err != nil {
				return err
			}
			// Not a result of ours, so it does not go the way of our own exit codes.
			os.Exit(code)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // COMMAND's flags are its own, also without --
	flags.IntVar(&f.options.Hosts, "hosts", f.options.Hosts, "number of `hosts`")
	flags.IntVar(&f.options.MTU, "mtu", f.options.MTU, "`bytes` of the largest packet")
	flags.IntVar(&f.options.Queues, "queues", f.options.Queues, "queues of each link")
	flags.BoolVar(&f.options.StaticNeighbours, "static-neighbours", false, "tell hosts the hardware addresses of all others")
	flags.Var(&f.loss, "loss", "chance that a packet is lost")
	flags.Var(&f.duplicate, "duplicate", "chance that a packet comes twice")
	flags.Var(&f.reorder, "reorder", "chance that a packet is held back so that later ones overtake it")
	flags.DurationVar(&f.options.Faults.Hold, "hold", f.options.Faults.Hold, "longest `time` that --reorder holds a packet back")
	flags.Var(&f.corrupt, "corrupt", "chance that one to three bits of a UDP packet are flipped; other packets are lost instead")
	flags.DurationVar(&f.options.Faults.Delay, "delay", 0, "`time` by which every packet is late")
	flags.DurationVar(&f.options.Faults.Jitter, "jitter", 0, "most `time` that is added to --delay at random")
	flags.BoolVar(&f.options.Faults.UDPOnly, "udp-only", false, "spare all but UDP")
	flags.Uint64Var(&f.options.Seed, "seed", f.options.Seed, "`number` that decides which packets are hit")
	flags.StringVar(&f.options.Name, "name", "", "what the names of the namespaces begin with")
	f.cluster.add(flags)
	flags.BoolVar(&f.json, "json", false, "end with a JSON object on standard error")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "say nothing but errors")
	return cmd
}

// labRun runs a command in a lab and returns the code to end with. It says
// itself what went wrong.
func (a *app) labRun(cmd *cobra.Command, f *labFlags, args []string) int {
	report := labReport{Command: args[0]}
	fail := func(code int, err error) int {
		fmt.Fprintln(a.stderr, "quern: "+oneLine(err))
		report.Error, report.ExitCode = oneLine(err), code
		report.print(a.stderr, f.json)
		return code
	}
	say := func(format string, args ...any) {
		if !f.quiet {
			fmt.Fprintf(a.stderr, format+"\n", args...)
		}
	}
	if _, err := exec.LookPath(args[0]); err != nil {
		return fail(codeOfStart(err), fmt.Errorf("COMMAND cannot be run: %w", err))
	}
	begin := time.Now()
	lab, err := netlab.New(f.options)
	if err != nil {
		return fail(exitLab, err)
	}
	report.describe(lab)
	say("lab: %s", describeLab(lab, time.Since(begin)))

	var code int
	cluster, err := a.startLabCluster(cmd.Context(), lab, &f.cluster, say)
	if err == nil {
		code, err = a.runOnHost(cmd, lab, cluster.environment(), args)
	} else if code = exitLab; interrupted(cmd.Context()) {
		code = a.exitCode(cmd.Context(), err)
	}
	logs, stopErr := cluster.stop(code == 0 && err == nil)
	if stopErr != nil && err == nil {
		code, err = exitLab, stopErr
	}
	if report.Logs = logs; logs != "" {
		// Said even if nothing but errors is to be: nobody else knows of that folder.
		fmt.Fprintf(a.stderr, "lab: the logs of master and workers are in %s\n", logs)
	}
	counters, countErr := lab.Counters()
	if closeErr := lab.Close(); closeErr != nil && err == nil {
		code, err = exitLab, closeErr
	}
	if removeErr := cluster.remove(); removeErr != nil && err == nil {
		code, err = exitLab, removeErr
	}
	if countErr == nil {
		report.count(counters)
		say("lab: %s", describeCounters(counters, f.options.Faults.Any()))
	}
	if err != nil {
		return fail(code, err)
	}
	report.ExitCode = code
	report.print(a.stderr, f.json)
	return code
}

// runOnHost runs a command on host 1 and returns its exit code. The error says
// why it was not run.
func (a *app) runOnHost(cmd *cobra.Command, lab *netlab.Lab, environment, args []string) (int, error) {
	signals, stop := labSignals()
	defer stop()
	if stopped := interruption(cmd.Context()); stopped != nil {
		return a.exitCode(cmd.Context(), stopped), stopped
	}
	// The first signal ends our context, but COMMAND decides what it does about it.
	c := lab.Host(1).Command(context.WithoutCancel(cmd.Context()), args[0], args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = a.stdin, a.stdout, a.stderr
	c.Env = slices.Concat(a.environ, labEnvironment(lab), environment)
	if err := c.Start(); err != nil {
		return codeOfStart(err), err
	}
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				_ = c.Process.Signal(s) // it fails if the process has ended
			case <-ended:
				return
			}
		}
	}()
	_ = c.Wait() // its state says more
	close(ended)
	return codeOfState(c.ProcessState), nil
}

// codeOfStart tells why a command was not started, as shells do.
func codeOfStart(err error) int {
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return exitNotFound
	case errors.Is(err, fs.ErrPermission):
		return exitNotExecutable
	}
	return exitLab
}

// labEnvironment tells a command about the lab that it runs in.
func labEnvironment(lab *netlab.Lab) []string {
	var four, six, names []string
	for _, h := range lab.Hosts() {
		four = append(four, h.IPv4().String())
		six = append(six, h.IPv6().String())
		names = append(names, h.Name())
	}
	return []string{
		labPrefix + "HOSTS=" + strings.Join(four, ","),
		labPrefix + "HOSTS_IPV6=" + strings.Join(six, ","),
		labPrefix + "NAMES=" + strings.Join(names, ","),
	}
}

// labReport is what lab run prints with --json.
type labReport struct {
	Command  string       `json:"command"`
	Name     string       `json:"name,omitempty"`
	Hosts    []netip.Addr `json:"hosts,omitempty"`
	MTU      int          `json:"mtu,omitempty"`
	Seed     uint64       `json:"seed"`
	Packets  uint64       `json:"packets"` // that faults were drawn for
	Lost     uint64       `json:"lost"`
	Doubled  uint64       `json:"duplicated"`
	Damaged  uint64       `json:"corrupted"`
	Rejected uint64       `json:"corrupted_and_dropped"`
	Late     uint64       `json:"reordered"`
	Held     uint64       `json:"held"`
	Unheld   uint64       `json:"not_held"`
	Overrun  uint64       `json:"overrun"`
	Logs     string       `json:"logs,omitempty"` // kept, since something failed
	Error    string       `json:"error,omitempty"`
	ExitCode int          `json:"exit_code"`
}

func (r *labReport) describe(lab *netlab.Lab) {
	o := lab.Options()
	r.Name, r.MTU, r.Seed = lab.Name(), o.MTU, o.Seed
	for _, h := range lab.Hosts() {
		r.Hosts = append(r.Hosts, h.IPv4())
	}
}

func (r *labReport) count(c netlab.Counters) {
	t := c.Total()
	r.Packets, r.Lost, r.Doubled, r.Damaged, r.Rejected = t.Drawn, t.Lost, t.Duplicated, t.Corrupted, t.Rejected
	r.Late, r.Held, r.Unheld, r.Overrun = t.Reordered, t.Held, t.Unheld, t.Overrun
}

func (r *labReport) print(w io.Writer, wanted bool) {
	if wanted {
		// Nobody is left to tell.
		_ = writeJSON(w, r)
	}
}

// describeLab says in a line what was built.
func describeLab(lab *netlab.Lab, took time.Duration) string {
	o := lab.Options()
	hosts := "1 host, " + netlab.IPv4(1).String() + ", " + netlab.IPv6(1).String()
	if o.Hosts > 1 {
		hosts = fmt.Sprintf("%d hosts, %v to .%d, %v to ::%x", o.Hosts, netlab.IPv4(1), o.Hosts, netlab.IPv6(1), o.Hosts)
	}
	text := fmt.Sprintf("%s: %s, MTU %d", lab.Name(), hosts, o.MTU)
	var list []string
	for _, c := range []struct {
		name  string
		value float64
	}{{"loss", o.Faults.Loss}, {"duplicate", o.Faults.Duplicate}, {"reorder", o.Faults.Reorder}, {"corrupt", o.Faults.Corrupt}} {
		if c.value > 0 {
			v := chance(c.value)
			list = append(list, c.name+" "+v.String())
		}
	}
	for _, c := range []struct {
		name  string
		value time.Duration
	}{{"delay", o.Faults.Delay}, {"jitter", o.Faults.Jitter}} {
		if c.value > 0 {
			list = append(list, c.name+" "+c.value.String())
		}
	}
	if len(list) > 0 {
		text += fmt.Sprintf("; %s; seed %d", strings.Join(list, ", "), o.Seed)
	}
	return text + fmt.Sprintf("; built in %v", took.Round(time.Millisecond))
}

// describeCounters says in a line what the links did, and whether they should have done anything.
func describeCounters(c netlab.Counters, faults bool) string {
	t := c.Total()
	var list []string
	for _, n := range []struct {
		count uint64
		what  string
	}{
		{t.Lost, "lost"},
		{t.Duplicated, "doubled"},
		{t.Reordered, "held back"},
		{t.Corrupted, "damaged"},
		{t.Rejected, "damaged and dropped"},
		{t.Held, "sent late"},
		{t.Unheld, "not held for want of room"},
		{t.Overrun, "dropped since a queue was full"},
	} {
		if n.count > 0 {
			list = append(list, humanize.Comma(int64(n.count))+" "+n.what)
		}
	}
	if !faults {
		return strings.Join(append([]string{"there were no faults"}, list...), ", ")
	}
	if t.Drawn == 0 && len(list) == 0 {
		return "no packet was touched"
	}
	if len(list) == 0 {
		list = []string{"none was touched"}
	}
	return fmt.Sprintf("of %s packets %s", humanize.Comma(int64(t.Drawn)), strings.Join(list, ", "))
}

func (a *app) labCleanCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "clean",
		Short: "remove what labs have left whose process was killed",
		Long: `Removes what labs have left whose quern was killed in a way that it could not
clean up after: names of namespaces, and processes that still run in their hosts.
Labs that live are not touched. Building a lab does this, too.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			swept, err := netlab.Sweep()
			err = errors.Join(err, sweepLabClusters())
			for _, s := range swept {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: removed %d names, killed %d processes\n", s.Lab, s.Names, s.Processes)
			}
			if errors.Is(err, fs.ErrPermission) {
				// Not an input that cannot be read, which has an exit code of its own.
				return fmt.Errorf("what labs have left is root's to remove: sudo quern lab clean (%s)", oneLine(err))
			}
			if err == nil && len(swept) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "nothing was left")
			}
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}
