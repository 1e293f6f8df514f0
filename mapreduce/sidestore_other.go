// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mapreduce

// newSideStore returns a store for so many bytes, if that is known.
func newSideStore(size int64) sideStore { return &heapStore{make([]byte, 0, size)} }
