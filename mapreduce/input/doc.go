// SPDX-License-Identifier: Apache-2.0

// Package input finds what a job reads and hands it to map tasks as blocks of
// whole records.
//
// It turns patterns (files, globs, directories, standard input) into files,
// files into splits, and a split into a sequence of blocks. It knows about
// compression, record delimiters, text encodings and quoted newlines. It does
// not know about fields, keys or values.
//
// What the splits are depends on the input and on [Options] alone, never on
// the number of cores or workers.
package input
