// SPDX-License-Identifier: Apache-2.0

// Package objectlab runs a real S3 server for tests, and stands between it and
// its clients to let requests fail: it exists so that what is said about object
// stores is tested against one.
package objectlab
