// SPDX-License-Identifier: Apache-2.0

package output

import "fmt"

// NewEncoder returns the encoder of a text format (TSV, CSV, JSONL, Plain) for rows of
// the schema. Rows are to have as many cells as the schema has columns: missing
// ones are written as Null, surplus ones are left out.
//
// It returns ErrUnsupported for other formats, and for a schema that the format
// cannot express.
func NewEncoder(f Format, s Schema) (Encoder, error) {
	switch f {
	case TSV, "":
		return newTSVEncoder(s), nil
	case Plain:
		return &plainEncoder{keys: len(s.Keys), values: len(s.Values)}, nil
	case CSV:
		return newCSVEncoder(s), nil
	case JSONL:
		return newJSONLEncoder(s)
	case Parquet:
		return nil, fmt.Errorf("format %q has no encoder, it takes rows: %w", f, ErrUnsupported)
	}
	return nil, unknownFormat(f)
}

// ParseFormat returns the format of that name, or ErrUnsupported.
func ParseFormat(name string) (Format, error) {
	switch f := Format(name); f {
	case TSV, CSV, JSONL, Parquet, Plain:
		return f, nil
	}
	return "", unknownFormat(Format(name))
}

func unknownFormat(f Format) error {
	return fmt.Errorf("format %q: %w: choose one of tsv, csv, jsonl, parquet, plain", f, ErrUnsupported)
}

// fits says whether a row has the schema's number of cells.
func fits(r *Row, keys, values int) bool {
	return len(r.Keys) == keys && len(r.Values) == values
}

// fit copies a row to the schema's number of cells.
func fit(r *Row, keys, values int) *Row {
	c := &Row{Keys: make([]Value, keys), Values: make([]Value, values)}
	copy(c.Keys, r.Keys)
	copy(c.Values, r.Values)
	return c
}
