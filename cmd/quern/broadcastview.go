// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/mapreduce/cluster/api"
)

// How many broadcasts are named; the others are counted.
const (
	namedBroadcasts  = 3  // in a summary
	listedBroadcasts = 20 // by status
)

// broadcastText says in words whom a broadcast reached, and how. by is said behind the workers.
func broadcastText(b *api.Spreaded, by string) string {
	reached, kernel := int64(b.GetReached()), int64(min(b.GetKernel(), b.GetReached()))
	var parts []string
	if reached > 0 {
		parts = append(parts, "to "+count(reached, "worker")+by)
	}
	for _, n := range []struct {
		n    int64
		text string
	}{{kernel, "by the kernel"}, {reached - kernel, "in user space"}, {int64(b.GetHad()), "had it"}, {int64(b.GetFailed()), "left to fetch it"}} {
		if n.n > 0 {
			parts = append(parts, humanize.Comma(n.n)+" "+n.text)
		}
	}
	text := fmt.Sprintf("%s (%s)", b.GetName(), size(b.GetSize()))
	switch {
	case len(parts) == 0:
		return text + " to no worker" + by
	case reached == 0:
		text += ":"
	}
	return text + " " + strings.Join(parts, ", ")
}

// broadcastLine is what status says of a broadcast.
func broadcastLine(b *api.Spreaded) string {
	text := broadcastText(b, "")
	if us := b.GetElapsedUs(); us > 0 {
		text += fmt.Sprintf(", in %.1f ms", float64(us)/1000)
	}
	if b.GetError() != "" {
		text += ": " + firstLine(b.GetError())
	}
	return text
}

// broadcastLines are what status says of the broadcasts of a job.
func broadcastLines(list []*api.Spreaded) (lines []string) {
	for i, b := range list {
		if i == listedBroadcasts-1 && len(list) > listedBroadcasts {
			rest := totalsOf(list[i:])
			line := fmt.Sprintf("%s more (%s)", humanize.Comma(int64(rest.Count)), size(rest.Bytes))
			if rest.Failed > 0 {
				line += fmt.Sprintf(", %s times left to fetch it", humanize.Comma(int64(rest.Failed)))
			}
			return append(lines, line)
		}
		lines = append(lines, broadcastLine(b))
	}
	return lines
}

// broadcastsText says in one line what a job was given by broadcast; "" if nothing was.
func broadcastsText(list []*api.Spreaded) string {
	var parts []string
	for i, b := range list {
		if i == namedBroadcasts-1 && len(list) > namedBroadcasts {
			rest := totalsOf(list[i:])
			parts = append(parts, fmt.Sprintf("%s more (%s)", humanize.Comma(int64(rest.Count)), size(rest.Bytes)))
			break
		}
		parts = append(parts, broadcastText(b, " by broadcast"))
	}
	return printable(strings.Join(parts, "; "))
}

// broadcastJSON is a broadcast as --json prints it.
type broadcastJSON struct {
	Name    string  `json:"name"`
	Bytes   int64   `json:"bytes"`
	Reached uint32  `json:"reached"`
	Kernel  uint32  `json:"reached_by_kernel"`
	Had     uint32  `json:"had"`
	Failed  uint32  `json:"failed"`
	Sent    int64   `json:"sent_bytes"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

// broadcastTotals add up over the broadcasts of a job.
type broadcastTotals struct {
	Count   int    `json:"count"`
	Bytes   int64  `json:"bytes"`
	Reached uint64 `json:"reached"`
	Kernel  uint64 `json:"reached_by_kernel"`
	Had     uint64 `json:"had"`
	Failed  uint64 `json:"failed"`
	Sent    int64  `json:"sent_bytes"`
}

func broadcastsJSON(list []*api.Spreaded) []broadcastJSON {
	all := []broadcastJSON{}
	for _, b := range list {
		all = append(all, broadcastJSON{
			b.GetName(), b.GetSize(), b.GetReached(), b.GetKernel(), b.GetHad(), b.GetFailed(), b.GetSent(),
			(time.Duration(b.GetElapsedUs()) * time.Microsecond).Seconds(), b.GetError(),
		})
	}
	return all
}

func totalsOf(list []*api.Spreaded) broadcastTotals {
	t := broadcastTotals{Count: len(list)}
	for _, b := range list {
		t.Bytes += b.GetSize()
		t.Reached += uint64(b.GetReached())
		t.Kernel += uint64(b.GetKernel())
		t.Had += uint64(b.GetHad())
		t.Failed += uint64(b.GetFailed())
		t.Sent += b.GetSent()
	}
	return t
}
