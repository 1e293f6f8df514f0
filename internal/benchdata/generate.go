// SPDX-License-Identifier: Apache-2.0

package benchdata

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
)

// flushAt is the number of bytes after which a generator hands its buffer on.
const flushAt = 1 << 18

// Temperatures writes lines "station;temperature" with one decimal, such as
// "Morvanek Sulti;-3.4". Every one of stations names (at least 1) is about as
// frequent as any other, and its temperatures lie around a mean of its own.
func Temperatures(w io.Writer, rows int64, stations int, seed uint64) error {
	if stations < 1 {
		return fmt.Errorf("temperatures: %d stations, want 1 or more", stations)
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	names := stationNames(rng, stations)
	means := make([]int, stations) // tenths of a degree
	for i := range means {
		means[i] = rng.IntN(450) - 100
	}
	buf := make([]byte, 0, flushAt+256)
	for range rows {
		r := rng.Uint64()
		station := int((r >> 32) * uint64(stations) >> 32)
		// The sum of four uniform numbers is near enough to a bell: +-51 degrees.
		noise := int(r&0xff) + int(r>>8&0xff) + int(r>>16&0xff) + int(r>>24&0xff) - 510
		buf = append(buf, names[station]...)
		buf = append(buf, ';')
		buf = appendTenths(buf, means[station]+noise)
		buf = append(buf, '\n')
		if len(buf) >= flushAt {
			if _, err := w.Write(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
	}
	_, err := w.Write(buf)
	return err
}

func appendTenths(dst []byte, t int) []byte {
	if t < 0 {
		dst = append(dst, '-')
		t = -t
	}
	dst = strconv.AppendInt(dst, int64(t/10), 10)
	return append(dst, '.', byte('0'+t%10))
}

// stationNames makes n distinct names of one or two words, about twelve bytes
// long, some with letters outside ASCII.
func stationNames(rng *rand.Rand, n int) []string {
	heads := []string{"B", "Br", "D", "F", "G", "Gr", "H", "K", "L", "M", "N", "P", "R", "S", "St", "T", "Tr", "V", "Z", "Sh"}
	vowels := []string{"a", "e", "i", "o", "u", "a", "e", "o", "ü", "é"}
	tails := []string{"r", "n", "l", "s", "t", "rn", "nd", "lt", "sk", "", "", ""}
	lower := func(s string) string { return string(s[0]|0x20) + s[1:] }
	pick := func(from []string) string { return from[rng.IntN(len(from))] }
	word := func() string {
		s := pick(heads) + pick(vowels) + pick(tails)
		for range 1 + rng.IntN(2) {
			s += lower(pick(heads)) + pick(vowels) + pick(tails)
		}
		return s
	}
	seen := map[string]bool{}
	names := make([]string, 0, n)
	for len(names) < n {
		name := word()
		if rng.IntN(3) == 0 {
			name += " " + word()
		}
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}

// Keys writes lines "user" and seven digits, each one of distinct keys chosen
// evenly. distinct is 1 to 10,000,000.
func Keys(w io.Writer, lines int64, distinct int, seed uint64) error {
	if distinct < 1 || distinct > 10_000_000 {
		return fmt.Errorf("keys: %d distinct keys, want 1 to 10000000", distinct)
	}
	rng := rand.New(rand.NewPCG(seed, 2))
	buf := make([]byte, 0, flushAt+256)
	for range lines {
		buf = append(buf, "user0000000\n"...)
		digit := len(buf) - 2
		for k := rng.IntN(distinct); k > 0; k /= 10 {
			buf[digit] = byte('0' + k%10)
			digit--
		}
		if len(buf) >= flushAt {
			if _, err := w.Write(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
	}
	_, err := w.Write(buf)
	return err
}

// Repeat writes the files one after the other, and all of that times times over.
// The files are held in memory.
func Repeat(w io.Writer, times int, files ...string) error {
	var all []byte
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return fmt.Errorf("repeat: %w", err)
		}
		all = append(all, text...)
	}
	for range times {
		if _, err := w.Write(all); err != nil {
			return err
		}
	}
	return nil
}
