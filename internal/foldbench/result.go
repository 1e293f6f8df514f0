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
	Path           string  `json:"path"`            // kernel, socket, tcp
	Order          string  `json:"order,omitempty"` // of the pairs; "" for paths that have but one
	Keys           int     `json:"keys"`
	Condition      string  `json:"condition"` // idle, busy
	PairsPerSecond float64 `json:"pairs_per_second"`
	// CPUNsPerPair is of the whole machine when it is idle, else of both processes and
	// of the kernel's threads for interrupts.
	CPUNsPerPair float64 `json:"cpu_ns_per_pair"`
	// SendCPUNsPerPair of the kernel path is that of sending to a receiver that knows
	// nothing of the frames and drops them at its interface; of the others, all but RecvCPUNsPerPair.
	SendCPUNsPerPair float64 `json:"send_cpu_ns_per_pair"`
	// RecvCPUNsPerPair of the kernel path is the rest; of the others, what the
	// receiving process used.
	RecvCPUNsPerPair float64 `json:"receive_cpu_ns_per_pair"`
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

	tripsOnly bool // round trips are all that was asked for
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

// WriteTable writes the results as a table, and what follows from them.
func (r *Report) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "path\torder\tkeys\tcondition\t")
	if !r.tripsOnly {
		fmt.Fprint(w, "Mpairs/s\tns/pair\tsend\treceive\tprogram\t")
	}
	fmt.Fprintln(w, "rtt p50 us\tp99 us\t")
	for _, x := range r.Results {
		order := x.Order
		if order == "" {
			order = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t", x.Path, order, x.Keys, x.Condition)
		if !r.tripsOnly {
			program := "" // there is none
			if x.ProgramNsPerPair > 0 {
				program = fmt.Sprintf("%.1f", x.ProgramNsPerPair)
			}
			fmt.Fprintf(w, "%.1f\t%.1f\t%.1f\t%.1f\t%s\t", x.PairsPerSecond/1e6, x.CPUNsPerPair, x.SendCPUNsPerPair, x.RecvCPUNsPerPair, program)
		}
		fmt.Fprintf(w, "%.1f\t%.1f\t\n", x.RTTp50Us, x.RTTp99Us)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return r.WriteRatios(out)
}

// WriteRatios writes how the kernel path compares with the others of the same
// run: how many times as much they take.
func (r *Report) WriteRatios(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "against kernel\torder\tkeys\tcondition\t")
	if !r.tripsOnly {
		fmt.Fprint(w, "ns/pair\tpairs/s\t")
	}
	fmt.Fprintln(w, "rtt p50\tp99\t")
	times := func(other, kernel float64) string {
		if other <= 0 || kernel <= 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f x", other/kernel)
	}
	n := 0
	for _, k := range r.Results {
		if k.Path != "kernel" {
			continue
		}
		for _, x := range r.Results {
			if x.Path == "kernel" || x.Keys != k.Keys || x.Condition != k.Condition {
				continue
			}
			order := x.Order
			if order == "" {
				order = "-"
			}
			n++
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t", x.Path, order, x.Keys, x.Condition)
			if !r.tripsOnly {
				fmt.Fprintf(w, "%s\t%s\t", times(x.CPUNsPerPair, k.CPUNsPerPair), times(x.PairsPerSecond, k.PairsPerSecond))
			}
			fmt.Fprintf(w, "%s\t%s\t\n", times(x.RTTp50Us, k.RTTp50Us), times(x.RTTp99Us, k.RTTp99Us))
		}
	}
	if n == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	return w.Flush()
}
