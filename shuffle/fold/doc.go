// SPDX-License-Identifier: Apache-2.0

// Package fold combines pairs per key: a value is a row of 64-bit lanes, each
// with an operation. It holds the table that a mapper folds into, the chunks
// that pairs wait in, and the drain that gives each key once.
package fold
