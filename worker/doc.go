// SPDX-License-Identifier: Apache-2.0

// Package worker is a member of a cluster that runs attempts of tasks for a master.
//
// It attends its master: it says hello, renews its lease, and does as it is told.
// Every attempt is a child process (package process). What map attempts leave is
// kept and handed to those who reduce by package exchange; the input of a
// reduce attempt is gathered here before its child begins.
//
// A worker decides nothing about jobs. It outlives its master's absence: attempts
// run on, results are kept and offered until they are taken or refused, and
// the master is looked for until it is found. If the worker itself was stopped for
// longer than its lease, it says hello again before it acts on anything.
package worker
