// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"net"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/broadcast"
	"github.com/spf13/cobra"
)

// shuffleGroup is where help shows the flags of shuffleSettings.
const shuffleGroup = "shuffle"

// shuffleSettings are about this host's part in the shuffle: who folds the pairs that
// other hosts send, and where. They belong to no job.
type shuffleSettings struct {
	Mode        string `name:"shuffle" help:"who folds pairs that come from other hosts: kernel, user (space), or auto: the kernel where it can"`
	Interface   string `name:"interface" help:"network interface that they come in by"`
	Port        int    `name:"port" help:"UDP port that they come to"`
	XDPMode     string `name:"xdp-mode" help:"where the programs run: native (in the driver) or generic (behind it: slower, works with every driver)"`
	XDPReplace  bool   `name:"xdp-replace" help:"displace an XDP program of somebody else that is on the interface"`
	TableMemory string `name:"table-memory" help:"most that the kernel's tables may take, such as 512MiB; default: a quarter of the machine's memory"`

	BroadcastMemory string `name:"broadcast-memory" help:"most that programs, files and side inputs which come by broadcast may take, such as 2GiB, at least 16MiB; default: an eighth of the machine's memory"`
	ReduceMemory    string `name:"reduce-memory" help:"most that the all-reduces of iterations may take, such as 512MiB, at least 16MiB; default: 256MiB"`
}

// What the settings of these memories are called.
const (
	broadcastMemorySetting = "broadcast-memory"
	reduceMemorySetting    = "reduce-memory"
)

// leastShare is the least, in bytes, that broadcasts or all-reduces get anywhere with: a group of two members takes 6 MB.
const leastShare = 16 << 20

// shares are bytes of memory that this host gives to what it does for others.
type shares struct{ broadcast, reduce int64 }

// shares returns what the settings say.
func (s *shuffleSettings) shares(cmd *cobra.Command) (shares, error) {
	all := shares{broadcast.DefaultMemory(), allreduce.DefaultMemory}
	for _, one := range []struct {
		name, text string
		to         *int64
	}{{broadcastMemorySetting, s.BroadcastMemory, &all.broadcast}, {reduceMemorySetting, s.ReduceMemory, &all.reduce}} {
		n, err := parseBytes(cmd, one.name, one.text)
		switch {
		case err != nil:
			return all, err
		case one.text == "":
		case n < leastShare:
			return all, usageErrorf(cmd, "--%s %s: at least %s", one.name, one.text, humanize.IBytes(leastShare))
		default:
			*one.to = n
		}
	}
	return all, nil
}

// checks says what the shares come to on a machine with that much memory; 0: that is not known.
func (s shares) checks(machine uint64) (list []bpf.Check) {
	for _, one := range []struct {
		name, setting string
		n             int64
	}{{"broadcast memory", broadcastMemorySetting, s.broadcast}, {"all-reduce memory", reduceMemorySetting, s.reduce}} {
		c := bpf.Check{Name: one.name, State: bpf.OK, Found: "up to " + humanize.IBytes(uint64(one.n))}
		if machine > 0 {
			c.Found += " of the machine's " + humanize.IBytes(machine)
		}
		if machine > 0 && uint64(one.n) > machine {
			c.State, c.Fix = bpf.Warning, "run quern with a smaller --"+one.setting
		}
		list = append(list, c)
	}
	return list
}

func newShuffleSettings() *shuffleSettings {
	return &shuffleSettings{Mode: shuffle.Auto.String(), Port: shuffle.Port, XDPMode: bpf.Native.String()}
}

// parse returns what the settings say. What is wrong is a usage error that names the flag.
func (s *shuffleSettings) parse(cmd *cobra.Command) (mode shuffle.Mode, o bpf.Options, err error) {
	if mode, err = shuffle.ParseMode(s.Mode); err != nil {
		return 0, o, usageErrorf(cmd, "--shuffle: %w", err)
	}
	if o.XDP, err = bpf.ParseXDPMode(s.XDPMode); err != nil {
		return 0, o, usageErrorf(cmd, "--%s: %w", bpf.XDPModeSetting, err)
	}
	if s.Port < 1 || s.Port > 65535 {
		return 0, o, usageErrorf(cmd, "--port %d: UDP ports go from 1 to 65535", s.Port)
	}
	if s.TableMemory != "" {
		n, err := humanize.ParseBytes(s.TableMemory)
		if err != nil || n == 0 || n > math.MaxInt64 {
			return 0, o, usageErrorf(cmd, "--%s %q: give bytes such as 67108864, 512MiB or 2GB", bpf.TableMemorySetting, s.TableMemory)
		}
		o.TableMemory = int64(n)
	}
	if s.Interface != "" {
		o.Interfaces = []string{s.Interface}
	} else if cmd.Flags().Changed("interface") {
		return 0, o, usageErrorf(cmd, "--interface needs the name of a network interface")
	}
	o.Port, o.Replace = s.Port, s.XDPReplace
	if err := o.Validate(); err != nil {
		return 0, o, usageErrorf(cmd, "%w", err)
	}
	return mode, o, nil
}

// interfaceNames returns the network interfaces that there are.
func interfaceNames() (names []string) {
	list, _ := net.Interfaces() // without them there is nothing to complete
	for _, i := range list {
		names = append(names, i.Name)
	}
	return names
}

// completeShuffle lets the shell complete the values of the settings.
func completeShuffle(cmd *cobra.Command) {
	for name, values := range map[string][]string{
		"shuffle":              {"auto", "kernel", "user"},
		bpf.XDPModeSetting:     {"native", "generic"},
		bpf.TableMemorySetting: nil,
		broadcastMemorySetting: nil,
		reduceMemorySetting:    nil,
		"port":                 nil,
	} {
		// It fails only for flags that do not exist.
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	_ = cmd.RegisterFlagCompletionFunc("interface", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return interfaceNames(), cobra.ShellCompDirectiveNoFileComp
	})
}
