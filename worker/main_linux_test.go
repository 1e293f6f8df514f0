// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quernmr/quern/internal/streamlab"
	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
	"go.uber.org/goleak"
)

// TestMain is also the job program that attempts run (PROGRAM says how it behaves), and a
// worker in a process of its own (WORKER).
func TestMain(m *testing.M) {
	switch {
	case os.Getenv("PROGRAM") != "":
		program(os.Getenv("PROGRAM"))
		os.Exit(0)
	case os.Getenv("WORKER_DIR") != "":
		alone()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var leaked [][]byte

// program counts the words of os.Args[1] into the folder os.Args[2], or of those that a job
// file names ("run FILE"). With some programs words do more than be counted.
func program(how string) {
	if how == "sleep" {
		time.Sleep(time.Hour)
	}
	if os.Args[1] == "run" {
		b, err := os.ReadFile(os.Args[2])
		if err != nil {
			panic(err)
		}
		os.Args = append(os.Args[:1], strings.Fields(string(b))...)
	}
	opts := mapreduce.Options{
		Inputs: []string{os.Args[1]}, Input: input.Options{SplitSize: 1 << 10}, Partitions: 2,
		Output: output.Dir(os.Args[2], output.DirOptions{}),
	}
	mapper := func(rec mapreduce.Record, each func(word []byte)) error {
		for word := range bytes.FieldsSeq(rec.Value) {
			switch how {
			case "hang":
				time.Sleep(time.Hour)
			case "panic":
				panic("a word too many")
			case "exit":
				os.Exit(4)
			case "error":
				return errors.New("this word is not welcome")
			case "leak":
				for {
					b := make([]byte, 4<<20)
					for i := 0; i < len(b); i += 4096 {
						b[i] = 1
					}
					leaked = append(leaked, b)
					time.Sleep(5 * time.Millisecond)
				}
			case "say":
				fmt.Println("a word:", string(word))
			case "wait": // for a file to be there
				for {
					if _, err := os.Stat(os.Getenv("UNTIL")); err == nil {
						break
					}
					time.Sleep(5 * time.Millisecond)
				}
			case "fork":
				self, _ := os.Executable()
				cmd := exec.Command(self)
				cmd.Env = append(os.Environ(), "PROGRAM=sleep")
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
				if err := cmd.Start(); err != nil {
					return err
				}
				time.Sleep(time.Hour)
			}
			each(word)
		}
		return nil
	}
	var err error
	if how == "iterate" {
		_, err = mapreduce.Iterate(context.Background(), lengths(), mapreduce.IterateOptions{Options: opts})
	} else if how == "grouped" {
		_, err = mapreduce.Run(context.Background(), &mapreduce.Job[string, int64, int64]{
			Name: "grouped",
			Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
				return mapper(rec, func(word []byte) { emit.Emit(string(word), 1) })
			},
			Reduce: func(_ string, values iter.Seq[int64], yield func(int64)) error {
				n := int64(0)
				for v := range values {
					n += v
				}
				yield(n)
				return nil
			},
		}, opts)
	} else {
		job := &mapreduce.Job[[]byte, int64, int64]{
			Name: "words",
			Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
				return mapper(rec, func(word []byte) { emit.Emit(word, 1) })
			},
			Fold: mapreduce.Sum[int64](),
		}
		if how == "side" {
			sideInputs(job, mapper)
		}
		_, err = mapreduce.Run(context.Background(), job, opts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// lengths moves three numbers towards the lengths of words, in 150 rounds that take a moment each.
func lengths() *mapreduce.Iteration[[]float64] {
	return &mapreduce.Iteration[[]float64]{
		Name: "lengths",
		Load: func(_ mapreduce.Split, records iter.Seq[mapreduce.Record]) (all []float64, err error) {
			for rec := range records {
				for word := range bytes.FieldsSeq(rec.Value) {
					all = append(all, float64(len(word)))
				}
			}
			return all, nil
		},
		Start: func() ([]float64, error) { return []float64{1, 5, 9}, nil },
		Sums:  4,
		Round: func(r mapreduce.Round, kept, sums []float64) error {
			time.Sleep(time.Millisecond)
			for i, s := range r.State {
				for _, l := range kept {
					sums[i] += (l - s) / float64(i+1+r.Number%3)
				}
			}
			sums[3] += float64(len(kept))
			return nil
		},
		Update: func(_ mapreduce.Round, state, sums []float64) (bool, error) {
			for i := range state {
				state[i] += sums[i] / sums[3] / 20
			}
			return false, nil
		},
		Rounds: 150,
	}
}

// sideInputs has a job count the words that are not in the file that STOP names, and
// emit for each line how large another side input is that has 1 MiB.
func sideInputs(job *mapreduce.Job[[]byte, int64, int64], mapper func(mapreduce.Record, func([]byte)) error) {
	list := job.SideInput("stop list", mapreduce.FileSource(os.Getenv("STOP")))
	large := job.SideInput("a large one", mapreduce.BytesSource(largeInput()))
	nothing := job.SideInput("nothing", mapreduce.BytesSource(nil))
	checked := sync.OnceValue(func() error {
		if len(nothing.Bytes()) > 0 || !bytes.Equal(large.Bytes(), largeInput()) {
			return errors.New("a side input is not what it was")
		}
		return nil
	})
	job.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
		if err := checked(); err != nil {
			return err
		}
		emit.Emit([]byte("LARGE"), int64(len(large.Bytes())))
		return mapper(rec, func(word []byte) {
			if !slices.Contains(strings.Fields(list.Text()), string(word)) {
				emit.Emit(word, 1)
			}
		})
	}
}

// largeInput is what no file has.
func largeInput() []byte { return bytes.Repeat([]byte("0123456789abcdef"), 1<<16) }

// alone is a worker that can be stopped and killed.
func alone() {
	l, err := net.Listen("tcp", cmp.Or(os.Getenv("WORKER_HOST"), "127.0.0.1")+":0")
	if err != nil {
		panic(err)
	}
	o := Options{
		Name: "alone", Dir: os.Getenv("WORKER_DIR"), Listener: l, Slots: 2, Memory: 4 << 30, Room: -1, pause: 20 * time.Millisecond,
		Masters: func(context.Context) ([]string, error) { return []string{os.Getenv("WORKER_MASTER")}, nil },
	}
	o.Receive.Listen = cmp.Or(os.Getenv("WORKER_HOST"), "127.0.0.1")
	o.Receive.FoldMemory = 16 << 20
	o.Broadcast.Idle, o.Broadcast.Patience, o.Reduce.Patience = deadline, deadline, deadline
	if os.Getenv("WORKER_KERNEL") != "" {
		k, err := streamlab.Here()
		if err == nil {
			defer k.Close()
			o.Broadcast.Kernel, err = k.Broadcasts()
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		o.Receive.Kernel, o.Receive.Port, o.Receive.Limits = k, k.Port(), streamlab.HereLimits
	}
	if os.Getenv("QUERN_TEST_LOG") != "" {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	w, err := New(o)
	if err != nil {
		fmt.Println(err)
		return
	}
	w.blobs.patience = deadline
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	fmt.Println(w.ID(), w.opt.Address)
	fmt.Println(w.Run(ctx))
}

// text has a few words many times, on lines of its own.
func text(lines int) string {
	var b strings.Builder
	for i := range lines {
		fmt.Fprintf(&b, "to be or not to be that is question %d\n", i%7)
	}
	return b.String()
}
