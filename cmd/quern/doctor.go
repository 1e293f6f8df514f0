// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/quernmr/quern/bpf"
)

// doctorReport is what --json prints.
type doctorReport struct {
	*bpf.Report
	Removed   []string `json:"removed,omitempty"`   // with --clean
	Leftovers []string `json:"leftovers,omitempty"` // of processes that are gone
}

// errCannotFold is doctor's own failure. What is missing stands in the report.
var errCannotFold = errors.New("the kernel can't fold here")

func (a *app) doctorCommand() *cobra.Command {
	settings := newShuffleSettings()
	var root string
	var asJSON, clean bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "say what this machine can do for the fold in the kernel, and what it lacks",
		Long: `Says what this machine can do for the fold in the kernel, and what it lacks, each
with the one command or right that mends it. It loads the programs, folds known
frames in them and checks the sums. The last line says who folds with the
settings as they are, and why.

The settings can also stand in the environment and the configuration file (see
'quern help configuration'). 'quern worker' works by them; doctor says what they
come to.

Without --interface no network interface is looked at. With it, a program that
passes everything is attached to it for a moment, unless one is there already;
with some drivers that interrupts traffic for an instant. Doctor displaces
nothing, whatever --xdp-replace says.

Exit codes: 0 if the kernel can fold, 1 if something that it needs is missing or
leftovers could not be removed, 2 for wrong usage (also --shuffle kernel without
--interface). What stands in the table as a warning makes no difference.`,
		Example: `  quern doctor                        the machine
  sudo quern doctor --interface eth0  an interface, too
  sudo quern doctor --clean           remove what killed processes have left`,
		GroupID: otherGroup,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := a.configure(cmd, ""); err != nil {
				return err
			}
			mode, o, err := settings.parse(cmd)
			if err != nil {
				return err
			}
			shares, err := settings.shares(cmd)
			if err != nil {
				return err
			}
			r := doctorReport{}
			var cleanErr error
			if clean {
				r.Removed, cleanErr = bpf.CleanAll(root)
			}
			r.Report = bpf.Examine(mode, o, root)
			machine, err := memlimit.FromSystem()
			if err != nil {
				machine = 0
			}
			r.Checks = append(r.Checks, shares.checks(machine)...)
			r.Leftovers = bpf.Leftovers(root)
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), r)
			} else {
				err = r.print(cmd.OutOrStdout(), clean, colours(cmd.OutOrStdout(), a.environ))
			}
			if err != nil {
				return err
			}
			if cleanErr != nil {
				return fmt.Errorf("remove leftovers: %w", cleanErr)
			}
			switch {
			case !r.KernelFold:
				return errCannotFold
			case r.Folds == "":
				return usageErrorf(cmd, "--shuffle kernel needs a network interface: name it by --interface")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	addFlags(cmd.Flags(), shuffleGroup, settings)
	completeShuffle(cmd)
	cmd.Flags().BoolVar(&clean, "clean", false, "remove what processes that are gone have left; those that live are not touched")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	cmd.Flags().StringVar(&root, "run-dir", bpf.Root, "`folder` that instances have their state in")
	return cmd
}

// colours says whether a table may be coloured.
func colours(w io.Writer, environ []string) bool {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return false
	}
	for _, e := range environ {
		if name, value, _ := strings.Cut(e, "="); name == "NO_COLOR" && value != "" || e == "TERM=dumb" {
			return false
		}
	}
	return true
}

func (r *doctorReport) print(w io.Writer, clean, colour bool) error {
	var b strings.Builder
	width := 0
	for _, c := range r.Checks {
		width = max(width, len(c.Name))
	}
	codes := map[bpf.State]string{bpf.OK: "32", bpf.Warning: "33", bpf.Missing: "31"}
	for i, c := range r.Checks {
		state := fmt.Sprintf("%-7s", c.State)
		if colour {
			state = "\x1b[" + codes[c.State] + "m" + state + "\x1b[0m"
		}
		fmt.Fprintf(&b, "%s  %-*s  %s", state, width, c.Name, c.Found)
		if c.Since != "" && c.State != bpf.OK {
			fmt.Fprintf(&b, " (since Linux %s)", c.Since)
		}
		b.WriteByte('\n')
		// What mends several things is said behind the last of them.
		if c.Fix != "" && (i+1 == len(r.Checks) || r.Checks[i+1].Fix != c.Fix) {
			fmt.Fprintf(&b, "%7s  %*s  -> %s\n", "", width, "", c.Fix)
		}
	}
	if clean {
		if len(r.Removed) == 0 {
			b.WriteString("\nno leftovers to remove\n")
		} else {
			b.WriteString("\nremoved:\n")
		}
		for _, s := range r.Removed {
			fmt.Fprintf(&b, "  %s\n", s)
		}
	}
	if len(r.Leftovers) > 0 {
		b.WriteString("\nleft by processes that are gone (doctor --clean, as root, removes it):\n")
		for _, s := range r.Leftovers {
			fmt.Fprintf(&b, "  %s\n", s)
		}
	}
	fmt.Fprintf(&b, "\n%s: %s\n", r.Mode, r.Why)
	_, err := io.WriteString(w, b.String())
	return err
}
