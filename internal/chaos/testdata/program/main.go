// SPDX-License-Identifier: Apache-2.0

// Command program is a user's program that tests of a cluster submit: slow, or not
// deterministic, as its flags say.
//
// Every line of the input holds a number of keys. Each of them is emitted with the value
// 1, or with -random, with a value that the process draws once: then all keys have the same
// sum if and only if every split's values come from one attempt. With -side, every task reads a side input.
package main

import (
	"context"
	"flag"
	"fmt"
	"hash/crc32"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	dir := flag.String("o", "", "folder of the result")
	parts := flag.Int("parts", 4, "number of parts")
	keys := flag.Int("keys", 100, "keys of every line")
	split := flag.Int64("split", 1<<10, "bytes of a split")
	mapping := flag.Duration("map", 0, "pause for every line")
	reducing := flag.Duration("reduce", 0, "pause for every key")
	random := flag.Bool("random", false, "values differ from process to process")
	grouped := flag.Bool("grouped", false, "reduce by a function")
	side := flag.String("side", "", "a file that all tasks read whole: its check sum is added to every value, and with -grouped to every sum")
	flag.StringVar(&gates, "gates", "", "folder with the files map and reduce: while one is there, tasks of that stage wait, but for the first one")
	flag.Parse()
	value := int64(1)
	if *random {
		value = rand.Int64N(1 << 40)
	}
	weight := func() (int64, error) { return 0, nil } // of the side input
	job := &mapreduce.Job[string, int64, int64]{
		Name: "program",
		Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
			wait("map")
			time.Sleep(*mapping)
			n, err := weight()
			if err != nil {
				return err
			}
			for i := range *keys {
				emit.Emit(fmt.Sprintf("key%05d", i), value+n)
			}
			return nil
		},
		Keep: func(string, int64) bool {
			wait("reduce")
			time.Sleep(*reducing)
			return true
		},
		Columns: []string{"sum"},
	}
	if *side != "" {
		weight = mapreduce.Parse(job.SideInput("weight", mapreduce.FileSource(*side)), func(content []byte) (int64, error) {
			return int64(crc32.ChecksumIEEE(content)), nil
		})
	}
	if *grouped {
		job.Reduce = func(_ string, values iter.Seq[int64], yield func(int64)) error {
			sum, err := weight()
			if err != nil {
				return err
			}
			for v := range values {
				sum += v
			}
			yield(sum)
			return nil
		}
	} else {
		job.Fold = mapreduce.Sum[int64]()
	}
	_, err := mapreduce.Run(context.Background(), job, mapreduce.Options{
		Inputs: flag.Args(), Input: input.Options{SplitSize: *split}, Output: output.Dir(*dir, output.DirOptions{}), Partitions: *parts,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "program:", err)
		os.Exit(1)
	}
}

// gates is the folder of what tasks wait for, or "".
var gates string

// open are the stages that this process needs not wait in any more.
var open sync.Map

// wait returns once the gate of a stage is gone. One process passes at once: who makes the file NAME.first.
func wait(stage string) {
	if _, passed := open.Load(stage); passed || gates == "" {
		return
	}
	gate := filepath.Join(gates, stage)
	if first, err := os.OpenFile(gate+".first", os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		_ = first.Close()
	} else {
		for {
			if _, err := os.Stat(gate); err != nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	open.Store(stage, true)
}
