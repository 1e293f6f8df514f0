// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/quernmr/quern/jobs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The groups in which help shows flags.
const (
	ownGroup    = "options"
	commonGroup = "common"
	reportGroup = "report"
)

// groupKey is the annotation that holds a flag's group, titleKey that of flags which can
// be set on the command line alone.
const (
	groupKey = "quern_group"
	titleKey = "quern_title"
)

// addFlags makes a flag of every setting of options (a pointer to a struct). Their
// values are the defaults. A short flag that is taken is left out.
func addFlags(flags *pflag.FlagSet, group string, options any) {
	for _, s := range jobs.Settings(options) {
		if flags.ShorthandLookup(s.Short) != nil {
			s.Short = ""
		}
		switch p := s.Value.Addr().Interface().(type) {
		case *bool:
			flags.BoolVarP(p, s.Name, s.Short, *p, s.Help)
		case *string:
			flags.StringVarP(p, s.Name, s.Short, *p, s.Help)
		case *int:
			flags.IntVarP(p, s.Name, s.Short, *p, s.Help)
		case *int64:
			flags.Int64VarP(p, s.Name, s.Short, *p, s.Help)
		case *float64:
			flags.Float64VarP(p, s.Name, s.Short, *p, s.Help)
		case *[]string:
			flags.StringArrayVarP(p, s.Name, s.Short, *p, s.Help)
			showAsList(flags.Lookup(s.Name))
		default:
			continue // the test of all jobs' flags finds these
		}
		inGroup(flags, group, s.Name)
	}
}

// listValue is a flag that takes several values, under a name for people.
type listValue struct {
	pflag.Value
	pflag.SliceValue
}

func (listValue) Type() string { return "list" }

func showAsList(f *pflag.Flag) {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		if len(list.GetSlice()) == 0 {
			f.DefValue = ""
		}
		f.Value = listValue{f.Value, list}
	}
}

func inGroup(flags *pflag.FlagSet, group string, names ...string) {
	for _, name := range names {
		// SetAnnotation fails only for a flag that does not exist.
		_ = flags.SetAnnotation(name, groupKey, []string{group})
	}
}

// keysOf returns the names of the settings of options.
func keysOf(options any) []string {
	var names []string
	for _, s := range jobs.Settings(options) {
		names = append(names, s.Name)
	}
	return names
}

// positional returns the name of the setting of a job that the first argument
// fills, or "": the field with the tag arg:"1".
func positional(options any) string {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(options).Elem()) {
		if name := f.Tag.Get("name"); f.Tag.Get("arg") == "1" {
			return name
		}
	}
	return ""
}

// placeholder is how the argument that fills an option is called in help.
func placeholder(option string) string { return strings.ToUpper(option) }

// setFlag gives a flag a value that does not come from the command line.
func setFlag(flag *pflag.Flag, values []string) error {
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		return list.Replace(values)
	}
	if len(values) != 1 {
		return errors.New("takes one value, not a list")
	}
	if err := flag.Value.Set(values[0]); err != nil {
		return fmt.Errorf("%q is %s", values[0], wanted(flag))
	}
	return nil
}

// wanted says what is wrong with a value that a flag does not take.
func wanted(flag *pflag.Flag) string {
	switch flag.Value.Type() {
	case "int", "int64", "uint64":
		return "no whole number"
	case "float64":
		return "no number"
	case "bool":
		return "neither true nor false"
	case "duration":
		return "no time such as 5ms or 1s"
	case "percent":
		return "no chance: write 5% or 0.05, at most 100% or 1"
	}
	return "no valid value"
}

// flagError turns what the flag parser says into a usage error.
func (a *app) flagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	if !cmd.HasParent() { // flags of a command that does not exist
		for _, arg := range a.args {
			if !strings.HasPrefix(arg, "-") {
				return unknownCommand(cmd, arg)
			}
		}
	}
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	var missing *pflag.ValueRequiredError
	switch {
	case errors.As(err, &unknown):
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			// A long flag with one dash is the usual reason.
			long, _, _ := strings.Cut(short, "=")
			if cmd.Flags().Lookup(long) != nil {
				return usageErrorf(cmd, "unknown flag -%s, did you mean --%s?", short, long)
			}
			return usageErrorf(cmd, "unknown flag -%s", unknown.GetSpecifiedName())
		}
		name := unknown.GetSpecifiedName()
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		if near := nearest(name, names); near != "" {
			return usageErrorf(cmd, "unknown flag --%s, did you mean --%s?", name, near)
		}
		return usageErrorf(cmd, "unknown flag --%s", name)
	case errors.As(err, &invalid):
		f := invalid.GetFlag()
		if errors.Is(err, strconv.ErrRange) {
			return usageErrorf(cmd, "--%s: %q is out of range", f.Name, invalid.GetValue())
		}
		return usageErrorf(cmd, "--%s: %q is %s", f.Name, invalid.GetValue(), wanted(f))
	case errors.As(err, &missing):
		return usageErrorf(cmd, "--%s needs a value", missing.GetFlag().Name)
	}
	return usageErrorf(cmd, "%w", err)
}
