// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"
	"math/rand/v2"
	"strconv"
)

// generate writes the links of so many nodes. Half of them go where an earlier link goes, so few nodes
// have many links to them and many have few; one node in five has none to others. The same
// links come everywhere.
func generate(w io.Writer, nodes int) error {
	rnd := rand.NewPCG(3, 0)
	below := func(n int) int { return int(rnd.Uint64() % uint64(n)) }
	out := bufio.NewWriter(w)
	var targets []int
	var line []byte
	for from := range nodes {
		if below(5) == 0 {
			continue
		}
		for range 1 + below(8) {
			to := below(nodes)
			if len(targets) > 0 && below(2) == 0 {
				to = targets[below(len(targets))]
			}
			targets = append(targets, to)
			line = strconv.AppendInt(line[:0], int64(from), 10)
			line = append(line, '\t')
			line = strconv.AppendInt(line, int64(to), 10)
			// What went wrong is said by Flush.
			_, _ = out.Write(append(line, '\n'))
		}
	}
	return out.Flush()
}
