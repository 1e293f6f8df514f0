// SPDX-License-Identifier: Apache-2.0

// Package tasktest runs a job program from plan to commit, each task in a child
// process, as a cluster does but without one: for tests of programs and of what
// speaks to them.
package tasktest
