// SPDX-License-Identifier: Apache-2.0

// Package testsummary reads the events of go test -json and says what matters:
// a line per package, the output of what failed, and which tests were
// skipped and why. A skip that nobody expected is worth a look: a test that is
// skipped for want of a program looks like one that passed.
package testsummary
