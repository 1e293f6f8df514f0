// SPDX-License-Identifier: Apache-2.0

// Command twice runs a job here, and a second one, which depends on what came of
// the first, on a cluster. Tests run it: twice MASTER INPUT OUTPUT.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster"
	"github.com/quernmr/quern/mapreduce/output"
)

func lines(name, prefix string) *mapreduce.Job[string, int64, int64] {
	return &mapreduce.Job[string, int64, int64]{
		Name: name,
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
			emit.Emit(prefix+string(rec.Value), 1)
			return nil
		},
		Fold: mapreduce.Sum[int64](),
	}
}

func main() {
	ctx := context.Background()
	master, in, out := os.Args[1], os.Args[2], os.Args[3]
	first, err := mapreduce.Run(ctx, lines("first", ""), mapreduce.Options{Inputs: []string{in}})
	if err != nil {
		log.Fatal(err)
	}
	client, err := cluster.Dial(ctx, master, cluster.DialOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	job := lines("second", fmt.Sprintf("%d keys: ", first.Audit.Keys))
	handle, err := client.Submit(ctx, job, mapreduce.Options{Inputs: []string{in}, Output: output.Dir(out, output.DirOptions{})}, cluster.SubmitOptions{Name: "second"})
	if err != nil {
		log.Fatal(err)
	}
	result, err := handle.Wait(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(first.Audit.Keys, result.Audit.Rows)
}
