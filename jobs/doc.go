// SPDX-License-Identifier: Apache-2.0

// Package jobs holds the ready-made jobs (wordcount, grep, count, aggregate,
// distinct, topk, histogram, sort, join, dedup) and job files. A job's options
// are one struct: the command line makes flags of its fields, a job file holds
// them as keys of the same names.
package jobs
