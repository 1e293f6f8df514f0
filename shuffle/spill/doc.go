// SPDX-License-Identifier: Apache-2.0

// Package spill keeps sorted runs of pairs on disk, compressed and checksummed,
// and merges them. A pair is a key and a payload, both bytes; what a payload
// means is its user's business.
package spill
