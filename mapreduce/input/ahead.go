// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/quernmr/quern/mapreduce/objects"
)

const (
	// aheadFile is the size of the largest object that is fetched ahead, whole.
	aheadFile = 1 << 20
	// aheadFiles and aheadBytes bound what one reader fetches ahead.
	aheadFiles = 16
	aheadBytes = 8 << 20
)

// ahead fetches small objects of a split before they are read, several at a
// time: with one after the other, most of the time would go by waiting.
type ahead struct {
	plan   *Plan
	ctx    context.Context
	cancel context.CancelFunc
	files  []int
	begun  int // of files: looked at so far
	flying map[int]chan fetched
	bytes  int64 // flying, or not taken
	wg     sync.WaitGroup
}

type fetched struct {
	data []byte
	err  error
}

func (p *Plan) newAhead(ctx context.Context, files []int) *ahead {
	a := &ahead{plan: p, files: files, flying: map[int]chan fetched{}}
	a.ctx, a.cancel = context.WithCancel(ctx)
	return a
}

// fetches says whether a file is one to be fetched ahead.
func (a *ahead) fetches(f *File) bool {
	return f.Size > 0 && f.Size <= aheadFile && objects.IsURL(f.Path)
}

// goOn begins to fetch what comes next, as far as there is room.
func (a *ahead) goOn() {
	for a.begun < len(a.files) && len(a.flying) < aheadFiles {
		index := a.files[a.begun]
		f := &a.plan.Files[index]
		if a.fetches(f) {
			if a.bytes > 0 && a.bytes+f.Size > aheadBytes {
				return
			}
			a.bytes += f.Size
			got := make(chan fetched, 1)
			a.flying[index] = got
			a.wg.Go(func() {
				data, err := a.plan.set.fetch(a.ctx, f)
				got <- fetched{data, err}
			})
		}
		a.begun++
	}
}

// take returns a file that was fetched; nil if it was not to be.
func (a *ahead) take(index int) (diskFile, error) {
	a.goOn()
	got := a.flying[index]
	if got == nil {
		return nil, nil
	}
	f := <-got
	delete(a.flying, index)
	a.bytes -= a.plan.Files[index].Size
	if f.err != nil {
		return nil, f.err
	}
	a.goOn()
	return inMemory{bytes.NewReader(f.data)}, nil
}

func (a *ahead) close() {
	a.cancel()
	a.wg.Wait()
}

// fetch returns the content of an object.
func (s *settings) fetch(ctx context.Context, file *File) ([]byte, error) {
	o, err := s.openObject(ctx, file)
	if err != nil {
		return nil, err
	}
	cursor := o.Cursor(file.Size)
	defer cursor.Close()
	data := make([]byte, file.Size)
	if _, err := cursor.ReadAt(data, 0); err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	return data, nil
}

// inMemory is a file that was fetched.
type inMemory struct{ *bytes.Reader }

func (inMemory) Close() error { return nil }
