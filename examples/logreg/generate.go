// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"
	"math/rand/v2"
	"strconv"
)

// unit is how fine features are: three decimals.
const unit = 1000

// truth is how the label of generated rows follows from five features, in units: its bias and weights.
var truth = [...]int64{300, 1200, -900, 500, 0, 250}

// generate writes rows "label,x,...": features are about 1 large, and a label is whether their
// weighted sum and some noise are above 0. The same rows come everywhere: only integers are added.
func generate(w io.Writer, n int) error {
	rnd := rand.NewPCG(2, 0)
	bell := func() int64 { // with a standard deviation of 1
		draw := rnd.Uint64()
		sum := int64(draw&0xffff+draw>>16&0xffff+draw>>32&0xffff+draw>>48) - 2*0xffff
		return sum * unit / 37837
	}
	out := bufio.NewWriter(w)
	var features []byte
	for range n {
		sum := truth[0] * unit
		features = features[:0]
		for _, weight := range truth[1:] {
			x := bell()
			sum += weight * x
			features = strconv.AppendFloat(append(features, ','), float64(x)/unit, 'f', 3, 64)
		}
		label := byte('0')
		if sum+bell()*unit > 0 {
			label = '1'
		}
		// What went wrong is said by Flush.
		_ = out.WriteByte(label)
		_, _ = out.Write(append(features, '\n'))
	}
	return out.Flush()
}
