// SPDX-License-Identifier: Apache-2.0

// Package process runs the child process of one attempt of a task, and sees to
// its end: whatever the program does, it harms its own attempt and nothing else,
// and nothing of it is left.
//
// A child runs in a session and process group of its own, with an environment
// that holds no secrets of the worker. It is killed, with what it started, when
// its attempt is not wanted any more, when it takes too much memory, says
// nothing or makes no progress; and by the system when the worker dies. What it
// started is known by its session and by the folder that TMPDIR names in its
// environment: a process that gives up both is not found. It is a guard against
// accidents, not against malice: programs run with the worker's rights.
//
// Only Linux has what is needed; elsewhere Run returns an error.
package process
