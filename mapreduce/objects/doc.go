// SPDX-License-Identifier: Apache-2.0

// Package objects reads and writes objects of S3 and of what speaks its
// protocol: it exists so that nothing else knows a client library, its errors
// or its settings.
//
// It knows no records, parts or jobs. Where the store is and who asks is taken
// from the environment alone (see Environment), so that it is the same in every process of a job.
package objects
