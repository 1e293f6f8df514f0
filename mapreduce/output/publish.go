// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// publication is one process publishing a shared folder. See dirshared.go for
// what it may find and why others at the same work do no harm.
type publication struct {
	*dirTicket
	target   *dirTarget
	steps    *steps
	layout   *layout
	owner    string // of the folder in the making, if it is ours
	names    []string
	success  []byte
	decision []byte
	notes    []string
}

var (
	// errLost means that another process took the folder over.
	errLost = errors.New("another process is publishing it")
	// errMissing means that there is no folder to publish, and the target is not what it would be.
	errMissing = errors.New("neither the rows nor an output of this job are there")
)

// publishTries is how often a publication that lost its folder looks again.
const publishTries = 40

// run publishes until it is done, by whomever.
func (p *publication) run() error {
	for n := 1; ; n++ {
		err := p.try()
		if !errors.Is(err, errLost) && !errors.Is(err, errMissing) || n == publishTries {
			return err
		}
		if errors.Is(err, errMissing) && n >= 5 { // it was more than a rename that we did not see
			return fmt.Errorf("job %s: %w: somebody moved or removed them", p.Job, errors.Join(ErrState, err))
		}
		// The longer it takes, the more time the others get.
		p.target.pause(n)
	}
}

// pausePublishing waits before the n-th try.
func pausePublishing(n int) {
	longest := 20 * time.Millisecond << min(n, 9)
	time.Sleep(longest/2 + rand.N(longest/2))
}

func (p *publication) try() error {
	if _, err := os.Lstat(p.container()); errors.Is(err, fs.ErrNotExist) {
		return p.ended()
	}
	if err := p.decide(); err != nil {
		return err
	}
	stage, swapping, err := p.claim()
	if err != nil {
		return err
	}
	if stage == "" { // it was renamed to the target
		if !p.confirmed() {
			return errMissing
		}
		return p.finish()
	}
	if swapping && !p.marked(stage) { // that is the former content
		return p.finish()
	}
	if !swapping {
		if err := p.build(stage); err != nil {
			return p.unlessLost(stage, err)
		}
	}
	return p.place(stage, swapping)
}

// ended is called when the place is gone: it may be since all is done.
func (p *publication) ended() error {
	if !p.confirmed() {
		return fmt.Errorf("job %s has ended, and its place %s is not there: %w", p.Job, p.container(), ErrState)
	}
	return p.target.removeLeft(p.container())
}

// decide makes the folder commit, unless it is there, and sees that the same
// is to be published.
func (p *publication) decide() error {
	kept := filepath.Join(p.commit(), decisionName)
	if _, err := os.Lstat(kept); errors.Is(err, fs.ErrNotExist) {
		making := p.commit() + "." + p.owner
		err := p.steps.mkdir(making)
		if errors.Is(err, fs.ErrExist) { // from an earlier try
			err = nil
		}
		if err == nil {
			err = p.steps.write(filepath.Join(making, decisionName), p.decision)
		}
		if err == nil {
			err = p.steps.mkdir(filepath.Join(making, outName))
			if errors.Is(err, fs.ErrExist) {
				err = nil
			}
		}
		if err == nil {
			err = p.steps.syncDir(making)
		}
		if err == nil {
			err = p.steps.rename(making, p.commit())
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return p.unlessLost(p.container(), err)
		}
	}
	have, err := os.ReadFile(kept)
	if errors.Is(err, fs.ErrNotExist) {
		return errLost
	}
	if err != nil {
		return err
	}
	if string(have) != string(p.decision) {
		return fmt.Errorf("job %s is being published with other parts: %w", p.Job, ErrState)
	}
	return nil
}

// find returns the folder in the making, or "" if there is none.
func (p *publication) find() (name string, swapping bool, err error) {
	entries, err := os.ReadDir(p.commit())
	if err != nil {
		return "", false, err
	}
	for _, e := range entries {
		kind, _, _ := strings.Cut(e.Name(), ".")
		switch kind {
		case outName:
			return e.Name(), false, nil
		case swapName:
			return e.Name(), true, nil
		}
	}
	return "", false, nil
}

// claim makes the folder in the making ours and returns its path, or "" if there is none.
func (p *publication) claim() (stage string, swapping bool, err error) {
	name, swapping, err := p.find()
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, errLost
	}
	if err != nil || name == "" {
		return "", false, err
	}
	kind := outName
	if swapping {
		kind = swapName
	}
	stage = filepath.Join(p.commit(), kind+"."+p.owner)
	from := filepath.Join(p.commit(), name)
	if from == stage {
		return stage, swapping, nil
	}
	if err := p.steps.rename(from, stage); err != nil {
		return "", false, p.unlessLost(from, err)
	}
	return stage, swapping, nil
}

// unlessLost returns errLost if a step failed since the folder it was about is not there.
func (p *publication) unlessLost(folder string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		if _, gone := os.Lstat(folder); errors.Is(gone, fs.ErrNotExist) {
			return errLost
		}
	}
	return err
}

func (p *publication) marked(folder string) bool {
	_, err := os.Lstat(filepath.Join(folder, p.marker()))
	return err == nil
}

// build moves the winners to the folder and writes _SUCCESS.
func (p *publication) build(stage string) error {
	entries, err := os.ReadDir(stage)
	if err != nil {
		return err
	}
	there := make(map[string]bool, len(entries))
	for _, e := range entries {
		there[e.Name()] = true
	}
	making := filepath.Join(stage, ".quern-making."+p.owner)
	for i, name := range p.names {
		part := PartName(i, p.layout.format, p.layout.compression)
		if there[part] {
			delete(there, part)
			continue
		}
		to := filepath.Join(stage, part)
		if name == "" {
			if err := p.writeEmpty(i, making); err != nil {
				return err
			}
			if err := p.steps.rename(making, to); err != nil {
				return err
			}
			continue
		}
		if err := p.steps.rename(filepath.Join(p.attempts(), name), to); err != nil {
			if err = p.unlessLost(stage, err); errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("part %d: the file of its attempt is missing: %w", i, err)
			}
			return err
		}
	}
	if there[successName] {
		delete(there, successName)
	} else {
		if err := p.steps.write(making, p.success); err != nil {
			return err
		}
		if err := p.steps.rename(making, filepath.Join(stage, successName)); err != nil {
			return err
		}
	}
	for name := range there { // of processes that were at it before
		err := p.steps.remove(filepath.Join(stage, name))
		if err = p.unlessLost(stage, err); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err // not there any more: our own from an earlier try
		}
	}
	return p.steps.syncDir(stage)
}

// writeEmpty writes a part without rows.
func (p *publication) writeEmpty(index int, path string) error {
	if err := p.steps.at("create", path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	books, err := newLedger(p.target.path, len(p.names))
	if err != nil {
		return err
	}
	part, err := books.open(index, func() (Part, sink, error) {
		f, err := p.target.create(path)
		if err != nil {
			return nil, nil, err
		}
		s := &fileSink{file: f}
		part, err := p.layout.open(s, p.layout.encoder)
		return part, s, err
	})
	if err != nil {
		return err
	}
	return part.fill()
}

// place puts the folder in the target's place.
func (p *publication) place(stage string, swapping bool) error {
	if info, err := os.Lstat(p.Real); err == nil && info.IsDir() {
		// As when a job on this machine replaces a folder.
		if p.steps.chmod(stage, info.Mode()&(fs.ModePerm|fs.ModeSetgid|fs.ModeSticky)) != nil {
			if _, err := os.Lstat(stage); err != nil {
				return errLost
			}
		}
	}
	marker := filepath.Join(stage, p.marker())
	if !swapping && p.marked(stage) {
		if err := p.steps.remove(marker); err != nil {
			return p.unlessLost(stage, err)
		}
	}
	err := p.steps.place(stage, p.Real)
	switch {
	case err == nil:
		return p.finish()
	case !errors.Is(err, fs.ErrExist):
		return p.unlessLost(stage, err)
	case !p.target.opts.Overwrite:
		if _, err := os.Lstat(stage); err != nil {
			return errLost // and it is that process's output that exists
		}
		return existsHint()
	}
	if !swapping {
		if err := p.steps.write(marker, nil); err != nil {
			return p.unlessLost(stage, err)
		}
		swap := filepath.Join(p.commit(), swapName+"."+p.owner)
		if err := p.steps.rename(stage, swap); err != nil {
			return p.unlessLost(stage, err)
		}
		stage = swap
	}
	err = p.steps.exchange(stage, p.Real)
	if errors.Is(err, errors.ErrUnsupported) {
		// The target must be gone for a moment. Who comes next, if this is
		// the last step, finds it so and renames the folder.
		if _, lost := os.Lstat(stage); lost != nil {
			return errLost
		}
		if err = p.steps.rename(p.Real, filepath.Join(p.commit(), oldName)); err == nil {
			err = p.steps.place(stage, p.Real)
		}
	}
	if err != nil {
		if _, lost := os.Lstat(stage); lost != nil || errors.Is(err, fs.ErrNotExist) {
			return errLost // the folder or the target vanished: look again
		}
		return fmt.Errorf("replace it: %w", err)
	}
	return p.finish()
}

// published says whether only cleaning up is left. It changes nothing.
func (p *publication) published() (bool, error) {
	name, swapping, err := p.find()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case name == "":
		return p.confirmed(), nil
	case !swapping:
		return false, nil
	}
	folder := filepath.Join(p.commit(), name)
	if p.marked(folder) {
		return false, nil
	}
	_, err = os.Lstat(folder) // unless it was taken over meanwhile
	return err == nil, nil
}

// confirmed says that the target is what is to be published.
func (p *publication) confirmed() bool {
	if !sameFile(filepath.Join(p.Real, successName), p.success) {
		return false
	}
	entries, err := os.ReadDir(p.Real)
	if err != nil {
		return false
	}
	parts := 0
	for _, e := range entries {
		switch name := e.Name(); {
		case name == successName, name == p.marker():
		case parts < len(p.names) && p.isPart(parts, name): // they are in order
			parts++
		default:
			return false
		}
	}
	return parts == len(p.names)
}

// isPart says whether a file is named like a part of that index.
func (p *publication) isPart(index int, name string) bool {
	if p.layout != nil {
		return name == PartName(index, p.layout.format, p.layout.compression)
	}
	plain := PartName(index, TSV, NoCompression)
	return name == plain || strings.HasPrefix(name, plain+".")
}

// finish makes the names last and removes what is not needed any more.
func (p *publication) finish() error {
	if err := p.steps.remove(filepath.Join(p.Real, p.marker())); err != nil && !missingPath(err) {
		return err
	}
	if err := p.steps.syncDir(filepath.Dir(p.Real)); err != nil {
		return err
	}
	for _, dir := range p.Made {
		if err := p.steps.syncDir(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	done := p.container() + ".done"
	err := p.steps.rename(p.container(), done)
	if errors.Is(err, fs.ErrExist) {
		if err = p.steps.removeAll(done); err == nil {
			err = p.steps.rename(p.container(), done)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := p.target.removeLeft(p.container()); err != nil {
		p.notes = append(p.notes, fmt.Sprintf("output %s: it is complete, but what it was made of, and its former content if it had any, could not be removed and is left in %s: %v", p.target.path, done, err))
	}
	return nil
}
