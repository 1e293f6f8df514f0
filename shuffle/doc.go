// SPDX-License-Identifier: Apache-2.0

// Package shuffle is how pairs travel from mappers to reducers. Its parts that
// need no network stand in folders of their own: shuffle/fold combines pairs
// per key, shuffle/spill keeps and merges sorted runs.
package shuffle
