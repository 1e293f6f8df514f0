// SPDX-License-Identifier: Apache-2.0

package streamlab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"

	"google.golang.org/grpc"

	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/receive"
	"github.com/quernmr/quern/shuffle/rpc"
)

// ControlPort is where a receiver in a process of its own answers control calls.
const ControlPort = 7118

// ChildConfig tells a receiver's process what to be.
type ChildConfig struct {
	Kernel      bool
	Dir         string // of the kernel's instance
	TableBits   int
	TableMemory int64
	FoldMemory  int64
	Verbose     bool
}

// order is a line that a receiver's process reads: finish a target, or end.
type order struct {
	Finish *shuffle.TargetID `json:",omitempty"`
	Expect receive.Expect
	Close  bool `json:",omitempty"`
}

// answer is a line that it writes: that it is ready, a row, or the end of the rows.
type answer struct {
	Ready   bool    `json:",omitempty"`
	Resumed bool    `json:",omitempty"`
	Key     []byte  `json:",omitempty"`
	Lanes   []int64 `json:",omitempty"`
	End     bool    `json:",omitempty"`
	Kernel  uint64  `json:",omitempty"`
	User    uint64  `json:",omitempty"`
	Again   bool    `json:",omitempty"` // the target has to be sent again
	Error   string  `json:",omitempty"`
	Overrun bool    `json:",omitempty"` // the error is that a sum does not fit
}

// Child is a receiver's process: it takes streams until standard input ends or says so.
func Child(cfg ChildConfig, in io.Reader, out io.Writer) (err error) {
	enc := json.NewEncoder(out)
	opts := receive.Options{
		Port: shuffle.Port, Limits: limits, FoldMemory: cfg.FoldMemory, TableMemory: cfg.TableMemory, TableBits: cfg.TableBits,
		Readers: 1, ReceiveBuffer: 1 << 20,
	}
	if cfg.Verbose {
		opts.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	resumed := false
	if cfg.Kernel {
		k, err := bpf.Open(bpf.Options{Interfaces: []string{netlab.InterfaceName}, Limits: limits, Dir: cfg.Dir, TableMemory: cfg.TableMemory})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, k.Close()) }()
		opts.Kernel, resumed = k, k.Resumed()
	}
	r, err := receive.New(opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", ControlPort))
	if err != nil {
		return err
	}
	srv := grpc.NewServer()
	rpc.NewServer(r).Register(srv)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	defer func() {
		srv.Stop()
		err = errors.Join(err, <-served)
	}()
	if err := enc.Encode(answer{Ready: true, Resumed: resumed}); err != nil {
		return err
	}
	lines := json.NewDecoder(bufio.NewReader(in))
	for {
		var o order
		if err := lines.Decode(&o); err != nil || o.Close {
			return nil
		}
		if o.Finish == nil {
			continue
		}
		end := finish(r, o, enc)
		end.End = true
		if err := enc.Encode(end); err != nil {
			return err
		}
	}
}

func finish(r *receive.Receiver, o order, enc *json.Encoder) (end answer) {
	res, err := r.Finish(context.Background(), *o.Finish, o.Expect)
	if err == nil {
		end.Kernel, end.User = res.Kernel, res.User
		err = res.Walk(context.Background(), func(key []byte, lanes []int64) error {
			return enc.Encode(answer{Key: key, Lanes: lanes})
		})
		err = errors.Join(err, res.Close())
	}
	if err != nil {
		end.Error = err.Error()
		end.Overrun = errors.Is(err, receive.ErrOverflow)
		end.Again = errors.Is(err, shuffle.ErrReset) || errors.Is(err, shuffle.ErrUnknown) || errors.Is(err, receive.ErrIncomplete)
	}
	return end
}
