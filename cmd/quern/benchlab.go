// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"

	"github.com/quernmr/quern/internal/foldbench"
	"github.com/spf13/cobra"
)

// memberReport is what a benchmark of members on a lab's hosts has found.
type memberReport interface {
	WriteTable(io.Writer) error
	WriteRatios(io.Writer) error
}

// benchMembers runs a benchmark whose members are processes of this program, in the hidden role, beside others that only
// keep processors busy, and writes its report.
func (a *app) benchMembers(cmd *cobra.Command, role string, asJSON, quiet bool, run func(place, spin foldbench.Place, log io.Writer) (memberReport, error)) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log := io.Writer(a.stderr)
	if quiet {
		log = io.Discard
	}
	as := func(role string) foldbench.Place { return foldbench.Place{Command: []string{self, "bench", role}} }
	report, err := run(as(role), as(roleCommand), log)
	if err != nil {
		return err
	}
	if !asJSON {
		return report.WriteTable(cmd.OutOrStdout())
	}
	if err := report.WriteRatios(log); err != nil {
		return err
	}
	return writeJSON(cmd.OutOrStdout(), report)
}

// setUnlessChanged sets what flags that were not given mean beside one that was.
func setUnlessChanged(cmd *cobra.Command, presets map[string]func()) {
	for name, set := range presets {
		if !cmd.Flags().Changed(name) {
			set()
		}
	}
}
