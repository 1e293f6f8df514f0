// SPDX-License-Identifier: Apache-2.0

// Package mapreduce is the library that people embed: a [Job] with a typed Map
// and either a [Fold] or a grouped Reduce, inputs, side inputs, outputs, counters,
// and the local engine that runs a job on all cores of one machine.
package mapreduce
