// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"fmt"
	"io"
)

// DefaultSpoolMemory is how many bytes of a stream are kept in memory if
// StreamOptions does not say.
const DefaultSpoolMemory = 32 << 20

// StreamOptions says how Stream writes.
type StreamOptions struct {
	Format      Format // "": TSV
	Compression string // NoCompression, Gzip or Zstd; within Parquet none means Zstd
	// SpoolMemory is how many bytes of all parts together are kept in memory;
	// 0: DefaultSpoolMemory, less than 0: none. What exceeds it goes to files
	// in SpoolDir ("": the system's folder for temporary files), which have no
	// name where the system allows that.
	SpoolMemory int64
	SpoolDir    string
	// ParquetBinary is as in DirOptions.
	ParquetBinary bool
}

// Stream returns a target that writes the parts one after the other to w, with
// one header. Nothing is written before Commit, unless the transaction is told
// that nothing else can fail any more (see Early). Commit does not close w; if
// it fails while it writes, w has got a part of the output. What Commit is
// given for _SUCCESS is dropped. Parquet can be streamed only if the job has a
// single part.
func Stream(w io.Writer, opts StreamOptions) Target { return &streamTarget{w: w, opts: opts} }

type streamTarget struct {
	w    io.Writer
	opts StreamOptions
}

// streamName stands for a path in errors.
const streamName = "stream"

func (t *streamTarget) Begin(info Info) (Transaction, error) {
	if t.w == nil {
		return nil, fmt.Errorf("output %s: no writer: %w", streamName, ErrTarget)
	}
	l, err := newLayout(t.opts.Format, t.opts.Compression, t.opts.ParquetBinary, info.Schema)
	if err != nil {
		return nil, fmt.Errorf("output %s: %w", streamName, err)
	}
	if l.format == Parquet && info.Parts > 1 {
		return nil, fmt.Errorf("output %s: %d parts of Parquet in one stream: %w: ask for one partition, or name a folder", streamName, info.Parts, ErrUnsupported)
	}
	books, err := newLedger(streamName, info.Parts)
	if err != nil {
		return nil, err
	}
	memory := t.opts.SpoolMemory
	if memory == 0 {
		memory = DefaultSpoolMemory
	}
	tx := &streamTransaction{w: t.w, layout: l, ledger: books, spools: make([]*spool, info.Parts)}
	tx.budget = &budget{dir: t.opts.SpoolDir}
	tx.budget.left.Store(memory)
	return tx, nil
}

type streamTransaction struct {
	w      io.Writer
	layout *layout
	ledger *ledger
	budget *budget
	spools []*spool // set when the part is opened, under the ledger's lock
	early  bool
}

// Early implements the interface Early.
func (t *streamTransaction) Early() { t.early = true }

func (t *streamTransaction) Part(index int) (Part, error) {
	p, err := t.part(index)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (t *streamTransaction) part(index int) (*ledgerPart, error) {
	return t.ledger.open(index, func() (Part, sink, error) {
		encoder := t.layout.encoder
		if index > 0 && encoder != nil {
			encoder = bare{encoder}
		}
		s := &spool{budget: t.budget}
		if t.early && len(t.spools) == 1 {
			s.through = t.w
		}
		p, err := t.layout.open(s, encoder)
		if err == nil {
			t.spools[index] = s
		}
		return p, s, err
	})
}

func (t *streamTransaction) Commit([]byte) error {
	if err := t.ledger.complete(); err != nil {
		return err
	}
	for _, index := range t.ledger.missing() {
		if index > 0 && t.layout.compression == NoCompression {
			continue // it would add nothing
		}
		p, err := t.part(index)
		if err != nil {
			return err
		}
		if err := p.fill(); err != nil {
			return err
		}
	}
	for index, s := range t.spools {
		if s == nil {
			continue
		}
		if err := s.copyTo(t.w); err != nil {
			return fmt.Errorf("output %s: part %d: %w", streamName, index, err)
		}
	}
	return t.Abort() // what is left to do is the same
}

// Abort drops what was spooled.
func (t *streamTransaction) Abort() error {
	if !t.ledger.end() {
		return nil
	}
	var errs []error
	for _, s := range t.spools {
		if s != nil {
			errs = append(errs, s.drop())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("output %s: remove temporary files: %w", streamName, err)
	}
	return nil
}
