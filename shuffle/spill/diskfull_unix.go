// SPDX-License-Identifier: Apache-2.0

//go:build unix

package spill

import (
	"errors"
	"syscall"
)

// isDiskFull says whether err means that there is no more room, or none that
// we may use.
func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}
