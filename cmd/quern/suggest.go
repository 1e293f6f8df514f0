// SPDX-License-Identifier: Apache-2.0

package main

import "strings"

// nearest returns the candidate that takes the fewest edits to get to from
// name, or "" if none is near enough to have been meant. Of equally near ones
// the first wins.
func nearest(name string, candidates []string) string {
	name = strings.ToLower(name)
	best, fewest := "", max(2, len(name)/3)+1
	for _, c := range candidates {
		edits := editDistance(name, strings.ToLower(c))
		if strings.HasPrefix(c, name) && len(name) > 1 {
			edits = min(edits, 1)
		}
		if edits < fewest && edits < len(c) {
			best, fewest = c, edits
		}
	}
	return best
}

// editDistance counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b (optimal string alignment).
func editDistance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
