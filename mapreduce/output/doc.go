// SPDX-License-Identifier: Apache-2.0

// Package output writes a job's rows: as TSV, CSV, JSON lines or Parquet, to a
// folder of part files, on disk or in S3, or to a stream, all or nothing.
//
// It knows nothing of tasks and keys' meaning: it is handed rows in their final
// order.
package output
