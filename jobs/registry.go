// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
)

// Definition is a ready-made job.
type Definition struct {
	Name    string
	Short   string // one line, for lists
	Long    string // what it does, what a row of its result is
	Example string // command lines
	// New returns the job's options with their defaults.
	New func() Options
}

// Options are a job's own settings: a pointer to a struct whose exported fields
// of the types bool, string, int, int64, float64 and []string carry the tags
// `name:"min-count" help:"keep words that occur at least that often"`, and
// perhaps `short:"n"` (a one-letter flag). The value before parsing is the default.
type Options interface {
	// Build checks the options and makes the job. in is what the common input
	// settings say; Build may change it (aggregate on CSV sets in.Format, ...)
	// before inputs are discovered. inputs are the paths as given, for jobs that
	// tell them apart (join).
	Build(in *input.Options, inputs []string) (mapreduce.Runnable, error)
}

// All returns the ready-made jobs in the order in which help shows them.
func All() []Definition { return definitions }

// Lookup returns the job of that name.
func Lookup(name string) (Definition, bool) {
	for _, d := range definitions {
		if d.Name == name {
			return d, true
		}
	}
	return Definition{}, false
}
