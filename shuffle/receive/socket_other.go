// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package receive

import "errors"

const controlRoom = 0

func sharePort(uintptr) error { return errors.ErrUnsupported }

func tune(uintptr, bool, int) (bool, int) { return false, 0 }

func segment([]byte) int { return 0 }

func appendSource(dst, _ []byte) []byte { return dst }
