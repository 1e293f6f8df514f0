// SPDX-License-Identifier: Apache-2.0

package allreduce

// DefaultMemory is what Options.Memory is if nothing is said, in bytes.
const DefaultMemory = defaultMemory
