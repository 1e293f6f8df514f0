// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

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
	if how == "grouped" {
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
		_, err = mapreduce.Run(context.Background(), &mapreduce.Job[[]byte, int64, int64]{
			Name: "words",
			Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
				return mapper(rec, func(word []byte) { emit.Emit(word, 1) })
			},
			Fold: mapreduce.Sum[int64](),
		}, opts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// alone is a worker that can be stopped and killed.
func alone() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	o := Options{
		Name: "alone", Dir: os.Getenv("WORKER_DIR"), Listener: l, Slots: 2, Memory: 4 << 30, Room: -1, pause: 20 * time.Millisecond,
		Masters: func(context.Context) ([]string, error) { return []string{os.Getenv("WORKER_MASTER")}, nil },
	}
	o.Receive.Listen = "127.0.0.1"
	o.Receive.FoldMemory = 16 << 20
	w, err := New(o)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	fmt.Println(w.ID())
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
