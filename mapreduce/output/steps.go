// SPDX-License-Identifier: Apache-2.0

package output

import (
	"io/fs"
	"os"
)

// steps are the changes that a shared output makes to the file system. Each is
// whole or not there after a crash (but removeAll, which may be repeated), so a
// publication that stops between any two of them can go on from there.
type steps struct {
	before func(op, path string) error // tests stop things here
}

func (s *steps) at(op, path string) error {
	if s.before == nil {
		return nil
	}
	return s.before(op, path)
}

func (s *steps) mkdir(path string) error {
	if err := s.at("mkdir", path); err != nil {
		return err
	}
	return os.Mkdir(path, 0o777)
}

func (s *steps) rename(from, to string) error {
	if err := s.at("rename", to); err != nil {
		return err
	}
	return os.Rename(from, to)
}

// place renames a folder to a target that is missing or empty.
func (s *steps) place(from, to string) error {
	if err := s.at("place", to); err != nil {
		return err
	}
	return replaceEmpty(from, to)
}

// exchange lets two folders change places, where the system can.
func (s *steps) exchange(a, b string) error {
	if err := s.at("exchange", b); err != nil {
		return err
	}
	return exchange(a, b)
}

func (s *steps) remove(path string) error {
	if err := s.at("remove", path); err != nil {
		return err
	}
	return os.Remove(path)
}

func (s *steps) removeAll(path string) error {
	if err := s.at("remove all", path); err != nil {
		return err
	}
	return os.RemoveAll(path)
}

func (s *steps) chmod(path string, mode fs.FileMode) error {
	if err := s.at("chmod", path); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

func (s *steps) syncDir(path string) error {
	if err := s.at("sync", path); err != nil {
		return err
	}
	return syncDir(path)
}

// write makes a file of that content, which may be there already, and syncs it.
func (s *steps) write(path string, content []byte) error {
	if err := s.at("write", path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	sink := &fileSink{file: f}
	if _, err := sink.Write(content); err != nil {
		sink.abandon()
		return err
	}
	return sink.finish()
}
