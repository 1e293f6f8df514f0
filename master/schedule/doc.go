// SPDX-License-Identifier: Apache-2.0

// Package schedule decides which attempt of which task runs where. It is a state
// machine: events go in, actions come out. It has no clock (every call says what
// time it is), no I/O, no goroutines and no randomness, so that any history can
// be written down, replayed and simulated.
//
// # What it decides
//
// Slots. A worker has as many slots for plan and map attempts as for reduce, commit and abort attempts. A task
// goes to the worker with the largest share of free slots. Jobs of higher priority go first, but nothing is taken
// from those that run; jobs of one priority get equal numbers of slots. Memory is not kept free for a job
// whose attempts take much: it may wait for as long as others fill the gaps.
//
// The members of a gang are placed all or nothing, in the order of priority and waiting. Room is kept for one that has waited for
// Config.GangWait and that only ordinary attempts keep out; see gangplace.go.
//
// A job of a platform is given to workers of that platform alone. One that no worker could run, were it free,
// waits for Config.NoWorkers and fails. Then, and in any other case in which nobody is there to do it, those who wait are told
// of the job's end, and stage Abort is left until a worker comes.
//
// Map tasks go the longest first, and to workers near their input where one is free. Reduce tasks begin when every map
// task has been committed and at most one output in twenty is missing: with many workers some output is
// always being made again.
//
// Lost map outputs. What any uncommitted reduce task reads is made again at once, before somebody asks for it; reduce
// attempts that run are left alone and told the new place. If there is no room for it, a reduce attempt of the same job that waits
// for a map output makes room. An output that nobody reads any more is only noted, and made again if a reduce task
// that reads it begins anew.
//
// A map output that is made again with another digest begins the reduce tasks anew that read the difference. So all
// parts of a result are made of one and the same attempt of each map task.
//
// A drained worker keeps its outputs until they were made elsewhere, or nobody needs them; if they can't be made
// elsewhere, it stays until the job has ended.
//
// A plan attempt that was stopped or lost may have prepared the output, so a job that ends without a plan
// aborts, too, if there was one.
//
// Cancelling comes too late once an attempt to publish the output has been launched.
//
// What happens to one job costs the others nothing, and an event costs a number of steps that grows with the logarithm of
// workers and tasks, beside one for each thing that it is about: outputs of a worker that is lost, readers that are to be told.
package schedule
