// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	"github.com/quernmr/quern/mapreduce/task"
)

// leaveSides reads the job's side inputs into files of a plan task's folder, at most limit bytes of
// them unless that is 0.
func (e *engine) leaveSides(ctx context.Context, dir string, limit int64) ([]task.SideFile, error) {
	if err := e.findSides(ctx); err != nil {
		return nil, err
	}
	if len(e.found) > 0 {
		e.setPhase(phaseSides)
	}
	left := limit
	if limit <= 0 {
		left = math.MaxInt64
	}
	var files []task.SideFile
	for i := range e.found {
		f := &e.found[i]
		if f.whole != nil {
			if path := f.whole.Once(); path != "" {
				return nil, &permanent{f.fail(fmt.Errorf("%s is no regular file: a pipe or device can be read only once and on one machine, so save it as a file first", path))}
			}
		}
		file, err := e.leaveSide(ctx, f, dir, fmt.Sprintf("side-%02d", i), left)
		if errors.Is(err, errTooLarge) {
			return nil, &permanent{f.fail(beyond(limit, left))}
		}
		if err != nil {
			return nil, err
		}
		left -= file.Size
		files = append(files, file)
		e.sides = append(e.sides, SideInputInfo{Name: file.Name, Source: f.source.String(), Size: file.Size})
	}
	return files, nil
}

// beyond is what is wrong with a side input that has more bytes than are left of a master's limit. What it
// has in all is not known: it was not read to its end.
func beyond(limit, left int64) error {
	const hint = "give quern master a larger --side-inputs, or have the job read it as an input"
	if left == limit {
		return fmt.Errorf("it has more than %d bytes, which is what the master takes of a job; %s", limit, hint)
	}
	return fmt.Errorf("it has more than %d bytes, and with those before it they are more than %d, which is what the master takes of a job; %s", left, limit, hint)
}

// leaveSide reads a side input into a file. It is errTooLarge if it has more than limit bytes.
func (e *engine) leaveSide(ctx context.Context, f *foundSide, dir, name string, limit int64) (s task.SideFile, err error) {
	if f.info().Size > limit {
		return s, errTooLarge
	}
	out, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return s, f.fail(err)
	}
	digest := sha256.New()
	size, err := f.copyTo(ctx, e, io.MultiWriter(out, digest), limit)
	if closed := out.Close(); err == nil && closed != nil {
		err = f.fail(closed)
	}
	return task.SideFile{Name: f.name, File: name, Size: size, Digest: hex.EncodeToString(digest.Sum(nil))}, err
}

// attachSides gives the job's side inputs the contents that a task was started with. They stay
// until the process ends.
func (e *engine) attachSides(req *task.Request) error {
	given := make(map[string]task.SideInput, len(req.SideInputs))
	for _, s := range req.SideInputs {
		given[s.Name] = s
	}
	for _, s := range e.t.sides {
		in, ok := given[s.name]
		if !ok {
			return otherSides(s.name, "the job was planned without it")
		}
		delete(given, s.name)
		content, _, err := in.Map()
		if err != nil {
			return err
		}
		if err := s.attach(&sideContent{name: s.name, bytes: content[:len(content):len(content)]}); err != nil {
			return err
		}
	}
	for _, s := range req.SideInputs { // in their order, so that the error is always the same
		if _, left := given[s.Name]; left {
			return otherSides(s.Name, "the job was planned with it, and this run of the program does not declare it")
		}
	}
	return nil
}

func otherSides(name, what string) error {
	return &permanent{&SideInputError{Name: name, Err: fmt.Errorf("%s: what a program asks for must follow from its arguments alone", what)}}
}
