// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Result is what one path did under one condition.
type Result struct {
	Path             string  `json:"path"`            // kernel, socket, tcp
	Order            string  `json:"order,omitempty"` // of the pairs; "" for paths that have but one
	Keys             int     `json:"keys"`
	Condition        string  `json:"condition"` // idle, busy
	PairsPerSecond   float64 `json:"pairs_per_second"`
	CPUNsPerPair     float64 `json:"cpu_ns_per_pair"`         // of the whole machine
	SendCPUNsPerPair float64 `json:"send_cpu_ns_per_pair"`    // of the sending process
	RecvCPUNsPerPair float64 `json:"receive_cpu_ns_per_pair"` // of the receiving process
	// ProgramNsPerPair is what the program that folds takes by the kernel's own clock, all
	// that is not fold included (checks, tag, acknowledgements). 0: there is none.
	ProgramNsPerPair float64 `json:"program_ns_per_pair,omitempty"`
	RTTp50Us         float64 `json:"rtt_p50_us"`
	RTTp99Us         float64 `json:"rtt_p99_us"`
}

// Conditions of a run.
const (
	Idle = "idle" // nothing else runs
	Busy = "busy" // two processes per core do nothing but use it
)

// Report is all that was measured.
type Report struct {
	Results []Result `json:"results"`
}

// Quantile returns the q-th quantile (0 to 1) of durations, 0 of none: the least
// one that at least that share of them does not exceed. It sorts them.
func Quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	i := int(q*float64(len(d))+0.999999) - 1
	return d[min(max(i, 0), len(d)-1)]
}

// WriteTable writes the results as a table.
func (r *Report) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "path\torder\tkeys\tcondition\tMpairs/s\tns/pair\tsend\treceive\trtt p50 us\tp99 us\t")
	for _, x := range r.Results {
		order := x.Order
		if order == "" {
			order = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t\n", x.Path, order, x.Keys, x.Condition,
			x.PairsPerSecond/1e6, x.CPUNsPerPair, x.SendCPUNsPerPair, x.RecvCPUNsPerPair, x.RTTp50Us, x.RTTp99Us)
	}
	return w.Flush()
}
