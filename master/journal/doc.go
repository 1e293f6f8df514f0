// SPDX-License-Identifier: Apache-2.0

// Package journal keeps on disk what a master must not forget: the cluster's
// name, how often it was started, jobs with their constants, results that were accepted, workers that
// it knew, and how jobs ended. It knows how these are stored and nothing of
// what they mean.
package journal
