// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/vm"

	"github.com/quernmr/quern/mapreduce/rows"
)

// A condition is an expression over the columns of a row. Goroutines may share
// it; each runs it by a check of its own.
type condition struct {
	text    string
	program *vm.Program
	columns []string // that it reads
}

func parseCondition(text string) (*condition, error) {
	tree, err := parser.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("--where: %s", firstLine(err))
	}
	names := columnNames{declared: map[string]bool{}, called: map[string]bool{}}
	ast.Walk(&tree.Node, &names)
	options := []expr.Option{expr.AllowUndefinedVariables(), expr.AsBool()}
	for _, name := range names.used {
		// A column may be called like a function of the language (date, count, max).
		if !names.called[name] {
			options = append(options, expr.DisableBuiltin(name))
		}
	}
	if names.env > names.columns {
		return nil, errors.New("--where: $env can only be used as $env[\"NAME\"], with the name of a column")
	}
	program, err := expr.Compile(text, options...)
	if err != nil {
		return nil, fmt.Errorf("--where: %s", firstLine(err))
	}
	c := &condition{text: text, program: program}
	seen := map[string]bool{}
	for _, name := range names.used {
		if !seen[name] && !names.declared[name] {
			seen[name] = true
			c.columns = append(c.columns, name)
		}
	}
	return c, nil
}

// columnNames collects what an expression refers to: plain names, and names of
// any spelling as $env["NAME"].
type columnNames struct {
	used     []string
	declared map[string]bool // by let
	called   map[string]bool // as functions
	env      int             // how often $env stands there
	columns  int             // how often as $env["NAME"]
}

func (c *columnNames) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.IdentifierNode:
		if n.Value == "$env" {
			c.env++
		} else {
			c.used = append(c.used, n.Value)
		}
	case *ast.BuiltinNode:
		c.called[n.Name] = true
	case *ast.CallNode:
		if callee, ok := n.Callee.(*ast.IdentifierNode); ok {
			c.called[callee.Value] = true
		}
	case *ast.MemberNode:
		base, ok := n.Node.(*ast.IdentifierNode)
		name, literal := n.Property.(*ast.StringNode)
		if ok && literal && base.Value == "$env" {
			c.columns++
			c.used = append(c.used, name.Value)
		}
	case *ast.VariableDeclaratorNode:
		c.declared[n.Name] = true
	}
}

// A conditionCheck asks a condition about rows, for one goroutine.
type conditionCheck struct {
	*condition
	vm  vm.VM
	env map[string]any
	// typed: fields have types of their own, so that a string is a string.
	typed bool
}

func (c *condition) newCheck(typed bool) *conditionCheck {
	return &conditionCheck{condition: c, env: make(map[string]any, len(c.columns)), typed: typed}
}

// holds says whether the condition is true of the parser's record, whose wanted
// columns from first on are those of the condition.
func (c *conditionCheck) holds(p *rows.Parser, first int) (bool, error) {
	for i, name := range c.columns {
		v, err := conditionValue(p.Field(first+i), p.Type(first+i), c.typed)
		if err != nil {
			return false, p.FieldError(first+i, err)
		}
		c.env[name] = v
	}
	result, err := c.vm.Run(c.program, c.env)
	if err != nil {
		return false, p.RecordError(fmt.Errorf("--where %s: %s", c.text, firstLine(err)))
	}
	ok, isBool := result.(bool)
	if !isBool {
		return false, p.RecordError(fmt.Errorf("--where %s: gives %v, but should be true or false", c.text, result))
	}
	return ok, nil
}

// firstLine leaves out the picture of the expression that follows.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// conditionValue is a field as an expression sees it: nil if it is not there;
// a number if it is written as one; true, false, lists and objects of JSON as
// such; else a string.
func conditionValue(field []byte, t rows.Type, typed bool) (any, error) {
	switch t {
	case rows.Missing:
		return nil, nil
	case rows.Bool:
		return field[0] == 't', nil
	case rows.Nested:
		d := json.NewDecoder(bytes.NewReader(field))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			return nil, err
		}
		return plainNumbers(v)
	case rows.Number:
		if v := number(field); v != nil {
			return v, nil
		}
		return nil, fmt.Errorf("the number %q is beyond what --where can compute with", field)
	}
	if !typed && looksLikeNumber(field) {
		if v := number(field); v != nil {
			return v, nil
		}
	}
	return string(field), nil
}

// plainNumbers turns the numbers within a JSON value into what number makes of
// them, so that integers stay exact.
func plainNumbers(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case json.Number:
		n := number([]byte(v))
		if n == nil {
			return nil, fmt.Errorf("the number %q is beyond what --where can compute with", v)
		}
		return n, nil
	case []any:
		for i := range v {
			if v[i], err = plainNumbers(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range v {
			if v[k], err = plainNumbers(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

func number(field []byte) any {
	if i, err := strconv.Atoi(string(field)); err == nil {
		return i
	}
	if f, err := strconv.ParseFloat(string(field), 64); err == nil {
		return f
	}
	return nil
}

// looksLikeNumber is true of decimal numbers as people write quantities. Texts
// such as 007 or +49 are rather codes, and stay strings.
func looksLikeNumber(b []byte) bool {
	if len(b) > 0 && b[0] == '-' {
		b = b[1:]
	}
	if len(b) == 0 || len(b) > 1 && b[0] == '0' && '0' <= b[1] && b[1] <= '9' {
		return false
	}
	if b[0] != '.' && (b[0] < '0' || b[0] > '9') {
		return false
	}
	_, ok := parseDigits(b)
	return ok
}
