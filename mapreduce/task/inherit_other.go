// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package task

import (
	"errors"
	"os"
)

const inherits = false

func inherited(uintptr, string) (*os.File, error) { return nil, errors.ErrUnsupported }
