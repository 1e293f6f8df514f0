// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/shuffle"
)

// What the master does by itself, and --explain tells: see its broadcasts and gangs.
const (
	leastBroadcast = 64 << 10 // bytes; what is smaller is fetched by each worker
	mostMembers    = 32       // of an iteration
)

// explainOnCluster says how a job would be run by a cluster. program is the size of the Go program that workers need for it, in bytes; 0: they
// have it. maxSlots bounds its attempts at once; 0: nothing does.
func (a *app) explainOnCluster(cmd *cobra.Command, client *cluster.Client, e *mapreduce.Explanation, program int64, mode shuffle.Mode, maxSlots int, asJSON bool) error {
	workers, err := client.Workers(cmd.Context())
	if err != nil {
		return err
	}
	ways := ways(workers, e, program, mode, maxSlots)
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), struct {
			Plan    any          `json:"plan"`
			Workers []workerJSON `json:"workers"`
			Ways    []string     `json:"ways"`
		}{e, workersJSON(workers), ways})
	}
	// The local engine's workers and memory are not the cluster's.
	shown := *e
	shown.Workers, shown.Memory = 0, 0
	if err := printExplanation(cmd.OutOrStdout(), &shown); err != nil {
		return err
	}
	text := "\non this cluster:\n"
	for _, line := range ways {
		text += "  - " + printable(line) + "\n"
	}
	_, err = io.WriteString(cmd.OutOrStdout(), text)
	return err
}

// ways says who would run a job, and how what it needs and makes would travel.
func ways(workers []*api.WorkerStatus, e *mapreduce.Explanation, program int64, mode shuffle.Mode, maxSlots int) []string {
	slots, live, kernel := 0, 0, 0
	for _, w := range workers {
		if w.GetState() != "live" {
			continue
		}
		live++
		slots += int(w.GetSlots())
		if foldsInKernel(w) {
			kernel++
		}
	}
	list := []string{fmt.Sprintf("%s with %s take its tasks", count(int64(live), "worker"), count(int64(slots), "slot"))}
	if live == 0 {
		list[0] = "there is no worker, so that it would wait"
	}
	if program > 0 {
		list = append(list, given("the program", program, live, kernel, mode))
	}
	for _, in := range e.SideInputs {
		list = append(list, given(fmt.Sprintf("side input %q", in.Name), in.Size, live, kernel, mode))
	}
	if e.Reduce == "iteration" {
		return append(list, gangWays(e, live, kernel, mode, maxSlots)...)
	}
	return append(list, pairsWay(e, live, kernel, mode))
}

// given says how all workers get something of so many bytes; -1: that is not known yet.
func given(what string, size int64, live, kernel int, mode shuffle.Mode) string {
	text := what
	if size >= 0 {
		text += " (" + humanize.Bytes(uint64(size)) + ")"
	}
	switch {
	case size >= 0 && size < leastBroadcast:
		return text + " is fetched from the master by each worker: it is small"
	case live < 2:
		return text + " goes to the one worker that there is"
	}
	if size < 0 {
		text += ", if it has 64 KiB or more,"
	}
	text += " is given to the other workers by broadcast, by the one that plans the job, "
	switch {
	case mode == shuffle.UserOnly || kernel == 0:
		return text + "in user space"
	case kernel == live:
		return text + "by programs in their kernels"
	}
	return text + fmt.Sprintf("by programs in the kernels of %d of %d", kernel, live)
}

// gangWays says how an iteration would run.
func gangWays(e *mapreduce.Explanation, live, kernel int, mode shuffle.Mode, maxSlots int) []string {
	members := min(max(live, 1), e.Splits, mostMembers)
	if maxSlots > 0 {
		members = min(members, maxSlots)
	}
	list := []string{fmt.Sprintf("%s in a gang: each loads its share of the splits, keeps it, and has a slot until the iteration ends; all run at once", count(int64(members), "member"))}
	switch {
	case members < 2:
		return append(list, "one member adds up its splits by itself")
	case mode == shuffle.UserOnly || kernel == 0:
		return append(list, "members add up their sums by all-reduces between their workers, in user space")
	case kernel == live:
		return append(list, "members add up their sums by all-reduces between their workers, by programs in the kernel where vectors are small enough for that to pay")
	}
	return append(list, fmt.Sprintf("members add up their sums by all-reduces between their workers; the kernels of %d of %d help", kernel, live))
}

// pairsWay says how the pairs of a job would travel.
func pairsWay(e *mapreduce.Explanation, live, kernel int, mode shuffle.Mode) string {
	switch {
	case !strings.HasPrefix(e.Reduce, "fold"):
		return "pairs are pulled as sorted runs over TCP: the reduce is a function over all values of a key, and no fold"
	case e.TotalOrder:
		return "pairs are pulled as sorted runs over TCP: with a total order the parts are cut by keys, which are known at the end of the map stage alone"
	case mode == shuffle.UserOnly:
		return "pairs are pushed in frames and folded in user space, as asked"
	case kernel == live && live > 0:
		return "pairs are pushed in frames and folded by the kernel of whoever reduces them; keys beyond 64 bytes in user space"
	case kernel == 0 && mode == shuffle.KernelOnly:
		return "the kernel shall fold, and that of no worker can: the job would fail"
	case kernel == 0:
		return "pairs are pushed in frames and folded in user space: no worker's kernel can"
	}
	return fmt.Sprintf("pairs are pushed in frames; %d of %d workers fold them in the kernel, the others in user space", kernel, live)
}

// foldsInKernel says whether a worker's kernel folds, by what the worker says in words.
func foldsInKernel(w *api.WorkerStatus) bool {
	return strings.HasPrefix(w.GetShuffle(), "the kernel folds")
}
