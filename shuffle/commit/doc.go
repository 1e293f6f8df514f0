// SPDX-License-Identifier: Apache-2.0

// Package commit fixes what one map task has for one partition: each key once,
// in the order of its hash, cut into frames that are the same whoever makes
// them again. A [Builder] takes the pairs, an [Output] holds the frames and a
// [Manifest] that describes them.
//
// Frames of keyed pairs come first, by key class ascending, then long ones,
// each in the order of (64-bit hash under the job's seed, key). Values of a
// class take 4 bytes if all of that class in this output fit an int32, else 8.
// All frames of a class but its last are full. So the bytes depend on the set
// of pairs alone, not on the order in which they came.
package commit
