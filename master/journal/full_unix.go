// SPDX-License-Identifier: Apache-2.0

//go:build unix

package journal

import (
	"errors"
	"syscall"
)

func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
