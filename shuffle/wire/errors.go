// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
)

// What can be wrong with a frame or a table. Errors of this package wrap one of
// them, so that errors.Is finds it.
var (
	ErrShort   = errors.New("frame ends too early")
	ErrMagic   = errors.New("not a frame of ours")
	ErrVersion = errors.New("unknown version of the frame format; run the same release on both hosts")
	ErrKind    = errors.New("unknown kind of frame")
	ErrFormat  = errors.New("damaged head of a frame")
	ErrLength  = errors.New("length of a frame does not fit what is in it")
	ErrPair    = errors.New("damaged pair")
	ErrBody    = errors.New("damaged body of a frame")
	ErrTable   = errors.New("damaged table")
	ErrMisuse  = errors.New("pair does not belong in this frame")
)

func pairError(i int, why string) error { return fmt.Errorf("%w: pair %d: %s", ErrPair, i, why) }
