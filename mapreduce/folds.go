// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/big"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
)

// Integer is any integer type.
type Integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32
}

// ErrOverflow is returned when a sum does not fit 64 bits.
var ErrOverflow = errors.New("sum overflow: the exact sum does not fit a signed 64-bit integer")

// Sum adds. A sum that does not fit 64 bits is ErrOverflow and names the key;
// intermediate sums may leave the range and come back.
func Sum[V Integer]() Fold[V, int64] {
	return Fold[V, int64]{ops: []fold.Op{fold.Sum}, put: putOne[V], get: getSum, plain: plain[V](), safe: true}
}

// Count counts the pairs of a key, whatever their values.
func Count[V any]() Fold[V, int64] {
	return Fold[V, int64]{ops: []fold.Op{fold.Sum}, put: func(dst []int64, _ V) { dst[0] = 1 }, get: getSum, safe: true}
}

// Min keeps the smallest value.
func Min[V Integer]() Fold[V, int64] {
	return Fold[V, int64]{ops: []fold.Op{fold.Min}, put: putOne[V], get: getOne, safe: true}
}

// Max keeps the largest value.
func Max[V Integer]() Fold[V, int64] {
	return Fold[V, int64]{ops: []fold.Op{fold.Max}, put: putOne[V], get: getOne, safe: true}
}

// And is the bitwise and of all values.
func And[V Integer]() Fold[V, int64] {
	return Fold[V, int64]{ops: []fold.Op{fold.And}, put: putOne[V], get: getOne, safe: true}
}

// Or is the bitwise or of all values.
func Or[V Integer]() Fold[V, int64] {
	return Fold[V, int64]{ops: []fold.Op{fold.Or}, put: putOne[V], get: getOne, safe: true}
}

// Xor is the bitwise exclusive or of all values.
func Xor[V Integer]() Fold[V, int64] {
	return Fold[V, int64]{ops: []fold.Op{fold.Xor}, put: putOne[V], get: getOne, safe: true}
}

// Mean is the arithmetic mean: the exact sum divided by the count, rounded
// once to the nearest float64.
func Mean[V Integer]() Fold[V, float64] {
	return Fold[V, float64]{
		ops: []fold.Op{fold.Sum, fold.Sum},
		put: func(dst []int64, v V) { dst[0], dst[1] = int64(v), 1 },
		get: func(l Lanes) (float64, error) { return l.Mean(0, 1), nil }, safe: true,
	}
}

// Summary is the result of MinMaxMean.
type Summary struct {
	Min  int64
	Mean float64
	Max  int64
}

// MinMaxMean keeps smallest, mean and largest value.
func MinMaxMean[V Integer]() Fold[V, Summary] {
	return Fold[V, Summary]{
		ops: []fold.Op{fold.Min, fold.Max, fold.Sum, fold.Sum},
		put: func(dst []int64, v V) {
			_ = dst[3]
			dst[0], dst[1], dst[2], dst[3] = int64(v), int64(v), int64(v), 1
		},
		get: func(l Lanes) (Summary, error) { return Summary{l.V[0], l.Mean(2, 3), l.V[1]}, nil }, safe: true,
	}
}

// Mean returns the exact sum in lane sum divided by the count in lane n,
// rounded once to the nearest float64, with the decimal scale of the sum.
// It is NaN if the count is 0.
func (l Lanes) Mean(sum, n int) float64 {
	count := l.V[n]
	if count == 0 {
		return math.NaN()
	}
	scale := uint8(0)
	if l.Scale != nil {
		scale = l.Scale[sum]
	}
	v := l.V[sum]
	const exact = 1 << 53
	if l.Carry == nil && v > -exact && v < exact {
		// Both operands of one division are exact, so its result is rounded once.
		if hi, lo := bits.Mul64(uint64(count), uint64(pow10(scale))); hi == 0 && lo < exact {
			return float64(v) / float64(lo)
		}
	}
	num := l.Big(sum)
	den := new(big.Int).Mul(big.NewInt(count), big.NewInt(pow10(scale)))
	f, _ := new(big.Rat).SetFrac(num, den).Float64()
	return f
}

// Big returns the exact value of a lane, carries included, without its scale.
func (l Lanes) Big(lane int) *big.Int {
	v := big.NewInt(l.V[lane])
	if l.Carry != nil {
		c := big.NewInt(l.Carry[lane])
		v.Add(v, c.Lsh(c, 64))
	}
	return v
}

func pow10(n uint8) int64 {
	p := int64(1)
	for range n {
		p *= 10
	}
	return p
}

func putOne[V Integer](dst []int64, v V) { dst[0] = int64(v) }

// plain says that a V in memory is its lane: eight bytes, signed.
func plain[V Integer]() bool {
	var v V
	return unsafe.Sizeof(v) == 8
}

func getOne(l Lanes) (int64, error) { return l.V[0], nil }

func getSum(l Lanes) (int64, error) {
	if l.Carry != nil && l.Carry[0] != 0 {
		return 0, fmt.Errorf("%w: %v", ErrOverflow, l.Big(0))
	}
	return l.V[0], nil
}

// distinctBits is the number of hash bits that choose a register.
const distinctBits = 14

// DistinctError is the relative standard error of Distinct: 1.04 / sqrt(2^14).
const DistinctError = 1.04 / 128

// Distinct estimates how many different values a key has (HyperLogLog with
// 2^14 registers, Flajolet et al. 2007; see DistinctEstimate). The estimate is
// the same for any order and any cutting of the input.
func Distinct[V ~string | ~[]byte]() Fold[V, int64] {
	return NewSubFold([]fold.Op{fold.Max},
		func(dst []int64, v V) uint32 {
			register, rank := DistinctRegister(bytesOf(unsafe.Pointer(&v)))
			dst[0] = rank
			return register
		},
		func(subs iter.Seq2[uint32, Lanes]) (int64, error) {
			return DistinctEstimate(func(yield func(int64) bool) {
				for _, l := range subs {
					if !yield(l.V[0]) {
						return
					}
				}
			}), nil
		})
}

// bytesOf views the string or byte slice at p: both begin with pointer and length.
func bytesOf(p unsafe.Pointer) []byte {
	return unsafe.Slice(*(**byte)(p), *(*int)(unsafe.Add(p, unsafe.Sizeof(uintptr(0)))))
}

// DistinctRegister returns the register of a value and the rank to be kept
// there as a maximum.
func DistinctRegister(v []byte) (register uint32, rank int64) {
	h := pairs.FixedSeed.HashBytes(v)
	// The fixed hash also chooses partitions; mix it once more so that the
	// values of one part do not all land in the same registers.
	h *= 0x9fb21c651e98df25
	h ^= h >> 28
	h *= 0x9e3779b97f4a7c15
	h ^= h >> 32
	register = uint32(h >> (64 - distinctBits))
	return register, int64(bits.LeadingZeros64(h<<distinctBits|1<<(distinctBits-1))) + 1
}

// maxRank is the largest rank: no bit set behind those that choose the register.
const maxRank = 64 - distinctBits + 1

// DistinctEstimate turns the ranks of the registers that got a value into an
// estimate, by the estimator of Otmar Ertl (New cardinality estimation
// algorithms for HyperLogLog sketches, 2017, arXiv:1702.01284), which has no
// bias where the classic one changes from one formula to another. Ranks out of
// range count as the largest.
func DistinctEstimate(ranks iter.Seq[int64]) int64 {
	const m = float64(1 << distinctBits)
	var count [maxRank + 1]int
	seen := 0
	for r := range ranks {
		count[min(max(r, 1), maxRank)]++
		seen++
	}
	if seen == 0 {
		return 0
	}
	z := m * ertlTau(1-float64(count[maxRank])/m)
	for k := maxRank - 1; k >= 1; k-- {
		z = (z + float64(count[k])) / 2
	}
	z += m * ertlSigma((m-float64(seen))/m)
	return int64(math.Round(m * m / (2 * math.Ln2 * z)))
}

// ertlSigma is x + sum of x^(2^k) x 2^(k-1) over k >= 1.
func ertlSigma(x float64) float64 {
	if x >= 1 {
		return math.Inf(1)
	}
	y, z := 1.0, x
	for {
		x *= x
		before := z
		z += x * y
		y += y
		if z == before {
			return z
		}
	}
}

// ertlTau is (1 - x - sum of (1 - x^(2^-k))^2 x 2^-k over k >= 1) / 3.
func ertlTau(x float64) float64 {
	if x <= 0 || x >= 1 {
		return 0
	}
	y, z := 1.0, 1-x
	for {
		x = math.Sqrt(x)
		before := z
		y /= 2
		z -= (1 - x) * (1 - x) * y
		if z == before {
			return z / 3
		}
	}
}

// Bin is one bin of a Histogram: the values v with Low <= v < Low + width.
type Bin struct {
	Low   int64
	Count int64
}

// Histogram counts values in bins of the given width; bins without values are
// left out. Values below or above 2^31 bins from 0 go to the outermost bins.
func Histogram[V Integer](width int64) Fold[V, []Bin] {
	if width < 1 {
		width = 1
	}
	const zero = 1 << 31
	return NewSubFold([]fold.Op{fold.Sum},
		func(dst []int64, v V) uint32 {
			dst[0] = 1
			bin := int64(v) / width
			if int64(v)%width < 0 {
				bin--
			}
			return uint32(min(max(bin, -zero), zero-1) + zero)
		},
		func(subs iter.Seq2[uint32, Lanes]) ([]Bin, error) {
			var bins []Bin
			for s, l := range subs {
				n, err := getSum(l)
				if err != nil {
					return nil, err
				}
				low := (int64(s) - zero) * width
				if low/width != int64(s)-zero {
					low = math.MinInt64 // the lowest bin of a huge width begins below
				}
				bins = append(bins, Bin{low, n})
			}
			return bins, nil
		})
}

// SmallInteger is any integer type of at most 32 bits.
type SmallInteger interface {
	~int8 | ~int16 | ~int32 | ~uint8 | ~uint16 | ~uint32
}

// Frequency is a value and how often it occurred.
type Frequency struct {
	Value int64
	Count int64
}

// TopK keeps the k most frequent values of a key, the most frequent first, ties
// by value. It is exact: every value is counted, which is why values have at
// most 32 bits. For the rows with the highest results over all keys see Job.Top.
func TopK[V SmallInteger](k int) Fold[V, []Frequency] {
	var v V
	// Signed values are shifted so that sub-keys sort as they do.
	shift := int64(0)
	if v--; v < 0 {
		shift = 1 << 31
	}
	return NewSubFold([]fold.Op{fold.Sum},
		func(dst []int64, v V) uint32 {
			dst[0] = 1
			return uint32(int64(v) + shift)
		},
		func(subs iter.Seq2[uint32, Lanes]) ([]Frequency, error) {
			var all []Frequency
			for s, l := range subs {
				n, err := getSum(l)
				if err != nil {
					return nil, err
				}
				all = append(all, Frequency{int64(s) - shift, n})
			}
			slices.SortStableFunc(all, func(a, b Frequency) int { return cmp.Compare(b.Count, a.Count) })
			return all[:min(k, len(all))], nil
		})
}

// subSuffix is what a sub-key adds to its key: the number, big-endian.
const subSuffix = 4

func appendSub(dst []byte, sub uint32) []byte { return binary.BigEndian.AppendUint32(dst, sub) }
