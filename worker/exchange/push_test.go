// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"fmt"
	"math/big"
	"testing"

	"github.com/quernmr/quern/shuffle/fold"
)

// words makes a job that counts words: n keys in each of maps outputs.
func words(parts, maps, n int) *testJob {
	j := newJob(parts, fold.Sum)
	for m := range maps {
		var out []map[string]value
		for p := range parts {
			part := map[string]value{}
			for i := range n {
				part[fmt.Sprintf("word-%d-%d", p, i+m)] = value{big.NewInt(int64(i*m + 1))}
			}
			out = append(out, part)
		}
		j.outputs = append(j.outputs, out)
	}
	return j
}

func TestGatherByPush(t *testing.T) {
	ctx := testContext(t)
	ws := []*worker{start(t, "a", settings{}), start(t, "b", settings{})}
	j := words(3, 4, 3000)
	where := func(m int) *worker { return ws[m%2] }
	var outs []Output
	for m := range j.outputs {
		outs = append(outs, j.keep(t, where(m), m, 0))
	}
	for p := range uint32(3) {
		in := j.input(p, outs, where)
		got, err := ws[p%2].x.Gather(ctx, j.gather(t, in))
		if err != nil {
			t.Fatal(err)
		}
		if err := j.checkFolded(got, int(p)); err != nil {
			t.Error(err)
		}
		if !got.Folded || len(got.Runs) != 1 || got.Counts != (Counts{User: in.Pairs}) {
			t.Errorf("part %d: %+v, want one folded run of %d pairs of user space's", p, got, in.Pairs)
		}
	}
}
