// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The groups in which help shows flags.
const (
	ownGroup    = "options"
	commonGroup = "common"
	reportGroup = "report"
)

// groupKey is the annotation that holds a flag's group.
const groupKey = "quern_group"

// eachOption calls fn for every field that has a name tag in the struct that
// options points to, those of embedded structs included.
func eachOption(options any, fn func(tag reflect.StructTag, field reflect.Value)) {
	var visit func(value reflect.Value)
	visit = func(value reflect.Value) {
		for i := range value.NumField() {
			field := value.Type().Field(i)
			switch {
			case field.Anonymous && field.Type.Kind() == reflect.Struct:
				visit(value.Field(i))
			case field.Tag.Get("name") != "":
				fn(field.Tag, value.Field(i))
			}
		}
	}
	visit(reflect.ValueOf(options).Elem())
}

// addStructFlags makes a flag of every option of the struct that options points
// to. The fields' values are the defaults. A short flag that is taken is left out.
func addStructFlags(flags *pflag.FlagSet, group string, options any) {
	eachOption(options, func(tag reflect.StructTag, field reflect.Value) {
		name, short, help := tag.Get("name"), tag.Get("short"), tag.Get("help")
		if flags.ShorthandLookup(short) != nil {
			short = ""
		}
		switch p := field.Addr().Interface().(type) {
		case *bool:
			flags.BoolVarP(p, name, short, *p, help)
		case *string:
			flags.StringVarP(p, name, short, *p, help)
		case *int:
			flags.IntVarP(p, name, short, *p, help)
		case *int64:
			flags.Int64VarP(p, name, short, *p, help)
		case *float64:
			flags.Float64VarP(p, name, short, *p, help)
		case *[]string:
			flags.StringArrayVarP(p, name, short, *p, help)
		default:
			return // the test of all jobs' flags finds these
		}
		inGroup(flags, group, name)
	})
}

func inGroup(flags *pflag.FlagSet, group string, names ...string) {
	for _, name := range names {
		// SetAnnotation fails only for a flag that does not exist.
		_ = flags.SetAnnotation(name, groupKey, []string{group})
	}
}

// structKeys returns the names of the options that addStructFlags makes flags of.
func structKeys(options any) []string {
	var names []string
	eachOption(options, func(tag reflect.StructTag, _ reflect.Value) { names = append(names, tag.Get("name")) })
	return names
}

// positional returns the name of the option that the first argument fills (the
// field with the tag arg:"1"), or "".
func positional(options any) string {
	var name string
	eachOption(options, func(tag reflect.StructTag, _ reflect.Value) {
		if tag.Get("arg") == "1" {
			name = tag.Get("name")
		}
	})
	return name
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
