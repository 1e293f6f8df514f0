// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"time"

	"github.com/quernmr/quern/internal/foldbench"
	"github.com/quernmr/quern/internal/reducebench"
	"github.com/spf13/cobra"
)

// reduceRoleCommand is the hidden command that is a member of an all-reduce.
const reduceRoleCommand = "allreduce-role"

type allreduceFlags struct {
	members, elements  []int
	paths, conditions  []string
	turns, rounds      int
	time               time.Duration
	network            string
	json, quiet, quick bool
}

func (a *app) benchAllReduceCommand() *cobra.Command {
	f := allreduceFlags{
		members: []int{2, 4, 8}, elements: []int{1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 24}, conditions: []string{reducebench.Idle, reducebench.Busy},
		turns: 3, rounds: 2000, time: 300 * time.Millisecond,
	}
	cmd := &cobra.Command{
		Use:   "allreduce [flags]",
		Short: "measure all-reduces: ours, by a parameter server and a ring over TCP",
		Long: `Has the members of a group add up vectors of int32, element by element, until all
have the sum, and measures the time of a round, the processor time, and what the
interfaces of all members send. Each member is a process of its own, on a host of
a lab (see 'quern lab'). The paths:

  auto      our protocol as programs use it: small vectors as kernel, large ones by
            streams, TCP connections between all members
  kernel    all by frames: added up, sent on and stored by programs at the interfaces
  user      the same frames, all of it done by the members' processes
  ps-tcp    a parameter server in the first member's process, a TCP connection for
            each of the others
  ring-tcp  each member sends to the next one over TCP: segments are added up once
            around, and sums handed on once around

A round lasts from when the last member began it until the last one has the sum.
Rounds follow each other at once; all sums are checked, outside of what is measured.
Frames of kernel and auto go over links that an XDP program joins, as a switch of its own would; all
others go over a bridge without programs at its interfaces, on which TCP has its
offloads: packets of up to 64 KB that nobody cuts. "--network switch" has TCP go over
the links of kernel, on which no packet is larger than the MTU. "busy" is with two processes per processor that do nothing but use it. It
needs Linux and root's rights. Neither the configuration file nor the environment
counts.`,
		Example: `  quern bench allreduce --json
  quern bench allreduce --quick
  quern bench allreduce --members 4 --elements 1024 --paths kernel,user,ps-tcp --turns 10`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
	}
	flags := cmd.Flags()
	flags.IntSliceVar(&f.members, "members", f.members, fmt.Sprintf("numbers of members, each %d to %d", reducebench.MinMembers, reducebench.MaxMembers))
	flags.IntSliceVar(&f.elements, "elements", f.elements, fmt.Sprintf("lengths of vectors, each 1 to %d", reducebench.MaxElements))
	flags.StringSliceVar(&f.paths, "paths", reducebench.Usual, "auto, kernel, user, ps-tcp, ring-tcp")
	flags.StringSliceVar(&f.conditions, "conditions", f.conditions, "idle, busy")
	flags.IntVar(&f.turns, "turns", f.turns, "turns of each path; they take turns")
	flags.IntVar(&f.rounds, "rounds", f.rounds, "rounds of a turn, about")
	flags.DurationVar(&f.time, "time", f.time, "time after which a turn ends")
	flags.StringVar(&f.network, "network", reducebench.Plain, "what TCP goes over: plain, switch")
	flags.BoolVar(&f.json, "json", false, "print a JSON object instead of a table")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "say nothing but the result")
	flags.BoolVar(&f.quick, "quick", false, "a look in half a minute: 2 and 8 members, vectors up to 1M, one short turn")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.flagsAlone(cmd); err != nil {
			return err
		}
		o, err := f.options(cmd)
		if err != nil {
			return err
		}
		return a.benchMembers(cmd, reduceRoleCommand, f.json, f.quiet, func(place, spin foldbench.Place, log io.Writer) (memberReport, error) {
			o.Place, o.Spin, o.Log = place, spin, log
			return reducebench.Run(cmd.Context(), *o)
		})
	}
	return cmd
}

// options makes the benchmark's of the flags.
func (f *allreduceFlags) options(cmd *cobra.Command) (*reducebench.Options, error) {
	if f.quick {
		setUnlessChanged(cmd, map[string]func(){
			"members":  func() { f.members = []int{2, 8} },
			"elements": func() { f.elements = []int{1 << 10, 1 << 18, 1 << 20} },
			"turns":    func() { f.turns = 1 },
			"rounds":   func() { f.rounds = 200 },
			"time":     func() { f.time = 100 * time.Millisecond },
		})
	}
	o := &reducebench.Options{
		Members: f.members, Elements: f.elements, Paths: f.paths, Conditions: f.conditions, Blocks: f.turns, Rounds: f.rounds, Time: f.time, Network: f.network, Quick: f.quick,
	}
	if err := o.Check(); err != nil {
		return nil, usageErrorf(cmd, "%v", err)
	}
	return o, nil
}

func (a *app) benchReduceRoleCommand() *cobra.Command {
	return &cobra.Command{
		Use: reduceRoleCommand + " NAME", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return reducebench.ServeRole(args[0], a.stdin, a.stdout) },
	}
}
