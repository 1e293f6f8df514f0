// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"fmt"
	"unsafe"

	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/rows"
)

// Decimal is an exact decimal: Units x 10^-Scale. In rows it is a number with all
// of its digits that matter.
type Decimal struct {
	Units int64
	Scale uint8 // digits after the point, 0 to MaxScale
}

// String returns the number with Scale digits after the point.
func (d Decimal) String() string {
	units := uint64(d.Units)
	sign := ""
	if d.Units < 0 {
		units, sign = -units, "-"
	}
	if d.Scale == 0 {
		return fmt.Sprint(sign, units)
	}
	tens := uint64(pow10(min(d.Scale, MaxScale)))
	return fmt.Sprintf("%s%d.%0*d", sign, units/tens, int(d.Scale), units%tens)
}

func (d *Decimal) cell() output.Value {
	return output.Value{Kind: output.Decimal, I: d.Units, Scale: d.Scale}
}

// DecimalSum adds decimals of at most n digits after the point, 0 to MaxScale, such
// as "-12.50", exactly: for money. A value that is no decimal, has more digits that
// matter, or does not fit 64 bits at n digits ends the job with an error that names
// the record; a sum that does not fit is ErrOverflow and names the key.
func DecimalSum[V ~string | ~[]byte](n uint8) Fold[V, Decimal] {
	return Fold[V, Decimal]{
		ops: []Op{OpSum}, err: checkScale("DecimalSum", n),
		putSome: func(p *Parts, v V) {
			units, err := unitsOf(bytesOf(unsafe.Pointer(&v)), n)
			if err != nil {
				p.Fail(err)
				return
			}
			p.Lanes[0] = units
			p.whole()
		},
		get: func(l Lanes) (Decimal, error) {
			units, err := l.sum(0)
			return Decimal{units, n}, err
		},
	}
}

// DecimalUnits is DecimalSum for values that are counts of the last digit, such as
// cents (n is 2 then).
func DecimalUnits[V Integer](n uint8) Fold[V, Decimal] {
	f := Then(Sum[V](), func(units int64) (Decimal, error) { return Decimal{units, n}, nil })
	f.err = checkScale("DecimalUnits", n)
	return f
}

func checkScale(name string, n uint8) error {
	if n > MaxScale {
		return fmt.Errorf("fold %s of %d digits after the point: 0 to %d are possible", name, n, MaxScale)
	}
	return nil
}

// unitsOf returns the decimal in b as a number of units of n digits after the point.
func unitsOf(b []byte, n uint8) (int64, error) {
	units, scale, err := rows.ParseDecimal(b)
	if err != nil {
		return 0, err
	}
	for scale > n && units%10 == 0 {
		units, scale = units/10, scale-1
	}
	if scale > n {
		return 0, fmt.Errorf("value %q: more than %d digits after the point; round it, or add with more digits", b, n)
	}
	for ; scale < n; scale++ {
		if units > 1<<63/10-1 || units < -(1<<63/10-1) {
			return 0, fmt.Errorf("value %q: out of range: with %d digits after the point it does not fit in 64 bits", b, n)
		}
		units *= 10
	}
	return units, nil
}
