// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/tidwall/gjson"
)

// maxDepth bounds how deep arrays and objects of a JSON record may nest. The
// validator calls itself once per level, so without a bound a line of brackets
// would exhaust the stack.
const maxDepth = 10000

// pathNode is a step of the wanted paths, which together are a tree.
type pathNode struct {
	name     []byte
	index    int // name as an array index; -1: it is none
	children []*pathNode
	wanted   []int // columns that end here
	below    []int // columns that end here or further down
}

// parsePaths makes the tree of the wanted paths.
func parsePaths(want []string) (*pathNode, error) {
	root := &pathNode{}
	for i, path := range want {
		if path == "" {
			return nil, errors.New("a field of JSON lines needs a name")
		}
		node := root
		for _, name := range splitPath(path) {
			node = node.child(name)
			node.below = append(node.below, i)
		}
		node.wanted = append(node.wanted, i)
	}
	return root, nil
}

func (n *pathNode) child(name string) *pathNode {
	for _, c := range n.children {
		if string(c.name) == name {
			return c
		}
	}
	c := &pathNode{name: []byte(name), index: -1}
	if at, err := strconv.Atoi(name); err == nil && strconv.Itoa(at) == name {
		c.index = at
	}
	n.children = append(n.children, c)
	return c
}

// splitPath cuts a path at its dots; a backslash takes away the meaning of a
// dot or backslash after it.
func splitPath(path string) []string {
	var names []string
	var name []byte
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case c == '\\' && i+1 < len(path) && (path[i+1] == '.' || path[i+1] == '\\'):
			i++
			name = append(name, path[i])
		case c == '.':
			names, name = append(names, string(name)), nil
		default:
			name = append(name, c)
		}
	}
	return append(names, string(name))
}

// jsonRecord reads JSON objects into a parser's fields.
type jsonRecord struct {
	fields [][]byte
	types  []Type
	line   []byte
}

// read validates the line and takes the wanted paths out of it. Of several
// members of the same name the last counts, as in encoding/json.
func (r *jsonRecord) read(line []byte, root *pathNode) error {
	if tooDeep(line) {
		return fmt.Errorf("arrays and objects nest more than %d deep", maxDepth)
	}
	if !gjson.ValidBytes(line) {
		return fmt.Errorf("the line is not valid JSON: %w", syntaxError(line))
	}
	r.line = line
	i := skipSpace(line, 0)
	if line[i] != '{' {
		return errors.New("the line is not a JSON object; every line must be one, such as {\"name\": 1}")
	}
	for w := range r.fields {
		r.fields[w], r.types[w] = nil, Missing
	}
	r.object(i, root)
	return nil
}

// object reads the object that begins at i and gives the position after it.
func (r *jsonRecord) object(i int, node *pathNode) int {
	b := r.line
	i = skipSpace(b, i+1)
	for b[i] != '}' {
		from := i
		i = skipString(b, i)
		child := node.find(b[from+1 : i-1])
		i = skipSpace(b, i) + 1 // the colon
		i = r.value(skipSpace(b, i), child)
		i = skipSpace(b, i)
		if b[i] == ',' {
			i = skipSpace(b, i+1)
		}
	}
	return i + 1
}

// array is the same for an array, whose elements' names are 0, 1, 2, ...
func (r *jsonRecord) array(i int, node *pathNode) int {
	b := r.line
	i = skipSpace(b, i+1)
	for at := 0; b[i] != ']'; at++ {
		var child *pathNode
		for _, c := range node.children {
			if c.index == at {
				child = c
			}
		}
		i = skipSpace(b, r.value(i, child))
		if b[i] == ',' {
			i = skipSpace(b, i+1)
		}
	}
	return i + 1
}

// value reads the value at i for node, nil if nobody wants it.
func (r *jsonRecord) value(i int, node *pathNode) int {
	b := r.line
	if node == nil {
		return skipValue(b, i)
	}
	for _, w := range node.below { // an earlier member of this name counts no more
		r.fields[w], r.types[w] = nil, Missing
	}
	var end int
	switch {
	case len(node.children) > 0 && b[i] == '{':
		end = r.object(i, node)
	case len(node.children) > 0 && b[i] == '[':
		end = r.array(i, node)
	default:
		end = skipValue(b, i)
	}
	if len(node.wanted) == 0 {
		return end
	}
	field, typ := b[i:end], Number
	switch b[i] {
	case '"':
		field, typ = unquote(field), Text
	case '{', '[':
		typ = Nested
	case 't', 'f':
		typ = Bool
	case 'n':
		field, typ = nil, Missing
	}
	for _, w := range node.wanted {
		r.fields[w], r.types[w] = field, typ
	}
	return end
}

// find gives the child for a member's name as it stands in the line.
func (n *pathNode) find(name []byte) *pathNode {
	if bytes.IndexByte(name, '\\') >= 0 {
		name = []byte(gjson.Parse(`"` + string(name) + `"`).Str)
	}
	for _, c := range n.children {
		if string(c.name) == string(name) {
			return c
		}
	}
	return nil
}

// unquote gives the content of a JSON string. It allocates only if there is
// something to unescape.
func unquote(b []byte) []byte {
	if bytes.IndexByte(b, '\\') < 0 {
		return b[1 : len(b)-1]
	}
	return notNil([]byte(gjson.ParseBytes(b).Str))
}

// The functions below step over parts of valid JSON.

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\r' || b[i] == '\n') {
		i++
	}
	return i
}

func skipString(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func skipValue(b []byte, i int) int {
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		depth := 0
		for {
			switch b[i] {
			case '"':
				i = skipString(b, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			i++
			if depth == 0 {
				return i
			}
		}
	}
	for i < len(b) {
		switch b[i] {
		case ',', '}', ']', ' ', '\t', '\r', '\n':
			return i
		}
		i++
	}
	return i
}

// tooDeep tells that a line, valid or not, nests deeper than maxDepth.
func tooDeep(line []byte) bool {
	if len(line) <= maxDepth {
		return false
	}
	depth, quoted := 0, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// syntaxError says what is wrong with a line that is no JSON.
func syntaxError(line []byte) error {
	var raw json.RawMessage
	err := json.Unmarshal(line, &raw)
	if err == nil {
		err = errors.New("syntax error")
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("%w (at byte %d of the line)", err, syntax.Offset)
	}
	return err
}
