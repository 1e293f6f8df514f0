// SPDX-License-Identifier: Apache-2.0

package castbench

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
)

// Result is what one path did for one size and number of members under one condition.
type Result struct {
	Path      string `json:"path"`
	Members   int    `json:"members"`
	Bytes     int    `json:"bytes"`
	Condition string `json:"condition"`
	// P50us and P99us are from the call until the source knows that all members have the
	// bytes: that their processes have read them (tcp, udp), or that they lie in all
	// regions (kernel, relay).
	P50us float64 `json:"p50_us"`
	P99us float64 `json:"p99_us"`
	// SourceBytes is what the source's interface sent per broadcast.
	SourceBytes float64 `json:"source_bytes"`
	// CPUus is processor time per broadcast: of the whole machine when it is idle, else
	// of all our processes and of the kernel's threads for interrupts. nil: not known.
	CPUus *float64 `json:"cpu_us"`

	// ConfirmedP50us and ConfirmedP99us are until every member's process has checked the
	// digest and said so; ConfirmedCPUus is with that. Of our protocol alone.
	ConfirmedP50us float64  `json:"confirmed_p50_us,omitempty"`
	ConfirmedP99us float64  `json:"confirmed_p99_us,omitempty"`
	ConfirmedCPUus *float64 `json:"confirmed_cpu_us,omitempty"`
	// Rounds is how many broadcasts the latencies are of.
	Rounds int `json:"rounds"`
	Chains int `json:"chains,omitempty"`
	// Again is how many packets per broadcast were sent again.
	Again float64 `json:"again"`
	// Woken is how many times per broadcast an answer woke the source's process.
	Woken      float64 `json:"woken,omitempty"`
	Mismatches int     `json:"mismatches"` // messages that some member got wrong
}

// Report is all that was measured.
type Report struct {
	// Network is what joins the hosts for the kernel's path. A bridge makes each host pay
	// for what a real switch does itself.
	Network string   `json:"network"`
	Results []Result `json:"results"`
}

// find returns the result of a path beside another.
func (r *Report) find(path string, beside *Result) *Result {
	i := slices.IndexFunc(r.Results, func(x Result) bool {
		return x.Path == path && x.Members == beside.Members && x.Bytes == beside.Bytes && x.Condition == beside.Condition
	})
	if i < 0 {
		return nil
	}
	return &r.Results[i]
}

// Best returns the one of the paths without our protocol that has the least p50
// beside x, or nil.
func (r *Report) Best(x *Result) *Result {
	var best *Result
	for _, path := range []string{Sequential, Parallel, Loop} {
		if o := r.find(path, x); o != nil && (best == nil || o.P50us < best.P50us) {
			best = o
		}
	}
	return best
}

// WriteTable writes the results as a table, and what follows from them.
func (r *Report) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "path\tmembers\tbytes\tcondition\trounds\tp50 us\tp99 us\tconfirmed p50\tp99\tsource bytes\tCPU us\tagain\t")
	for i := range r.Results {
		x := &r.Results[i]
		confirmed, confirmed99 := "-", "-"
		if x.ConfirmedP50us > 0 {
			confirmed, confirmed99 = fmt.Sprintf("%.1f", x.ConfirmedP50us), fmt.Sprintf("%.1f", x.ConfirmedP99us)
		}
		cpu := "-"
		if x.CPUus != nil {
			cpu = fmt.Sprintf("%.1f", *x.CPUus)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\t%.1f\t%.1f\t%s\t%s\t%s\t%s\t%.3g\t\n", x.Path, x.Members, sizeWords(x.Bytes), x.Condition, x.Rounds,
			x.P50us, x.P99us, confirmed, confirmed99, humanize.Comma(int64(x.SourceBytes+0.5)), cpu, x.Again)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if slices.ContainsFunc(r.Results, func(x Result) bool { return x.Path == Kernel }) {
		if _, err := fmt.Fprintln(out, networkWords(r.Network)); err != nil {
			return err
		}
	}
	return r.WriteRatios(out)
}

// WriteRatios writes how our protocol compares with the best of the other paths of the
// same run: what is less than nothing is more.
func (r *Report) WriteRatios(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "path\tmembers\tbytes\tcondition\tagainst\ttimes as fast\tless time\tp99 times\tconfirmed times\t")
	n := 0
	for i := range r.Results {
		x := &r.Results[i]
		best := r.Best(x)
		if x.Path != Kernel && x.Path != Relay || best == nil || x.P50us <= 0 || x.P99us <= 0 {
			continue
		}
		n++
		confirmed := "-"
		if x.ConfirmedP50us > 0 {
			confirmed = fmt.Sprintf("%.2f x", best.P50us/x.ConfirmedP50us)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%.2f x\t%.1f %%\t%.2f x\t%s\t\n", x.Path, x.Members, sizeWords(x.Bytes), x.Condition, best.Path,
			best.P50us/x.P50us, 100*(1-x.P50us/best.P50us), best.P99us/x.P99us, confirmed)
	}
	if n == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	return w.Flush()
}

// networkWords says what the kernel's path ran on.
func networkWords(network string) string {
	if network == Bridge {
		return "kernel: the hosts are joined by the machine's bridge (bridge), whose work for each packet is in the figures"
	}
	return "kernel: the hosts are joined by a switch in XDP (xdp-switch), the other paths' by the machine's bridge"
}

// sizeWords writes a size without loss, in a unit where it is a whole number of it.
func sizeWords(n int) string {
	for _, u := range []struct {
		size int
		name string
	}{{1e6, "MB"}, {1 << 20, "MiB"}, {1e3, "KB"}, {1 << 10, "KiB"}} {
		if n >= u.size && n%u.size == 0 {
			return fmt.Sprintf("%d%s", n/u.size, u.name)
		}
	}
	return humanize.Comma(int64(n))
}
