// SPDX-License-Identifier: Apache-2.0

package broadcast

// DefaultMemory is what Options.Memory is if nothing is said, in bytes: an eighth of the machine's memory, or 1 GiB if that is not
// known.
func DefaultMemory() int64 {
	if n := machineMemory() / 8; n > 0 {
		return n
	}
	return defaultMemory
}
