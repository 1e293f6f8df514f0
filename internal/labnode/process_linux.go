// SPDX-License-Identifier: Apache-2.0

package labnode

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/quernmr/quern/internal/netlab"
)

// childEnv turns a program whose main calls Child into a node's process. It holds the process's configuration.
const childEnv = "QUERN_LABNODE_CHILD"

// ready is the first line that a process writes.
type ready struct{ Ready bool }

// Child is the main of a node's process; it returns false in any other. serve is given the configuration and returns
// when standard input ends, or with it.
func Child[Config any](serve func(cfg Config, o *Orders) error) bool {
	v := os.Getenv(childEnv)
	if v == "" {
		return false
	}
	var cfg Config
	err := json.Unmarshal([]byte(v), &cfg)
	if err == nil {
		err = serve(cfg, &Orders{json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
	return true
}

// Orders are what a process reads, a line each, and answers.
type Orders struct {
	in  *json.Decoder
	out *json.Encoder
}

// Ready says that the process takes orders.
func (o *Orders) Ready() error { return o.out.Encode(ready{true}) }

// Next reads the next order. io.EOF says that there will be none.
func (o *Orders) Next(order any) error { return o.in.Decode(order) }

// Answer answers the last one.
func (o *Orders) Answer(reply any) error { return o.out.Encode(reply) }

// Process is a node's process as its starter sees it.
type Process struct {
	cmd *netlab.Command
	in  io.WriteCloser
	out *json.Decoder
}

// Start starts the running program at a host once more, as a node's process, and returns once it takes orders.
func Start(host *netlab.Host, cfg any) (*Process, error) {
	c, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	cmd := host.Command(context.Background(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(c))
	cmd.Stderr = os.Stderr
	p := &Process{cmd: cmd}
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = json.NewDecoder(out)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var r ready
	if err := p.out.Decode(&r); err != nil || !r.Ready {
		return nil, errors.Join(fmt.Errorf("a node's process at %s did not get ready: %w", host, err), cmd.Wait())
	}
	return p, nil
}

// Ask gives an order and waits for the answer. One goroutine at a time may.
func (p *Process) Ask(order, reply any) error {
	if err := json.NewEncoder(p.in).Encode(order); err != nil {
		return err
	}
	return p.out.Decode(reply)
}

// Kill ends the process without a word.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

// End has the process end by itself.
func (p *Process) End() error {
	return errors.Join(p.in.Close(), p.cmd.Wait())
}
