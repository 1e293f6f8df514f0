// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package spill

// invariants says whether costly checks of callers and of ourselves are on.
const invariants = true
