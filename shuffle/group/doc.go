// SPDX-License-Identifier: Apache-2.0

// Package group collects pairs whose values are bytes and gives them back
// grouped: in order of key and, within a key, of the value's bytes. What does
// not fit in memory goes to sorted runs.
package group
