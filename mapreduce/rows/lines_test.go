// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

func TestJSONL(t *testing.T) {
	jsonl := Format{Kind: JSONL}
	for _, c := range []struct {
		name    string
		want    []string
		content string
		rows    [][]string
		err     []string
	}{
		{"exact numbers", []string{"k", "v"}, `{"k":"a","v":9007199254740993}` + "\n" + `{"v":1.50e3,"k":true}`, [][]string{{"a", "9007199254740993"}, {"true", "1.50e3"}}, nil},
		{"blank lines", []string{"k"}, "\n{\"k\":1}\r\n \t\r\n{\"k\":2}\r\n", [][]string{{"1"}, {"2"}}, nil},
		{
			"paths",
			[]string{"a.b", "a.0.b", "a.1", `a\.b`, `c\\d`},
			`{"a":{"b":1},"a.b":2,"c\\d":"x"}` + "\n" + `{"a":[{"b":3},[4]]}`,
			[][]string{{"1", "<nil>", "<nil>", "2", "x"}, {"<nil>", "3", "[4]", "<nil>", "<nil>"}},
			nil,
		},
		{"null, missing, empty", []string{"a", "b", "c"}, `{"a":null,"c":""}`, [][]string{{"<nil>", "<nil>", ""}}, nil},
		{"unescaped", []string{"k"}, `{"k":"a\n\"\u00e9\ud83d\ude00\/"}`, [][]string{{"a\n\"é😀/"}}, nil},
		{"escaped name", []string{"k"}, `{"\u006b":1}`, [][]string{{"1"}}, nil},
		{"nested stays raw", []string{"k"}, `{"k": { "x" : [1, "}" ] } }`, [][]string{{`{ "x" : [1, "}" ] }`}}, nil},
		{"both a value and its part", []string{"k", "k.x"}, `{"k":{"x":1}}`, [][]string{{`{"x":1}`, "1"}}, nil},
		{"the last of a name counts", []string{"k", "a.b"}, `{"k":1,"a":{"b":1},"k":2,"a":5}`, [][]string{{"2", "<nil>"}}, nil},
		{"gjson's signs mean nothing", []string{"#", "*", "@this", "a|b"}, `{"#":1,"*":2,"@this":3,"a|b":4}`, [][]string{{"1", "2", "3", "4"}}, nil},
		{"no JSON", []string{"k"}, "{\"k\":1}\n{\"k\":\n", [][]string{{"1"}}, []string{"a.txt:2: ", "not valid JSON", "unexpected end"}},
		{"two values", []string{"k"}, "{\"k\":1} {}\n", [][]string{}, []string{"a.txt:1: ", "not valid JSON"}},
		{"no object", []string{"k"}, "[1]\n", [][]string{}, []string{"a.txt:1: ", "not a JSON object"}},
		{"too deep", []string{"k"}, "{\"k\":" + strings.Repeat("[", 1000000) + "\n", [][]string{}, []string{"a.txt:1: ", "deep"}},
		{"deep and long strings", []string{"k"}, "{\"k\":\"" + strings.Repeat("[\\\"", 10000) + "\"}\n", [][]string{{strings.Repeat("[\"", 10000)}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := collect(t, jsonl, c.want, c.content)
			if !reflect.DeepEqual(fieldsOf(got), c.rows) {
				t.Errorf("got %q, want %q", fieldsOf(got), c.rows)
			}
			checkError(t, err, c.err)
		})
	}
}

func TestJSONTypes(t *testing.T) {
	p, err := (&Format{Kind: JSONL}).NewParser([]string{"a", "b", "c", "d", "e", "f"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	content := `{"a":"1","b":1,"c":false,"d":[],"e":null}`
	f, _ := fileOf("a", content)
	if err := p.Reset(blockAt(f, content, 0, len(content))); err != nil || !p.Next() {
		t.Fatal(err, p.Err())
	}
	for i, want := range []Type{Text, Number, Bool, Nested, Missing, Missing} {
		if p.Type(i) != want {
			t.Errorf("type of %s is %d, want %d", p.layout.Want()[i], p.Type(i), want)
		}
	}
}

// FuzzJSON compares with encoding/json: what is valid, and top-level and nested
// members.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a":{"b":[1,2.50]},"k":"\u0041\n"}`, `{"a":{},"a":null}`, `[1]`, `{"k":1e}`, `{"k":01}`, "{\"k\":\"\x01\"}", `{"k":"\ud800"}`, `{"a":[{"b":1},{"b":2}]} `, `{"k":-}`, `{"":{"":1}}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if strings.ContainsAny(line, "\n") || isBlank([]byte(line)) || strings.HasSuffix(line, "\r") {
			return
		}
		want := []string{"k", "a.b", "a.0.b", "a.b.1", `a\.b`}
		got, _, err := collect(t, Format{Kind: JSONL}, want, line)
		var top map[string]any
		d := json.NewDecoder(strings.NewReader(line))
		d.UseNumber()
		object := json.Valid([]byte(line)) && d.Decode(&top) == nil && top != nil
		if object != (err == nil) {
			t.Fatalf("%q: error %v, encoding/json takes it: %v", line, err, object)
		}
		if !object {
			return
		}
		at := func(v any, path ...string) any {
			for _, p := range path {
				switch x := v.(type) {
				case map[string]any:
					v = x[p]
				case []any:
					i := len(x)
					fmt.Sscan(p, &i)
					if i >= len(x) {
						return nil
					}
					v = x[i]
				default:
					return nil
				}
			}
			return v
		}
		for i, v := range []any{at(top, "k"), at(top, "a", "b"), at(top, "a", "0", "b"), at(top, "a", "b", "1"), at(top, "a.b")} {
			field := got[0].fields[i]
			switch v := v.(type) {
			case nil:
				if field != "<nil>" {
					t.Fatalf("%q: %s is %q, should be nil", line, want[i], field)
				}
			case string: // invalid UTF-8 is kept here and replaced there
				if bytes.ContainsRune([]byte(v), 0xfffd) {
					continue
				}
				if field != v {
					t.Fatalf("%q: %s is %q, should be %q", line, want[i], field, v)
				}
			case json.Number:
				if field != v.String() {
					t.Fatalf("%q: %s is %q, should be %q", line, want[i], field, v)
				}
			case bool:
				if field != fmt.Sprint(v) {
					t.Fatalf("%q: %s is %q, should be %v", line, want[i], field, v)
				}
			default:
				if !json.Valid([]byte(field)) {
					t.Fatalf("%q: %s is %q", line, want[i], field)
				}
			}
		}
	})
}

func TestRegexp(t *testing.T) {
	re := regexp.MustCompile(`^(?P<host>\S+) (?P<status>\d+)( (?P<bytes>\d+))?$`)
	content := "a 200 17\nnot this one\r\nb 404\r\nc 500 0"
	got, p, err := collect(t, Format{Kind: Regexp, Pattern: re, Unmatched: Skip}, []string{"bytes", "host", "3"}, content)
	if want := [][]string{{"17", "a", " 17"}, {"<nil>", "b", "<nil>"}, {"0", "c", " 0"}}; err != nil || !reflect.DeepEqual(fieldsOf(got), want) || p.Skipped() != 1 {
		t.Errorf("got %q, %v, skipped %d", fieldsOf(got), err, p.Skipped())
	}
	_, _, err = collect(t, Format{Kind: Regexp, Pattern: re}, []string{"host"}, content)
	checkError(t, err, []string{"a.txt:2: ", "does not match"})
	_, _, err = collect(t, Format{Kind: Regexp, Pattern: re}, []string{"size"}, content)
	checkError(t, err, []string{`"size"`, `"host", "status", "3", "bytes"`})
	_, _, err = collect(t, Format{Kind: Regexp, Pattern: regexp.MustCompile("x")}, []string{"size"}, content)
	checkError(t, err, []string{"no groups"})
}

func TestLines(t *testing.T) {
	got, _, err := collect(t, Format{Kind: Lines}, []string{"line"}, "a\r\n\nb\rc\n\r\nlast\r")
	if want := [][]string{{"a"}, {""}, {"b\rc"}, {""}, {"last\r"}}; err != nil || !reflect.DeepEqual(fieldsOf(got), want) {
		t.Errorf("got %q, %v", fieldsOf(got), err)
	}
	got, _, err = collect(t, Format{Kind: Lines, Delimiter: []byte("||")}, []string{"line"}, "a|b||||c\r\n||d|")
	if want := [][]string{{"a|b"}, {""}, {"c\r\n"}, {"d|"}}; err != nil || !reflect.DeepEqual(fieldsOf(got), want) {
		t.Errorf("got %q, %v", fieldsOf(got), err)
	}
}
