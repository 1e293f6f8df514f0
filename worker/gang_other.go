// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package worker

import (
	"errors"
	"os"
)

func sharedMemory() (*os.File, error) { return nil, errors.ErrUnsupported }
