// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// Writer writes one run. It belongs to one goroutine, which also does the
// compressing and writing. It must be ended with Close or Abort.
type Writer struct {
	path string
	opt  Options
	file *os.File
	dst  io.Writer // the file
	err  error     // what went wrong first; no more is written then

	index index
	off   int64  // in the file, of the end of out
	out   []byte // finished blocks that are not written yet

	part   int
	prev   []byte // the last key of this part
	paid   []byte // the last payload; only kept with invariants
	inPart bool   // prev means something

	raw      []byte // the block being filled
	pairs    uint32
	firstKey []byte
}

var errWriterDone = errors.New("spill: writer is closed")

// Create creates the file for a run, which must not exist yet, for this user's
// eyes only. Run.Remove deletes it.
func Create(path string, opt Options) (*Writer, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, explainWrite("create run", path, err)
	}
	return newWriter(path, opt, f, f), nil
}

func newWriter(path string, opt Options, f *os.File, dst io.Writer) *Writer {
	w := &Writer{path: path, opt: opt, file: f, dst: dst}
	w.raw = takeBuffer(opt.BlockSize)[:0]
	w.out = append(takeBuffer(outSize(opt.BlockSize))[:0], magic...)
	w.off = int64(magicSize)
	return w
}

// explainWrite wraps an error from creating or writing a file.
func explainWrite(what, path string, err error) error {
	if isDiskFull(err) {
		return fmt.Errorf("spill: %s %s: %w; point --spill-dir at a folder with more room, or grant more --memory so that less is spilled", what, path, err)
	}
	return fmt.Errorf("spill: %s %s: %w", what, path, err)
}

// Append adds a pair. Pairs must come in ascending order of (part, key, payload);
// equal ones are fine. Parts and keys out of order are an error, payloads only
// in builds with the tag "invariants". key and payload may be of any size up to
// MaxPair together, and are not kept. After an error all further calls
// return it; Abort is all that is left to do.
func (w *Writer) Append(part int, key, payload []byte) error {
	if w.err != nil {
		return w.err
	}
	if part != w.part || !w.inPart {
		if err := w.startPart(part); err != nil {
			return err
		}
	}
	size := len(key) + len(payload)
	if size > MaxPair || size < 0 {
		return w.fail(fmt.Errorf("spill: a pair of %d bytes: the limit is %d", size, MaxPair))
	}
	shared := commonPrefix(w.prev, key)
	if shared < len(w.prev) && (shared == len(key) || key[shared] < w.prev[shared]) {
		return w.fail(fmt.Errorf("spill: %s: key %.60q of part %d comes after %.60q: pairs must be sorted", w.path, key, part, w.prev))
	}
	if invariants {
		if err := w.checkPayload(shared == len(key) && shared == len(w.prev), payload); err != nil {
			return err
		}
	}
	// With the slack that a reader needs, a block is to fill a reader's buffer.
	if w.pairs > 0 && len(w.raw)+size-shared+maxPairOverhead+slack > w.opt.BlockSize {
		if err := w.endBlock(); err != nil {
			return err
		}
	}
	w.prev = append(w.prev[:shared], key[shared:]...)
	if w.pairs == 0 {
		w.firstKey = append(w.firstKey[:0], key[:min(len(key), maxIndexKey+1)]...)
		shared = 0
	}
	w.pairs++
	suffix := key[shared:]
	if shared|len(suffix)|len(payload) < 0x80 {
		w.raw = append(w.raw, byte(shared), byte(len(suffix)), byte(len(payload)))
	} else {
		w.raw = binary.AppendUvarint(w.raw, uint64(shared))
		w.raw = binary.AppendUvarint(w.raw, uint64(len(suffix)))
		w.raw = binary.AppendUvarint(w.raw, uint64(len(payload)))
	}
	w.raw = append(w.raw, suffix...)
	w.raw = append(w.raw, payload...)
	return nil
}

func (w *Writer) startPart(part int) error {
	if part < 0 || uint64(part) > math.MaxUint32 {
		return w.fail(fmt.Errorf("spill: part %d: must be 0 to %d", part, uint32(math.MaxUint32)))
	}
	if part < w.part {
		return w.fail(fmt.Errorf("spill: %s: part %d comes after part %d: pairs must be sorted", w.path, part, w.part))
	}
	if err := w.endBlock(); err != nil {
		return err
	}
	w.part, w.inPart = part, true
	w.prev, w.paid = w.prev[:0], w.paid[:0]
	return nil
}

func (w *Writer) checkPayload(sameKey bool, payload []byte) error {
	if sameKey && !w.opt.ByKey && bytes.Compare(payload, w.paid) < 0 {
		return w.fail(fmt.Errorf("spill: %s: payload %.60q of key %.60q comes after %.60q: pairs must be sorted", w.path, payload, w.prev, w.paid))
	}
	w.paid = append(w.paid[:0], payload...)
	return nil
}

func (w *Writer) fail(err error) error {
	w.err = err
	return err
}

// endBlock compresses the block and hands it on.
func (w *Writer) endBlock() error {
	if w.pairs == 0 {
		return nil
	}
	start := len(w.out)
	var header [headerSize]byte
	out, encoding, err := appendCompressed(append(w.out, header[:]...), w.raw, w.opt.Compression)
	if err != nil {
		return w.fail(err)
	}
	w.out = out
	stored := len(out) - start - headerSize
	b := blockInfo{off: w.off, stored: uint32(stored), raw: uint32(len(w.raw)), pairs: w.pairs, part: uint32(w.part)}
	putHeader(out[start:], b, encoding)
	w.index.add(b, w.firstKey)
	w.off += int64(headerSize + stored)
	w.pairs = 0
	if w.raw = w.raw[:0]; cap(w.raw) > 4*w.opt.BlockSize+maxPooled { // a giant pair has passed
		w.raw = make([]byte, 0, w.opt.BlockSize)
	}
	if len(w.out) >= flushSize(w.opt.BlockSize) {
		return w.flush()
	}
	return nil
}

func (w *Writer) flush() error {
	n, err := w.dst.Write(w.out)
	if err == nil && n < len(w.out) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return w.fail(explainWrite("write run", w.path, err))
	}
	if w.out = w.out[:0]; cap(w.out) > 4*w.opt.BlockSize+4*maxPooled {
		w.out = nil
	}
	return nil
}

// Close finishes the run. If that fails, the file is deleted.
func (w *Writer) Close() (*Run, error) {
	err := w.err
	if err == nil {
		err = w.endBlock()
	}
	if err == nil {
		end := w.off
		start := len(w.out)
		w.out = w.index.appendFooter(w.out, end)
		w.off += int64(len(w.out) - start)
		err = w.flush()
	}
	if err != nil {
		w.Abort()
		return nil, err
	}
	r := newRun(w.path, w.file, w.off, &w.index)
	w.file = nil
	w.release()
	return r, nil
}

// Abort closes and deletes the file. After Close it does nothing.
func (w *Writer) Abort() {
	if w.file != nil {
		w.file.Close()
		os.Remove(w.path)
		w.file = nil
	}
	w.release()
}

func (w *Writer) release() {
	if w.err == nil {
		w.err = errWriterDone
	}
	giveBuffer(w.raw)
	giveBuffer(w.out)
	w.raw, w.out, w.prev, w.paid, w.firstKey = nil, nil, nil, nil, nil
}
