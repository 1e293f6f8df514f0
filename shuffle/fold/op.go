// SPDX-License-Identifier: Apache-2.0

package fold

// Op is what a lane does with a further value.
type Op uint8

// The operations. Each is commutative and associative, so that the result does
// not depend on the order of pairs.
const (
	Sum Op = iota // wrapping sum with a signed count of carries beside it
	Min
	Max
	And
	Or
	Xor
)

// MaxLanes is the largest number of lanes of a fold. Folds of one to four
// lanes can run in the kernel.
const MaxLanes = 64

// Identity returns the value that changes nothing.
func (o Op) Identity() int64 {
	switch o {
	case Min:
		return 1<<63 - 1
	case Max:
		return -1 << 63
	case And:
		return -1
	}
	return 0
}

// Apply returns a op b; a sum wraps.
func (o Op) Apply(a, b int64) int64 {
	switch o {
	case Sum:
		return a + b
	case Min:
		return min(a, b)
	case Max:
		return max(a, b)
	case And:
		return a & b
	case Or:
		return a | b
	case Xor:
		return a ^ b
	}
	return a
}

func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return "unknown"
}

var opNames = [...]string{"sum", "min", "max", "and", "or", "xor"}
