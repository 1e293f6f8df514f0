// SPDX-License-Identifier: Apache-2.0

// Package task is what a job program and the process that started it say to each
// other: a worker that has an attempt of a task run in a child process, or
// "quern submit", which has the program say what it wants to run.
//
// A program is any main that calls [mapreduce.Run] (or Job.Run). Started by
// hand it runs the job itself. Started with [Env] in its environment it speaks
// this protocol instead, once it reaches the call that is meant: it reads one
// [Request] from one descriptor, writes [Reply] messages to the other, and
// exits. Messages are JSON objects, one a line.
//
// So code and options of a job never travel: every attempt runs the program's
// main with the same arguments up to the same call, and only what a plan found
// (files, splits, sizes) and the job's constants are handed over. What is too large
// for a message is in files: runs by their paths, side inputs by descriptors that the
// program inherits and maps ([HandOn]).
package task
