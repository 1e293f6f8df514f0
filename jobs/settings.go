// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"errors"
	"fmt"
	"reflect"
)

// Setting is one field of a job's options or of Common.
type Setting struct {
	Name  string // as in --min-count, and in job files
	Short string // one-letter flag, or ""
	Help  string
	Value reflect.Value // settable: bool, string, int, int64, float64 or []string
}

// Settings lists the settings of options (Options or *Common), a pointer to a
// struct: its fields with a name tag, those of embedded structs too.
func Settings(options any) []Setting {
	v := reflect.ValueOf(options).Elem()
	var settings []Setting
	for _, f := range reflect.VisibleFields(v.Type()) {
		if name := f.Tag.Get("name"); name != "" {
			settings = append(settings, Setting{name, f.Tag.Get("short"), f.Tag.Get("help"), v.FieldByIndex(f.Index)})
		}
	}
	return settings
}

// Set gives the setting a value as YAML or JSON decode it. A list setting takes
// a single value too.
func (s Setting) Set(value any) error {
	v := reflect.ValueOf(value)
	switch s.Value.Kind() {
	case reflect.Bool:
		if b, ok := value.(bool); ok {
			s.Value.SetBool(b)
			return nil
		}
		return errors.New("must be true or false")
	case reflect.Int, reflect.Int64:
		if v.IsValid() && v.CanInt() && !s.Value.OverflowInt(v.Int()) {
			s.Value.SetInt(v.Int())
			return nil
		}
		return errors.New("must be a whole number")
	case reflect.Float64:
		if v.IsValid() && v.CanInt() {
			s.Value.SetFloat(float64(v.Int()))
			return nil
		}
		if v.IsValid() && v.CanFloat() {
			s.Value.SetFloat(v.Float())
			return nil
		}
		return errors.New("must be a number")
	case reflect.String:
		text, err := scalarText(value)
		if err != nil {
			return err
		}
		s.Value.SetString(text)
		return nil
	case reflect.Slice:
		list, ok := value.([]any)
		if !ok {
			list = []any{value}
		}
		texts := make([]string, len(list))
		for i, item := range list {
			var err error
			if texts[i], err = scalarText(item); err != nil {
				return errors.New("must be a text or a list of texts")
			}
		}
		s.Value.Set(reflect.ValueOf(texts))
		return nil
	}
	return fmt.Errorf("cannot be set: it is a %s", s.Value.Kind())
}

// scalarText takes numbers as texts too: width: 5 means the same as width: "5".
func scalarText(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case int, int64, uint64, float64:
		return fmt.Sprint(v), nil
	}
	return "", errors.New("must be a text")
}
