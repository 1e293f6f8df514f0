// SPDX-License-Identifier: Apache-2.0

package output

import "errors"

// What Begin and Commit may refuse. They come wrapped with the path; ask with errors.Is.
var (
	// ErrExists means that the target exists and holds something, and that it is not to be overwritten.
	ErrExists = errors.New("exists and is not empty")
	// ErrOverlap means that writing the target would destroy an input file.
	ErrOverlap = errors.New("holds input of this job")
	// ErrTarget means that no output folder can be at that path: it is a file, a
	// mount point, the current folder, ...
	ErrTarget = errors.New("cannot be an output folder")
	// ErrUnsupported means a format or compression that is unknown or does not
	// go with the target or the schema.
	ErrUnsupported = errors.New("not supported")
	// ErrState means that a transaction's methods were called in a wrong order,
	// such as Commit before a part was closed.
	ErrState = errors.New("output used in a wrong order")
)
