// SPDX-License-Identifier: Apache-2.0

// Package house checks that the module keeps to its own floor plan: which
// package may import which, that every package says what it is for, and a few
// habits that reviewers should not have to think about.
//
// The rules look at source files alone, whatever system they are built for.
// The package's test applies them to the whole module.
package house
