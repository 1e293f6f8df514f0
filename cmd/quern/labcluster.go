// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/quernmr/quern/shuffle"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// labClusterFlags describe the cluster on a lab.
type labClusterFlags struct {
	none    bool
	slots   int
	shuffle string
	logs    string
}

func (f *labClusterFlags) add(flags *pflag.FlagSet) {
	f.shuffle = shuffle.Auto.String()
	flags.BoolVar(&f.none, "no-cluster", false, "start neither a master nor workers")
	flags.IntVar(&f.slots, "slots", 0, "attempts that each worker runs at once; 0: as many as there are processors for it, at least 1")
	flags.StringVar(&f.shuffle, "shuffle", f.shuffle, "who folds pairs on the hosts: kernel, user (space), or auto: the kernel where it can")
	flags.StringVar(&f.logs, "logs", "", "`folder` where the logs of master and workers are kept")
}

func (f *labClusterFlags) check(cmd *cobra.Command) error {
	if _, err := shuffle.ParseMode(f.shuffle); err != nil {
		return usageErrorf(cmd, "--shuffle: %w", err)
	}
	if f.slots < 0 {
		return usageErrorf(cmd, "--slots %d: at least 1, or 0 for as many as there are processors", f.slots)
	}
	if f.none {
		for _, name := range []string{"slots", "shuffle", "logs"} {
			if cmd.Flags().Changed(name) {
				return usageErrorf(cmd, "--%s is about a cluster, and --no-cluster leaves it out", name)
			}
		}
	}
	return nil
}
