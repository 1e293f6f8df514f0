// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package task

import "errors"

func closeOnExec(int) error              { return errors.ErrUnsupported }
func vectorSize(int) (int64, error)      { return 0, errors.ErrUnsupported }
func growVector(int, int64) error        { return errors.ErrUnsupported }
func mapVector(int, int) ([]byte, error) { return nil, errors.ErrUnsupported }
func unmapVector([]byte) error           { return errors.ErrUnsupported }
