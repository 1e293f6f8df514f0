// SPDX-License-Identifier: Apache-2.0

// Package quantise adds up vectors of floats over the members of a group by adding integers only, so that the
// result is the same to the last bit for any order, any grouping of terms to members and any path, and says how far
// it can be from the exact sum. Values are rounded to multiples of a power of two: one for every block of values, as
// fine as the largest of them allows, or one that the user fixes.
package quantise
