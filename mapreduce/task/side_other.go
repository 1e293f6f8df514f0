// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package task

import "errors"

func takeSide(SideInput) error { return errors.ErrUnsupported }

// Map is not built for this system.
func (s SideInput) Map() (content []byte, unmap func() error, err error) {
	return nil, nil, errors.ErrUnsupported
}
