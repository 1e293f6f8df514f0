// SPDX-License-Identifier: Apache-2.0

package wire

// PackOps packs operations of lanes, lane 0 lowest, four bits each.
func PackOps(ops ...uint8) (packed uint16) {
	for i, op := range ops {
		packed |= uint16(op&0xf) << (4 * i)
	}
	return packed
}

// OpOf returns the operation of a lane.
func OpOf(ops uint16, lane int) uint8 { return uint8(ops>>(4*lane)) & 0xf }

// ValidOps says whether each of the four operations exists.
func ValidOps(ops uint16) bool {
	for i := range MaxLanes {
		if OpOf(ops, i) > OpSumBound {
			return false
		}
	}
	return true
}

// Identity returns the value that an operation does not change others by.
func Identity(op uint8) int64 {
	switch op {
	case OpMin:
		return 1<<63 - 1
	case OpMax:
		return -1 << 63
	case OpAnd:
		return -1
	}
	return 0
}

// ApplyOp returns a op b. Sums wrap; carry is then 1 or -1 for OpSum, and else 0:
// the exact sum is r + carry x 2^64.
func ApplyOp(op uint8, a, b int64) (r int64, carry int32) {
	switch op {
	case OpSum, OpSumBound:
		r = a + b
		if op == OpSum && (a^r)&(b^r) < 0 {
			carry = 1
			if b < 0 {
				carry = -1
			}
		}
		return r, carry
	case OpMin:
		return min(a, b), 0
	case OpMax:
		return max(a, b), 0
	case OpAnd:
		return a & b, 0
	case OpOr:
		return a | b, 0
	case OpXor:
		return a ^ b, 0
	}
	return a, 0
}
