// SPDX-License-Identifier: Apache-2.0

package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A shared folder is made in a place beside the target, a folder
// .NAME.quern-JOB, which holds
//
//	ticket                what Prepare found; it is there as soon as the place is
//	attempts/part-...     a finished part of an attempt; unfinished ones begin with a dot
//	commit/decision       which attempts won; it is there as soon as commit is
//	commit/out[.OWNER]    the folder that becomes the target, in the making
//	commit/swap.OWNER     the same, about to change places with a target that holds something
//	commit/old            the former target, where the system cannot exchange folders
//
// Whoever publishes first gives the folder a name of its own, OWNER. From then
// on every step names it so. Another process that publishes takes it over by
// another rename, and each further step of the first one finds nothing. So two
// at once, or one that was stopped for a while, do no harm. The exchange is the only
// step after which the name stands for something else, the former content; a
// marker in the new folder, which is removed from the target at once, tells them apart.
const (
	ticketName   = "ticket"
	attemptsName = "attempts"
	commitName   = "commit"
	decisionName = "decision"
	outName      = "out"
	swapName     = "swap"
	oldName      = "old"
)

// sharedNameBytes is how much of the target's name is in its place's name.
const sharedNameBytes = 150

// longestJob is the length of the longest id of a job or an attempt.
const longestJob = 64

// dirTicket is what all calls for one job must agree on.
type dirTicket struct {
	Version int      `json:"version"`
	Job     string   `json:"job"`
	Real    string   `json:"real"`           // the target, absolute and with links followed
	Made    []string `json:"made,omitempty"` // folders made above it, outermost first
}

const dirTicketVersion = 1

// decision is what a job's output is made of.
type decision struct {
	Names   []string `json:"names"`
	Success []byte   `json:"success"`
}

func (k *dirTicket) container() string {
	return tempPrefix(k.Real, sharedNameBytes) + k.Job
}

func (k *dirTicket) attempts() string { return filepath.Join(k.container(), attemptsName) }

func (k *dirTicket) commit() string { return filepath.Join(k.container(), commitName) }

func (k *dirTicket) marker() string { return ".quern-" + k.Job }

// validID says whether an id can be a part of a file's name.
func validID(id string) bool {
	if id == "" || len(id) > longestJob {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

func checkID(path, what, id string) error {
	if !validID(id) {
		return fmt.Errorf("output %s: the %s %q must be 1 to %d letters, digits, - and _: %w", path, what, id, longestJob, ErrState)
	}
	return nil
}

// Prepare implements Shared.
func (t *dirTarget) Prepare(info Info, job string) ([]byte, error) {
	if err := checkID(t.path, "job id", job); err != nil {
		return nil, err
	}
	if _, _, err := t.layout(info); err != nil {
		return nil, err
	}
	place, err := findPlace(t.path)
	if err != nil {
		return nil, err
	}
	k := dirTicket{Version: dirTicketVersion, Job: job, Real: place.real}
	if ticket, err := os.ReadFile(filepath.Join(k.container(), ticketName)); err == nil {
		return ticket, nil // all was checked; by now the target may be there
	}
	if err := place.check(info.Inputs, t.opts.Overwrite); err != nil {
		return nil, err
	}
	ticket, err := t.makePlace(&k, place.missing)
	if err != nil {
		for i := len(k.Made) - 1; i >= 0 && t.steps.remove(k.Made[i]) == nil; i-- {
		}
		return nil, fmt.Errorf("output %s: %w%s", t.path, err, advice(err))
	}
	return ticket, nil
}

// makePlace makes the place and returns its ticket.
func (t *dirTarget) makePlace(k *dirTicket, missing []string) ([]byte, error) {
	container := k.container()
	for _, dir := range missing {
		if err := t.steps.mkdir(dir); err == nil {
			k.Made = append(k.Made, dir)
		} else if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	ticket, err := json.Marshal(k)
	if err != nil {
		return nil, err
	}
	// It is made under another name, so that it is whole when it is there.
	making := container + "." + newOwner()
	err = t.steps.mkdir(making)
	if err == nil {
		err = t.steps.mkdir(filepath.Join(making, attemptsName))
	}
	if err == nil {
		err = t.steps.write(filepath.Join(making, ticketName), ticket)
	}
	if err == nil {
		err = t.steps.syncDir(making)
	}
	if err == nil {
		err = t.steps.rename(making, container)
	}
	if err != nil {
		_ = t.steps.removeAll(making)
		if first, failed := os.ReadFile(filepath.Join(container, ticketName)); failed == nil {
			return first, nil // another process was faster
		}
		return nil, err
	}
	return ticket, t.steps.syncDir(filepath.Dir(container))
}

func newOwner() string { return strconv.FormatUint(rand.Uint64(), 36) }

func (t *dirTarget) readTicket(ticket []byte) (*dirTicket, error) {
	k := new(dirTicket)
	if err := json.Unmarshal(ticket, k); err != nil {
		return nil, fmt.Errorf("output %s: the ticket cannot be read: %w", t.path, err)
	}
	if k.Version != dirTicketVersion || !validID(k.Job) || !filepath.IsAbs(k.Real) {
		return nil, fmt.Errorf("output %s: the ticket is not one of this version: %w", t.path, ErrState)
	}
	return k, nil
}

// Attempt implements Shared.
func (t *dirTarget) Attempt(info Info, ticket []byte, index int, attempt string) (SharedAttempt, error) {
	k, err := t.readTicket(ticket)
	if err != nil {
		return nil, err
	}
	if err := checkID(t.path, "attempt id", attempt); err != nil {
		return nil, err
	}
	l, books, err := t.layout(info)
	if err != nil {
		return nil, err
	}
	dir := k.attempts()
	a := &dirAttempt{target: t, dir: dir, ledger: books}
	a.name = PartName(index, l.format, l.compression) + "." + attempt
	a.making = filepath.Join(dir, "."+a.name)
	part, err := books.open(index, func() (Part, sink, error) {
		if err := t.steps.remove(a.making); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err // left by a process that was killed
		}
		if err := t.steps.at("create", a.making); err != nil {
			return nil, nil, err
		}
		f, err := t.create(a.making)
		if err != nil {
			return nil, nil, err
		}
		s := &fileSink{file: f}
		p, err := l.open(s, l.encoder)
		return p, s, err
	})
	if err != nil {
		return nil, errors.Join(t.explainGone(k, err), a.Abort())
	}
	a.part = part
	return a, nil
}

// explainGone says so if an error comes from the place not being there any more.
func (t *dirTarget) explainGone(k *dirTicket, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		if _, gone := os.Lstat(k.container()); errors.Is(gone, fs.ErrNotExist) {
			return fmt.Errorf("output %s: job %s has ended: its place %s is not there: %w", t.path, k.Job, k.container(), errors.Join(ErrState, err))
		}
	}
	return err
}

type dirAttempt struct {
	target *dirTarget
	ledger *ledger
	part   *ledgerPart
	dir    string
	making string // path until Commit
	name   string // from then on, in dir
	done   bool
}

func (a *dirAttempt) Part() Part { return a.part }

func (a *dirAttempt) Commit() (string, error) {
	if a.done {
		return a.name, nil
	}
	if err := a.ledger.complete(); err != nil {
		return "", err
	}
	steps := &a.target.steps
	err := steps.rename(a.making, filepath.Join(a.dir, a.name))
	if err == nil {
		err = steps.syncDir(a.dir)
	}
	if err != nil {
		return "", fmt.Errorf("output %s: part %d: %w%s", a.target.path, a.part.index, err, advice(err))
	}
	a.done = true
	a.ledger.end()
	return a.name, nil
}

func (a *dirAttempt) Abort() error {
	if !a.ledger.end() {
		return nil
	}
	if err := a.target.steps.remove(a.making); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("output %s: remove an attempt's file: %w", a.target.path, err)
	}
	return nil
}

// winners checks the names of the parts that won.
func winners(path string, info Info, l *layout, names []string) error {
	if len(names) != info.Parts {
		return fmt.Errorf("output %s: %d parts to publish of %d: %w", path, len(names), info.Parts, ErrState)
	}
	for i, name := range names {
		if name == "" {
			continue
		}
		if attempt, ok := strings.CutPrefix(name, PartName(i, l.format, l.compression)+"."); !ok || !validID(attempt) {
			return fmt.Errorf("output %s: %q is no attempt of part %d: %w", path, name, i, ErrState)
		}
	}
	return nil
}

// Publish implements Shared. A part without a name is written empty.
func (t *dirTarget) Publish(info Info, ticket []byte, names []string, success []byte) ([]string, error) {
	k, err := t.readTicket(ticket)
	if err != nil {
		return nil, err
	}
	l, _, err := t.layout(info)
	if err != nil {
		return nil, err
	}
	if err := winners(t.path, info, l, names); err != nil {
		return nil, err
	}
	d, err := json.Marshal(decision{Names: names, Success: success})
	if err != nil {
		return nil, fmt.Errorf("output %s: %w", t.path, err)
	}
	p := &publication{dirTicket: k, target: t, steps: &t.steps, layout: l, owner: newOwner(), names: names, success: success, decision: d}
	if err := p.run(); err != nil {
		return p.notes, fmt.Errorf("output %s: %w%s", t.path, err, advice(err))
	}
	return p.notes, nil
}

// Discard implements Shared.
func (t *dirTarget) Discard(ticket []byte) error {
	k, err := t.readTicket(ticket)
	if err != nil {
		return err
	}
	if err := t.discard(k); err != nil {
		return fmt.Errorf("output %s: discard what job %s left: %w", t.path, k.Job, err)
	}
	return nil
}

func (t *dirTarget) discard(k *dirTicket) error {
	container := k.container()
	if b, err := os.ReadFile(filepath.Join(k.commit(), decisionName)); err == nil {
		var d decision
		if err := json.Unmarshal(b, &d); err != nil {
			return err
		}
		p := &publication{dirTicket: k, target: t, steps: &t.steps, names: d.Names, success: d.Success, decision: b}
		if done, err := p.published(); err != nil {
			return err
		} else if done {
			return p.finish() // all but cleaning up was done
		}
	}
	gone := container + ".gone"
	err := t.steps.rename(container, gone)
	if errors.Is(err, fs.ErrExist) { // left by one that was killed
		if err = t.steps.removeAll(gone); err == nil {
			err = t.steps.rename(container, gone)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Nobody can publish any more. Who was at it may have moved the former
	// content aside, or have been killed right after the exchange.
	old := filepath.Join(gone, commitName, oldName)
	if _, err := os.Lstat(old); err == nil {
		if _, err := os.Lstat(k.Real); errors.Is(err, fs.ErrNotExist) {
			if err := t.steps.rename(old, k.Real); err != nil {
				return err
			}
		}
	}
	if err := t.steps.remove(filepath.Join(k.Real, k.marker())); err != nil && !missingPath(err) {
		return err
	}
	// Those of Prepare and Publish that were killed go as well.
	if err := t.removeLeft(container); err != nil {
		return err
	}
	for i := len(k.Made) - 1; i >= 0; i-- {
		if t.steps.remove(k.Made[i]) != nil { // somebody uses it by now
			break
		}
	}
	return nil
}

// removeLeft removes folders whose names are that of the place and a dot and more.
func (t *dirTarget) removeLeft(container string) error {
	dir, base := filepath.Split(container)
	entries, err := os.ReadDir(dir)
	if err != nil && !missingPath(err) {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), base+".") {
			if err := t.steps.removeAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// missingPath says that there is nothing at a path, since a folder above it is missing or is none.
func missingPath(err error) bool { return errors.Is(err, fs.ErrNotExist) || isNotDir(err) }

// sameFile says that a file has that content.
func sameFile(path string, content []byte) bool {
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(have, content)
}
