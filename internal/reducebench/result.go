// SPDX-License-Identifier: Apache-2.0

package reducebench

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
)

// Result is what one path did for one number of elements and members under one condition.
type Result struct {
	Path      string `json:"path"`
	Elements  int    `json:"elements"` // int32
	Members   int    `json:"members"`
	Condition string `json:"condition"`
	// P50us and P99us are of rounds: from when the last member began it until the last one has the result.
	P50us float64 `json:"round_p50_us"`
	P99us float64 `json:"round_p99_us"`
	// CPUus is processor time per round: of the whole machine when it is idle, else of all our
	// processes and of the kernel's threads for interrupts. 0: not known.
	CPUus float64 `json:"cpu_us"`
	// WireBytes is what the interfaces of all members sent per round.
	WireBytes float64 `json:"wire_bytes"`

	// Rounds is how many rounds the times are of. All were checked.
	Rounds int `json:"-"`
}

// Report is all that was measured.
type Report struct {
	Network string   `json:"-"` // that TCP goes over
	Results []Result `json:"results"`
}

// find returns the result of a path beside another.
func (r *Report) find(path string, beside *Result) *Result {
	i := slices.IndexFunc(r.Results, func(x Result) bool {
		return x.Path == path && x.Members == beside.Members && x.Elements == beside.Elements && x.Condition == beside.Condition
	})
	if i < 0 {
		return nil
	}
	return &r.Results[i]
}

// Best returns the one of the paths over TCP that has the least p50 beside x, or nil.
func (r *Report) Best(x *Result) *Result {
	var best *Result
	for _, path := range []string{Server, Ring} {
		if o := r.find(path, x); o != nil && (best == nil || o.P50us < best.P50us) {
			best = o
		}
	}
	return best
}

// WriteTable writes the results as a table, and what follows from them.
func (r *Report) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "path\telements\tmembers\tcondition\trounds\tp50 us\tp99 us\tCPU us\twire bytes\t")
	for i := range r.Results {
		x := &r.Results[i]
		cpu := "-"
		if x.CPUus > 0 {
			cpu = fmt.Sprintf("%.1f", x.CPUus)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%.1f\t%.1f\t%s\t%s\t\n", x.Path, humanize.Comma(int64(x.Elements)), x.Members, x.Condition, x.Rounds,
			x.P50us, x.P99us, cpu, humanize.Comma(int64(x.WireBytes+0.5)))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if slices.ContainsFunc(r.Results, func(x Result) bool { return nodeOf(x.Path) == Kernel }) {
		words := "frames of auto and kernel: the hosts are joined by a switch in XDP, the other paths', and of auto's streams, by the machine's bridge"
		if r.Network == Switch {
			words = "all but user: the hosts are joined by a switch in XDP, which no packet larger than the MTU passes"
		}
		if _, err := fmt.Fprintln(out, words); err != nil {
			return err
		}
	}
	return r.WriteRatios(out)
}

// WriteRatios writes how our protocol compares with the better of the paths over TCP of the
// same run: what is less than nothing is more.
func (r *Report) WriteRatios(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "path\telements\tmembers\tcondition\tagainst\ttimes as fast\tless time\tp99 times\tCPU times\t")
	n := 0
	for i := range r.Results {
		x := &r.Results[i]
		best := r.Best(x)
		if x.Path == Server || x.Path == Ring || best == nil || x.P50us <= 0 || x.P99us <= 0 {
			continue
		}
		n++
		cpu := "-"
		if x.CPUus > 0 && best.CPUus > 0 {
			cpu = fmt.Sprintf("%.2f x", best.CPUus/x.CPUus)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%.2f x\t%.1f %%\t%.2f x\t%s\t\n", x.Path, humanize.Comma(int64(x.Elements)), x.Members, x.Condition, best.Path,
			best.P50us/x.P50us, 100*(1-x.P50us/best.P50us), best.P99us/x.P99us, cpu)
	}
	if n == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	return w.Flush()
}
