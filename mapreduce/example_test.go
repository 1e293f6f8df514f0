// SPDX-License-Identifier: Apache-2.0

package mapreduce_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"os"
	"strings"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
)

// Words are counted with a ready-made fold.
func ExampleRun() {
	job := &mapreduce.Job[[]byte, int64, int64]{
		Name: "wordcount",
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
			for word := range bytes.FieldsSeq(rec.Value) {
				emit.Emit(word, 1)
			}
			return nil
		},
		Fold: mapreduce.Sum[int64](),
	}
	res, err := mapreduce.Run(context.Background(), job, mapreduce.Options{
		Inputs: []string{"-"}, // or names of files, folders, patterns
		Input:  input.Options{Stdin: strings.NewReader("to be or\nnot to be\n")},
		Output: output.Stream(os.Stdout, output.StreamOptions{Format: output.JSONL}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(res.Records, "lines,", res.Audit.PairsEmitted, "words,", res.Audit.Keys, "different ones")
	// Output:
	// {"key":"be","value":2}
	// {"key":"not","value":1}
	// {"key":"or","value":1}
	// {"key":"to","value":2}
	// 2 lines, 6 words, 4 different ones
}

// A list that every Map needs is read once, and made a set once per process.
func ExampleJob_SideInput() {
	job := &mapreduce.Job[[]byte, int64, int64]{Name: "rare words", Fold: mapreduce.Sum[int64]()}
	list := job.SideInput("stop words", mapreduce.BytesSource([]byte("to be or not"))) // or mapreduce.FileSource("english.txt")
	stopWords := mapreduce.Parse(list, func(content []byte) (map[string]bool, error) {
		set := map[string]bool{}
		for word := range bytes.FieldsSeq(content) {
			set[string(word)] = true
		}
		return set, nil
	})
	job.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
		stop, err := stopWords()
		if err != nil {
			return err
		}
		for word := range bytes.FieldsSeq(rec.Value) {
			if !stop[string(word)] {
				emit.Emit(word, 1)
			}
		}
		return nil
	}
	_, err := mapreduce.Run(context.Background(), job, mapreduce.Options{
		Inputs: []string{"-"},
		Input:  input.Options{Stdin: strings.NewReader("to be or not to be\nthat is the question\n")},
		Output: output.Stream(os.Stdout, output.StreamOptions{}),
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// is	1
	// question	1
	// that	1
	// the	1
}

// The visits of each user are put in order of time by a secondary sort.
func ExampleJob_reduce() {
	type visit struct {
		Page string
		Hour uint32
	}
	job := &mapreduce.Job[string, visit, string]{
		Name: "paths",
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, visit]) error {
			var user string
			var v visit
			if _, err := fmt.Sscan(string(rec.Value), &v.Hour, &user, &v.Page); err != nil {
				return err
			}
			emit.Emit(user, v)
			return nil
		},
		ValueOrder: func(dst []byte, v visit) []byte { return binary.BigEndian.AppendUint32(dst, v.Hour) },
		Reduce: func(_ string, visits iter.Seq[visit], yield func(string)) error {
			var pages []string
			for v := range visits {
				pages = append(pages, v.Page)
			}
			yield(strings.Join(pages, " "))
			return nil
		},
	}
	const log = "12 ann /pay\n9 ann /home\n8 ben /news\n10 ann /cart\n"
	_, err := job.Run(context.Background(), mapreduce.Options{
		Inputs: []string{"-"},
		Input:  input.Options{Stdin: strings.NewReader(log)},
		Output: output.Stream(os.Stdout, output.StreamOptions{Format: output.CSV}),
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// key,value
	// ann,/home /cart /pay
	// ben,/news
}

// Floats are added without error, so that the order of the readings does not matter.
func ExampleFloat64Sum() {
	job := &mapreduce.Job[string, float64, float64]{
		Name: "rain",
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, float64]) error {
			var station string
			var v float64
			if _, err := fmt.Sscan(string(rec.Value), &station, &v); err != nil {
				return err
			}
			emit.Emit(station, v)
			return nil
		},
		Fold: mapreduce.Float64Sum[float64](mapreduce.SkipNonFinite),
	}
	for _, readings := range []string{
		"roof 0.25\nroof 1e17\nroof 0.5\nroof -1e17\nroof NaN\n",
		"roof -1e17\nroof 0.5\nroof NaN\nroof 0.25\nroof 1e17\n",
	} {
		res, err := mapreduce.Run(context.Background(), job, mapreduce.Options{
			Inputs: []string{"-"},
			Input:  input.Options{Stdin: strings.NewReader(readings)},
			Output: output.Stream(os.Stdout, output.StreamOptions{}),
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(res.Counters)
	}
	// Output:
	// roof	0.75
	// map[NaN values skipped:1]
	// roof	0.75
	// map[NaN values skipped:1]
}

// A fold of two lanes finds the span of the values of a key.
func ExampleNewFold() {
	span := mapreduce.NewFold(
		[]mapreduce.Op{mapreduce.OpMin, mapreduce.OpMax},
		func(lanes []int64, v int64) { lanes[0], lanes[1] = v, v },
		func(l mapreduce.Lanes) (int64, error) { return l.V[1] - l.V[0], nil },
	)
	job := &mapreduce.Job[string, int64, int64]{
		Name: "span",
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
			var sensor string
			var v int64
			if _, err := fmt.Sscan(string(rec.Value), &sensor, &v); err != nil {
				return err
			}
			emit.Emit(sensor, v)
			return nil
		},
		Fold: span,
	}
	_, err := job.Run(context.Background(), mapreduce.Options{
		Inputs: []string{"-"},
		Input:  input.Options{Stdin: strings.NewReader("door 7\nroof -3\ndoor 12\nroof 20\ndoor 9\n")},
		Output: output.Func(func(_ int, row *output.Row) error {
			fmt.Printf("%s: %d\n", row.Keys[0].B, row.Values[0].I)
			return nil
		}),
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// door: 5
	// roof: 23
}
