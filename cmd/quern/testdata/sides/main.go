// SPDX-License-Identifier: Apache-2.0

// Command sides runs a job whose side input is none that it can read, and says what the error is. Tests run it: sides INPUT OUTPUT.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	job := &mapreduce.Job[string, int64, int64]{Name: "sides", Fold: mapreduce.Sum[int64]()}
	model := mapreduce.Parse(job.SideInput("model", mapreduce.BytesSource([]byte("no model"))), func([]byte) (int64, error) {
		return 0, errors.New("it is no model")
	})
	job.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
		n, err := model()
		emit.Emit(string(rec.Value), n)
		return err
	}
	_, err := mapreduce.Run(context.Background(), job, mapreduce.Options{Inputs: os.Args[1:2], Output: output.Dir(os.Args[2], output.DirOptions{})})
	var side *mapreduce.SideInputError
	var record *mapreduce.InputError
	fmt.Println(errors.As(err, &side), errors.As(err, &record))
	if side != nil && record != nil {
		fmt.Println(side.Name, side.Err, record.Line)
	}
}
