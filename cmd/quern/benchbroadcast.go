// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/internal/castbench"
	"github.com/quernmr/quern/internal/foldbench"
	"github.com/spf13/cobra"
)

// castRoleCommand is the hidden command that is an end of a broadcast.
const castRoleCommand = "broadcast-role"

type broadcastFlags struct {
	members                  []int
	sizes, paths, conditions []string
	turns, rounds            int
	time                     time.Duration
	chains, window           int
	network                  string
	json, quiet, quick       bool
}

func (a *app) benchBroadcastCommand() *cobra.Command {
	f := broadcastFlags{
		members: []int{2, 4, 8, 16}, sizes: []string{"1.4KB", "64KB", "64MB"}, conditions: []string{castbench.Idle, castbench.Busy},
		turns: 3, rounds: 2000, time: 300 * time.Millisecond,
	}
	cmd := &cobra.Command{
		Use:   "broadcast [flags]",
		Short: "measure broadcasts: by the kernel, by relays, over TCP, over UDP",
		Long: `Gives messages to members and measures the time until the source knows that all
have them, what its interface sends for that, and the processor time. The source
and each member are processes of their own, on hosts of a lab (see 'quern lab').
The paths:

  kernel          our protocol: cloned, stored, passed on and answered by programs at
                  the interfaces
  relay           the same frames, stored and passed on by the members' processes
  tcp-sequential  written to one TCP connection after the other, then the answers
  tcp-parallel    a goroutine for each connection
  udp-loop        datagrams to each member, acknowledged by its process

Kernel goes over links that an XDP program joins, which costs the machine little, as
a switch of its own would; "--network bridge" has them joined by the machine's bridge.
All others go over a bridge without programs at its interfaces, on which TCP has its
offloads. For kernel and relay "confirmed" is the time until all members'
processes have checked the digest, too. "busy" is with two processes per
processor that do nothing but use it. What members get is checked. It needs Linux
and root's rights. Neither the configuration file nor the environment counts.`,
		Example: `  quern bench broadcast --json
  quern bench broadcast --quick
  quern bench broadcast --members 8 --sizes 64KB --conditions idle --turns 10`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
	}
	flags := cmd.Flags()
	flags.IntSliceVar(&f.members, "members", f.members, fmt.Sprintf("numbers of members, each 1 to %d", castbench.MaxMembers))
	flags.StringSliceVar(&f.sizes, "sizes", f.sizes, "sizes of messages, each 8B to 1GiB")
	flags.StringSliceVar(&f.paths, "paths", castbench.Paths, "kernel, relay, tcp-sequential, tcp-parallel, udp-loop")
	flags.StringSliceVar(&f.conditions, "conditions", f.conditions, "idle, busy")
	flags.IntVar(&f.turns, "turns", f.turns, "turns of each path; they take turns")
	flags.IntVar(&f.rounds, "rounds", f.rounds, "most messages of a turn")
	flags.DurationVar(&f.time, "time", f.time, "time after which a turn sends no other message")
	flags.IntVar(&f.chains, "chains", 0, "chains of members, for kernel and relay; 0: chosen by size and number")
	flags.IntVar(&f.window, "window", 0, "chunks in flight per chain, for kernel and relay; 0: chosen")
	flags.StringVar(&f.network, "network", castbench.Switch, "what joins the hosts, for kernel: xdp-switch, bridge")
	flags.BoolVar(&f.json, "json", false, "print a JSON object instead of a table")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "say nothing but the result")
	flags.BoolVar(&f.quick, "quick", false, "a look in half a minute: 2 and 8 members, 8MB instead of 64MB, one short turn")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.flagsAlone(cmd); err != nil {
			return err
		}
		o, err := f.options(cmd)
		if err != nil {
			return err
		}
		return a.benchMembers(cmd, castRoleCommand, f.json, f.quiet, func(place, spin foldbench.Place, log io.Writer) (memberReport, error) {
			o.Place, o.Spin, o.Log = place, spin, log
			return castbench.Run(cmd.Context(), *o)
		})
	}
	return cmd
}

// options makes the benchmark's of the flags.
func (f *broadcastFlags) options(cmd *cobra.Command) (*castbench.Options, error) {
	if f.quick {
		setUnlessChanged(cmd, map[string]func(){
			"members": func() { f.members = []int{2, 8} },
			"sizes":   func() { f.sizes = []string{"1.4KB", "64KB", "8MB"} },
			"turns":   func() { f.turns = 1 },
			"rounds":  func() { f.rounds = 200 },
			"time":    func() { f.time = 100 * time.Millisecond },
		})
	}
	o := &castbench.Options{
		Members: f.members, Paths: f.paths, Conditions: f.conditions, Blocks: f.turns, Rounds: f.rounds, Time: f.time,
		Chains: f.chains, Window: f.window, Network: f.network, Quick: f.quick,
	}
	for _, text := range f.sizes {
		n, err := humanize.ParseBytes(text)
		if err != nil || n < castbench.MinBytes || n > castbench.MaxBytes {
			return nil, usageErrorf(cmd, "--sizes: %s is no size from 8B to 1GiB", strconv.Quote(text))
		}
		o.Sizes = append(o.Sizes, int(n))
	}
	if err := o.Check(); err != nil {
		return nil, usageErrorf(cmd, "%v", err)
	}
	return o, nil
}

func (a *app) benchCastRoleCommand() *cobra.Command {
	return &cobra.Command{
		Use: castRoleCommand + " NAME", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return castbench.ServeRole(args[0], a.stdin, a.stdout) },
	}
}
