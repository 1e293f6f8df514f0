// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// piece is a part of compressed data that can be decompressed by itself.
type piece struct {
	out  []byte
	err  error
	done chan struct{}
	data any // what the cutter of pieces keeps about it
}

// ordered decompresses pieces in several goroutines and hands them out in
// order. Not more than twice as many pieces as goroutines are held at once.
type ordered struct {
	cancel context.CancelFunc
	ctx    context.Context
	queue  chan *piece // in order
	failed error       // of the cutter of pieces; read after queue is closed
	wg     sync.WaitGroup
	cur    []byte
	err    error
	// settle looks at a piece whose turn it is. It may replace its output,
	// taking further pieces with take.
	settle func(*piece) error
	// rest, if set when the queue ends, is read after the last piece.
	rest io.Reader
}

// start runs cut, which hands over pieces in order and returns an error or nil
// at the end of the data, and decode for each piece.
func (o *ordered) start(ctx context.Context, workers int, cut func(hand func(*piece) error) error, decode func(*piece)) {
	o.ctx, o.cancel = context.WithCancel(ctx)
	o.queue = make(chan *piece, workers)
	work := make(chan *piece)
	for range workers {
		o.wg.Add(1)
		go func() {
			defer o.wg.Done()
			for p := range work {
				decodePiece(p, decode)
			}
		}()
	}
	o.wg.Add(1)
	go func() {
		defer o.wg.Done()
		defer close(o.queue)
		defer close(work)
		defer func() {
			if p := recover(); p != nil {
				o.failed = fmt.Errorf("the data is not valid: %v", p)
			}
		}()
		o.failed = cut(func(p *piece) error {
			p.done = make(chan struct{})
			select {
			case o.queue <- p:
			case <-o.ctx.Done():
				return o.ctx.Err()
			}
			select {
			case work <- p:
			case <-o.ctx.Done():
				return o.ctx.Err()
			}
			return nil
		})
	}()
}

func decodePiece(p *piece, decode func(*piece)) {
	defer close(p.done)
	defer func() {
		if r := recover(); r != nil {
			p.err = fmt.Errorf("the data is not valid: %v", r)
		}
	}()
	decode(p)
}

// take returns the next piece once it is decompressed, or io.EOF or what went wrong.
func (o *ordered) take() (*piece, error) {
	select {
	case p, ok := <-o.queue:
		if !ok {
			if o.failed != nil {
				return nil, o.failed
			}
			return nil, io.EOF
		}
		select {
		case <-p.done:
			return p, nil
		case <-o.ctx.Done():
			return nil, o.ctx.Err()
		}
	case <-o.ctx.Done():
		return nil, o.ctx.Err()
	}
}

func (o *ordered) Read(b []byte) (int, error) {
	for len(o.cur) == 0 {
		if o.err != nil {
			if o.rest != nil && errors.Is(o.err, io.EOF) {
				return o.rest.Read(b)
			}
			return 0, o.err
		}
		p, err := o.take()
		if err == nil {
			err = p.err
			if o.settle != nil {
				err = o.settle(p)
			}
		}
		if err != nil {
			o.err = err
			continue
		}
		o.cur = p.out
	}
	n := copy(b, o.cur)
	o.cur = o.cur[n:]
	return n, nil
}

// Close ends all goroutines and waits for them.
func (o *ordered) Close() {
	o.cancel()
	o.wg.Wait()
}
