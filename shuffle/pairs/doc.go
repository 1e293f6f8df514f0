// SPDX-License-Identifier: Apache-2.0

// Package pairs keeps pairs in memory: an arena outside the garbage collector's
// sight, records that wait in buckets by the hash of their key, and the sort by
// key. What a value means is the business of its users: shuffle/fold for
// lanes, the grouped reduce for bytes.
//
// Memory obtained here is not zeroed between uses, is addressed by 32-bit
// references in units of eight bytes, and is given back by [Arena.Close].
package pairs
