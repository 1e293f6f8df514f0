// SPDX-License-Identifier: Apache-2.0

package lloyd

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
)

// Mixture describes points that gather around centres, for examples and benchmarks. The
// same description makes the same bytes everywhere: only integers are added.
type Mixture struct {
	Points, Dims, Clusters int
	// Spread is the standard deviation of a coordinate; centres lie between 0 and 100.
	Spread float64
	Seed   uint64
}

// unit is how fine coordinates are: four decimals.
const unit = 10_000

// bell is the standard deviation of the sum of four numbers that are evenly spread over 16 bits.
const bell = 37837

// Write writes the points as lines of CSV without a header.
func (m Mixture) Write(w io.Writer) error {
	if m.Points < 0 || m.Dims < 1 || m.Clusters < 1 || m.Spread < 0 || m.Spread > 1000 {
		return fmt.Errorf("%+v: want points of at least 1 dimension around at least 1 centre, and a spread of 0 to 1000", m)
	}
	rnd := rand.NewPCG(m.Seed, 0)
	centres := make([]int64, m.Clusters*m.Dims)
	for i := range centres {
		centres[i] = int64(rnd.Uint64() % (100 * unit))
	}
	spread := int64(m.Spread * unit)
	out := bufio.NewWriter(w)
	var line []byte
	for range m.Points {
		centre := centres[int(rnd.Uint64()%uint64(m.Clusters))*m.Dims:][:m.Dims]
		line = line[:0]
		for i, x := range centre {
			draw := rnd.Uint64()
			sum := int64(draw&0xffff+draw>>16&0xffff+draw>>32&0xffff+draw>>48) - 2*0xffff
			if i > 0 {
				line = append(line, ',')
			}
			line = appendUnits(line, x+sum*spread/bell)
		}
		// What went wrong is said by Flush.
		_, _ = out.Write(append(line, '\n'))
	}
	return out.Flush()
}

// appendUnits appends a number of units as a decimal.
func appendUnits(dst []byte, v int64) []byte {
	if v < 0 {
		dst, v = append(dst, '-'), -v
	}
	dst = strconv.AppendInt(dst, v/unit, 10)
	dst = append(dst, '.')
	decimals := strconv.AppendInt(nil, unit+v%unit, 10)
	return append(dst, decimals[1:]...)
}
