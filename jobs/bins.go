// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"errors"
	"fmt"
	"math/big"

	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/rows"
)

// bins are equally wide intervals of decimals: bin k begins at
// (origin + k*width) x 10^-scale.
type bins struct {
	origin, width int64
	scale         uint8
}

func newBins(origin, width *big.Rat) (*bins, error) {
	for scale := uint8(0); scale <= rows.MaxScale; scale++ {
		unit := ratOf(1, scale)
		o, w := new(big.Rat).Quo(origin, unit), new(big.Rat).Quo(width, unit)
		if !o.IsInt() || !w.IsInt() {
			continue
		}
		if !o.Num().IsInt64() || !w.Num().IsInt64() {
			break
		}
		return &bins{o.Num().Int64(), w.Num().Int64(), scale}, nil
	}
	return nil, fmt.Errorf("bins of width %s are no exact decimals of 64 bits: choose other --buckets, or --width", width.RatString())
}

// ratOf returns m x 10^-scale.
func ratOf(m int64, scale uint8) *big.Rat {
	ten := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil)
	return new(big.Rat).SetFrac(big.NewInt(m), ten)
}

var errBinRange = errors.New("is too far from the first bin for bins this narrow: choose a larger --width")

// of returns the bin that a number belongs to.
func (b *bins) of(text []byte) (int64, error) {
	v, scale, err := rows.ParseDecimal(text)
	if err != nil {
		return 0, err
	}
	origin, width := b.origin, b.width
	ok1, ok2 := true, true
	if scale < b.scale {
		v, ok1 = timesTenTo(v, b.scale-scale)
	} else if scale > b.scale {
		origin, ok1 = timesTenTo(origin, scale-b.scale)
		width, ok2 = timesTenTo(width, scale-b.scale)
	}
	distance := v - origin
	if !ok1 || !ok2 || (v < origin) != (distance < 0) {
		return b.ofFar(text)
	}
	bin := distance / width
	if distance%width < 0 {
		bin--
	}
	return bin, nil
}

// ofFar is of for numbers that 64 bits are too narrow for.
func (b *bins) ofFar(text []byte) (int64, error) {
	v, scale, err := rows.ParseDecimal(text)
	if err != nil {
		return 0, err
	}
	distance := new(big.Rat).Sub(ratOf(v, scale), ratOf(b.origin, b.scale))
	distance.Quo(distance, ratOf(b.width, b.scale))
	// Div rounds down, since the denominator is positive.
	bin := new(big.Int).Div(distance.Num(), distance.Denom())
	if !bin.IsInt64() {
		return 0, &rows.NumberError{Text: string(text), Err: errBinRange}
	}
	return bin.Int64(), nil
}

// start returns where a bin begins.
func (b *bins) start(bin int64) (output.Value, error) {
	at := new(big.Int).Mul(big.NewInt(bin), big.NewInt(b.width))
	at.Add(at, big.NewInt(b.origin))
	if !at.IsInt64() {
		return output.Value{}, fmt.Errorf("bin %d begins beyond the range of 64-bit decimals: choose a larger --width or fewer decimals", bin)
	}
	return output.Value{Kind: output.Decimal, I: at.Int64(), Scale: b.scale}, nil
}
