// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// waitFor waits until something is so.
func waitFor(t *testing.T, so func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !so(); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatal("it never came to be")
		}
	}
}

// call is one call of a group: what each member brings, and what all must get.
type call struct {
	vecs   []Vector
	want32 []int32
	want64 []int64
}

// drawCall draws a call of n members. Values are worked out one by one, as the definition has it.
func drawCall(t *rapid.T, n int) *call {
	size := rapid.OneOf(rapid.IntRange(0, 5), rapid.IntRange(330, 340), rapid.IntRange(0, 5000)).Draw(t, "size")
	return makeCall(n, size, Op(rapid.IntRange(0, 2).Draw(t, "operation")), rapid.Bool().Draw(t, "wide"), rapid.Uint64().Draw(t, "seed"))
}

func makeCall(n, size int, op Op, wide bool, seed uint64) *call {
	c := &call{vecs: make([]Vector, n)}
	value := func() uint64 { // splitmix64
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return z ^ z>>31
	}
	for i := range c.vecs {
		c.vecs[i].Op = op
		if wide {
			c.vecs[i].Int64 = make([]int64, size)
			for k := range size {
				c.vecs[i].Int64[k] = int64(value()) >> (value() % 64)
			}
		} else {
			c.vecs[i].Int32 = make([]int32, size)
			for k := range size {
				c.vecs[i].Int32[k] = int32(value()) >> (value() % 32)
			}
		}
	}
	for k := range size {
		if wide {
			x := c.vecs[0].Int64[k]
			for _, v := range c.vecs[1:] {
				switch y := v.Int64[k]; {
				case op == Sum:
					x += y
				case op == Min && y < x, op == Max && y > x:
					x = y
				}
			}
			c.want64 = append(c.want64, x)
			continue
		}
		x := c.vecs[0].Int32[k]
		for _, v := range c.vecs[1:] {
			switch y := v.Int32[k]; {
			case op == Sum:
				x += y
			case op == Min && y < x, op == Max && y > x:
				x = y
			}
		}
		c.want32 = append(c.want32, x)
	}
	return c
}

// check holds what members have now against what they must have.
func (c *call) check(t interface{ Fatalf(string, ...any) }) {
	for i, v := range c.vecs {
		for k, want := range c.want32 {
			if v.Int32[k] != want {
				t.Fatalf("member %d of %d: value %d of %s is %d, want %d", i, len(c.vecs), k, v, v.Int32[k], want)
			}
		}
		for k, want := range c.want64 {
			if v.Int64[k] != want {
				t.Fatalf("member %d of %d: value %d of %s is %d, want %d", i, len(c.vecs), k, v, v.Int64[k], want)
			}
		}
	}
}
