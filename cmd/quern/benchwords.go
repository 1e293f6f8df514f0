// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"math"
	"math/rand/v2"
)

const (
	vocabulary   = 200_000 // words that text is made of
	wordsPerLine = 12
)

// writeWords writes about size bytes of lines of made-up words. Few of them are
// frequent and many are rare, as in written language: the n-th is chosen in
// inverse proportion to its rank. The same seed makes the same bytes.
func writeWords(w io.Writer, size int64, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 3))
	words := make([]string, vocabulary)
	for i := range words {
		words[i] = madeUpWord(rng, i)
	}
	buf := make([]byte, 0, 1<<16+256)
	for written, n := int64(0), 0; written < size; {
		// The inverse of the distribution 1/rank: its logarithm is uniform.
		u := float64(rng.Uint64()>>11) / (1 << 53)
		rank := int(math.Exp(u*math.Log(vocabulary+1))) - 1
		buf = append(buf, words[min(rank, vocabulary-1)]...)
		if n++; n%wordsPerLine == 0 {
			buf = append(buf, '\n')
		} else {
			buf = append(buf, ' ')
		}
		if len(buf) >= 1<<16 || written+int64(len(buf)) >= size {
			if written+int64(len(buf)) >= size {
				buf[len(buf)-1] = '\n'
			}
			if _, err := w.Write(buf); err != nil {
				return err
			}
			written += int64(len(buf))
			buf = buf[:0]
		}
	}
	return nil
}

// madeUpWord makes a word of 2 to 12 letters that no other rank has; frequent
// words are short.
func madeUpWord(rng *rand.Rand, rank int) string {
	const consonants, vowels = "bdfghklmnprstvwz", "aeiou"
	word := make([]byte, 0, 16)
	for code := rank; ; code /= len(consonants) * len(vowels) {
		syllable := code % (len(consonants) * len(vowels))
		word = append(word, consonants[syllable/len(vowels)], vowels[syllable%len(vowels)])
		if code < len(consonants)*len(vowels) {
			break
		}
	}
	// What follows x tells nothing about the rank, so that words stay distinct.
	if tail := rng.IntN(6); tail > 2 {
		word = append(word, 'x')
		for range tail - 2 {
			word = append(word, consonants[rng.IntN(len(consonants))])
		}
	}
	return string(word)
}
