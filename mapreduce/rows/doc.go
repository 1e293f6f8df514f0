// SPDX-License-Identifier: Apache-2.0

// Package rows finds named fields in blocks of records: CSV (RFC 4180, header
// names), TSV, JSON lines (paths, numbers exact) and log lines taken apart by a
// regular expression with named groups. It also reads exact decimal numbers.
//
// A [Format] says what records look like. [Format.Prepare] checks it against
// the wanted columns and gives a [Layout], which all goroutines of a job share;
// each of them makes its own [Parser] of it and feeds that with blocks:
//
//	layout, err := format.Prepare([]string{"station", "temperature"}, header)
//	parser := layout.NewParser()
//	for each block {
//		err := parser.Reset(block)
//		for parser.Next() {
//			station, temperature := parser.Field(0), parser.Field(1)
//		}
//		err = parser.Err()
//	}
package rows
