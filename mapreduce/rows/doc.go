// SPDX-License-Identifier: Apache-2.0

// Package rows finds named fields in blocks of records: CSV and TSV (RFC 4180,
// header names), JSON lines (paths, numbers exact) and log lines taken apart by
// a regular expression with named groups. It also reads exact decimal numbers.
package rows
