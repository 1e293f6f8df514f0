// SPDX-License-Identifier: Apache-2.0

package task

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// MaxSideInputs is how many side inputs a job may have.
const MaxSideInputs = 64

// ErrSideInput is what an error is about a side input that a request tells of and that this
// process can't have. It is the parent's fault, or its machine's.
var ErrSideInput = errors.New("a request with a side input that can't be read")

// CheckSideName says what is wrong with the name of a side input, or nil: names are 1 to 64
// bytes of printable ASCII.
func CheckSideName(name string) error {
	if name == "" {
		return errors.New("it has no name")
	}
	if len(name) > 64 {
		return fmt.Errorf("its name has %d bytes, 64 are the most", len(name))
	}
	for i := range len(name) {
		if name[i] < ' ' || name[i] > '~' {
			return fmt.Errorf("its name has the byte %#x at %d: printable ASCII is possible", name[i], i)
		}
	}
	return nil
}

// HandOn has a command that is not started yet inherit a file that holds a side input, and
// returns where the program finds it, for Request.SideInputs. f, which stays the caller's, is
// to be open until the command has started; it may be nil if size is 0. It can be called
// before and after Pipe.
func HandOn(cmd *exec.Cmd, name string, f *os.File, offset, size int64) SideInput {
	s := SideInput{Name: name, Offset: offset, Size: size}
	if f != nil && size > 0 {
		s.Descriptor = 3 + len(cmd.ExtraFiles)
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	return s
}

// takeSides takes the descriptors of side inputs, so that processes which this one starts do
// not inherit them.
func (h *Hosted) takeSides(r *Request) error {
	if len(r.SideInputs) > MaxSideInputs {
		return fmt.Errorf("%w: there are %d, and %d are the most", ErrSideInput, len(r.SideInputs), MaxSideInputs)
	}
	seen := make(map[string]bool, len(r.SideInputs))
	for _, s := range r.SideInputs {
		err := CheckSideName(s.Name)
		switch {
		case err != nil:
		case seen[s.Name]:
			err = errors.New("it is there twice")
		case s.Size < 0 || s.Offset < 0 || s.Offset+s.Size < 0:
			err = fmt.Errorf("%d bytes from byte %d on", s.Size, s.Offset)
		case s.Size == 0: // it needs no descriptor
		case s.Descriptor < 3 || s.Descriptor == h.fds[0] || s.Descriptor == h.fds[1]:
			err = fmt.Errorf("descriptor %d", s.Descriptor)
		default:
			err = takeSide(s)
		}
		if err != nil {
			return fmt.Errorf("%w: %q: %w", ErrSideInput, s.Name, err)
		}
		seen[s.Name] = true
	}
	return nil
}
